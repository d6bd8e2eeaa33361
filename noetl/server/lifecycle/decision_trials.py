"""Trials: after a server stopped, its peers decide one suspect at a time, under a mark that all servers see.

A decision that ends its server leaves a file in that server's home (`decision_watch`). Other servers do not see this
file, and they take over the execution. So for some time after a server stopped or started, its first decision of every
execution that existed then is made alone: it is marked in the store before, and the mark is removed after it. The mark
of a server that stopped is evidence against one execution, which fails after `MAX_EVIDENCE` of them at one event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.errors import StoreUnavailable
from noetl.storage.ports.cluster import DecisionMarks

log = logging.getLogger("noetl.control")

SECONDS = 60.0  # after a server stopped
MAX_EVIDENCE = 2  # servers that stopped while they decided one event; one may have been stopped by its operator


class DecisionTrials:
    """Which decisions of this server are made under a mark."""

    def __init__(self, marks: DecisionMarks, clock: Callable[[], float]) -> None:
        self._marks = marks
        self._clock = clock
        self._since: float | None = clock()  # a server may have stopped before this one started
        self._decided: set[str] = set()
        self._alone = asyncio.Lock()

    def begin(self) -> None:
        """A server has stopped: executions that exist now are suspects."""
        self._since = self._clock()
        self._decided.clear()

    def due(self, execution_id: str, started_at: float) -> bool:
        """Whether the next decision of an execution is a trial."""
        if self._since is None:
            return False
        if self._clock() > self._since + SECONDS:
            self._since = None
            self._decided.clear()
            return False
        return started_at <= self._since and execution_id not in self._decided

    @asynccontextmanager
    async def alone(self, execution_id: str, seq: int) -> AsyncIterator[None]:
        """Make a decision under a mark; StoreUnavailable while another server is making it."""
        async with self._alone:
            if not await self._marks.mark_decision(execution_id, seq):
                raise StoreUnavailable(f"another server is deciding what follows event {seq} of {execution_id}")
            try:
                yield
            finally:
                await self._marks.unmark_decision(execution_id)
            self._decided.add(execution_id)

    async def poisoned(self) -> list[tuple[str, ErrorInfo]]:
        """The executions whose decisions ended servers, each with its error."""
        return [
            (
                execution_id,
                error_info("limit", f"{MAX_EVIDENCE} servers ended while they decided what follows event {seq}"),
            )
            for execution_id, seq in await self._marks.fatal_decisions(MAX_EVIDENCE)
        ]
