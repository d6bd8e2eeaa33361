"""Opens the embedded engine with the options of a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from noetl.cli.output.terminal import terminal
from noetl.cli.target import load_settings
from noetl.embedded import LocalEngine, open_local
from noetl.runtime.event_loop import end_start_up


@asynccontextmanager
async def open_engine(store: str | None = None, **more: Any) -> AsyncIterator[LocalEngine]:
    """Open the embedded engine with its workers."""
    loaded = load_settings(store=store)
    terminal.detail(f"store {loaded.settings.store} ({loaded.origins['store']})")
    engine = await open_local(loaded.settings, **more)
    end_start_up()
    try:
        yield engine
    finally:
        await engine.close()
