"""The world's clock and chance for worker-side templates; the pipeline records what was drawn."""

from __future__ import annotations

import random

from noetl.core.model.events import instant
from noetl.runtime.clock import Clock


class WorldDraws:
    """`now()`, `uuid()` and `random()`."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> str:
        """This instant as ISO 8601 text."""
        return instant(self._clock.now())

    def uuid(self) -> str:
        """A random UUID."""
        from uuid import uuid4  # its import looks at the platform: only for those who draw one

        return str(uuid4())

    def random(self) -> float:
        """A number from 0 up to 1."""
        return random.random()
