"""Deeds the log has promised: done in the background, and again while the store is out of reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from noetl.errors import NoetlError, StoreUnavailable
from noetl.runtime.clock import Clock

log = logging.getLogger("noetl.control")

RETRY_SECONDS = (0.05, 0.2, 1.0, 5.0)


class BackgroundTasks:
    """Background work of one orchestrator."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._single: set[str] = set()  # those under way of which there is one at a time

    def run_until_done(self, what: str, deed: Callable[[], Awaitable[Any]]) -> None:
        """Do it, and do it again while the store cannot be reached; `what` names it in the log file."""
        task = asyncio.get_running_loop().create_task(self._try_until_done(what, deed))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def run_single(self, what: str, deed: Callable[[], Awaitable[Any]]) -> None:
        """The same, unless it is under way: for a deed that ends when it finds nothing more to do."""
        if what not in self._single:
            self._single.add(what)
            self.run_until_done(what, deed)

    async def close(self, grace: float = 0.0) -> None:
        """Stop, after so many seconds at most; what was not done is outstanding in the log."""
        if grace and self._tasks:
            await asyncio.wait(list(self._tasks), timeout=grace)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _try_until_done(self, what: str, deed: Callable[[], Awaitable[Any]]) -> None:
        number = 0
        try:
            while True:
                try:
                    await deed()
                    return
                except StoreUnavailable as problem:
                    log.warning("%s waits for the store: %s", what, problem)
                except NoetlError as problem:
                    log.error("%s failed: %s", what, problem)
                    return
                await self._clock.sleep(RETRY_SECONDS[min(number, len(RETRY_SECONDS) - 1)])
                number += 1
        finally:
            self._single.discard(what)  # in the same turn of the loop: what comes next begins it anew
