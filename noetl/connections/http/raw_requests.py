"""Fast path for small HTTP requests: written directly to a connection of aiohttp's connector.

Most calls are small: a few headers, no body or a short one, no proxy, no cookies. aiohttp's session spends half of such
a call's time on features that the call does not use. Here the request is written in one piece, and its response is
read by aiohttp's parser. Connections come from aiohttp's connector and return to it, so the address check, TLS,
keep-alive and limits are the same for both paths. Every other request uses the session.

The fast path calls methods of the connector and the protocol that are not part of aiohttp's public interface. It is
tested with the versions in `SUPPORTED_AIOHTTP`, which `pyproject.toml` also requires; with other versions it is off.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any

import aiohttp
from yarl import URL

LOG = logging.getLogger(__name__)
SUPPORTED_AIOHTTP = ((3, 13), (3, 15))  # from, up to but not including
MAX_BODY = 64 * 1024
MAX_ORIGINS = 256
BODYLESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # sent without Content-Length if there is no body
METHODS = BODYLESS_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
# Sent once more if the server has closed the idle connection that was used.
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
# Headers that define the framing of a message, or that aiohttp interprets.
FRAMING_HEADERS = frozenset(
    {"host", "connection", "content-length", "content-encoding", "expect", "keep-alive", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\x00-\x08\x0a-\x1f\x7f]*")


class RawResponse:
    """A response with the interface of `aiohttp.ClientResponse` that is used here.

    Its connection returns to the connector when the body is complete."""

    __slots__ = ("_connection", "content", "headers", "reason", "status", "url")

    def __init__(self, url: URL, connection: Any, message: Any, payload: aiohttp.StreamReader) -> None:
        self.url = url
        self.status: int = message.code
        self.reason: str = message.reason
        self.headers = message.headers
        self.content = payload
        self._connection = connection
        payload.on_eof(self.release)  # immediately if the body is complete

    @property
    def content_length(self) -> int | None:
        """The value of the header Content-Length."""
        length = self.headers.get("Content-Length")
        return None if length is None else int(length)

    async def read(self) -> bytes:
        """Read the whole body."""
        return self.content.read_nowait() if self.content.is_eof() else await self.content.read()

    def release(self) -> None:
        """Return the connection, which is reused only if the body is complete."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    def close(self) -> None:
        """Close the connection of a body that is not read."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class ResponseTimer:
    """Limits the time until a response begins, with one timer for all pending requests.

    A timer for each of many thousand calls that take a few milliseconds costs more than everything else
    that is done for them here. Bodies that arrive later than their headers are timed by aiohttp."""

    def __init__(self) -> None:
        self._until: dict[Any, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, protocol: Any, seconds: float | None) -> None:
        """Start the time limit of a request."""
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        until = self._until[protocol] = loop.time() + seconds
        timer = self._timer
        if timer is None:
            self._timer = loop.call_at(until, self._expire)
        elif until < timer.when():
            timer.cancel()
            self._timer = loop.call_at(until, self._expire)

    def end(self, protocol: Any) -> None:
        """End the time limit of a request."""
        self._until.pop(protocol, None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for protocol in [protocol for protocol, until in self._until.items() if until <= now]:
            del self._until[protocol]
            protocol.set_exception(aiohttp.SocketTimeoutError("no response"))
        self._timer = loop.call_at(min(self._until.values()), self._expire) if self._until else None


class RawRequestSender:
    """Sends small requests; remembers for each origin the lines that all its requests share."""

    def __init__(self, connector: aiohttp.BaseConnector, agent: str, **limits: Any) -> None:
        self._connector = connector
        self._limits = limits
        self._agent = agent
        self._origins: dict[tuple[Any, ...], tuple[aiohttp.ClientRequest, str, str]] = {}
        self._timer = ResponseTimer()
        self._supported = is_supported(aiohttp.__version__)

    async def send(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: Any,
        tls: ssl.SSLContext | bool,
        timeout: aiohttp.ClientTimeout,
    ) -> RawResponse | None:
        """Send a small request; return None, with nothing sent, if it needs the session."""
        if not self._supported or method not in (BODYLESS_METHODS if body is None else METHODS):
            return None
        if body is not None and (type(body) is not bytes or len(body) > MAX_BODY):
            return None
        target, first, rest = self._origin(url, tls)
        lines = rest if not headers else self._lines(headers, rest)
        if lines is None or url.raw_user is not None:
            return None
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {url.raw_path_qs} {first}{lines}{length}\r\n".encode()
        piece = head if body is None else head + body
        may_repeat = method in IDEMPOTENT_METHODS
        while True:
            try:
                return await self._exchange(method, url, target, piece, timeout)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                if not may_repeat:
                    raise
                may_repeat = False

    async def _exchange(
        self, method: str, url: URL, target: aiohttp.ClientRequest, piece: bytes, timeout: aiohttp.ClientTimeout
    ) -> RawResponse:
        try:
            connection = await self._connector.connect(target, [], timeout)
        except TimeoutError as late:
            raise aiohttp.ConnectionTimeoutError(f"connecting to {url.host} timed out") from late
        try:
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None or transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(skip_payload=method == "HEAD", read_until_eof=True, **self._limits)
            transport.write(piece)
            while True:
                self._timer.begin(protocol, timeout.sock_read)
                message, payload = await protocol.read()
                self._timer.end(protocol)
                if not 100 <= message.code < 200 or message.code == 101:
                    break
            if not payload.is_eof():
                protocol.read_timeout = timeout.sock_read
                protocol.start_timeout()
        except BaseException:
            self._timer.end(connection.protocol)
            connection.close()
            raise
        return RawResponse(url, connection, message, payload)

    def _origin(self, url: URL, tls: ssl.SSLContext | bool) -> tuple[aiohttp.ClientRequest, str, str]:
        """Return the connector's key of an origin, and the lines that all its requests share."""
        key = (url.scheme, url.raw_host, url.port, tls)
        origin = self._origins.get(key)
        if origin is None:
            while len(self._origins) >= MAX_ORIGINS:
                del self._origins[next(iter(self._origins))]
            target = aiohttp.ClientRequest("GET", url.origin(), loop=asyncio.get_running_loop(), ssl=tls)
            defaults = target.headers
            rest = f"User-Agent: {self._agent}\r\n" + "".join(
                f"{name}: {defaults[name]}\r\n" for name in ("Accept", "Accept-Encoding")
            )
            origin = self._origins[key] = target, f"HTTP/1.1\r\nHost: {defaults['Host']}\r\n", rest
        return origin

    def _lines(self, headers: Mapping[str, str], rest: str) -> str | None:
        """Format the headers; return None if one of them needs the session."""
        lines = []
        for name, value in headers.items():
            line = f"{name}: {value}"
            if name.lower() in FRAMING_HEADERS or _HEADER.fullmatch(line) is None:
                return None
            lines.append(line)
        written = {name.lower() for name in headers}
        lines += [line for line in rest.splitlines() if line.partition(":")[0].lower() not in written]
        return "\r\n".join(lines) + "\r\n"


@cache
def is_supported(version: str) -> bool:
    """Whether the fast path works with a version of aiohttp; if not, log it once."""
    first, end = SUPPORTED_AIOHTTP
    supported = first <= tuple(int(part) for part in version.split(".")[:2]) < end
    if not supported:
        LOG.info(
            "HTTP fast path is off: aiohttp %s is installed, it is tested with versions >=%s,<%s; "
            "small requests take about twice as much CPU",
            version,
            ".".join(map(str, first)),
            ".".join(map(str, end)),
        )
    return supported
