"""The clock port and its real implementation; tests and the simulation pass a virtual clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("noetl.clock")

TOLERANCE_SECONDS = 1.0  # that the clock may be corrected without a notice
SLOW = 0.9  # speed of a steady clock until the clock of the machine has caught up


class Clock(Protocol):
    """A source of time: real in processes, virtual in the simulation."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes backwards."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""


class ShiftedClock:
    """The time of the database, measured with every heartbeat; setting the clock of this machine does not change it."""

    def __init__(self, clock: Clock, offset: Callable[[], float]) -> None:
        self._clock = clock
        self._offset = offset  # seconds from the monotonic clock of this process to the wanted time

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return self._clock.monotonic() + self._offset()

    def monotonic(self) -> float:
        """Seconds of a clock that never goes backwards."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await self._clock.sleep(seconds)


class RealClock:
    """`Clock` of the operating system."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never goes backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


class SteadyClock(RealClock):
    """`Clock` for durations: it never goes back.

    A clock of the machine that is set forward is followed at once. After one that is set back, this clock runs slower
    until both agree, so that timeouts and waits end when they should."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._now = time.time()
        self._behind = False

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        at, wall = time.monotonic(), time.time()
        passed = at - self._at
        behind = wall < self._now + passed - TOLERANCE_SECONDS
        if behind and not self._behind:
            log.warning(
                "the clock of this machine was set back by %.0f s; times of events follow slowly, and at once after a "
                "restart",
                self._now + passed - wall,
            )
        self._at, self._behind = at, behind
        self._now = max(wall, self._now + passed * SLOW) if behind else max(wall, self._now)
        return self._now
