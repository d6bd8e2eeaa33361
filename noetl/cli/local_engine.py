"""Opens the embedded engine with the options of a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from noetl.cli.output.terminal import terminal
from noetl.embedded import LocalEngine, open_local
from noetl.settings import load


@asynccontextmanager
async def open_engine(store: str | None = None, **more: Any) -> AsyncIterator[LocalEngine]:
    """Open the embedded engine with its workers."""
    loaded = load({"store": store})
    for warning in loaded.warnings:
        terminal.warn(warning)
    terminal.detail(f"store {loaded.settings.store} ({loaded.origins['store']})")
    engine = await open_local(loaded.settings, **more)
    try:
        yield engine
    finally:
        await engine.close()
