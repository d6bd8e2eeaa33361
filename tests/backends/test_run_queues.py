"""Every run queue of this house keeps the port's contract."""

import asyncio

import pytest

from noetl.backends.queue.memory import MemoryRunQueue
from noetl.backends.queue.postgres import PostgresRunQueue
from noetl.drivers.postgres_database import PostgresDatabase
from noetl.model.work import Claim
from noetl.ports import RunQueue
from noetl.testing.run_queue_suite import RunQueueSuite, runs


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

    def test_servers_share_the_queue_and_wake_each_other(self) -> None:
        async def scenario() -> None:
            here, there = await self.open_queue(), await self.open_queue()
            waiting = asyncio.create_task(there.take(Claim("w", 3), wait=30))
            await here.put(runs("1", 3))
            assert len(await asyncio.wait_for(waiting, 5)) == 3
            await here.put(runs("2", 40))
            taken = await asyncio.gather(*(queue.take(Claim("w", 5), wait=5) for queue in (here, there) * 4))
            ids = [run.run_id for each in taken for run in each]
            assert len(ids) == len(set(ids)) == 40

        asyncio.run(self.closing(scenario))
