"""The machine's own clocks: what processes give to those who ask for the time; tests give others."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time as an argument: real in processes, virtual in simulation."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class RealClock:
    """`ports.Clock` by the machine's own clocks."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
