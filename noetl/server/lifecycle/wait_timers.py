"""Timers of executions that only wait: found in the store when they are due soon, and not held in memory before.

A server holds the timers of the next `HORIZON` seconds. Later ones are rows with an indexed instant, so a million
waiting executions cost a server nothing. One server of a cluster reads them for all; a timer that fires twice has no
effect the second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from noetl.errors import NoetlError
from noetl.runtime.clock import Clock
from noetl.server.lifecycle.timers import HORIZON
from noetl.server.orchestrator.service import Orchestrator
from noetl.storage.ports.cluster import LeaderLease

log = logging.getLogger("noetl.control")

POLL_SECONDS = HORIZON / 3
FULL_SECONDS = 0.5  # until the next read, if there were more timers than one read returns
BATCH = 1_000
LEADER_ROLE = "wait timers"

Owned = Callable[[Sequence[str]], list[str]]  # selects the executions that this process may continue


class WaitTimers:
    """Sets the timers of waiting executions that are due soon."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        clock: Clock,
        leadership: LeaderLease | None = None,
        owned: Owned | None = None,
    ) -> None:
        self._orchestrator = orchestrator
        self._clock = clock
        self._leadership = leadership
        self._owned = owned

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            seconds = POLL_SECONDS
            try:
                if await self.load() == BATCH:
                    seconds = FULL_SECONDS
            except NoetlError as problem:
                log.warning("the timers of waiting executions could not be read: %s", problem)
            await asyncio.sleep(seconds)

    async def load(self) -> int:
        """Set the timers that are due soon; return their number."""
        leadership = self._leadership
        if leadership is not None and not await leadership.acquire_leadership(LEADER_ROLE, 3 * POLL_SECONDS):
            return 0
        due = await self._orchestrator.store.due(self._clock.now() + HORIZON, BATCH)
        owned = set(self._owned([execution_id for execution_id, _ in due])) if self._owned else None
        for execution_id, at in due:
            if owned is None or execution_id in owned:
                self._orchestrator.timers.set(execution_id, at)
        return len(due)
