"""Polls for commands that other local processes (`noetl cancel`, `noetl signal`) appended to our executions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from noetl.errors import NoetlError
from noetl.server.orchestrator.service import Orchestrator

log = logging.getLogger("noetl.control")

POLL_SECONDS = 0.25


async def watch_external_changes(
    orchestrator: Orchestrator, owned: Callable[[list[str]], list[str]] | None = None
) -> None:
    """Poll until cancelled; `owned` selects the executions that are not in memory and that this process continues."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            await orchestrator.poll_external_changes(owned)
        except NoetlError as problem:
            log.warning("changes by other processes could not be read: %s", problem)
