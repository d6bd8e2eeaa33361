"""Polls for commands that other local processes (`noetl cancel`, `noetl signal`) appended to our executions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from noetl.errors import NoetlError
from noetl.server.orchestrator.service import Orchestrator

log = logging.getLogger("noetl.control")

POLL_SECONDS = 0.25


@asynccontextmanager
async def watch_external_changes(orchestrator: Orchestrator, every: float = POLL_SECONDS) -> AsyncIterator[None]:
    """Poll every `every` seconds for the duration of the block."""
    task = asyncio.get_running_loop().create_task(_poll_forever(orchestrator, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _poll_forever(orchestrator: Orchestrator, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            await orchestrator.poll_external_changes()
        except NoetlError as problem:
            log.warning("changes by other processes could not be read: %s", problem)
