"""Letting go of what nobody needs: results whose ttl has passed, executions that are older than they are kept.

Of several servers one does it, whichever holds the turn; where it stops in the middle, the next turn goes on.
What an execution stored goes before its row does: a server that dies between the two leaves an execution
whose results are gone, and the next turn finds it by its row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from noetl.errors import NoetlError
from noetl.observability import metrics
from noetl.runtime.clock import Clock
from noetl.storage.ports.events import EventStore
from noetl.storage.ports.results import ResultStore

EVERY = 600.0
AT_ONCE = 500  # executions that are forgotten together

_log = logging.getLogger("noetl.control")


class RetentionLease(Protocol):
    """Where servers take turns."""

    async def acquire_turn(self, name: str, seconds: float) -> bool:
        """Whether the turn is ours; nobody else has it for so long."""


@asynccontextmanager
async def run_retention(
    results: ResultStore,
    clock: Clock,
    *,
    store: EventStore | None = None,
    retention: float | None = None,
    turns: RetentionLease | None = None,
    every: float = EVERY,
) -> AsyncIterator[None]:
    """Tidy up now and then for as long as the block lasts; `retention` in seconds, None: for ever."""
    keeping = asyncio.create_task(_tidy_for_ever(results, clock, store, retention, turns, every))
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


async def forget_old(store: EventStore, results: ResultStore, before: float) -> int:
    """Forget every execution that ended before that instant, with what it stored; how many."""
    count = 0
    while executions := await store.expired(before, AT_ONCE):
        await results.forget(executions)
        await store.drop(executions)
        metrics.DROPPED.add(len(executions))
        count += len(executions)
    return count


async def _tidy_for_ever(
    results: ResultStore,
    clock: Clock,
    store: EventStore | None,
    retention: float | None,
    turns: RetentionLease | None,
    every: float,
) -> None:
    while True:
        if await _is_our_turn(turns, every):
            await collect(results, clock)
            if store is not None:
                await _retain(store, results, clock, retention)
        await clock.sleep(every)


async def _is_our_turn(turns: RetentionLease | None, every: float) -> bool:
    if turns is None:
        return True
    try:
        return await turns.acquire_turn("housekeeping", 0.9 * every)
    except NoetlError as problem:
        _log.warning("nobody could be asked whose turn it is to tidy up: %s", problem)
        return False


async def _retain(store: EventStore, results: ResultStore, clock: Clock, retention: float | None) -> None:
    try:
        if retention is not None:
            count = await forget_old(store, results, clock.now() - retention)
            if count:
                _log.info("forgot %d executions that ended more than %g days ago", count, retention / 86400)
        gone = await store.tidy(clock.now())
        if gone:
            _log.info("dropped %d partitions of the log", gone)
    except NoetlError as problem:
        _log.warning("old executions could not be forgotten: %s", problem)
