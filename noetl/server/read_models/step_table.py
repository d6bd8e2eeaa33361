"""Cache of step tables: a repeated query reads only the events that are new.

A client that waits for an execution polls it; folding the whole log each time would be expensive for long executions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

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
        progress, lock = self._tables.get(execution_id) or (Progress(), asyncio.Lock())
        self._tables[execution_id] = (progress, lock)
        self._tables.move_to_end(execution_id)
        if len(self._tables) > CAPACITY:
            self._tables.popitem(last=False)
        async with lock:  # concurrent queries apply every event once
            while progress.seq != length:
                page = await self._store.read(execution_id, progress.seq, PAGE)
                for recorded in page:
                    progress.apply(recorded)
                if len(page) < PAGE:
                    break
        return progress
