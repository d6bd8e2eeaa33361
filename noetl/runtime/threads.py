"""Threads for calls into libraries that block, and how to stop such a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from noetl.runtime.resources import per_loop

MOST = 32

T = TypeVar("T")


class Threads:
    """Threads for calls that may take long, apart from those the rest of the process uses."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=MOST, thread_name_prefix="noetl-call")

    def close(self) -> None:
        """End them."""
        self.pool.shutdown(wait=True)


async def in_thread(deed: Callable[[], T], *, interrupt: Callable[[], None] | None = None) -> T:
    """Do something long in a thread; being cancelled interrupts it and waits until it has stopped."""
    threads = per_loop(Threads, Threads)
    work = asyncio.get_running_loop().run_in_executor(threads.pool, deed)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # The interruption may come just before the work begins to listen to it.
        while not work.done():
            if interrupt is not None:
                interrupt()
            await asyncio.wait([work], timeout=0.05)
        if not work.cancelled():
            work.exception()  # it is known why it failed
        raise
