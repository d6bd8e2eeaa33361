"""Runs on their way to the queue: what many executions owe goes there together."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.storage.ports.queue import QueuedRun, RunQueue


class Enqueuer:
    """Puts runs into the queue in the background, and takes those of ended executions out."""

    def __init__(self, queue: RunQueue, lines: ConcurrencyLimiter, deeds: BackgroundTasks) -> None:
        self._queue = queue
        self._lines = lines
        self._deeds = deeds
        self._executions: set[str] = set()  # that have had runs in the queue
        self._waiting: list[QueuedRun] = []  # on their way there

    def put(self, execution_id: str, runs: Sequence[QueuedRun]) -> None:
        """Let these runs of an execution wait for a worker, or in the line of a limit."""
        self._executions.add(execution_id)
        self._waiting += runs
        self._deeds.run_single("queueing runs", self._put_waiting)

    def has_ended(self, execution_id: str) -> None:
        """Nothing of this execution waits any more."""
        if execution_id in self._executions:
            self._executions.discard(execution_id)
            self._deeds.run_until_done(f"unqueueing {execution_id}", lambda: self._queue.remove(execution_id))

    async def _put_waiting(self) -> None:
        """Put what became due since the last put, of all executions together."""
        while runs := list(self._waiting):
            await self._queue.put(runs)
            del self._waiting[: len(runs)]
            if self._lines.most:  # room may have been made before they stood in line
                self._lines.stir({run.limit for run in runs if run.limit is not None})
