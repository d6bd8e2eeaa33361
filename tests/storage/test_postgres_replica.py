"""A server that reads lists from a real streaming replica."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from devcluster.servers import Postgres, PostgresReplica
from noetl.cli.doctor.environment import replica as replica_check
from noetl.errors import RequestRefused
from noetl.observability import metrics
from noetl.settings import load
from noetl.storage.events.postgres import PostgresEventStore
from noetl.storage.factory import open_server_stores, open_stores, replica_behind
from noetl.storage.ports.events import ExecutionFilter
from noetl.storage.ports.reads import replica_reads
from noetl.storage.postgres import replica as module
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.postgres.replica import ReplicaReads
from tests.conformance.event_store import BODIES, make_append
from tests.server.http.serving import Cluster

pytestmark = pytest.mark.integration


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Pair(NamedTuple):
    """A primary and its replica."""

    primary: Postgres
    replica: PostgresReplica


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("replicated")
    with Postgres(folder / "primary") as primary, PostgresReplica(folder / "replica", primary) as replica:
        yield Pair(primary, replica)


@contextlib.asynccontextmanager
async def opened(pair: Pair) -> AsyncIterator[PostgresEventStore]:
    """An event store in an empty database of the pair."""
    connection = await asyncpg.connect(pair.primary.dsn())
    await connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
    await connection.execute("CREATE DATABASE shop")
    await connection.close()
    database = PostgresDatabase(pair.primary.dsn("shop"))
    store = PostgresEventStore(database, ReplicaReads(database, pair.replica.dsn("shop")))
    try:
        await used(store)
        yield store
    finally:
        await store.close()


async def listed(store: PostgresEventStore) -> list[str]:
    """The executions that a request sees."""
    with replica_reads():
        return [each.execution_id for each in await store.executions(ExecutionFilter())]


async def used(store: PostgresEventStore) -> None:
    """Repeat a list until the replica answers it."""
    before = metrics.REPLICA_READS.value("replica")
    async with asyncio.timeout(30):
        while metrics.REPLICA_READS.value("replica") == before:
            await listed(store)
            store.sql._paused_until = 0.0
            await asyncio.sleep(0.02)


@contextlib.contextmanager
def counted(**expected: int) -> Iterator[None]:
    """Where the reads of the block were answered; not more than these."""
    results = ("replica", "not usable", "paused", "cancelled")
    before = {each: metrics.REPLICA_READS.value(each) for each in results}
    yield
    after = {each: metrics.REPLICA_READS.value(each) - before[each] for each in results}
    names = {name.replace("_", " "): count for name, count in expected.items()}
    assert {name: count for name, count in after.items() if count} == names


@in_loop
async def test_a_request_sees_every_commit_of_every_server_before_it(pair: Pair) -> None:
    async with opened(pair) as store:
        other = PostgresEventStore(PostgresDatabase(pair.primary.dsn("shop")))
        with counted(replica=50):
            for number in range(1, 51):
                await (store if number % 2 else other).append(make_append(str(100 + number), 0, *BODIES[:1]))
                assert (await listed(store))[0] == str(100 + number)
        await other.close()


@in_loop
async def test_the_replica_answers_lists_logs_and_statistics_and_the_primary_everything_else(pair: Pair) -> None:
    async with opened(pair) as store:
        await store.append(make_append("7", 0, *BODIES))
        with counted():
            assert len(await store.executions(ExecutionFilter())) == 1
        with counted(replica=4), replica_reads():
            assert len(await store.read("7")) == len(BODIES)
            assert await store.counts()
            assert (await store.statistics(ExecutionFilter(), 2e9, 10)).bars
            assert await store.summary("7") is not None
            await store.check()  # writes


@in_loop
async def test_reads_after_the_end_of_a_request_use_the_primary(pair: Pair) -> None:
    async with opened(pair) as store:
        ended = asyncio.Event()

        async def later() -> None:
            await ended.wait()
            await store.executions(ExecutionFilter())

        with replica_reads():
            task = asyncio.create_task(later())
            await asyncio.sleep(0)
        with counted():
            ended.set()
            await task


@in_loop
async def test_a_replica_that_is_behind_is_not_used_until_it_has_caught_up(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LAG_SECONDS", 0.3)
    caplog.set_level(logging.INFO, "noetl.store")
    async with opened(pair) as store:
        await store.append(make_append("1", 0, *BODIES[:1]))
        control = await asyncpg.connect(pair.replica.dsn())
        await control.execute("SELECT pg_wal_replay_pause()")
        try:
            await store.append(make_append("2", 0, *BODIES[:1]))
            monkeypatch.setattr(module, "PAUSE_SECONDS", 600.0)
            with counted(not_usable=1, paused=2):
                for _ in range(3):
                    assert await listed(store) == ["2", "1"]  # by the primary
            assert "bytes of the log behind after 0.3 s" in caplog.text
        finally:
            await control.execute("SELECT pg_wal_replay_resume()")
            await control.close()
        await used(store)
        assert "lists are read from the replica again" in caplog.text


@in_loop
async def test_a_killed_replica_and_a_cancelled_query_fail_no_request(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(pair) as store:
        await store.append(make_append("1", 0, *BODIES[:1]))

        async def slow() -> list[tuple[int]]:
            with replica_reads():
                return [tuple(row) for row in await store.sql.fetch("SELECT 1 FROM pg_sleep($1)", 1.0)]

        control = await asyncpg.connect(pair.replica.dsn())
        with counted(cancelled=1):
            reading = asyncio.create_task(slow())
            cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            while not await control.fetch(cancel):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
            assert await reading == [(1,)]
        await control.close()
        pair.replica.kill()
        try:
            with counted(not_usable=1):
                assert await listed(store) == ["1"]
            assert "the replica is not used, lists are read from the primary: " in caplog.text
        finally:
            pair.replica.start()
        await used(store)


@in_loop
async def test_another_database_and_a_primary_are_not_used(pair: Pair, database: str) -> None:
    for url, reason in (
        (database, "it is not a replica of the store"),
        (pair.primary.dsn(), "it is not in recovery"),
        (pair.replica.dsn("template1"), "it is not a replica of the store"),
        ("postgresql://postgres@127.0.0.1:1/postgres", "connection refused"),
    ):
        with pytest.raises(Exception, match=reason):
            await replica_behind(pair.primary.dsn(), url)
    assert await replica_behind(pair.primary.dsn(), pair.replica.dsn()) >= 0


@in_loop
async def test_a_role_that_is_no_superuser_can_compare_them(pair: Pair) -> None:
    async with opened(pair):
        connection = await asyncpg.connect(pair.primary.dsn())
        await connection.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
        await connection.execute("ALTER DATABASE shop OWNER TO reader")
        await connection.close()
        urls = [each.dsn("shop").replace(f"postgres:{each.password}", "reader:reader") for each in pair]
        assert await _behind_after_replay(*urls) >= 0


async def _behind_after_replay(primary: str, replica: str) -> int:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(Exception):  # the role is not replayed yet
                return await replica_behind(primary, replica)
            await asyncio.sleep(0.02)


def test_a_store_without_postgres_has_no_replica() -> None:
    for url in ("memory:", "sqlite:///tmp/x.db"):
        with pytest.raises(RequestRefused, match=r"server\.replica needs a store in Postgres"):
            open_stores(url, replica="postgresql://localhost/noetl")
    with pytest.raises(RequestRefused, match=r"server\.replica"):
        open_server_stores("memory:", replica="postgresql://localhost/noetl")


def test_a_server_answers_get_requests_from_the_replica(pair: Pair, tmp_path: Path) -> None:
    asyncio.run(_created(pair))
    server = Cluster(tmp_path, NOETL_STORE=pair.primary.dsn("shop"), NOETL_SERVER_REPLICA=pair.replica.dsn("shop"))
    server.start_server()
    try:
        server.start_worker()
        text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: one}\nworkflow:\n  - {step: only, tool: {kind: noop}}\n"
        started = []
        for _ in range(10):
            status, document = server.ask("POST", "/api/execute", {"content": text})
            assert status == 202, document
            started.append(document["execution_id"])
            assert server.ask("GET", "/api/executions")[1]["items"][0]["execution_id"] == started[-1]
        for execution_id in started:
            assert server.finished(execution_id)["status"] == "success"
            events = server.ask("GET", f"/api/executions/{execution_id}/events")[1]["items"]
            assert events[-1]["name"] == "playbook.processed"
            assert server.ask("GET", f"/api/executions/{execution_id}/why")[1]["findings"]
        read = replica_count(server)
        assert read["replica"] >= 30
        assert set(read) == {"replica"}
        found = {each.name: each for each in replica_check(load(environ=server.environ).settings)}
        assert found["replica"].status == "ok"
        assert "bytes of the log behind the store" in found["replica"].detail
    finally:
        server.stop()


async def _created(pair: Pair) -> None:
    async with opened(pair):
        pass


def replica_count(server: Cluster) -> dict[str, float]:
    """The reads of a server by result."""
    request = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    return {found[1]: float(found[2]) for found in re.finditer(r'replica_reads_total\{result="([^"]+)"\} (\S+)', text)}
