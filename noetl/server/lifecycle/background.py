"""Background tasks: effects of the log, retried while the store is unreachable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from noetl.errors import NoetlError, StoreUnavailable
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel

log = logging.getLogger("noetl.control")

RETRY_SECONDS = (0.05, 0.2, 1.0, 5.0)


class BackgroundTasks:
    """Background work of one orchestrator."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._single: set[str] = set()  # names of running tasks of `run_single`

    def run_until_done(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        """Run `work`, and retry it while the store is unreachable; `name` describes it in log messages."""
        task = asyncio.get_running_loop().create_task(self._retry(name, work))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def run_single(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        """The same, unless it is running: for work that ends when nothing is left to do."""
        if name not in self._single:
            self._single.add(name)
            self.run_until_done(name, work)

    async def close(self, grace: float = 0.0) -> None:
        """Cancel all tasks after at most `grace` seconds; what was not done is outstanding in the log."""
        if grace and self._tasks:
            await asyncio.wait(list(self._tasks), timeout=grace)
        await cancel(*self._tasks)

    async def _retry(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        attempt = 0
        try:
            while True:
                try:
                    await work()
                    return
                except StoreUnavailable as problem:
                    log.warning("%s is retried, the store is unreachable: %s", name, problem)
                except NoetlError as problem:
                    log.error("%s failed: %s", name, problem)
                    return
                except Exception:
                    log.exception("%s failed", name)
                    return
                await self._clock.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
        finally:
            self._single.discard(name)  # without an await after the last check: a later call starts it again
