"""Triggers and deliveries, on every back end."""

import asyncio
import time
from typing import Any

import pytest

from noetl.runtime.clock import RealClock, ShiftedClock
from noetl.storage.cluster.postgres import PostgresCluster
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.sqlite.database_file import SqliteFile
from noetl.storage.triggers.delivery_memory import MemoryDeliveryStore
from noetl.storage.triggers.delivery_sql import SqlDeliveryStore
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.storage.triggers.sql import SqlTriggerStore
from tests.conformance.delivery_store import DeliveryStoreSuite
from tests.conformance.delivery_store import Scenario as DeliveryScenario
from tests.conformance.trigger_store import Scenario, TriggerStoreSuite


class TestMemory(TriggerStoreSuite):
    async def within(self, scenario: Scenario) -> None:
        await scenario(MemoryTriggerStore())


class TestSqlite(TriggerStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, tmp_path) -> None:
        self.path = str(tmp_path / "noetl.db")

    async def within(self, scenario: Scenario) -> None:
        file = SqliteFile(self.path)
        try:
            await scenario(SqlTriggerStore(file))
        finally:
            await file.close()


class TestPostgres(TriggerStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.dsn = database

    async def within(self, scenario: Scenario) -> None:
        database = PostgresDatabase(self.dsn)
        try:
            await scenario(SqlTriggerStore(database))
        finally:
            await database.close()


class TestMemoryDeliveries(DeliveryStoreSuite):
    async def within(self, scenario: DeliveryScenario) -> None:
        await scenario(MemoryDeliveryStore())


class TestSqliteDeliveries(DeliveryStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, tmp_path) -> None:
        self.path = str(tmp_path / "noetl.db")

    async def within(self, scenario: DeliveryScenario) -> None:
        file = SqliteFile(self.path)
        try:
            await scenario(SqlDeliveryStore(file))
        finally:
            await file.close()


class TestPostgresDeliveries(DeliveryStoreSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.dsn = database

    async def within(self, scenario: DeliveryScenario) -> None:
        database = PostgresDatabase(self.dsn)
        try:
            await scenario(SqlDeliveryStore(database))
        finally:
            await database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_newest_deliveries_are_read_from_the_end_of_an_index(kind: str, database: str, tmp_path) -> None:
    async def scenario() -> None:
        opened = SqliteFile(str(tmp_path / "noetl.db")) if kind == "sqlite" else PostgresDatabase(database)
        try:
            store = SqlDeliveryStore(opened)
            made: list[tuple[str, tuple[Any, ...]]] = []
            fetch = opened.fetch

            def recorded(query: str, *values: Any) -> Any:
                made.append((query, values))
                return fetch(query, *values)

            opened.fetch = recorded  # type: ignore[method-assign]
            assert await store.newest("nats", ["a", "b"], ("started", "failed")) == {}
            ((query, values),) = made
            if kind == "sqlite":
                plan = " ".join(str(row[-1]) for row in await fetch(f"EXPLAIN QUERY PLAN {query}", *values))
                assert "SEARCH d USING COVERING INDEX deliveries_status" in plan and "TEMP B-TREE" not in plan, plan
            else:
                await opened.fetch(
                    "INSERT INTO noetl_deliveries(id, kind, name, key, received_at, data, status, holds) SELECT "
                    "n::text, 'nats', 'a', n::text, 0, '', 'started', false FROM generate_series(1, 3000) AS g(n)"
                )
                await opened.fetch("ANALYZE noetl_deliveries")
                rows = await fetch(f"EXPLAIN (ANALYZE, TIMING off) {query}", *values)
                plan = "\n".join(row[0] for row in rows)
                assert "noetl_deliveries_status" in plan and "Rows Removed" not in plan and "Sort" not in plan, plan
        finally:
            await opened.close()

    asyncio.run(scenario())


def test_one_server_holds_a_leader_lease_until_it_leaves_or_stops(database: str) -> None:
    async def scenario() -> None:
        opened = PostgresDatabase(database)
        try:
            one, two = PostgresCluster(opened, "one"), PostgresCluster(opened, "two")
            await one.join()
            await two.join()
            assert await one.acquire_leadership("timers", 60) is True
            assert await two.acquire_leadership("timers", 60) is False
            assert await one.acquire_leadership("timers", 60) is True
            assert await two.acquire_leadership("other", 0) is True
            await one.leave()
            assert await two.acquire_leadership("timers", 0) is True
            await asyncio.sleep(0.01)
            assert await one.acquire_leadership("timers", 60) is True
        finally:
            await opened.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_a_server_with_a_wrong_clock_performs_no_task_for_the_others(database: str, hours: float, caplog) -> None:
    async def scenario() -> None:
        opened = PostgresDatabase(database)
        wrong = [3600 * hours]
        try:
            one = PostgresCluster(opened, "one", clock=lambda: time.time() + wrong[0])
            await one.join()
            clock = ShiftedClock(RealClock(), lambda: one.offset)
            assert abs(one.skew - wrong[0]) < 1.0 and abs(clock.now() - time.time()) < 1.0
            assert await one.acquire_leadership("timers", 60) is False
            assert await one.acquire_turn("housekeeping", 60) is False
            assert "it starts no schedules" in caplog.text
            wrong[0] = 0.0
            await one.beat()
            assert await one.acquire_leadership("timers", 60) is True
        finally:
            await opened.close()

    asyncio.run(scenario())
