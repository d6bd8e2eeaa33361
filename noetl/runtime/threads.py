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
    """Run a long call in a thread; cancellation interrupts it and waits until it has stopped.

    The call is never left out: it can release a resource."""
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
        work.cancelled() or work.exception()  # retrieved, so that it is not logged
        raise


async def open_in_thread(open: Callable[[], T], close: Callable[[T], object]) -> T:
    """Open a file or connection in a thread; if the task is cancelled meanwhile, what was opened is closed."""
    work = per_loop(Threads, Threads).pool.submit(open)
    try:
        return await asyncio.wrap_future(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: done.cancelled() or done.exception() or close(done.result()))
        raise
