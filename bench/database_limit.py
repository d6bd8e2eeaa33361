"""`python -m bench.database_limit`: appends per second on Postgres, and a streaming replica.

    python -m bench.database_limit --seconds 10

Writers are processes with an event store each, as servers are; every writer has a number of executions in flight whose
logs grow by the two appends of a one-step execution (11 events). Every commit is flushed. Varied, one at a time:
writers, executions in flight (they share commits), partitions of the log, other open connections, PgBouncer in
transaction mode. The replica is made with `pg_basebackup`; its delay is measured while two writers append.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import asyncpg

from devcluster import services
from devcluster.servers import PASSWORD, PostgresReplica, accepts_connections, free_port
from noetl.core.model.ids import number_at
from noetl.storage.events.postgres import WEEK, PostgresEventStore
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.postgres.partitions import tidy
from tests.conformance.event_store import BODIES, make_append

WRITERS = (1, 2, 4, 8)
IN_FLIGHT = (1, 8, 64, 256)
PARTITIONS = (10, 52)  # more than a new database has
CONNECTIONS = (100, 400)
USUAL = (2, 64)  # writers, executions in flight
POSTGRES = {"max_connections": "600", "shared_buffers": "512MB", "max_wal_size": "8GB", "wal_level": "replica"}
POOLER = """
[databases]
{name} = host=127.0.0.1 port={port} dbname={name} user=postgres password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 1000
"""


class Rate(NamedTuple):
    """Appends and events per second, and the CPU seconds of the writers for each append."""

    appends: float
    events: float
    cpu: float


async def _write(dsn: str, number: int, in_flight: int, seconds: float) -> int:
    store = PostgresEventStore(PostgresDatabase(dsn))
    ids = itertools.count(number_at(time.time()) + (number << 12))
    done = 0
    stop = time.perf_counter() + seconds

    async def execution() -> None:
        nonlocal done
        while time.perf_counter() < stop:
            each = str(next(ids))
            await store.append(make_append(each, 0, *BODIES))
            await store.append(make_append(each, 5, *BODIES, BODIES[-1], status="success"))
            done += 2

    await asyncio.gather(*(execution() for _ in range(in_flight)))
    await store.close()
    return done


def _writer(arguments: tuple[str, int, int, float]) -> tuple[int, float]:
    began = time.process_time()
    done = asyncio.run(_write(*arguments))
    return done, time.process_time() - began


def rate(dsn: str, writers: int, in_flight: int, seconds: float) -> Rate:
    """Run writers for some seconds."""
    with multiprocessing.get_context("spawn").Pool(writers) as pool:
        pool.map(_writer, [(dsn, n, 1, 0.1) for n in range(writers)], chunksize=1)  # open connections, compile
        began = time.perf_counter()
        work = [(dsn, 100 + n, in_flight, seconds) for n in range(writers)]
        found = pool.map(_writer, work, chunksize=1)
        took = time.perf_counter() - began
    done = sum(each[0] for each in found)
    return Rate(done / took, done / took * 5.5, sum(each[1] for each in found) / done)


def line(what: str, found: Rate) -> None:
    """Print one row of the table."""
    row = f"| {what} | {found.appends:,.0f} | {found.events:,.0f} | {1000 * found.cpu:.2f} ms |"
    print(row, flush=True)


@contextmanager
def pooler(postgres: Any, folder: Path) -> Iterator[str | None]:
    """The URL through PgBouncer; None if it is not installed."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH')}:/usr/sbin")
    if program is None:
        yield None
        return
    port = free_port()
    text = POOLER.format(name="postgres", port=urlsplit(postgres.dsn()).port, password=PASSWORD, listen=port)
    (folder / "pgbouncer.ini").write_text(text)
    options: dict[str, Any] = {}
    if os.geteuid() == 0:
        other = pwd.getpwnam("nobody")
        options = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
        os.chown(folder / "pgbouncer.ini", other.pw_uid, other.pw_gid)
    process = subprocess.Popen([program, "-q", str(folder / "pgbouncer.ini")], **options)
    try:
        while not accepts_connections(port):
            if process.poll() is not None:
                raise RuntimeError("pgbouncer did not start")
            time.sleep(0.05)
        yield f"postgresql://postgres:{PASSWORD}@127.0.0.1:{port}/postgres?pooler=transaction"
    finally:
        process.terminate()
        process.wait()


async def _connections(dsn: str, count: int, stop: asyncio.Event) -> None:
    opened = [await asyncpg.connect(dsn) for _ in range(count)]
    await stop.wait()
    for each in opened:
        await each.close()


