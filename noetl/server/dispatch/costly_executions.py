"""Pauses executions whose templates take much of a server's time (decision 91).

A server makes its decisions one after another. An execution that evaluates costly templates in a cycle would delay all
others, so its next runs are enqueued after a pause: all costly executions of a server together take at most about a
fifth of its time. What a pause delays is in the log; after a restart it is enqueued at once.
"""

from __future__ import annotations

from noetl.runtime.clock import Clock

COSTLY = 50_000  # operations of the templates of one decision: 10 to 30 ms
PAUSE = 3e-6  # seconds for an operation of one costly execution: about five times what it takes
MAX_PAUSE = 60.0


class CostlyExecutions:
    """The executions of this process that are paused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def pause_after(self, execution_id: str, operations: int) -> float:
        """The seconds before the next runs of an execution whose decision took these operations."""
        if operations < COSTLY:
            return 0.0
        now = self._clock.monotonic()
        others = {each: until for each, until in self._until.items() if until > now and each != execution_id}
        pause = min(operations * PAUSE * (1 + len(others)), MAX_PAUSE)
        self._until = {**others, execution_id: now + pause}
        return pause

    def is_paused(self, execution_id: str) -> bool:
        """Whether the next runs of an execution are not to be claimed yet."""
        return execution_id in self._until and self._until[execution_id] > self._clock.monotonic()
