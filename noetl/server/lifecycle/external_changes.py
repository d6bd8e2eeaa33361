"""Other processes of this machine write into our executions (`noetl cancel`, `signal`): hear of it, and go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from noetl.errors import NoetlError
from noetl.server.orchestrator.service import Orchestrator

log = logging.getLogger("noetl.control")

EVERY = 0.25


@asynccontextmanager
async def watch_external_changes(orchestrator: Orchestrator, every: float = EVERY) -> AsyncIterator[None]:
    """Look now and then for as long as the block lasts."""
    task = asyncio.get_running_loop().create_task(_listen(orchestrator, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _listen(orchestrator: Orchestrator, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            await orchestrator.poll_external_changes()
        except NoetlError as problem:
            log.warning("what other processes wrote could not be read: %s", problem)
