"""One alarm per execution: when the engine wants to look again because time has passed."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from noetl.observability import metrics
from noetl.runtime.clock import Clock


class Timers:
    """Calls `due(execution_id)` when an execution's instant has come; the log knows all of them again."""

    def __init__(self, clock: Clock, due: Callable[[str], None]) -> None:
        self._clock = clock
        self._due = due
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def set(self, execution_id: str, at: float | None) -> None:
        """Ring at that instant, and no longer at the one before; None: not at all."""
        if at is None:
            self._at.pop(execution_id, None)
            return
        if self._at.get(execution_id) == at:
            return
        self._at[execution_id] = at
        heapq.heappush(self._heap, (at, execution_id))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._heap[0] == (at, execution_id):
            self._bell.set()

    def next_at(self, execution_id: str) -> float | None:
        """When this execution's alarm rings."""
        return self._at.get(execution_id)

    def __len__(self) -> int:
        return len(self._at)

    async def close(self) -> None:
        """Ring no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            self._ring_due()
            self._bell.clear()
            if not self._heap:
                await self._bell.wait()
                continue
            sleeping = asyncio.ensure_future(self._clock.sleep(max(0.0, self._heap[0][0] - self._clock.now())))
            woken = asyncio.ensure_future(self._bell.wait())
            try:
                await asyncio.wait((sleeping, woken), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                woken.cancel()

    def _ring_due(self) -> None:
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
