"""Asyncio tasks that run for the duration of a block, and their cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from noetl.errors import NoetlError
from noetl.runtime.clock import Clock

log = logging.getLogger("noetl.control")

RESTART_SECONDS = 1.0


@asynccontextmanager
async def running(*work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run periodic work for the duration of the block, then cancel it; after an exception it is started again."""
    tasks = [asyncio.get_running_loop().create_task(keep_running(each)) for each in work]
    try:
        yield
    finally:
        await cancel(*tasks)


async def keep_running(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run periodic work; after an exception it is started again. An error that lasts is logged once."""
    reported = ""
    while True:
        try:
            await work()
            return
        except NoetlError as problem:
            if str(problem) != reported:
                reported = str(problem)
                log.error("periodic work failed and is started again every %g s: %s", RESTART_SECONDS, problem)
        except Exception:
            log.exception("periodic work failed and is started again in %g s", RESTART_SECONDS)
        await asyncio.sleep(RESTART_SECONDS)


async def cancel(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended; None is ignored."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def sleep_unless_set(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Sleep on this clock until the time has passed or the event is set."""
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    woken = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((sleeping, woken), return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeping.cancel()
        woken.cancel()
