"""Deleting what has outlived its ttl: stored results that nobody promised to keep."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from noetl.drivers import metrics
from noetl.errors import NoetlError
from noetl.ports import Clock, ResultStore

EVERY = 600.0

_log = logging.getLogger("noetl.control")


@asynccontextmanager
async def collecting(results: ResultStore, clock: Clock, *, every: float = EVERY) -> AsyncIterator[None]:
    """Collect now and then for as long as the block lasts."""
    keeping = asyncio.create_task(_collect_for_ever(results, clock, every))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def collect(results: ResultStore, clock: Clock) -> int:
    """Delete what has expired; how many. A store that cannot be reached is noted: the next time will do."""
    try:
        count = await results.collect(clock.now())
    except NoetlError as problem:
        _log.warning("expired results could not be deleted: %s", problem)
        return 0
    metrics.COLLECTED.add(count)
    if count:
        _log.info("deleted %d results whose ttl has passed", count)
    return count


async def _collect_for_ever(results: ResultStore, clock: Clock, every: float) -> None:
    while True:
        await collect(results, clock)
        await clock.sleep(every)
