"""The policy that every HTTP client of a server shares: address rotation, retries, and errors of responses.

The blocking connection of clients and the link of workers differ in their HTTP library and in how long they retry,
not in these rules. Invariant: every request may be sent twice, so a client moves to the next address after any
failure.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from noetl.errors import (
    AccessRefused,
    Conflict,
    NoetlError,
    NotFound,
    PayloadUnavailable,
    RequestRefused,
    StoreUnavailable,
)

BUSY = (429, 503)  # the server has rejected the request and done nothing
GATEWAY_ERRORS = (502, 503, 504)  # another address may work
_ERRORS: dict[int, type[NoetlError]] = {404: NotFound, 409: Conflict, 410: PayloadUnavailable}


class ServerBusy(StoreUnavailable):
    """The server rejected the request for now; it has done nothing."""


class ServerAddresses:
    """The addresses of the servers of one installation (separated by commas), one of which is in use."""

    def __init__(self, url: str) -> None:
        self.urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
        for each in self.urls:
            if urlsplit(each).scheme not in ("http", "https") or not urlsplit(each).hostname:
                raise RequestRefused(f"{each!r} is not a server address: write http://HOST:PORT or https://HOST")
        if not self.urls:
            raise RequestRefused("the server address is empty")
        self._current = 0

    @property
    def url(self) -> str:
        """The address in use."""
        return self.urls[self._current % len(self.urls)]

    def use_next(self, failed: str | None = None) -> None:
        """Use the next address, unless a concurrent request has already left the `failed` one."""
        if failed is None or failed == self.url:
            self._current += 1


def problem_detail(data: bytes) -> str:
    """The `detail` of a problem document, or the beginning of any other response."""
    try:
        document = msgspec.json.decode(data)
        return str(document.get("detail", document))
    except (msgspec.DecodeError, AttributeError):
        return data[:200].decode(errors="replace")


def response_error(url: str, status: int, detail: str) -> NoetlError:
    """The exception for an error response; StoreUnavailable means that a retry may succeed."""
    if status in BUSY:
        return ServerBusy(f"the server at {url} responded {status}: {detail}")
    if status in (500, *GATEWAY_ERRORS):
        return StoreUnavailable(f"the server at {url} responded {status}: {detail}")
    if status in (401, 403):
        return AccessRefused(f"the server at {url} refused the request: {detail}")
    return _ERRORS.get(status, RequestRefused)(detail)
