"""Sends the lines that tasks print to the server, one request at a time.

Lines are buffered for a moment and sent in chunks. The buffer is bounded: while it is more than half full, tools that
print are slowed down (`wait_for_room`), for a limited time; when it is full, lines are dropped and counted, and the
next line that fits carries the count. So a slow server costs lines, never memory, and never stops a task. Lines that
cannot be stored now are sent again; lines that are rejected are counted as dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextlib import suppress
from functools import lru_cache

from noetl.core.model.ids import execution_of
from noetl.core.model.task_log import MAX_LINES, LogChunk, LogLine, source_of
from noetl.errors import NoetlError, StoreUnavailable
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel
from noetl.storage.ports.work_link import WorkLink
from noetl.worker.host import TaskCounts, TaskLine, TaskObserver

LINGER = 0.2  # seconds that a line waits for others
MAX_BUFFER = 4 << 20  # characters
MAX_REQUEST = 256 << 10  # characters of one request
MAX_WAIT = 1.0  # seconds that a tool is slowed down for one block of lines
CLOSE_SECONDS = 5.0
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0  # seconds between repeated requests

_log = logging.getLogger("noetl.work")
_source = lru_cache(4096)(source_of)
DROPPED = "lines dropped: the server did not accept them, or not fast enough"


class TaskLogSender(TaskObserver):
    """The `TaskObserver` of a worker: sends lines over its link, and passes them on to another observer."""

    def __init__(self, link: WorkLink, worker: str, clock: Clock, inner: TaskObserver | None = None) -> None:
        self._link = link
        self._worker = worker
        self._clock = clock
        self._inner = inner or TaskObserver()
        self._buffer: deque[tuple[str, LogLine]] = deque()  # task run, line
        self._size = 0
        self._dropped: dict[str, int] = {}  # task run -> lines since the last one that was buffered
        self._number = 0
        self._sending: Counter[str] = Counter()  # task run -> lines of the request that is on its way
        self._sender: asyncio.Task[None] | None = None
        self._closing = False
        self._filled = asyncio.Event()  # there are lines
        self._large = asyncio.Event()  # there are lines for a whole request
        self._room = asyncio.Event()
        self._room.set()

    def line(self, line: TaskLine) -> None:
        """Buffer a masked line; drop and count it if the buffer is full."""
        self._inner.line(line)
        run = line.task_run_id
        if self._size + len(line.line) > MAX_BUFFER:
            self._dropped[run] = self._dropped.get(run, 0) + 1
            return
        if run in self._dropped:
            self._add(run, LogLine(0, self._clock.now(), "stderr", DROPPED, self._dropped.pop(run)))
        self._add(run, LogLine(0, self._clock.now(), line.stream, line.line))

    def counts(self, counts: TaskCounts) -> None:
        """Pass progress on."""
        self._inner.counts(counts)

    @property
    def full(self) -> bool:
        """Whether more than half of the buffer is used."""
        return not self._room.is_set()

    async def wait_for_room(self) -> None:
        """Return when half of the buffer is free, at the latest after `MAX_WAIT` seconds."""
        if self._room.is_set():
            return
        try:
            async with asyncio.timeout(MAX_WAIT):
                await self._room.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Send what is buffered, within `CLOSE_SECONDS`."""
        if self._sender is None:
            return
        self._closing = True
        self._filled.set()
        self._large.set()
        done, _ = await asyncio.wait((self._sender,), timeout=CLOSE_SECONDS)
        if not done:
            _log.warning("%d lines of tasks could not be sent, and are lost", len(self._buffer) + self._sending.total())
        await cancel(self._sender)
        self._sender = None

    def _add(self, run: str, line: LogLine) -> None:
        self._buffer.append((run, line))
        self._size += len(line.text) + 1
        self._filled.set()
        if self._size > MAX_REQUEST:
            self._large.set()
        if self._size > MAX_BUFFER // 2:
            self._room.clear()
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_forever())

    async def _send_forever(self) -> None:
        while not self._closing or self._buffer:
            await self._filled.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await self._large.wait()
            self._filled.clear()
            self._large.clear()
            while self._buffer:
                await self._send()

    async def _send(self) -> None:
        chunks = self._take()
        self._number += 1
        try:
            await self._send_until_stored(chunks)
        except NoetlError as problem:
            _log.warning("the server rejected %d lines of tasks: %s", self._sending.total(), problem)
            for run, lines in self._sending.items():
                self._dropped[run] = self._dropped.get(run, 0) + lines
        self._sending.clear()

    async def _send_until_stored(self, chunks: list[LogChunk]) -> None:
        """Repeat a request until the store of the server can be written."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._link.logs(self._worker, self._number, chunks)
            except StoreUnavailable as problem:
                if pause == FIRST_PAUSE:
                    _log.warning("%d lines of tasks cannot be stored, retrying: %s", self._sending.total(), problem)
                await self._clock.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)

    def _take(self) -> list[LogChunk]:
        """The oldest lines, up to `MAX_REQUEST` characters, by execution."""
        taken: dict[str, tuple[dict[str, int], list[LogLine]]] = {}
        size = 0
        while self._buffer and size < MAX_REQUEST:
            run, line = self._buffer[0]
            sources, lines = taken.setdefault(execution_of(run), ({}, []))
            if len(lines) >= MAX_LINES:
                break
            self._buffer.popleft()
            size += len(line.text) + 1
            self._sending[run] += max(1, line.dropped)
            number = sources.setdefault(run, len(sources))
            lines.append(line if number == 0 else LogLine(number, line.at, line.stream, line.text, line.dropped))
        self._size -= size
        if self._size <= MAX_BUFFER // 2:
            self._room.set()
            for run in list(self._dropped):
                self._add(run, LogLine(0, self._clock.now(), "stderr", DROPPED, self._dropped.pop(run)))
        return [LogChunk(each, [_source(run) for run in sources], lines) for each, (sources, lines) in taken.items()]
