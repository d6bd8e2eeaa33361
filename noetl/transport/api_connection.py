"""A line to a server for programs and commands: blocking calls, problem documents as exceptions, streams.

Of several addresses (separated by commas) the next one is tried when a server is away. Whatever is sent
may be sent twice: requests that start work carry an `Idempotency-Key`.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from noetl.errors import (
    AccessRefused,
    Conflict,
    InvalidPlaybook,
    NotFound,
    PayloadUnavailable,
    RequestRefused,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic

SILENCE = 45.0  # seconds without a word (a server says something every 15) after which a stream counts as broken
PATIENCE = 60.0  # seconds that a broken stream is tried again
PAUSE = 0.5
AWAY = (OSError, http.client.HTTPException)


class _Answer:
    """An answer that has been read."""

    def __init__(self, status: int, content_type: str, data: bytes) -> None:
        self.status = status
        self.content_type = content_type
        self.data = data

    @property
    def is_json(self) -> bool:
        return "json" in self.content_type


class ApiConnection:
    """Speaks to one server at a time; safe for several threads."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 30.0) -> None:
        self._urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
        for each in self._urls:
            if urlsplit(each).scheme not in ("http", "https") or not urlsplit(each).hostname:
                raise RequestRefused(f"{each!r} is no address of a server: write http://HOST:PORT or https://HOST")
        if not self._urls:
            raise RequestRefused("the address of a server is missing")
        self._token = token
        self._timeout = timeout
        self._at = 0
        self._lock = threading.Lock()
        self._kept: tuple[str, http.client.HTTPConnection] | None = None

    @property
    def url(self) -> str:
        """The address that is spoken to."""
        return self._urls[self._at % len(self._urls)]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The document that answers a request (None where there is none)."""
        answer = self._answer(method, path + _query(query), body, headers)
        if not answer.data:
            return None
        if not answer.is_json:
            raise self._not_ours(answer)
        return msgspec.json.decode(answer.data)

    def fetch(self, path: str) -> bytes:
        """The bytes behind a path."""
        return self._answer("GET", path, None, None).data

    def stream(self, path: str, after: int, *, until: float | None = None, stop: Stop | None = None) -> Iterator[bytes]:
        """The data of server-sent events after an id, over broken connections, until the server says `end`.

        `until` is an instant of time.monotonic() after which TimeoutError is raised."""
        broken_at: float | None = None
        while True:
            try:
                for number, data in self._one_stream(path, after, until, stop):
                    broken_at = None
                    if number is None:
                        return
                    after = number
                    yield data
                raise http.client.IncompleteRead(b"")  # the server stops, or a proxy grew tired
            except (*AWAY, StoreUnavailable) as problem:
                if stop is not None and stop.asked:
                    return
                now = time.monotonic()
                if until is not None and now >= until:
                    raise TimeoutError("it took longer") from None
                broken_at = broken_at or now
                if now - broken_at > PATIENCE:
                    raise self._away(problem) from None
                self._at += 1
            time.sleep(PAUSE)

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._kept is not None:
                self._kept[1].close()
                self._kept = None

    # ── asking ──────────────────────────────────────────────────────────────────────────

    def _answer(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None) -> _Answer:
        sent = self._headers(headers)
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        if data is not None:
            sent["Content-Type"] = "application/json"
        problem: BaseException | None = None
        for _ in self._urls:
            try:
                answer = self._send(method, path, data, sent)
                if answer.status not in (502, 503, 504):
                    return self._checked(answer)
                problem = self._refusal(answer)
            except AWAY as broken:
                problem = broken
            self._at += 1
        if isinstance(problem, StoreUnavailable):
            raise problem
        assert problem is not None
        raise self._away(problem) from None

    def _send(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> _Answer:
        url = self.url
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None and kept[0] == url:
            try:
                return self._exchange(url, kept[1], method, path, data, headers)
            except AWAY:
                kept[1].close()  # it was idle for too long; a new one will tell
        elif kept is not None:
            kept[1].close()
        return self._exchange(url, self._connect(url, self._timeout), method, path, data, headers)

    def _exchange(
        self,
        url: str,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> _Answer:
        try:
            connection.request(method, urlsplit(url).path + path, body=data, headers=dict(headers))
            response = connection.getresponse()
            answer = _Answer(response.status, response.getheader("Content-Type") or "", response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
            return answer
        with self._lock:
            spare, self._kept = self._kept, (url, connection)
        if spare is not None:
            spare[1].close()
        return answer

    def _connect(self, url: str, timeout: float) -> http.client.HTTPConnection:
        parts: SplitResult = urlsplit(url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Accept": "application/json", **(more or {})}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    # ── streams ─────────────────────────────────────────────────────────────────────────

    def _one_stream(
        self, path: str, after: int, until: float | None, stop: Stop | None
    ) -> Iterator[tuple[int | None, bytes]]:
        """Ids and data of one connection; id None is the end of the log."""
        url = self.url
        connection = self._connect(url, SILENCE)
        try:
            if stop is not None:
                stop.breaks(connection)
            headers = self._headers({"Accept": "text/event-stream", "Last-Event-ID": str(after)})
            connection.request("GET", urlsplit(url).path + path, headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise self._refusal(_Answer(response.status, response.getheader("Content-Type") or "", response.read()))
            yield from _events(response, connection, until)
        finally:
            connection.close()

    # ── words ───────────────────────────────────────────────────────────────────────────

    def _checked(self, answer: _Answer) -> _Answer:
        if answer.status < 300:
            return answer
        raise self._refusal(answer)

    def _refusal(self, answer: _Answer) -> Exception:
        """What a refusal means, as an exception."""
        status = answer.status
        if not answer.is_json:
            return self._not_ours(answer)
        document: dict[str, Any] = msgspec.json.decode(answer.data)
        detail = str(document.get("detail", f"HTTP {status}"))
        if status == 401 and "token" not in detail:
            return AccessRefused(f"the server at {self.url} refused: {detail}")
        if status == 401:
            words = "does not know this token" if self._token else "wants a token"
            return AccessRefused(
                f"the server at {self.url} {words}: set NOETL_TOKEN (or --token) to one of its tokens; "
                "`noetl token create` on its machine makes one"
            )
        if status == 403:
            return AccessRefused(f"the server at {self.url} refused: {detail}")
        if status == 422 and "diagnostics" in document:
            return InvalidPlaybook(diagnostics(document["diagnostics"]))
        if status in (429, 500, 502, 503, 504):
            return StoreUnavailable(f"the server at {self.url} answered {status}: {detail}")
        kinds: dict[int, type[Exception]] = {404: NotFound, 409: Conflict, 410: PayloadUnavailable}
        return kinds.get(status, RequestRefused)(detail)

    def _away(self, problem: BaseException) -> StoreUnavailable:
        urls = ", ".join(self._urls)
        reason = _reason(problem)
        return StoreUnavailable(f"no server answers at {urls} ({reason}); is it running, and is this its address?")

    def _not_ours(self, answer: _Answer) -> StoreUnavailable:
        told = f"HTTP {answer.status}, {answer.content_type or 'no content type'}"
        return StoreUnavailable(f"{self.url} answers, but not as a NoETL server does ({told})")


class Stop:
    """A way for another thread to end a stream."""

    def __init__(self) -> None:
        self.asked = False
        self._connection: http.client.HTTPConnection | None = None

    def breaks(self, connection: http.client.HTTPConnection) -> None:
        """This is the connection to break."""
        self._connection = connection

    def __call__(self) -> None:
        """End it, also where it waits."""
        self.asked = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it was not connected any more


def _events(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection, until: float | None
) -> Iterator[tuple[int | None, bytes]]:
    number, name, data = 0, b"", b""
    while True:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("it took longer")
            if connection.sock is not None:
                connection.sock.settimeout(min(SILENCE, left))
        line = response.readline()
        if not line:
            return
        field, _, value = line.rstrip(b"\r\n").partition(b": ")
        if field == b"id":
            number = int(value)
        elif field == b"event":
            name = value
        elif field == b"data":
            data = value
        elif not field and name:
            yield (None if name == b"end" else number), data
            name, data = b"", b""


def diagnostics(documents: Any) -> list[Diagnostic]:
    """Diagnostics as a server tells them."""
    from noetl.core.language.diagnostics import Diagnostic

    return msgspec.convert(documents, list[Diagnostic])


def _query(query: Mapping[str, Any] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None and value != ()}
    return "?" + urlencode(given, doseq=True) if given else ""


def _reason(problem: BaseException) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    if isinstance(problem, socket.gaierror):
        return "there is no such host"
    if isinstance(problem, ssl.SSLError):
        return f"TLS: {problem.reason or problem}"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__
