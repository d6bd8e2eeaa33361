"""Task logs on the server: accepts chunks of workers, and reads and follows the lines of an execution.

A worker sends its requests one after the other, with a number. A chunk that arrives again, because the reply was lost
or another chunk of the request could not be stored, is ignored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from noetl.core.model.task_log import LogChunk, LogFilter, LogPage, StoredLine
from noetl.observability import metrics
from noetl.storage.ports.events import EventStore
from noetl.storage.ports.task_logs import TaskLogStore

FINAL = frozenset({"success", "failed", "cancelled"})
POLL_SECONDS = 1.0  # how often `follow` reads what other servers have stored
GRACE_SECONDS = 1.0  # that `follow` waits for the last lines of an ended execution
PAGE = 5_000  # lines that `follow` yields at once
MAX_WORKERS = 10_000  # whose last number is remembered


class TaskLogs:
    """The lines that the tasks of all executions print."""

    def __init__(self, store: TaskLogStore, events: EventStore) -> None:
        self.store = store
        self._events = events
        self._stored: dict[str, tuple[int, Counter[str]]] = {}  # worker -> its last request, chunks by execution
        self._followers: dict[str, set[asyncio.Event]] = {}

    async def accept(self, worker: str, number: int, chunks: Sequence[LogChunk]) -> None:
        """Store the chunks of a worker's request; those that are stored already are ignored."""
        last, stored = self._stored.pop(worker, (0, Counter()))
        if number > last:
            last, stored = number, Counter()
        self._stored[worker] = last, stored
        if len(self._stored) > MAX_WORKERS:
            del self._stored[next(iter(self._stored))]
        seen: Counter[str] = Counter()
        for chunk in chunks if number == last else ():
            seen[chunk.execution_id] += 1
            if seen[chunk.execution_id] > stored[chunk.execution_id]:
                await self.store.append(chunk)
                stored[chunk.execution_id] += 1
                self._appended(chunk)

    def _appended(self, chunk: LogChunk) -> None:
        metrics.LOG_LINES.add(len(chunk.lines))
        metrics.LOG_LINES_DROPPED.add(sum(line.dropped for line in chunk.lines))
        for waiting in self._followers.get(chunk.execution_id, ()):
            waiting.set()

    async def read(
        self, execution_id: str, after: int = 0, limit: int = 1000, where: LogFilter | None = None
    ) -> LogPage:
        """Lines with a number > after, in order."""
        return await self.store.read(execution_id, after, limit, where)

    async def follow(
        self, execution_id: str, after: int = 0, where: LogFilter | None = None
    ) -> AsyncIterator[list[StoredLine]]:
        """Lines as they arrive, until the execution has ended and its last lines have arrived."""
        changed = asyncio.Event()
        self._followers.setdefault(execution_id, set()).add(changed)
        ended_at: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                changed.clear()
                page = await self.store.read(execution_id, after, PAGE, where)
                if page.lines:
                    after = page.lines[-1].seq
                    yield page.lines
                if page.next is not None:
                    continue
                if ended_at is None:
                    summary = await self._events.summary(execution_id)
                    ended_at = clock() if summary is None or summary.status in FINAL else None
                elif not page.lines and clock() - ended_at >= GRACE_SECONDS:
                    return
                try:
                    async with asyncio.timeout(POLL_SECONDS if ended_at is None else GRACE_SECONDS / 2):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._followers[execution_id].discard(changed)
            if not self._followers[execution_id]:
                del self._followers[execution_id]
