"""The connection for notifications ends when the database is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from noetl.storage.postgres.database import PostgresDatabase


class _Connection:
    """The part of an asyncpg connection that the listener uses."""

    def __init__(self) -> None:
        self.lose: Callable[[object], None] = lambda _: None
        self.listening = asyncio.Event()

    def add_termination_listener(self, lose: Callable[[object], None]) -> None:
        self.lose = lose

    async def add_listener(self, channel: str, receive: object) -> None:
        self.listening.set()

    def is_closed(self) -> bool:
        return True


@pytest.mark.parametrize("turns", range(4))
def test_closing_ends_the_listener_while_its_connection_is_lost(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        connection = _Connection()

        async def connect() -> _Connection:
            return connection

        database = PostgresDatabase("postgresql://127.0.0.1:1/none")
        monkeypatch.setattr(database, "connect", connect)
        database.subscribe("channel", lambda message: None)
        async with asyncio.timeout(10):
            await connection.listening.wait()
            await asyncio.sleep(0.01)
            connection.lose(None)
            for _ in range(turns):
                await asyncio.sleep(0)
            await database.close()

    asyncio.run(scenario())
