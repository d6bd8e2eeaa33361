"""Every run queue fulfils the contract of the port."""

import asyncio

import pytest

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import RunQueue
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.queue.postgres import PostgresRunQueue
from noetl.transport.nats_bus import NatsBus
from tests.conformance.run_queue import RunQueueSuite, runs, taken_within
from tests.waiting import until


class TestMemory(RunQueueSuite):
    async def open_queue(self) -> RunQueue:
        return MemoryRunQueue()


class TestPostgres(RunQueueSuite):
    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.dsn = database
        self.opened: list[PostgresDatabase] = []

    async def open_queue(self) -> RunQueue:
        self.opened.append(PostgresDatabase(self.dsn))
        return PostgresRunQueue(self.opened[-1])

    async def closing(self, scenario) -> None:
        try:
            await scenario()
        finally:
            for database in self.opened:
                await database.close()

    def test_servers_share_the_queue_and_notify_each_other(self) -> None:
        async def scenario() -> None:
            here, there = await self.open_queue(), await self.open_queue()
            waiting = asyncio.create_task(taken_within(there, Claim("w", 3), 30))
            await here.put(runs("1", 3))
            assert len(await asyncio.wait_for(waiting, 5)) == 3
            await here.put(runs("2", 40))
            taken = await asyncio.gather(*(taken_within(queue, Claim("w", 5)) for queue in (here, there) * 4))
            ids = [run.run_id for each in taken for run in each]
            assert len(ids) == len(set(ids)) == 40

        asyncio.run(self.closing(scenario))

    def test_servers_notify_each_other_over_nats_while_it_is_connected(self, nats_server: str, monkeypatch) -> None:
        monkeypatch.setattr("noetl.storage.queue.postgres.POLL_SECONDS", 60)

        async def scenario() -> None:
            here, there = await self.open_queue(), await self.open_queue()
            buses = [NatsBus(nats_server, prefix=self.dsn[-12:]) for _ in self.opened]
            notices = []
            for bus, database in zip(buses, self.opened, strict=True):
                database.notify_over(bus)
                bus.start()
                assert await bus.connected(10)
                original = database.execute

                async def noted(query, *values, original=original):
                    notices.extend(query for _ in [1] if "pg_notify" in query)
                    return await original(query, *values)

                monkeypatch.setattr(database, "execute", noted)

            async def listens() -> bool:
                """Whether a claim waits at `there`, which listens in Postgres."""
                query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
                listener = await self.opened[0].row(f"{query} AND query LIKE 'LISTEN%'")
                return bool(there._empty_since) and listener is not None

            waiting = asyncio.create_task(taken_within(there, Claim("w", 3), 30))
            await until(lambda: there._empty_since and buses[1]._subscribed)
            await buses[1]._client.flush()
            await here.put(runs("1", 3))
            assert len(await asyncio.wait_for(waiting, 5)) == 3
            assert notices == []
            for bus in buses:
                await bus.close()
            waiting = asyncio.create_task(taken_within(there, Claim("w", 3), 30))
            await until(listens)
            await here.put(runs("2", 2))
            assert len(await asyncio.wait_for(waiting, 5)) == 2
            assert notices

        asyncio.run(self.closing(scenario))
