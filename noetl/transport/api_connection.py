"""The blocking connection to a server's HTTP API: requests, event streams, and problem documents as exceptions.

Of several addresses (separated by commas) the next one is used when a server is unreachable. Every request may be sent
twice: requests that start work carry an `Idempotency-Key`. `http.client` is used because every command of the command
line waits for its import: 35 ms of CPU time with `ssl`, against 215 ms for aiohttp.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from noetl.errors import AccessRefused, InvalidPlaybook, StoreUnavailable
from noetl.transport.server_policy import GATEWAY_ERRORS, ServerAddresses, response_error

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic

IDLE_SECONDS = 45.0  # a stream without data for so long counts as broken (a server sends something every 15 s)
RECONNECT_SECONDS = 60.0  # how long a broken stream is retried
RECONNECT_DELAY = 0.5
UNREACHABLE = (OSError, http.client.HTTPException)
COPY_BYTES = 1 << 20
INTERRUPTED = "the connection to the server broke during the download; repeat the command"


class Request(NamedTuple):
    """One request of the HTTP API."""

    method: str
    path: str
    body: Any = None  # bytes, or a value that is encoded as JSON
    query: Mapping[str, Any] | None = None  # values that are None or () are left out
    headers: Mapping[str, str] | None = None
    raw: bool = False  # the response is bytes and not JSON
    into: BinaryIO | None = None  # receives the body of a successful response
    seconds: float | None = None  # to wait for data; None: the timeout of the connection

    @property
    def target(self) -> str:
        """Path and query."""
        given = {name: value for name, value in (self.query or {}).items() if value is not None and value != ()}
        return f"{self.path}?{urlencode(given, doseq=True)}" if given else self.path

    @property
    def data(self) -> bytes | None:
        """The encoded body."""
        body = self.body
        return body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)


class Response(NamedTuple):
    """A response that has been read."""

    status: int
    content_type: str
    data: bytes

    @property
    def is_json(self) -> bool:
        """Whether the body is a JSON document."""
        return "json" in self.content_type


class CommandKey:
    """The idempotency key of a command (`--key`): its first change has the key itself, a further one also a digest of
    its content, so that it is the same in a repeated command that has less left to change."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._first: Request | None = None

    def of(self, request: Request) -> str:
        """The key of a request, the same when it is sent again."""
        if self._first is None or self._first is request:
            self._first = request
            return self.key
        content = f"{request.method} {request.target}\0".encode() + (request.data or b"")
        return f"{self.key[:150]}-{hashlib.sha256(content).hexdigest()[:32]}"


# The key of the running command; None: requests have keys of their own, or none.
COMMAND_KEY: ContextVar[CommandKey | None] = ContextVar("noetl_command_key", default=None)


