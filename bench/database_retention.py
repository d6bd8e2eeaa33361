"""`python -m bench.database_retention`: retention of a log of 100 million events on Postgres, by dropping partitions.

    python -m bench.database_retention --events 100000000 --weeks 10

The rows of a real execution of five steps are copied on the database server under other ids, with valid checksums, into
weekly partitions that the store creates itself. Then the two oldest weeks are deleted as a server deletes them, while
executions are appended and listed; at last the rows of another week are deleted with DELETE, for comparison.
Needs about 25 GB of disk in the folder for temporary files.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from bench.workloads import chain, run_one
from devcluster import services
from noetl.core.model.ids import COUNTER_BITS, EPOCH_MS, PROCESS_BITS, number_at
from noetl.embedded import open_local
from noetl.server.lifecycle.retention import delete_old
from noetl.storage.events.event_rows import Encoded, encode_append, encode_json
from noetl.storage.events.postgres import WEEK, PostgresEventStore
from noetl.storage.ports.events import ExecutionFilter
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.results.postgres import PostgresResults
from tests.conformance.event_store import BODIES, make_append

STEPS = 5
WEEK_SECONDS = 7 * 24 * 3600.0
ID_BITS = PROCESS_BITS + COUNTER_BITS
BASELINE_SECONDS = 20.0
READER_SECONDS = 8.0  # a transaction that reads the partition while it is dropped
LOADING = {
    "wal_level": "minimal", "max_wal_senders": "0", "max_wal_size": "32GB", "checkpoint_timeout": "1h",
    "shared_buffers": "1GB", "maintenance_work_mem": "512MB", "autovacuum": "off",
}  # fmt: skip
SERVING = {"shared_buffers": "1GB", "max_wal_size": "8GB"}

# $1: ids from, $2: distance of ids, $3: number of executions; the text `@` is the id, `~` the time of the start.
_LOG = """
    INSERT INTO noetl_log(execution, first, count, data, crc)
    SELECT id, {first}, {count}, data, crc32(convert_to(id || ':{first}:{count}', 'UTF8') || data)
    FROM (
      SELECT id, convert_to(replace(replace({text}, '@', id::text), '~',
        ((id >> {bits}) + {epoch})::numeric(20, 3) / 1000 || ''), 'UTF8') AS data
      FROM (SELECT $1::int8 + n * $2::int8 AS id FROM generate_series(0, $3::int8 - 1) AS n) AS ids
    ) AS rows
"""
_EXECUTIONS = """
    INSERT INTO noetl_executions(id, seq, status, ended, path, data, crc, took, started_by)
    SELECT id, {seq}, 'success', true, {path}, data, crc32(convert_to(id || ':{seq}:0', 'UTF8') || data), 25, 'user'
    FROM (
      SELECT id, convert_to(replace(replace({text}, '@', id::text), '~',
        ((id >> {bits}) + {epoch})::numeric(20, 3) / 1000 || ''), 'UTF8') AS data
      FROM (SELECT $1::int8 + n * $2::int8 AS id FROM generate_series(0, $3::int8 - 1) AS n) AS ids
    ) AS rows
