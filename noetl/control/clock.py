"""The real clock and the real chance: what processes give the orchestrator; tests give others."""

from __future__ import annotations

import asyncio
import random
import time
import uuid

from noetl.model.events import instant


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


class RealDraws:
    """`now()`, `uuid()` and `random()` for server-side templates; what is drawn is recorded with the decision."""

    def now(self) -> str:
        """This instant as ISO 8601 text."""
        return instant(time.time())

    def uuid(self) -> str:
        """A random UUID."""
        return str(uuid.uuid4())

    def random(self) -> float:
        """A number from 0 up to 1."""
        return random.random()