async def _beside_connections(dsn: str, count: int, seconds: float) -> Rate:
    stop = asyncio.Event()
    holding = asyncio.create_task(_connections(dsn, count, stop))
    try:
        return await asyncio.to_thread(rate, dsn, *USUAL, seconds)
    finally:
        stop.set()
        await holding


async def _add_partitions(dsn: str, count: int) -> None:
    """Create partitions of coming weeks, as a server that runs for so many weeks has them."""
    database = PostgresDatabase(dsn)
    store = PostgresEventStore(database)
    now = number_at(time.time())
    await tidy(database, now, WEEK)
    async with database.connection() as connection:
        for week in range(5, 5 + count):
            low = (now // WEEK + week) * WEEK
            bounds = f"FROM ({low}) TO ({low + WEEK})"
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS noetl_log_bench{week} PARTITION OF noetl_log FOR VALUES {bounds}"
            )
    await store.close()


def replica(postgres: Any, seconds: float) -> None:
    """A streaming replica: how far it is behind while two writers append, and lists of executions from it."""
    asyncio.run(_prepare(postgres.dsn()))
    with PostgresReplica(postgres.home / "replica", postgres) as standby:
        delays, lists = asyncio.run(_delays(postgres.dsn(), standby.dsn(), seconds))
        delays.sort()
        lists.sort()
        middle = 1000 * delays[len(delays) // 2]
        print(
            f"replica beside 2 writers: {len(delays)} commits visible after p50 {middle:.1f} ms, max "
            f"{1000 * delays[-1]:.1f} ms; 100 executions read from it: p50 {1000 * lists[len(lists) // 2]:.1f} ms"
        )


async def _prepare(dsn: str) -> None:
    database = PostgresDatabase(dsn)
    store = PostgresEventStore(database)
    async with database.connection() as connection:
        await connection.execute("CREATE TABLE bench_replica(n int PRIMARY KEY)")
    await store.close()


async def _delays(primary: str, standby: str, seconds: float) -> tuple[list[float], list[float]]:
    reader = await asyncpg.connect(standby)
    writer = await asyncpg.connect(primary)
    writing = asyncio.create_task(asyncio.to_thread(rate, primary, *USUAL, seconds))
    delays, lists = [], []
    for number in itertools.count():
        if writing.done():
            break
        await writer.execute("INSERT INTO bench_replica VALUES ($1)", number)
        began = time.perf_counter()
        while True:
            if await reader.fetch("SELECT 1 FROM bench_replica WHERE n = $1", number):
                break
            await asyncio.sleep(0.0005)
        delays.append(time.perf_counter() - began)
        began = time.perf_counter()
        await reader.fetch("SELECT id, seq, status, path, data, crc FROM noetl_executions ORDER BY id DESC LIMIT 100")
        lists.append(time.perf_counter() - began)
        await asyncio.sleep(0.02)
    await writing
    for each in (reader, writer):
        await each.close()
    return delays, lists


def appends(postgres: Any, folder: Path, seconds: float) -> None:
    """Print the table of appends per second."""
    dsn = postgres.dsn()
    print("| | appends/s | events/s | CPU of a writer for an append |\n|---|---:|---:|---:|")
    for writers in WRITERS:
        line(f"{writers} writers, {USUAL[1]} in flight each", rate(dsn, writers, USUAL[1], seconds))
    for in_flight in IN_FLIGHT:
        line(f"{USUAL[0]} writers, {in_flight} in flight each", rate(dsn, USUAL[0], in_flight, seconds))
    for count in CONNECTIONS:
        found = asyncio.run(_beside_connections(dsn, count, seconds))
        line(f"{USUAL[0]} writers, {USUAL[1]} in flight, {count} idle connections", found)
    with pooler(postgres, folder) as url:
        if url is None:
            print("pgbouncer is not installed")
        else:
            line(f"{USUAL[0]} writers, {USUAL[1]} in flight, through PgBouncer", rate(url, *USUAL, seconds))
    for count in PARTITIONS:
        asyncio.run(_add_partitions(dsn, count))
        line(f"{USUAL[0]} writers, {USUAL[1]} in flight, {count} more partitions", rate(dsn, *USUAL, seconds))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.database_limit", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    parser.add_argument("--replica", action="store_true", help="only the replica")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with services.Postgres(str(folder / "pg"), durable=True, settings=POSTGRES) as postgres:
            if not given.replica:
                appends(postgres, folder, given.seconds)
            replica(postgres, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
