"""Step tables of executions that somebody looks at: kept, so that the next look reads only what is new.

Whoever waits for an execution asks again and again; folding its whole log each time would make a long
execution dear to watch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from noetl.server.read_models.summaries import Progress
from noetl.storage.ports.events import EventStore

MOST = 256  # tables kept
PAGE = 5_000  # events read at once


class StepTables:
    """The tables that were looked at last."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._kept: OrderedDict[str, tuple[Progress, asyncio.Lock]] = OrderedDict()

    async def get(self, execution_id: str, length: int | None = None) -> Progress:
        """The table as the log has it now; `length` is that of the log, where the caller knows it."""
        progress, lock = self._kept.get(execution_id) or (Progress(), asyncio.Lock())
        self._kept[execution_id] = (progress, lock)
        self._kept.move_to_end(execution_id)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        async with lock:  # every event is applied once, however many look
            while progress.seq != length:
                page = await self._store.read(execution_id, progress.seq, PAGE)
                for recorded in page:
                    progress.apply(recorded)
                if len(page) < PAGE:
                    break
        return progress
