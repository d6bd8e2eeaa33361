"""Cache of step tables: a repeated query reads only the events that are new.

A client that waits for an execution polls it; folding the whole log each time would be expensive for long executions.
The first query of a long execution begins at its snapshot.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from noetl.errors import CorruptLog
from noetl.server.read_models.stored_snapshot import progress_part
from noetl.server.read_models.summaries import Progress
from noetl.storage.ports.events import EventStore

CAPACITY = 256
PAGE = 5_000  # events per read


class StepTables:
    """The most recently used step tables."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._tables: OrderedDict[str, tuple[Progress, asyncio.Lock]] = OrderedDict()

    async def get(self, execution_id: str, length: int | None = None) -> Progress:
        """The current step table; `length` is the length of the log if the caller knows it."""
        known = self._tables.get(execution_id)
        if known is None:
            known = (
                await _stored(self._store, execution_id) if length is None or length > PAGE else Progress(),
                asyncio.Lock(),
            )
            known = self._tables.setdefault(execution_id, known)
        progress, lock = known
        self._tables.move_to_end(execution_id)
        if len(self._tables) > CAPACITY:
            self._tables.popitem(last=False)
        async with lock:  # concurrent queries apply every event once
            await _read_on(self._store, execution_id, progress, length)
        return progress


async def read_progress(store: EventStore, execution_id: str, length: int) -> Progress:
    """The step table after `length` events, from the snapshot and the events after it."""
    progress = await _stored(store, execution_id)
    if progress.seq > length:
        progress = Progress()
    await _read_on(store, execution_id, progress, length)
    return progress


async def _stored(store: EventStore, execution_id: str) -> Progress:
    try:
        snapshot = await store.snapshot(execution_id)
    except CorruptLog:
        return Progress()  # the log is authoritative
    return (progress_part(snapshot[1]) if snapshot is not None else None) or Progress()


async def _read_on(store: EventStore, execution_id: str, progress: Progress, length: int | None) -> None:
    while progress.seq != length:
        limit = PAGE if length is None else min(PAGE, length - progress.seq)
        page = await store.read(execution_id, progress.seq, limit)
        for recorded in page:
            progress.apply(recorded)
        if not page.more:
            break
