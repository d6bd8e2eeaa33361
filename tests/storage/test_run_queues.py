"""Every run queue fulfils the contract of the port."""

import asyncio
import json
from typing import Any

import pytest

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import QueuedRun, RunQueue
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.queue import postgres_queries as queries
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.queue.postgres import PostgresRunQueue
from noetl.transport.nats_bus import NatsBus
from tests.conformance.run_queue import RunQueueSuite, in_line, runs, taken_within
from tests.waiting import until


class TestMemory(RunQueueSuite):
    async def open_queue(self) -> RunQueue:
        return MemoryRunQueue()

    def test_released_executions_are_taken_in_the_order_in_which_they_began_to_wait(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            executions = [str(number * 7 % 20) for number in range(20)]
            for execution in executions:
                await queue.put(in_line(runs(execution, 1), "playbook etl"))
            await queue.release_waiting("playbook etl", 20, whole=True)
            assert [run.execution_id for run in await queue.take(Claim("w", 20))] == executions

        asyncio.run(self.closing(scenario))


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

    def test_runs_of_a_tenant_that_another_server_takes_do_not_hide_those_of_others(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(
                [QueuedRun("1", "1-r", "default", tenant="large"), QueuedRun("2", "2-r", "default", tenant="a")]
            )
            async with self.opened[0].connection() as other, other.transaction():
                await other.execute("SELECT 1 FROM noetl_queue WHERE tenant = 'a' FOR UPDATE")  # as a take does
                assert [run.tenant for run in await queue.take(Claim("w", 1))] == ["large"]
            assert [run.tenant for run in await taken_within(queue, Claim("w", 1))] == ["a"]

        asyncio.run(self.closing(scenario))

    @pytest.mark.parametrize("special", [{}, {"priority": 5.0}, {"labels": ("gpu=true",)}, {"cost": 2}])
    def test_a_take_reads_as_many_rows_however_many_wait(self, special: dict[str, Any]) -> None:
        async def read_rows(queue: PostgresRunQueue, query: str, *values: Any) -> float:
            async with self.opened[0].connection() as connection:
                transaction = connection.transaction()
                await transaction.start()
                try:
                    await connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
                    plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *values)
                finally:
                    await transaction.rollback()
            return _scanned(json.loads(plan)[0]["Plan"])

        async def scenario() -> None:
            queue = await self.open_queue()
            few: list[float] = []
            for count in (200, 4000):
                await queue.put(
                    [QueuedRun(str(n), f"{n}-r", "default", tenant="large", **special) for n in range(count)]
                    + [QueuedRun(str(10**6 + n), f"{n}-s", "default", tenant="small") for n in range(3)]
                )
                await self.opened[0].fetch("ANALYZE noetl_queue")
                weights: tuple[list[str], list[int]] = ([], [])
                take = (
                    await read_rows(queue, queries.TAKE_SPECIAL, "default", 8, *weights, 2, ["cpu=true"], 8)
                    if special
                    else await read_rows(queue, queries.TAKE_FAIR, "default", 8, *weights, 2, 8, 1)
                )
                few.append(take + await read_rows(queue, queries.TAKE, "default", 8, 2, 1))
            assert few[1] <= few[0] < 200

        asyncio.run(self.closing(scenario))

    @pytest.mark.parametrize(("special", "most"), [({}, 1), ({"tenant": "t"}, 2), ({"priority": 1.0}, 3)])
    def test_the_claims_of_many_workers_are_a_few_queries(
        self, special: dict[str, Any], most: int, monkeypatch
    ) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            queries_made: list[str] = []
            fetch = self.opened[0].fetch

            def counted(query: str, *values: Any) -> Any:
                queries_made.append(query)
                return fetch(query, *values)

            monkeypatch.setattr(self.opened[0], "fetch", counted)
            await queue.put([QueuedRun("1", "1:s:1", **special)])
            taken = await queue.take_each([Claim(f"w{n}", 4, workers=16) for n in range(16)])
            assert [len(each) for each in taken] == [1, *[0] * 15]
            assert len(queries_made) <= most

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


def _scanned(plan: dict[str, Any]) -> float:
    """The rows that the scans of a plan have read."""
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    own = rows * plan["Actual Loops"] if plan["Node Type"].endswith("Scan") and "Relation Name" in plan else 0
    return own + sum(map(_scanned, plan.get("Plans", ())))
