"""The clock port and its real implementation; tests and the simulation pass a virtual clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A source of time: real in processes, virtual in the simulation."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes backwards."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""


class ShiftedClock:
    """A clock that follows another one at a distance: that of the database, measured with every heartbeat."""

    def __init__(self, clock: Clock, ahead: Callable[[], float]) -> None:
        self._clock = clock
        self._ahead = ahead  # seconds that `clock` is ahead of the wanted time

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return self._clock.now() - self._ahead()

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
