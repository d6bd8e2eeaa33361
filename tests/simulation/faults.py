"""Fault injection: the points where a fault can be injected, and the seeded source that decides.

Every fault point calls `FaultInjector.should_inject(point)`. The decision depends on the seed alone; each
injected fault is counted and recorded, so that a seed can be repeated with fewer faults.
"""

from __future__ import annotations

import random

FAULT_POINTS = (
    "link.drop_request",
    "link.drop_reply",
    "link.duplicate",
    "link.delay",
    "store.unavailable",
    "store.slow",
    "server.crash_before_commit",
    "server.crash_after_commit",
    "server.crash",
    "worker.crash",
    "worker.sleep",
    "worker.stop",
    "clock.jump",
)


class FaultInjector:
    """Decides from a seed which faults are injected. `only` allows just these numbers (for shrinking)."""

    def __init__(self, seed: int, faults: int, *, rate: float = 0.1, only: frozenset[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._left = faults
        self._rate = rate
        self._only = only
        self._calls = 0
        self.injected: list[tuple[int, str]] = []
        self.stopped = False  # no more faults are injected

    def should_inject(self, point: str) -> bool:
        """Whether a fault is injected at this point now."""
        self._calls += 1
        if self.stopped:
            return False
        chosen = self._random.random() < self._rate
        if not chosen or self._left <= 0:
            return False
        if self._only is not None and self._calls not in self._only:
            return False
        self._left -= 1
        self.injected.append((self._calls, point))
        return True

    def uniform(self, low: float, high: float) -> float:
        """A random duration."""
        return self._random.uniform(low, high)

    def index(self, count: int) -> int:
        """A random index below `count`."""
        return self._random.randrange(count)

    @property
    def spent(self) -> bool:
        """Whether all faults are used up."""
        return self._left <= 0
