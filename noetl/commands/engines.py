"""Open the embedded engine with this command's flags."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import click

from noetl.commands.terminal import terminal
from noetl.errors import NotFound
from noetl.local import LocalEngine, open_local
from noetl.ports import ExecutionFilter, ExecutionSummary
from noetl.settings import load

LAST = "last"

store_option = click.option("--store", metavar="URL", help="Event store: sqlite:///FILE, a file's path, or memory:.")


@asynccontextmanager
async def opened(store: str | None = None, *, work: bool = False, **more: Any) -> AsyncIterator[LocalEngine]:
    """The embedded engine; without `work` for looking and steering only."""
    loaded = load({"store": store})
    for warning in loaded.warnings:
        terminal.warn(warning)
    terminal.detail(f"store {loaded.settings.store} ({loaded.origins['store']})")
    engine = await open_local(loaded.settings, work=work, **more)
    try:
        yield engine
    finally:
        await engine.close()


async def named(engine: LocalEngine, execution_id: str) -> ExecutionSummary:
    """The execution of an id; `last` is the newest one that nobody called."""
    if execution_id != LAST:
        return await engine.orchestrator.summary(execution_id)
    before: str | None = None
    while page := await engine.orchestrator.executions(ExecutionFilter(before=before, limit=100)):
        for summary in page:
            if summary.parent is None:
                return summary
        before = page[-1].execution_id
    raise NotFound("there is no execution yet; `noetl run FILE` makes one")
