"""Polls for commands that other local processes (`noetl cancel`, `noetl signal`) appended to our executions."""

from __future__ import annotations

import asyncio
import logging

from noetl.errors import NoetlError
from noetl.server.orchestrator.service import Orchestrator

log = logging.getLogger("noetl.control")

POLL_SECONDS = 0.25


async def watch_external_changes(orchestrator: Orchestrator) -> None:
    """Poll until cancelled."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            await orchestrator.poll_external_changes()
        except NoetlError as problem:
            log.warning("changes by other processes could not be read: %s", problem)
