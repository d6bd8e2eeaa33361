"""An open-loop load sender with little CPU use, because it shares the machine with the server.

Requests are written to persistent connections at their planned times, independent of earlier responses. If no
connection is free, the request waits for one, and the wait is part of its latency.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

CONNECTIONS = 256
PATIENCE = 60.0  # seconds to wait for responses
TICK = 0.002  # seconds between two checks for due requests


class Response(NamedTuple):
    """Planned and received time (monotonic), the started execution (empty: none), planned wall-clock time."""

    planned: float
    received: float
    execution_id: str
    clock: float


class _Started(msgspec.Struct):
    execution_id: str


_decode = msgspec.json.Decoder(_Started).decode


class LoadSender:
    """Sends the same request repeatedly to one address."""

    def __init__(self, url: str, token: str, body: bytes) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._request = (
            f"POST /api/execute HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._free: list[_Connection] = []
        self._due: deque[tuple[float, float]] = deque()
        self._open = 0
        self._connecting: set[asyncio.Future[None]] = set()
        self._responses: list[Response] = []
        self._done = asyncio.Event()
        self._requests = 0

    async def send(self, rate: int, seconds: int) -> list[Response]:
        """Send `rate` requests per second for `seconds`; returns the responses in the order of arrival."""
        self._requests = rate * seconds
        began, clock = time.monotonic(), time.time()
        sent = 0
        while sent < self._requests:
            due = min(self._requests, int((time.monotonic() - began) * rate) + 1)
            for number in range(sent, due):
                self._due.append((began + number / rate, clock + number / rate))
            sent = due
            self._write()
            await asyncio.sleep(TICK)
        with suppress(TimeoutError):  # requests without a response are not in the list
            await asyncio.wait_for(self._done.wait(), PATIENCE)
        for connection in self._free:
            connection.close()
        return self._responses

    def _write(self) -> None:
        while self._due and (self._free or self._open < CONNECTIONS):
            if not self._free:
                self._open += 1
                connecting = asyncio.ensure_future(self._connect())
                self._connecting.add(connecting)
                connecting.add_done_callback(self._connecting.discard)
                return
            self._free.pop().send(self._request, *self._due.popleft())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self), *self._address)
        except OSError:
            self.connection_closed(None, None)
            return
        self._free.append(connection)
        self._write()

    def response_received(self, connection: _Connection, response: Response) -> None:
        """Record the response; the connection is free again."""
        self._free.append(connection)
        self._record(response)
        self._write()

    def connection_closed(self, connection: _Connection | None, pending: tuple[float, float] | None) -> None:
        """Remove the connection; a pending request counts as failed."""
        self._open -= 1
        if connection in self._free:
            self._free.remove(connection)
        if pending is not None:
            self._record(Response(pending[0], time.monotonic(), "", pending[1]))
        self._write()

    def _record(self, response: Response) -> None:
        self._responses.append(response)
        if len(self._responses) == self._requests:
            self._done.set()


class _Connection(asyncio.Protocol):
    """One connection with at most one pending request."""

    def __init__(self, sender: LoadSender) -> None:
        self._sender = sender
        self._pending: tuple[float, float] | None = None
        self._read = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, request: bytes, planned: float, clock: float) -> None:
        self._pending = (planned, clock)
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, separator, body = self._read.partition(b"\r\n\r\n")
        if not separator:
            return
        _, _, rest = head.lower().partition(b"content-length:")
        if len(body) < int(rest.partition(b"\r\n")[0] or 0):
            return
        planned, clock = self._pending or (0.0, 0.0)
        self._read, self._pending = b"", None
        started = _decode(body).execution_id if head.startswith(b"HTTP/1.1 202 ") else ""
        self._sender.response_received(self, Response(planned, time.monotonic(), started, clock))

    def connection_lost(self, _: Exception | None) -> None:
        self._sender.connection_closed(self, self._pending)

    def close(self) -> None:
        self._transport.abort()


async def send(url: str, token: str, body: bytes, rate: int, seconds: int) -> list[Response]:
    """Send `body` to start executions, `rate` per second for `seconds`."""
    return await LoadSender(url, token, body).send(rate, seconds)
