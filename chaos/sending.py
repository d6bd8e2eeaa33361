"""An open-loop sender that takes as little of the machine as it can: what it uses, the server beside it lacks.

Requests are written at their planned instants onto kept connections, whether or not earlier ones were answered; one
that finds no connection free waits for one, and that wait is part of its latency.
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
PATIENCE = 60.0  # seconds for an answer
TICK = 0.002  # seconds between two looks at what is due


class Answer(NamedTuple):
    """One request: when it was due and answered (monotonic), what it started (empty: nothing), when it was due by the
    clock."""

    planned: float
    answered: float
    execution_id: str
    clock: float


class _Started(msgspec.Struct):
    execution_id: str


_decode = msgspec.json.Decoder(_Started).decode


class Sender:
    """Sends one request again and again to one address."""

    def __init__(self, url: str, token: str, body: bytes) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._request = (
            f"POST /api/execute HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._free: list[_Line] = []
        self._due: deque[tuple[float, float]] = deque()
        self._open = 0
        self._connecting: set[asyncio.Future[None]] = set()
        self._answers: list[Answer] = []
        self._done = asyncio.Event()
        self._asked = 0

    async def send(self, rate: int, seconds: int) -> list[Answer]:
        """So many a second for so long; all answers, in the order they came."""
        self._asked = rate * seconds
        began, clock = time.monotonic(), time.time()
        sent = 0
        while sent < self._asked:
            due = min(self._asked, int((time.monotonic() - began) * rate) + 1)
            for number in range(sent, due):
                self._due.append((began + number / rate, clock + number / rate))
            sent = due
            self._write()
            await asyncio.sleep(TICK)
        with suppress(TimeoutError):  # what was not answered by then is missing in the list
            await asyncio.wait_for(self._done.wait(), PATIENCE)
        for line in self._free:
            line.close()
        return self._answers

    def _write(self) -> None:
        while self._due and (self._free or self._open < CONNECTIONS):
            if not self._free:
                self._open += 1
                connecting = asyncio.ensure_future(self._connect())
                self._connecting.add(connecting)
                connecting.add_done_callback(self._connecting.discard)
                return
            self._free.pop().ask(self._request, *self._due.popleft())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, line = await loop.create_connection(lambda: _Line(self), *self._address)
        except OSError:
            self.broken(None, None)
            return
        self._free.append(line)
        self._write()

    def answered(self, line: _Line, answer: Answer) -> None:
        """A line has its answer and is free again."""
        self._free.append(line)
        self._note(answer)
        self._write()

    def broken(self, line: _Line | None, unanswered: tuple[float, float] | None) -> None:
        """A line is gone, maybe with a request under way."""
        self._open -= 1
        if line in self._free:
            self._free.remove(line)
        if unanswered is not None:
            self._note(Answer(unanswered[0], time.monotonic(), "", unanswered[1]))
        self._write()

    def _note(self, answer: Answer) -> None:
        self._answers.append(answer)
        if len(self._answers) == self._asked:
            self._done.set()


class _Line(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._asked: tuple[float, float] | None = None
        self._read = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, request: bytes, planned: float, clock: float) -> None:
        self._asked = (planned, clock)
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, separator, body = self._read.partition(b"\r\n\r\n")
        if not separator:
            return
        _, _, rest = head.lower().partition(b"content-length:")
        if len(body) < int(rest.partition(b"\r\n")[0] or 0):
            return
        planned, clock = self._asked or (0.0, 0.0)
        self._read, self._asked = b"", None
        started = _decode(body).execution_id if head.startswith(b"HTTP/1.1 202 ") else ""
        self._sender.answered(self, Answer(planned, time.monotonic(), started, clock))

    def connection_lost(self, _: Exception | None) -> None:
        self._sender.broken(self, self._asked)

    def close(self) -> None:
        self._transport.abort()


async def send(url: str, token: str, body: bytes, rate: int, seconds: int) -> list[Answer]:
    """Send `body` to start executions, so many a second for so long."""
    return await Sender(url, token, body).send(rate, seconds)
