"""Task logs, on every back end."""

import pytest

from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.sqlite.database_file import SqliteFile
from noetl.storage.task_logs.memory import MemoryTaskLogStore
from noetl.storage.task_logs.sql import SqlTaskLogStore
from tests.conformance.task_log_store import Scenario, TaskLogStoreSuite


class TestMemory(TaskLogStoreSuite):
    async def within(self, scenario: Scenario) -> None:
        await scenario(MemoryTaskLogStore())


class TestSqlite(TaskLogStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, tmp_path) -> None:
        self.path = str(tmp_path / "noetl.db")

    async def within(self, scenario: Scenario) -> None:
        file = SqliteFile(self.path)
        try:
            await scenario(SqlTaskLogStore(file))
        finally:
            await file.close()


class TestPostgres(TaskLogStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.dsn = database

    async def within(self, scenario: Scenario) -> None:
        database = PostgresDatabase(self.dsn)
        try:
            await scenario(SqlTaskLogStore(database))
        finally:
            await database.close()
