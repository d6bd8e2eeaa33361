"""A bounded pool of connections to one server, for one event loop.

Unlike the pools of drivers, this one raises a failed connect in the caller that waits for the connection, with the
server's message (a wrong password is not a timeout), and has no background task: idle connections are closed by a
timer.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

C = TypeVar("C")


class PoolExhausted(Exception):
    """All connections are in use and none was released in time."""


class Pool(Generic[C]):
    """Connections created by `connect`, at most `size` at a time; idle ones are closed after `idle` seconds."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        *,
        close: Callable[[C], Awaitable[None]],
        usable: Callable[[C], bool],
        renew: Callable[[C], Awaitable[bool]] | None = None,
        size: int = 10,
        idle: float = 60.0,
    ) -> None:
        self._connect = connect
        self._close = close
        self._usable = usable
        self._renew = renew
        self._idle: deque[tuple[float, C]] = deque()  # the most recently used one is at the right and is reused first
        self._keep = idle
        self._free = asyncio.Semaphore(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = False
        self._closed = False
        self.size = size

    @asynccontextmanager
    async def connection(self, *, wait: float | None = None) -> AsyncIterator[C]:
        """Provide a connection for the block; a broken one is not reused."""
        connection = await self.acquire(wait=wait)
        try:
            yield connection
        finally:
            await self.release(connection)

    async def acquire(self, *, wait: float | None = None) -> C:
        """Return a connection for exclusive use until it is released."""
        try:
            async with asyncio.timeout(wait):
                await self._free.acquire()
        except TimeoutError:
            raise PoolExhausted(f"all {self.size} connections were in use for {wait:g} s") from None
        try:
            while self._idle:
                _, connection = self._idle.pop()
                if self._usable(connection):
                    return connection
                await self._close(connection)
            return await self._connect()
        except BaseException:
            self._free.release()
            raise

    async def release(self, connection: C, *, used: bool = False) -> None:
        """Release a connection; with `used`, reset it first, in the background."""
        if used and self._renew is not None and self._usable(connection):
            self._start(self._reset_and_release(connection))
            return
        await self._add_idle(connection)

    async def close(self) -> None:
        """Close idle connections now, and all others when they are released."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._idle:
            await self._close(self._idle.pop()[1])

    async def _reset_and_release(self, connection: C) -> None:
        assert self._renew is not None
        if await self._renew(connection):
            await self._add_idle(connection)
        else:
            self._free.release()
            await self._close(connection)

    async def _add_idle(self, connection: C) -> None:
        self._free.release()
        if self._closed or not self._usable(connection):
            await self._close(connection)
            return
        self._idle.append((time.monotonic(), connection))
        self._expire_later()

    def _expire_later(self) -> None:
        if self._timer or not self._idle:
            return
        self._timer = True
        # The loop's timers must not keep the pool alive, nor the pool its loop.
        pool = weakref.ref(self)
        when = self._idle[0][0] + self._keep - time.monotonic()

        def expire() -> None:
            found = pool()
            if found is not None:
                found._expire()

        asyncio.get_running_loop().call_later(max(when, 0.01), expire)

    def _expire(self) -> None:
        self._timer = False
        now = time.monotonic()
        while self._idle and self._idle[0][0] + self._keep <= now:
            self._start(self._close(self._idle.popleft()[1]))
        if not self._closed:
            self._expire_later()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
