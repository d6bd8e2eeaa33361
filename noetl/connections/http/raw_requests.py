"""Small requests right on a connection, without the library's session around them.

Most calls are small: a few headers, no body or a short one, no proxy, no cookies. The library's session spends half of
such a call's time on what none of them needs. Here one is written in one piece, and its answer is read by the library's
own parser on the library's own connection; connections come from its connector and go back there, so that the address
gate, TLS, keeping alive and limits are those of every other call. What is not small or not plain goes by the session.

The connector and the protocol are spoken to as the versions in `KNOWN` are; with others all calls go by the session.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

KNOWN = ((3, 13), (3, 15))  # from, and up to but not including
MOST_BODY = 64 * 1024
MOST_LANES = 256
BARE = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that need not say that they have no body
METHODS = BARE | {"POST", "PUT", "PATCH", "DELETE"}
AGAIN = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})  # repeated when a kept connection turns out to be closed
# Headers that say how a message is framed, or that the library gives a meaning of its own.
FRAMING = frozenset(
    {"host", "connection", "content-length", "content-encoding", "expect", "keep-alive", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\x00-\x08\x0a-\x1f\x7f]*")


class Reply:
    """An answer whose connection goes back when its body has come; as the library's response, as far as it is used."""

    __slots__ = ("_connection", "content", "headers", "reason", "status", "url")

    def __init__(self, url: URL, connection: Any, message: Any, payload: aiohttp.StreamReader) -> None:
        self.url = url
        self.status: int = message.code
        self.reason: str = message.reason
        self.headers = message.headers
        self.content = payload
        self._connection = connection
        payload.on_eof(self.release)  # at once when it has come already

    @property
    def content_length(self) -> int | None:
        """Bytes of the body on the wire, when the headers say so."""
        length = self.headers.get("Content-Length")
        return None if length is None else int(length)

    async def read(self) -> bytes:
        """The whole body."""
        return self.content.read_nowait() if self.content.is_eof() else await self.content.read()

    def release(self) -> None:
        """Give the connection back; it is kept only when the whole body has come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    def close(self) -> None:
        """Let go of a connection whose body nobody wants."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class RequestTimer:
    """How long servers may be silent before they begin to answer: one timer for all who wait, set when it has to be.

    A timer for each of many thousand calls that last a few milliseconds costs more than all else that is done for
    them here. Bodies that do not come together with their headers are watched by the library."""

    def __init__(self) -> None:
        self._until: dict[Any, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, protocol: Any, seconds: float | None) -> None:
        """The answer has to begin within that time."""
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        until = self._until[protocol] = loop.time() + seconds
        timer = self._timer
        if timer is None:
            self._timer = loop.call_at(until, self._look)
        elif until < timer.when():
            timer.cancel()
            self._timer = loop.call_at(until, self._look)

    def end(self, protocol: Any) -> None:
        """It has begun, or nobody waits for it any more."""
        self._until.pop(protocol, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for protocol in [protocol for protocol, until in self._until.items() if until <= now]:
            del self._until[protocol]
            protocol.set_exception(aiohttp.SocketTimeoutError("no answer"))
        self._timer = loop.call_at(min(self._until.values()), self._look) if self._until else None


class RawRequestSender:
    """The origins that were called, each with what a request to it begins with."""

    def __init__(self, connector: aiohttp.BaseConnector, agent: str, **limits: Any) -> None:
        self._connector = connector
        self._limits = limits
        self._agent = agent
        self._open: dict[tuple[Any, ...], tuple[aiohttp.ClientRequest, str, str]] = {}
        self._watch = RequestTimer()
        self._usable = KNOWN[0] <= tuple(int(part) for part in aiohttp.__version__.split(".")[:2]) < KNOWN[1]

    async def send(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: Any,
        tls: ssl.SSLContext | bool,
        timeout: aiohttp.ClientTimeout,
    ) -> Reply | None:
        """The answer to a small request; None when it has to go by the session, and nothing was sent."""
        if not self._usable or method not in (BARE if body is None else METHODS):
            return None
        if body is not None and (type(body) is not bytes or len(body) > MOST_BODY):
            return None
        way, first, rest = self._lane(url, tls)
        lines = rest if not headers else self._lines(headers, rest)
        if lines is None or url.raw_user is not None:
            return None
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {url.raw_path_qs} {first}{lines}{length}\r\n".encode()
        piece = head if body is None else head + body
        may_repeat = method in AGAIN
        while True:
            try:
                return await self._exchange(method, url, way, piece, timeout)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                if not may_repeat:
                    raise
                may_repeat = False

    async def _exchange(
        self, method: str, url: URL, way: aiohttp.ClientRequest, piece: bytes, timeout: aiohttp.ClientTimeout
    ) -> Reply:
        try:
            connection = await self._connector.connect(way, [], timeout)
        except TimeoutError as late:
            raise aiohttp.ConnectionTimeoutError(f"connecting to {url.host} takes too long") from late
        try:
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None or transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(skip_payload=method == "HEAD", read_until_eof=True, **self._limits)
            transport.write(piece)
            while True:
                self._watch.begin(protocol, timeout.sock_read)
                message, payload = await protocol.read()
                self._watch.end(protocol)
                if not 100 <= message.code < 200 or message.code == 101:
                    break
            if not payload.is_eof():
                protocol.read_timeout = timeout.sock_read
                protocol.start_timeout()
        except BaseException:
            self._watch.end(connection.protocol)
            connection.close()
            raise
        return Reply(url, connection, message, payload)

    def _lane(self, url: URL, tls: ssl.SSLContext | bool) -> tuple[aiohttp.ClientRequest, str, str]:
        """What the connector knows an origin by, and the lines that all its requests share."""
        key = (url.scheme, url.raw_host, url.port, tls)
        lane = self._open.get(key)
        if lane is None:
            while len(self._open) >= MOST_LANES:
                del self._open[next(iter(self._open))]
            way = aiohttp.ClientRequest("GET", url.origin(), loop=asyncio.get_running_loop(), ssl=tls)
            given = way.headers
            rest = f"User-Agent: {self._agent}\r\n" + "".join(
                f"{name}: {given[name]}\r\n" for name in ("Accept", "Accept-Encoding")
            )
            lane = self._open[key] = way, f"HTTP/1.1\r\nHost: {given['Host']}\r\n", rest
        return lane

    def _lines(self, headers: Mapping[str, str], rest: str) -> str | None:
        """The headers as they are sent; None when one of them is not plain."""
        lines = []
        for name, value in headers.items():
            line = f"{name}: {value}"
            if name.lower() in FRAMING or _HEADER.fullmatch(line) is None:
                return None
            lines.append(line)
        written = {name.lower() for name in headers}
        lines += [line for line in rest.splitlines() if line.partition(":")[0].lower() not in written]
        return "\r\n".join(lines) + "\r\n"
