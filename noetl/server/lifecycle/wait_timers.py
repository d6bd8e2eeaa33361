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
LEADER_SECONDS, RENEW_SECONDS = 6.0, 2.0  # another server reads this soon after the leader has stopped

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
        self._leads = False

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            seconds = POLL_SECONDS
            try:
                if await self.load() == BATCH:
                    seconds = FULL_SECONDS
            except NoetlError as problem:
                log.warning("the timers of waiting executions could not be read: %s", problem)
            await self._pause(seconds)

    async def load(self) -> int:
        """Set the timers that are due soon; return their number."""
        if not await self._acquire():
            return 0
        due = await self._orchestrator.store.due(self._clock.now() + HORIZON, BATCH)
        owned = set(self._owned([execution_id for execution_id, _ in due])) if self._owned else None
        for execution_id, at in due:
            if owned is None or execution_id in owned:
                self._orchestrator.timers.set(execution_id, at)
        return len(due)

    async def _pause(self, seconds: float) -> None:
        """Wait for the next read. The leader renews its lease; a server that becomes the leader reads at once."""
        if self._leadership is None:
            await asyncio.sleep(seconds)
            return
        while seconds > 0:
            await asyncio.sleep(min(seconds, RENEW_SECONDS))
            seconds -= RENEW_SECONDS
            led = self._leads
            try:
                if await self._acquire() and not led:
                    return
            except NoetlError as problem:
                log.warning("the lease of %s could not be renewed: %s", LEADER_ROLE, problem)

    async def _acquire(self) -> bool:
        """Acquire or renew the lease of the cluster for these timers."""
        leadership, self._leads = self._leadership, False
        self._leads = leadership is None or await leadership.acquire_leadership(LEADER_ROLE, LEADER_SECONDS)
        return self._leads
