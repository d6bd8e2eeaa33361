"""A pool of connections to Postgres.

asyncpg's own pool creates a task, two timers and a shielded future whenever a connection is returned, which costs more
than a small query. Here a free connection is taken from a list and put back; only waiting and closing need the event
loop. A connection is closed when its block was cancelled or failed for another reason than an error of the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

IDLE_SECONDS = 300.0  # until an unused connection is closed
CLOSE_SECONDS = 2.0  # for the server to respond to the end of a connection
# After these a statement may still be active. A connection that is closed between two messages can leave asyncpg in an
# invalid state (InternalClientError).
BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

Connect = Callable[[], Awaitable[Any]]


class ConnectionPool:
    """At most `size` connections; the most recently used one is taken first."""

    def __init__(self, connect: Connect, size: int) -> None:
        self._connect = connect
        self._size = size
        self._count = 0  # connections that are open, being opened or being closed
        self._idle: list[tuple[Any, float]] = []  # and since when
        self._used: set[Any] = set()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._closing: set[asyncio.Task[None]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._empty = asyncio.Event()

    async def acquire(self, seconds: float) -> Any:
        """A connection that belongs to the caller until `release`; TimeoutError if none is free in time."""
        connection = self._take()
        if connection is None:
            async with asyncio.timeout(seconds):
                while connection is None:
                    connection = await (self._open() if self._count < self._size else self._wait())
        self._used.add(connection)
        return connection

    def release(self, connection: Any, problem: BaseException | None = None) -> None:
        """Return a connection; `problem` is the exception that ended its use."""
        self._used.discard(connection)
        if connection.is_closed():
            self._forget()
        elif self._closed or not _is_reusable(connection, problem):
            self._close_soon(connection)
        else:
            self._give(connection)

    async def close(self) -> None:
        """Close all connections, those in use when they are returned."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(asyncpg.InterfaceError("the connections are closed"))
        for connection, _ in self._idle:
            self._close_soon(connection)
        self._idle.clear()
        if self._count:
            await self._empty.wait()

    def terminate(self) -> None:
        """Close all connections at once."""
        for connection in (*self._used, *(connection for connection, _ in self._idle)):
            connection.terminate()

    # ── internals ───────────────────────────────────────────────────────────────────────

    def _take(self) -> Any:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._count -= 1
        return None

    async def _open(self) -> Any:
        self._count += 1
        try:
            return await self._connect()
        except BaseException:
            self._forget()
            raise

    async def _wait(self) -> Any:
        """A returned connection; None if one may be opened instead."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                connection = waiter.result()
                self._wake_next() if connection is None else self._give(connection)
            raise

    def _give(self, connection: Any) -> None:
        """Give a free connection to the caller that waits longest."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(IDLE_SECONDS, self._close_idle)

    def _forget(self) -> None:
        """A connection is closed: another one may be opened."""
        self._count -= 1
        self._wake_next()
        if self._closed and not self._count:
            self._empty.set()

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _close_idle(self) -> None:
        self._idle_timer = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_SECONDS * 0.99
        for connection, _ in [each for each in self._idle if each[1] <= oldest]:
            self._close_soon(connection)
        self._idle = [each for each in self._idle if each[1] > oldest]
        if self._idle:
            self._idle_timer = loop.call_later(IDLE_SECONDS, self._close_idle)

    def _close_soon(self, connection: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._close(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, connection: Any) -> None:
        try:
            await close_quietly(connection)
        finally:
            self._forget()


def _is_reusable(connection: Any, problem: BaseException | None) -> bool:
    """Whether the session is in its initial state: no statement and no transaction is active."""
    finished = problem is None or (isinstance(problem, Exception) and not isinstance(problem, BROKEN))
    return finished and not connection.is_in_transaction()


async def close_quietly(connection: Any) -> None:
    """Close without waiting for a server that may not respond."""
    if not connection.is_closed():
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await connection.close()
        except (*BROKEN, asyncpg.PostgresError, asyncio.CancelledError):
            connection.terminate()
