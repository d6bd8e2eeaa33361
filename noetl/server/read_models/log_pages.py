"""Reads a log page by page, so that a log of any length needs the memory of one page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from noetl.core.model.events import Recorded
from noetl.storage.ports.events import EventStore

PAGE = 500  # events are handled between two pages without a pause


async def log_events(
    store: EventStore, execution_id: str, after: int = 0, until: int | None = None
) -> AsyncIterator[Recorded]:
    """The events with `after` < seq <= `until` (None: to the end)."""
    while until is None or after < until:
        page = await store.read(execution_id, after, PAGE if until is None else min(PAGE, until - after))
        for recorded in page:
            yield recorded
        if not page.more:
            return
        after = page[-1].seq