"""


class Latencies(NamedTuple):
    """Seconds that appends and lists took."""

    appends: list[float]
    lists: list[float]

    def line(self, what: str) -> str:
        """One line of the report."""
        return (
            f"{what:44} {len(self.appends):7,} appends {_spread(self.appends)}   {len(self.lists):5,} lists "
            f"{_spread(self.lists)}"
        )


def _spread(samples: list[float]) -> str:
    taken = sorted(samples)
    p50, p99 = (taken[min(len(taken) - 1, int(len(taken) * part))] * 1000 for part in (0.5, 0.99))
    return f"p50 {p50:7.1f} p99 {p99:7.1f} max {taken[-1] * 1000:7.1f} ms"


async def _template() -> list[Encoded]:
    """The encoded appends of a real execution."""
    with tempfile.TemporaryDirectory() as folder:
        async with await open_local(home=Path(folder), store=f"{folder}/noetl.db") as engine:
            await run_one(engine, chain(STEPS, "noop"))
            store, rows = engine.orchestrator.store, list[Encoded]()
            append = store.append

            async def record(given: Any) -> None:
                rows.append(encode_append(given))
                await append(given)

            store.append = record  # type: ignore[method-assign]
            await run_one(engine, chain(STEPS, "noop"))
    return rows


def _text(row: Encoded, data: bytes) -> str:
    """The JSON text of a row as a literal of SQL, with places for the id and the times."""
    text = data.decode().replace(row.summary.execution_id, "@")
    for at in {row.summary.started_at, row.summary.ended_at}:
        if at is not None:
            text = text.replace(encode_json(at).decode(), "~")
    return "'" + text.replace("'", "''") + "'"


async def _fill_week(connection: Any, rows: list[Encoded], low: int, count: int) -> None:
    distance = WEEK // count
    options = {"bits": ID_BITS, "epoch": EPOCH_MS}
    last = rows[-1]
    async with connection.transaction():
        for row in rows:
            statement = _LOG.format(
                first=row.first, count=row.last - row.first + 1, text=_text(row, row.data), **options
            )
            await connection.execute(statement, low, distance, count, timeout=7200)
        statement = _EXECUTIONS.format(
            seq=last.last, path=f"'{last.summary.path}'", text=_text(last, last.summary_data), **options
        )
        await connection.execute(statement, low, distance, count, timeout=7200)


async def _fill(dsn: str, rows: list[Encoded], weeks: int, per_week: int) -> float:
    """Fill the partitions of these weeks; the time at which the first of them begins."""
    store = PostgresEventStore(PostgresDatabase(dsn))
    connection = await asyncpg.connect(dsn)
    try:
        begin = (number_at(time.time()) // WEEK + 3) * WEEK  # behind the first partition of a new database
        start = ((begin >> ID_BITS) + EPOCH_MS) / 1000
        for week in range(weeks):
            await store.tidy(start + week * WEEK_SECONDS + 1)
            began = time.perf_counter()
            await _fill_week(connection, rows, begin + week * WEEK, per_week)
            print(f"week {week + 1} of {weeks}: {time.perf_counter() - began:.0f} s", flush=True)
        await store.tidy(start + weeks * WEEK_SECONDS + 1)
        return start
    finally:
        await connection.close()
        await store.close()


async def _clients(store: PostgresEventStore, at: float, stop: asyncio.Event, found: Latencies) -> None:
    """Append short executions of the current week and list executions until `stop`."""
    numbers = iter(range(number_at(at), number_at(at + WEEK_SECONDS)))

    async def append() -> None:
        while not stop.is_set():
            began = time.perf_counter()
            await store.append(make_append(str(next(numbers)), 0, *BODIES, status="success"))
            found.appends.append(time.perf_counter() - began)

    async def page() -> None:
        while not stop.is_set():
            began = time.perf_counter()
            await store.executions(ExecutionFilter(limit=100))
            found.lists.append(time.perf_counter() - began)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(append() for _ in range(8)), page())


async def _beside(
    store: PostgresEventStore, at: float, work: Callable[[], Awaitable[Any]]
) -> tuple[float, Any, Latencies]:
    """Do something beside the clients: its seconds, its result, and what the clients measured."""
    stop, found = asyncio.Event(), Latencies([], [])
    clients = asyncio.create_task(_clients(store, at, stop, found))
    began = time.perf_counter()
    result = await work()
    took = time.perf_counter() - began
    stop.set()
    await clients
    return took, result, found


async def _reading(dsn: str, store: PostgresEventStore, partition: str, now: float) -> int:
    """Drop a partition while a transaction reads it: the number of partitions dropped at last."""
    reader = await asyncpg.connect(dsn)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetch(f'SELECT 1 FROM "{partition}" LIMIT 1')

    async def end_reader() -> None:
        await asyncio.sleep(READER_SECONDS)
        await transaction.rollback()
        await reader.close()

    ending = asyncio.create_task(end_reader())
    dropped = await store.tidy(now)
    await ending
    return dropped or await store.tidy(now)


async def _measure(dsn: str, start: float, weeks: int) -> None:
    store = PostgresEventStore(PostgresDatabase(dsn))
    results, admin = PostgresResults(dsn), await asyncpg.connect(dsn)
    now = start + weeks * WEEK_SECONDS + 3600
    turns = iter(range(1, 1000))

    async def beside(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any, Latencies]:
        return await _beside(store, now + next(turns) * 60, work)

    async def size() -> float:
        return float(await admin.fetchval("SELECT pg_database_size(current_database())")) / 1e9

    async def oldest() -> str:
        return str(await admin.fetchval(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = 'noetl_log'::regclass AND c.relname ~ '_[0-9]+$' ORDER BY 1 LIMIT 1"
        ))  # fmt: skip

    try:
        _, _, found = await beside(lambda: asyncio.sleep(BASELINE_SECONDS))
        print(found.line("nothing else"), flush=True)
        for number in (1, 2):
            before = await size()
            took, count, found = await beside(
                lambda number=number: delete_old(store, results, start + number * WEEK_SECONDS)
            )
            print(found.line(f"week {number}: {count:,} executions deleted in {took:.1f} s"), flush=True)
            partition = await oldest()
            if number == 1:
                took, dropped, found = await beside(lambda: store.tidy(now))
                what = f"{partition} dropped in {took:.3f} s"
            else:
                took, dropped, found = await beside(lambda name=partition: _reading(dsn, store, name, now))
                what = f"{partition}: dropped beside a reader, {took:.1f} s"
            print(found.line(what), flush=True)
            print(f"{dropped} partition dropped; {before:.2f} -> {await size():.2f} GB", flush=True)
        partition, before = await oldest(), await size()
        took, _, found = await beside(lambda: admin.execute(f'DELETE FROM "{partition}"', timeout=7200))
        print(found.line(f"for comparison: DELETE of {partition}, {took:.1f} s"), flush=True)
        took, _, found = await beside(lambda: admin.execute(f'VACUUM "{partition}"', timeout=7200))
        print(found.line(f"and VACUUM, {took:.1f} s"), flush=True)
        print(f"{before:.2f} -> {await size():.2f} GB")
    finally:
        await admin.close()
        await results.close()
        await store.close()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.database_retention", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--weeks", type=int, default=10)
    given = parser.parse_args()
    rows = asyncio.run(_template())
    per_week = max(1, given.events // rows[-1].last // given.weeks)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        postgres = services.Postgres(f"{folder}/pg", settings=LOADING)
        postgres.start()
        try:
            start = asyncio.run(_fill(postgres.dsn(), rows, given.weeks, per_week))
            asyncio.run(_run(postgres.dsn(), "VACUUM (ANALYZE)"))
        finally:
            postgres.stop()
        postgres.settings = {"max_connections": "200", **SERVING}  # every commit is flushed from now on
        with postgres:
            total = asyncio.run(_run(postgres.dsn(), "SELECT sum(count) FROM noetl_log"))
            executions = per_week * given.weeks
            print(f"{total:,} events in {executions * len(rows):,} rows, {executions:,} executions", flush=True)
            asyncio.run(_measure(postgres.dsn(), start, given.weeks))
    return 0


async def _run(dsn: str, statement: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement, timeout=7200)
    finally:
        await connection.close()


if __name__ == "__main__":
    sys.exit(main())
