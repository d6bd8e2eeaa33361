"""Timers: one per execution, for the instant at which the engine decides again because time has passed."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from noetl.observability import metrics
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel, sleep_unless_set

RECHECK_SECONDS = 60.0  # the longest sleep: the clock may have been set forward meanwhile
MAX_STALE = 1_000  # replaced timers in the heap, beside as many as there are timers
HORIZON = 30.0  # seconds; later timers of waiting executions are found in the store (`wait_timers`)


class Timers:
    """Calls `due(execution_id)` at the instant of each execution. Volatile: the instants follow from the logs."""

    def __init__(self, clock: Clock, due: Callable[[str], None]) -> None:
        self._clock = clock
        self._due = due
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def set(self, execution_id: str, at: float | None) -> None:
        """Set or replace the timer of an execution; None removes it."""
        if at is None:
            self._at.pop(execution_id, None)
            return
        if self._at.get(execution_id) == at:
            return
        self._at[execution_id] = at
        heapq.heappush(self._heap, (at, execution_id))
        if len(self._heap) > 2 * len(self._at) + MAX_STALE:
            self._heap = [(at, each) for each, at in self._at.items()]
            heapq.heapify(self._heap)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._heap[0] == (at, execution_id):
            self._changed.set()

    def __len__(self) -> int:
        return len(self._at)

    async def close(self) -> None:
        """Stop all timers."""
        await cancel(self._task)
        self._task = None

    async def _run(self) -> None:
        while True:
            self._fire_due()
            self._changed.clear()
            if not self._heap:
                await self._changed.wait()
                continue
            seconds = max(0.0, self._heap[0][0] - self._clock.now())
            await sleep_unless_set(self._changed, self._clock, min(seconds, RECHECK_SECONDS))

    def _fire_due(self) -> None:
        now = self._clock.now()
        while self._heap and (self._heap[0][0] <= now or self._is_stale(*self._heap[0])):
            at, execution_id = heapq.heappop(self._heap)
            if not self._is_stale(at, execution_id):
                del self._at[execution_id]
                metrics.TIMERS_DUE.add()
                metrics.LATENESS.observe(max(0.0, now - at))
                self._due(execution_id)

    def _is_stale(self, at: float, execution_id: str) -> bool:
        return self._at.get(execution_id) != at
