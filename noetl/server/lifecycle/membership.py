"""One of several servers: it beats, and does what a dead one owed.

Everything a server has in memory (timers, leases, runs on their way to the queue) can be asked of the
log again, and doing it twice does no harm. So whoever hears of a death, is taken for dead itself, lost
sight of the store, or has the turn to sweep, folds what is unfinished and goes on with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from noetl.errors import StoreUnavailable
from noetl.server.lifecycle import recovery
from noetl.server.orchestrator.service import Orchestrator

log = logging.getLogger("noetl.control")

BEAT_SECONDS = 1.0


class Heartbeat(Protocol):
    """What a server learns when it beats."""

    @property
    def forgotten(self) -> bool:
        """The others took us for dead."""

    @property
    def died(self) -> tuple[int, ...]:
        """Servers whose work is ours now."""

    @property
    def sweep(self) -> bool:
        """It is our turn to look at everything."""


class Membership(Protocol):
    """A place where servers say that they live."""

    async def beat(self) -> Heartbeat:
        """Say that we live, and hear who does not."""

    async def leave(self) -> None:
        """Go; another one takes over."""


class HeartbeatMonitor:
    """When this server last said that it lives, and was heard."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    @property
    def silent(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self.at


@asynccontextmanager
async def membership(members: Membership, orchestrator: Orchestrator) -> AsyncIterator[HeartbeatMonitor]:
    """Beat while the block runs; leave at its end."""
    beats = HeartbeatMonitor()
    loop = asyncio.get_running_loop()
    owed = asyncio.Event()
    tasks = [
        loop.create_task(_beat(members, owed, beats)),
        loop.create_task(_take_over(orchestrator, owed)),
    ]
    try:
        yield beats
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await members.leave()
        except StoreUnavailable as problem:
            log.warning("the other servers will notice by themselves that this one left: %s", problem)


async def _beat(members: Membership, owed: asyncio.Event, beats: HeartbeatMonitor) -> None:
    away = False
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            beat = await members.beat()
        except StoreUnavailable as problem:
            if not away:
                log.warning("the store does not answer: %s", problem)
            away = True
            continue
        beats.at = time.monotonic()
        if beat.died:
            log.warning("%d other servers are gone; taking over what they owed", len(beat.died))
        if away or beat.forgotten or beat.died or beat.sweep:
            owed.set()
        away = False


async def _take_over(orchestrator: Orchestrator, owed: asyncio.Event) -> None:
    while True:
        await owed.wait()
        owed.clear()
        try:
            await recovery.resume(orchestrator)
        except StoreUnavailable:
            owed.set()
            await asyncio.sleep(BEAT_SECONDS)
