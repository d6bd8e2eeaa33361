"""The real source of `now()`, `uuid()` and `random()`; tests and the simulation pass another one."""

from __future__ import annotations

import random

from noetl.core.model.events import instant
from noetl.runtime.clock import Clock


class SystemNondeterminism:
    """Reads the clock and the random source; values that templates read are recorded in the log."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> str:
        """The current instant as ISO 8601 text."""
        return instant(self._clock.now())

    def uuid(self) -> str:
        """A random UUID."""
        from uuid import uuid4  # importing it inspects the platform: only for templates that call it

        return str(uuid4())

    def random(self) -> float:
        """A number from 0 up to 1."""
        return random.random()
