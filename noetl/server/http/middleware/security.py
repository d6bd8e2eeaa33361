"""What stands before every route: host and origin, size, rate, and who is calling.

`Host` and `Origin` are checked so that a page on another site cannot make a visitor's browser speak to a
server on the visitor's own machine (DNS rebinding, cross-site requests).
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl.server.http.access import Tokens
from noetl.server.http.problems import problem, unknown_caller

COOKIE = "noetl_token"
OPEN = frozenset({"/healthz", "/readyz"})
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WORK = "/api/work/"

Headers = dict[bytes, str]
_ONCE = frozenset({b"host", b"origin", b"authorization", b"content-length"})
_READ = _ONCE | {b"cookie", b"transfer-encoding"}

# Below these nothing is answered, and no body is read, for somebody who does not say who they are.
CLOSED = ("/api/", "/metrics", "/openapi.json", "/docs", "/schema/")


class TooLarge(HTTPException):
    """A body went over the limit while it was read."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"a body here has at most {limit} bytes")


class SecurityMiddleware:
    """ASGI middleware; what passes it has `scope["state"]["caller"]`, None where nobody said who they are."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens,
        hosts: Iterable[str] = (),
        max_body: int = 16 * 2**20,
        max_report: int = 256 * 2**20,
        per_second: float = 2_000.0,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._max_body = max_body
        self._max_report = max_report
        self._rate = RateLimiter(per_second)
        self._failures = RateLimiter(10.0, burst=50.0)  # wrong tokens, per address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at a request before anybody else does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        limit = self._max_report if path.startswith(WORK) else self._max_body
        headers, twice = _headers(scope)
        refusal = twice or self._wrong_host(headers) or self._wrong_origin(headers)
        if refusal is None and _length(headers) > limit:
            refusal = problem(413, f"a body here has at most {limit} bytes")
        if refusal is None:
            refusal = self._wrong_caller(scope, path, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif b"content-length" in headers and b"transfer-encoding" not in headers:
            await self._app(scope, receive, send)  # no more than it says can be read
        else:
            await self._within(limit, scope, receive, send)

    async def _within(self, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what is read: a chunked body does not say its length beforehand."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > limit:
                    raise TooLarge(limit)
            return message

        await self._app(scope, counted, send)

    def _wrong_caller(self, scope: Scope, path: str, headers: Headers) -> ASGIApp | None:
        """Who is calling, and whether too often."""
        address = scope["client"][0] if scope.get("client") else ""
        text = _token(headers)
        caller = self._tokens.caller(text) if text else None
        if text and caller is None and not self._failures.allow(address):
            return problem(429, "too many wrong tokens from this address; wait a little", headers={"Retry-After": "1"})
        # How much a worker's work is, the server itself decides.
        works = caller is not None and caller.may("worker") and path.startswith(WORK)
        if not works and not self._rate.allow(caller.name if caller else address):
            return problem(429, "too many requests; slow down", headers={"Retry-After": "1"})
        if caller is None and _is_closed(scope, path):
            return unknown_caller(wrong_token=bool(text))
        state = scope.setdefault("state", {})
        state["caller"] = caller
        state["wrong_token"] = bool(text) and caller is None
        return None

    def _wrong_host(self, headers: Headers) -> ASGIApp | None:
        name = _host_name(headers.get(b"host", ""))
        if name in self._hosts:
            return None
        return problem(421, f"this server does not answer for host {name!r}; add it to the setting server.hosts")

    def _wrong_origin(self, headers: Headers) -> ASGIApp | None:
        origin = headers.get(b"origin")
        if origin is None:
            return None
        scheme, host = _origin(origin)
        if scheme in ("http", "https") and host in self._hosts:
            return None
        return problem(403, f"requests from pages of {origin!r} are not taken", title="This page may not ask")


class RateLimiter:
    """Token buckets by name: so many a second, with a burst; only the most recent names are kept."""

    def __init__(self, per_second: float, burst: float | None = None, names: int = 10_000) -> None:
        self._per_second = per_second
        self._burst = burst or 2 * per_second
        self._names = names
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, name: str) -> bool:
        """Take one; False when there is none left."""
        now = time.monotonic()
        left, then = self._buckets.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        allowed = left >= 1
        self._buckets[name] = (left - 1 if allowed else left, now)
        if len(self._buckets) > self._names:
            self._buckets.popitem(last=False)
        return allowed


def route_path(scope: Scope) -> str:
    """The path as routes know it, without the prefix a proxy shows the server below."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


def _is_closed(scope: Scope, path: str) -> bool:
    if not path.startswith(CLOSED):
        return False
    # Signing in, and what is signed by itself.
    return not (scope["method"] == "POST" and (path == "/api/session" or path.startswith("/api/webhooks/")))


def _headers(scope: Scope) -> tuple[Headers, ASGIApp | None]:
    """The headers that are looked at here; and a refusal of two where there may be one: each reader of the request
    could believe another one."""
    found: Headers = {}
    for key, value in scope["headers"]:
        name = key.lower()
        if name in _READ:
            if name in _ONCE and name in found:
                return found, problem(400, "Host, Origin, Authorization and Content-Length may each come once")
            found[name] = value.decode("latin-1")
    return found, None


def _length(headers: Headers) -> int:
    text = headers.get(b"content-length", "0")
    return int(text) if text.isdecimal() else 0


_NETLOC = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:@/\\?#\[\],]+))(?::[0-9]{1,5})?")


def _host_name(netloc: str) -> str:
    """The host of `host:port` or `[::1]:port`, in lower case; empty when it is anything else."""
    found = _NETLOC.fullmatch(netloc.strip().lower())
    return (found[1] or found[2]) if found else ""


def _origin(text: str) -> tuple[str, str]:
    """Scheme and host of an Origin; empty ones when it is none (a path, a user, something that cannot be parsed)."""
    scheme, separator, netloc = text.strip().lower().partition("://")
    return (scheme, _host_name(netloc)) if separator else ("", "")


def _token(headers: Headers) -> str | None:
    scheme, _, text = headers.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    try:
        morsel = SimpleCookie(headers.get(b"cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None
