"""The clock port and its real implementation; tests and the simulation pass a virtual clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time: real in processes, virtual in the simulation."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes backwards."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""


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
