"""The connections of a Postgres store: reused in turn, bounded, and closed when their state is unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from noetl.storage.postgres.connection_pool import ConnectionPool


class _Connection:
    def __init__(self) -> None:
        self.closed = False
        self.in_transaction = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True

    def terminate(self) -> None:
        self.closed = True


def _pool(size: int) -> tuple[ConnectionPool, list[_Connection]]:
    opened: list[_Connection] = []

    async def connect() -> Any:
        await asyncio.sleep(0)
        opened.append(_Connection())
        return opened[-1]

    return ConnectionPool(connect, size), opened


def test_a_returned_connection_is_used_again() -> None:
    async def scenario() -> None:
        pool, opened = _pool(2)
        for _ in range(5):
            pool.release(await pool.acquire(1))
        assert len(opened) == 1
        opened[0].closed = True  # by the server
        assert await pool.acquire(1) is opened[1]

    asyncio.run(scenario())


def test_callers_wait_in_turn_for_a_free_connection() -> None:
    async def scenario() -> None:
        pool, opened = _pool(2)
        served: list[int] = []

        async def use(number: int) -> None:
            connection = await pool.acquire(5)
            served.append(number)
            await asyncio.sleep(0)
            pool.release(connection)

        await asyncio.gather(*map(use, range(20)))
        assert served == list(range(20))
        assert len(opened) == 2

    asyncio.run(scenario())


def test_a_caller_that_stops_waiting_passes_its_connection_on() -> None:
    async def scenario() -> None:
        pool, opened = _pool(1)
        first = await pool.acquire(1)
        with pytest.raises(TimeoutError):
            await pool.acquire(0.01)
        waiting = [asyncio.ensure_future(pool.acquire(5)) for _ in range(2)]
        await asyncio.sleep(0)
        pool.release(first)  # given to the first caller that waits, which is cancelled at the same moment
        waiting[0].cancel()
        assert await asyncio.wait_for(waiting[1], 5) is first
        assert len(opened) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("problem", "reused"),
    [
        (None, True),
        (asyncpg.UniqueViolationError("key"), True),
        (ValueError(), True),
        (TimeoutError(), False),
        (asyncio.CancelledError(), False),
        (asyncpg.InterfaceError("another operation is in progress"), False),
        (asyncpg.ConnectionDoesNotExistError("gone"), False),
    ],
)
def test_a_connection_is_closed_if_a_statement_may_be_active(problem: BaseException | None, reused: bool) -> None:
    async def scenario() -> None:
        pool, opened = _pool(1)
        pool.release(await pool.acquire(1), problem)
        await pool.acquire(1)  # also when the first one has to be closed before
        assert len(opened) == (1 if reused else 2)
        assert opened[0].closed is not reused

    asyncio.run(scenario())


def test_a_connection_in_a_transaction_is_closed() -> None:
    async def scenario() -> None:
        pool, opened = _pool(1)
        connection = await pool.acquire(1)
        connection.in_transaction = True
        pool.release(connection)
        assert await pool.acquire(1) is not connection
        assert opened[0].closed

    asyncio.run(scenario())


def test_a_failed_connection_attempt_frees_its_place() -> None:
    async def scenario() -> None:
        attempts = 0

        async def connect() -> Any:
            nonlocal attempts
            attempts += 1
            await asyncio.sleep(0)
            if attempts == 1:
                raise ConnectionRefusedError
            return _Connection()

        pool = ConnectionPool(connect, 1)
        failing, waiting = asyncio.ensure_future(pool.acquire(5)), asyncio.ensure_future(pool.acquire(5))
        with pytest.raises(ConnectionRefusedError):
            await failing
        assert (await asyncio.wait_for(waiting, 5)).is_closed() is False

    asyncio.run(scenario())


def test_closing_waits_for_connections_in_use_and_refuses_waiting_callers() -> None:
    async def scenario() -> None:
        pool, opened = _pool(1)
        used = await pool.acquire(1)
        waiting = asyncio.ensure_future(pool.acquire(5))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(pool.close())
        with pytest.raises(asyncpg.InterfaceError):
            await waiting
        assert not closing.done()
        pool.release(used)
        await asyncio.wait_for(closing, 5)
        assert opened[0].closed

    asyncio.run(scenario())


def test_closing_waits_for_the_last_connection_also_after_all_were_closed_before() -> None:
    async def scenario() -> None:
        pool, opened = _pool(1)
        pool.release(await pool.acquire(1), OSError("broken"))
        pool.release(await pool.acquire(1))
        assert [each.closed for each in opened] == [True, False]
        await pool.close()
        assert opened[1].closed

    asyncio.run(scenario())