class ServerAddress(ServerAddresses):
    """The addresses of a server and its token: headers of requests, and responses as values or exceptions."""

    def __init__(self, url: str, token: str | None = None) -> None:
        super().__init__(url)
        self._token = token

    def headers(self, request: Request) -> dict[str, str]:
        """The headers of a request."""
        headers = {"Accept": "application/json", **(request.headers or {})}
        key = COMMAND_KEY.get()
        if key is not None and request.method != "GET":
            headers["Idempotency-Key"] = key.of(request)
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def decode(self, request: Request, response: Response) -> Any:
        """The value of a response; an error response is raised as an exception."""
        if response.status >= 300:
            raise self.error(response)
        if request.into is not None:
            return None
        if request.raw:
            return response.data
        if not response.data:
            return None
        if not response.is_json:
            raise self._foreign(response)
        return msgspec.json.decode(response.data)

    def error(self, response: Response) -> Exception:
        """The exception of an error response."""
        status = response.status
        if not response.is_json:
            return self._foreign(response)
        document: dict[str, Any] = msgspec.json.decode(response.data)
        detail = str(document.get("detail", f"HTTP {status}"))
        if status == 401 and "token" in detail:
            reason = "does not know this token" if self._token else "requires a token"
            return AccessRefused(
                f"the server at {self.url} {reason}: set NOETL_TOKEN (or --token) to one of its tokens; "
                "`noetl token create` on its machine creates one"
            )
        if status == 422 and "diagnostics" in document:
            return InvalidPlaybook(diagnostics(document["diagnostics"]))
        return response_error(self.url, status, detail)

    def unreachable(self, problem: BaseException) -> StoreUnavailable:
        """The exception for a server that none of the addresses reaches."""
        urls = ", ".join(self.urls)
        advice = "check that the server is running and the address is right"
        if all(urlsplit(each).hostname in ("127.0.0.1", "localhost", "::1") for each in self.urls):
            advice = "`noetl server start` or `noetl dev` starts a server on this machine"
        return StoreUnavailable(f"cannot connect to {urls} ({_reason(problem)}); {advice}")

    def failure(self, problem: BaseException | None) -> StoreUnavailable:
        """The exception after a request failed at every address; `problem` is the last failure."""
        assert problem is not None
        return problem if isinstance(problem, StoreUnavailable) else self.unreachable(problem)

    def reconnect(self, problem: BaseException, broken_at: float | None, until: float | None) -> float:
        """Use the next address for a broken stream, and return when it broke; raises if it was retried long enough."""
        now = time.monotonic()
        if until is not None and now >= until:
            raise TimeoutError("the stream has not ended in time") from None
        broken_at = broken_at or now
        if now - broken_at > RECONNECT_SECONDS:
            raise self.unreachable(problem) from None
        self.use_next()
        return broken_at

    def _foreign(self, response: Response) -> StoreUnavailable:
        found = f"HTTP {response.status}, {response.content_type or 'no content type'}"
        return StoreUnavailable(f"{self.url} responds, but is not a NoETL server ({found})")


