"""Puts runs of all executions into the queue, in batches and in the background."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.storage.ports.queue import QueuedRun, RunQueue


class Enqueuer:
    """Puts runs into the queue, and removes those of ended executions."""

    def __init__(self, queue: RunQueue, limiter: ConcurrencyLimiter, background: BackgroundTasks) -> None:
        self._queue = queue
        self._limiter = limiter
        self._background = background
        self._executions: set[str] = set()  # executions that have put runs into the queue
        self.pending: list[QueuedRun] = []  # not in the queue yet
        self._ended: list[str] = []  # executions whose runs are to be removed

    def put(self, execution_id: str, runs: Sequence[QueuedRun]) -> None:
        """Enqueue runs of an execution, to wait for a worker or for a limit."""
        self._executions.add(execution_id)
        self.pending += runs
        self._background.run_single("enqueueing runs", self._put_pending)

    def remove_ended(self, execution_id: str) -> None:
        """Remove all runs of an ended execution from the queue."""
        if execution_id in self._executions:
            self._executions.discard(execution_id)
            self._ended.append(execution_id)
            self._background.run_single("removing runs of ended executions from the queue", self._remove_ended)

    async def _remove_ended(self) -> None:
        """Remove the runs of ended executions together."""
        while executions := list(self._ended):
            await self._queue.remove(executions)
            del self._ended[: len(executions)]

    async def _put_pending(self) -> None:
        """Enqueue the pending runs of all executions together."""
        while runs := list(self.pending):
            await self._queue.put(runs)
            del self.pending[: len(runs)]
            # Slots may have been freed before the runs were in the queue.
            self._limiter.recheck({run.limit for run in runs if run.limit is not None})
