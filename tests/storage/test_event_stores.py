"""Every event store fulfils the contract of the port."""

from pathlib import Path

import pytest

from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.events.postgres import PostgresEventStore
from noetl.storage.events.sqlite import SqliteEventStore
from noetl.storage.ports.events import EventStore
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.sqlite.database_file import SqliteFile
from tests.conformance.event_store import EventStoreSuite


class TestSqlite(EventStoreSuite):
    async def open_store(self, place: Path) -> EventStore:
        return SqliteEventStore(SqliteFile(str(place / "noetl.db")))


class TestMemory(EventStoreSuite):
    survives = False
    bounded = False

    async def open_store(self, place: Path) -> EventStore:
        return MemoryEventStore()


class TestPostgres(EventStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.dsn = database

    async def open_store(self, place: Path) -> EventStore:
        return PostgresEventStore(PostgresDatabase(self.dsn))