class ApiConnection(ServerAddress):
    """A connection to one server at a time; safe for several threads."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 30.0) -> None:
        super().__init__(url, token)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: tuple[str, http.client.HTTPConnection] | None = None

    def request(self, request: Request) -> Any:
        """Send a request and return the document of the response (None where it is empty)."""
        problem: BaseException | None = None
        for _ in self.urls:
            try:
                response = self._send(request)
                if response.status not in GATEWAY_ERRORS:
                    return self.decode(request, response)
                problem = self.error(response)
            except UNREACHABLE as broken:
                problem = broken
            self.use_next()
        raise self.failure(problem) from None

    def stream(self, path: str, after: int, *, until: float | None = None, stop: Stop | None = None) -> Iterator[bytes]:
        """Yield the data of server-sent events after an id, over broken connections, until the server sends `end`.

        `until` is an instant of time.monotonic() after which TimeoutError is raised."""
        broken_at: float | None = None
        while True:
            try:
                for number, data in self._stream_once(path, after, until, stop):
                    broken_at = None
                    if number is None:
                        return
                    after = number
                    yield data
                raise http.client.IncompleteRead(b"")  # the server stops, or a proxy closed the connection
            except (*UNREACHABLE, StoreUnavailable) as problem:
                if stop is not None and stop.requested:
                    return
                broken_at = self.reconnect(problem, broken_at, until)
            time.sleep(RECONNECT_DELAY)

    def close(self) -> None:
        """Close the idle connection."""
        with self._lock:
            if self._idle is not None:
                self._idle[1].close()
                self._idle = None

    def _send(self, request: Request) -> Response:
        url = self.url
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None and idle[0] == url:
            try:
                return self._exchange(url, idle[1], request)
            except UNREACHABLE:
                idle[1].close()  # the server has closed it while it was idle: try a new one
        elif idle is not None:
            idle[1].close()
        return self._exchange(url, self._connect(url, self._timeout), request)

    def _exchange(self, url: str, connection: http.client.HTTPConnection, request: Request) -> Response:
        try:
            target = urlsplit(url).path + request.target
            connection.timeout = request.seconds or self._timeout
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            connection.request(request.method, target, body=request.data, headers=self.headers(request))
            reply = connection.getresponse()
            response = _copied(reply, request.into) if request.into and reply.status < 300 else _read(reply)
        except BaseException:
            connection.close()
            raise
        if reply.will_close:
            connection.close()
            return response
        with self._lock:
            spare, self._idle = self._idle, (url, connection)
        if spare is not None:
            spare[1].close()
        return response

    def _connect(self, url: str, timeout: float) -> http.client.HTTPConnection:
        parts: SplitResult = urlsplit(url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)

    def _stream_once(
        self, path: str, after: int, until: float | None, stop: Stop | None
    ) -> Iterator[tuple[int | None, bytes]]:
        """Ids and data of one connection; the id None is the end of the log."""
        url = self.url
        connection = self._connect(url, IDLE_SECONDS)
        try:
            if stop is not None:
                stop.attach(connection)
            request = stream_request(path, after)
            connection.request("GET", urlsplit(url).path + request.target, headers=self.headers(request))
            reply = connection.getresponse()
            if reply.status != 200:
                raise self.error(_read(reply))
            parser = EventParser()
            while line := _next_line(reply, connection, until):
                if (event := parser.feed(line)) is not None:
                    yield event
        finally:
            connection.close()


class EventParser:
    """Parses the lines of server-sent events."""

    def __init__(self) -> None:
        self._number, self._name, self._data = 0, b"", b""

    def feed(self, line: bytes) -> tuple[int | None, bytes] | None:
        """Take a line; return the id and data of an event that it completes. The id None is the end of the stream."""
        field, _, value = line.rstrip(b"\r\n").partition(b": ")
        if field == b"id":
            self._number = int(value)
        elif field == b"event":
            self._name = value
        elif field == b"data":
            self._data = value
        elif not field and self._name:
            event = (None if self._name == b"end" else self._number), self._data
            self._name, self._data = b"", b""
            return event
        return None


class Stop:
    """Ends a stream from another thread."""

    def __init__(self) -> None:
        self.requested = False
        self._connection: http.client.HTTPConnection | None = None

    def attach(self, connection: http.client.HTTPConnection) -> None:
        """Set the connection to break."""
        self._connection = connection

    def __call__(self) -> None:
        """End the stream, also while it waits for data."""
        self.requested = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it is not connected any more


def stream_request(path: str, after: int) -> Request:
    """The request that opens a stream of server-sent events after an id."""
    return Request("GET", path, headers={"Accept": "text/event-stream", "Last-Event-ID": str(after)})


def diagnostics(documents: Any) -> list[Diagnostic]:
    """Diagnostics from the documents of a server."""
    from noetl.core.language.diagnostics import Diagnostic

    return msgspec.convert(documents, list[Diagnostic])


def _read(reply: http.client.HTTPResponse) -> Response:
    return Response(reply.status, reply.getheader("Content-Type") or "", reply.read())


def _copied(reply: http.client.HTTPResponse, file: BinaryIO) -> Response:
    """Copy the body to a file; it cannot be requested again once something is written."""
    first = reply.read(COPY_BYTES)
    try:
        chunk = first
        while chunk:
            file.write(chunk)
            chunk = reply.read(COPY_BYTES)
    except UNREACHABLE as broken:
        raise StoreUnavailable(f"{INTERRUPTED}: {_reason(broken)}") from None
    if reply.length:
        raise StoreUnavailable(f"{INTERRUPTED}: {reply.length:,} bytes are missing")
    return Response(reply.status, reply.getheader("Content-Type") or "", b"")


def _next_line(reply: http.client.HTTPResponse, connection: http.client.HTTPConnection, until: float | None) -> bytes:
    if until is not None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the stream has not ended in time")
        if connection.sock is not None:
            connection.sock.settimeout(min(IDLE_SECONDS, left))
    return reply.readline()


def _reason(problem: BaseException) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "connection refused"
    if isinstance(problem, TimeoutError):
        return "timed out"
    if isinstance(problem, socket.gaierror):
        return "unknown host"
    if isinstance(problem, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {problem.verify_message}; use a name of the certificate as address, and "
            "set SSL_CERT_FILE to the file of a private certificate authority"
        )
    if isinstance(problem, ssl.SSLError):
        return f"TLS: {problem.reason or problem}"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__
