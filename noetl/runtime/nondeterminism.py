"""The real chance: what processes give the orchestrator; tests give others."""

from __future__ import annotations

import random
import time

from noetl.core.model.events import instant


class RealDraws:
    """`now()`, `uuid()` and `random()` for server-side templates; what is drawn is recorded with the decision."""

    def now(self) -> str:
        """This instant as ISO 8601 text."""
        return instant(time.time())

    def uuid(self) -> str:
        """A random UUID."""
        from uuid import uuid4  # its import looks at the platform: only for those who draw one

        return str(uuid4())

    def random(self) -> float:
        """A number from 0 up to 1."""
        return random.random()
