"""Every event store of this house keeps the port's contract."""

from pathlib import Path

import pytest

from noetl.backends.events.memory import MemoryEventStore
from noetl.backends.events.postgres import PostgresEventStore
from noetl.backends.events.sqlite import SqliteEventStore
from noetl.drivers.postgres_database import PostgresDatabase
from noetl.drivers.sqlite_file import SqliteFile
from noetl.ports import EventStore
from noetl.testing.event_store_suite import EventStoreSuite


class TestSqlite(EventStoreSuite):
    async def open_store(self, place: Path) -> EventStore:
        return SqliteEventStore(SqliteFile(str(place / "noetl.db")))


class TestMemory(EventStoreSuite):
    survives = False

    async def open_store(self, place: Path) -> EventStore:
        return MemoryEventStore()


class TestPostgres(EventStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.dsn = database

    async def open_store(self, place: Path) -> EventStore:
        return PostgresEventStore(PostgresDatabase(self.dsn))
