"""Threads for blocking calls of libraries, with cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from noetl.runtime.resources import per_loop

MAX_THREADS = 32

T = TypeVar("T")


class Threads:
    """A thread pool for long calls, separate from the default executor."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="noetl-call")

    def close(self) -> None:
        """Stop the threads."""
        self.pool.shutdown(wait=True)


async def in_thread(call: Callable[[], T], *, interrupt: Callable[[], None] | None = None) -> T:
    """Run a long call in a thread; cancellation interrupts it and waits until it has stopped."""
    threads = per_loop(Threads, Threads)
    work = asyncio.get_running_loop().run_in_executor(threads.pool, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # Repeat the interruption: the first one may come before the call can be interrupted.
        while not work.done():
            if interrupt is not None:
                interrupt()
            await asyncio.wait([work], timeout=0.05)
        if not work.cancelled():
            work.exception()  # retrieved, so that it is not logged
        raise
