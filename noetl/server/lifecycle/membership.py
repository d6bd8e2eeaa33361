"""Cluster membership: sends heartbeats and takes over the executions of servers that stopped.

Everything in the memory of a server (timers, leases, runs not enqueued yet) follows from the logs, and performing
an effect twice is harmless. So a server resumes all unfinished executions when another server stopped, when it was
itself taken for stopped, when the store was unreachable, and when it is its turn for the periodic sweep.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from noetl.errors import NoetlError, StoreUnavailable
from noetl.runtime.tasks import running
from noetl.server.lifecycle import recovery
from noetl.server.orchestrator.service import Orchestrator
from noetl.storage.ports.cluster import Membership

log = logging.getLogger("noetl.control")

HEARTBEAT_SECONDS = 1.0


class HeartbeatMonitor:
    """The time of the last successful heartbeat of this server."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    @property
    def silent(self) -> float:
        """Seconds since the last successful heartbeat."""
        return time.monotonic() - self.at


@asynccontextmanager
async def membership(members: Membership, orchestrator: Orchestrator) -> AsyncIterator[HeartbeatMonitor]:
    """Send heartbeats for the duration of the block, then leave the cluster."""
    monitor = HeartbeatMonitor()
    takeover_needed = asyncio.Event()
    try:
        async with running(
            partial(_send_heartbeats, members, orchestrator, takeover_needed, monitor),
            partial(_take_over, orchestrator, takeover_needed),
        ):
            yield monitor
    finally:
        try:
            await members.leave()
        except NoetlError as problem:
            log.warning("could not leave the cluster, other servers will detect the missing heartbeats: %s", problem)


async def give_up_suspects(orchestrator: Orchestrator) -> None:
    """Fail the executions whose decisions ended several servers."""
    trials = orchestrator.actors.trials
    if trials is not None:
        for execution_id, error in await trials.poisoned():
            log.error("execution %s is given up: %s", execution_id, error.message)
            await orchestrator.give_up(execution_id, error)


async def _send_heartbeats(
    members: Membership, orchestrator: Orchestrator, takeover_needed: asyncio.Event, monitor: HeartbeatMonitor
) -> None:
    unreachable = False
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        try:
            heartbeat = await members.beat()
        except NoetlError as problem:
            if not unreachable:
                log.warning("no heartbeat, the store cannot be used: %s", problem)
            unreachable = True
            continue
        monitor.at = time.monotonic()
        if heartbeat.died:
            if orchestrator.actors.trials is not None:
                orchestrator.actors.trials.begin()
            log.warning("%d other servers have stopped; taking over their executions", len(heartbeat.died))
        if unreachable or heartbeat.forgotten or heartbeat.died or heartbeat.sweep:
            takeover_needed.set()
        unreachable = False


async def _take_over(orchestrator: Orchestrator, takeover_needed: asyncio.Event) -> None:
    while True:
        await takeover_needed.wait()
        takeover_needed.clear()
        try:
            await give_up_suspects(orchestrator)
            await recovery.resume(orchestrator, waiting=False)
        except Exception as problem:
            if not isinstance(problem, StoreUnavailable):
                log.exception("taking over the executions of other servers failed, retrying")
            takeover_needed.set()
            await asyncio.sleep(HEARTBEAT_SECONDS)
