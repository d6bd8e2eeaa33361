"""Where the world can go wrong, and the dice that decide.

Every place where a fault can strike asks `Dice.strikes(place)`. The dice are thrown from the seed; each
strike uses up one of the story's faults and is written down, so a story can be told again with fewer.
"""

from __future__ import annotations

import random

PLACES = (
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
    "clock.jump",
)


class Dice:
    """Chance from a seed. `only` limits the strikes to these numbers (for shrinking a story)."""

    def __init__(self, seed: int, faults: int, *, rate: float = 0.1, only: frozenset[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._left = faults
        self._rate = rate
        self._only = only
        self._asked = 0
        self.struck: list[tuple[int, str]] = []
        self.quiet = False  # the faults have stopped

    def strikes(self, place: str) -> bool:
        """Whether a fault strikes here and now."""
        self._asked += 1
        if self.quiet:
            return False
        thrown = self._random.random() < self._rate
        if not thrown or self._left <= 0:
            return False
        if self._only is not None and self._asked not in self._only:
            return False
        self._left -= 1
        self.struck.append((self._asked, place))
        return True

    def between(self, low: float, high: float) -> float:
        """Some time."""
        return self._random.uniform(low, high)

    def choose(self, count: int) -> int:
        """One of so many."""
        return self._random.randrange(count)

    @property
    def spent(self) -> bool:
        """No faults are left."""
        return self._left <= 0
