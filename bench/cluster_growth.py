"""`python -m bench.cluster_growth`: the cost of an execution in deployments of growing size.

    python -m bench.cluster_growth                  # all curves
    python -m bench.cluster_growth workers servers  # some of them

One-step executions, 20 at once, on servers, workers and Postgres as processes. For each point: CPU time of servers and
workers for one execution, and how much the event loops of the servers and the database had to do for it (callbacks and
timers, queries outside of the appends), which does not depend on the load of the machine. Waiting executions, schedules
and queued runs (of a pool without workers) are rows that others have left.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import asyncpg

from bench.loop_counts import CountedProcesses, totals
from bench.many_rows import FAR, PLAYBOOK, copy_schedules, post
from bench.server_workloads import ApiClient
from bench.workloads import chain
from devcluster import services
from noetl.core.model.events import PlaybookProcessed
from noetl.core.model.ids import number_at
from noetl.storage.events.postgres import PostgresEventStore
from noetl.storage.ports.queue import QueuedRun
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.queue.postgres import PostgresRunQueue
from tests.conformance.event_store import make_append

SIZES = {
    "workers": (1, 2, 4, 8),
    "servers": (1, 2, 4),
    "waiting": (0, 1_000, 10_000, 100_000),
    "schedules": (0, 1_000, 10_000, 100_000),
    "queued": (0, 1_000, 10_000, 100_000),
}
NAMES = {
    "workers": "workers",
    "servers": "servers",
    "waiting": "waiting executions",
    "schedules": "schedules",
    "queued": "runs in the queue",
}
IN_FLIGHT = 20
AT_ONCE = 1000


class Point(NamedTuple):
    """Per execution: CPU of servers and workers in ms; callbacks and timers, and queries, of all servers."""

    cpu: float
    loop: float
    queries: float


async def _cost(processes: CountedProcesses, servers: int, executions: int) -> Point:
    headers = {"Authorization": f"Bearer {processes.token}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        client = ApiClient(session, processes.url)
        await client.many(chain(1, "noop"), 100, IN_FLIGHT)
        await processes.begin()
        before = processes.cpu()
        await client.many(chain(1, "noop"), executions, IN_FLIGHT)
        spent = processes.cpu() - before
        counts = totals(row for rows in (await processes.counts())[:servers] for row in rows)
    loop = counts["callback"] + counts["timer"]
    return Point(1000 * spent / executions, loop / executions, counts["query"] / executions)


async def _wait(dsn: str, begin: int, end: int) -> None:
    """Executions that wait for a signal."""
    store = PostgresEventStore(PostgresDatabase(dsn))
    first = number_at(time.time() - 86_400)
    for low in range(begin, end, AT_ONCE):
        waiting = (
            make_append(str(first + n), 0, PlaybookProcessed(outcome="success"), status="waiting", due=FAR)
            for n in range(low, min(end, low + AT_ONCE))
        )
        await asyncio.gather(*(store.append(each) for each in waiting))
    await store.close()


async def _queue(dsn: str, begin: int, end: int) -> None:
    """Runs of a pool without workers."""
    database = PostgresDatabase(dsn)
    queue = PostgresRunQueue(database)
    for low in range(begin, end, AT_ONCE):
        await queue.put([QueuedRun(str(n + 1), f"{n + 1}:s:1", "idle") for n in range(low, min(end, low + AT_ONCE))])
    await queue.close()
    await database.close()


async def _schedule(dsn: str, begin: int, end: int) -> None:
    """Schedules whose next tick is far in the future."""
    connection = await asyncpg.connect(dsn)
    await copy_schedules(connection, begin, end)
    await connection.close()


_ADD: dict[str, Callable[[str, int, int], Awaitable[None]]] = {
    "waiting": _wait,
    "queued": _queue,
    "schedules": _schedule,
}


async def measure(curve: str, sizes: tuple[int, ...], executions: int, folder: Path) -> list[Point]:
    """The points of a curve."""
    found = []
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(services.Postgres(str(folder / "pg"), durable=True))
        if curve not in _ADD:
            for size in sizes:
                servers, workers = (size, 2) if curve == "servers" else (1, size)
                name = f"t{size}"
                connection = await asyncpg.connect(postgres.dsn())
                await connection.execute(f"CREATE DATABASE {name}")
                await connection.close()
                with CountedProcesses(folder / name, servers, workers, postgres.dsn(name), None) as processes:
                    found.append(await _cost(processes, servers, executions))
            return found
        processes = stack.enter_context(CountedProcesses(folder, 1, 2, postgres.dsn(), None))
        if curve == "schedules":
            await _first_schedule(processes)
        added = 0
        for size in sizes:
            await _ADD[curve](postgres.dsn(), added, size)
            added = size
            found.append(await _cost(processes, 1, executions))
        return found


async def _first_schedule(processes: CountedProcesses) -> None:
    headers = {"Authorization": f"Bearer {processes.token}"}
    async with aiohttp.ClientSession(processes.url, headers=headers) as session:
        await post(session, "/api/catalog/register", {"content": PLAYBOOK.format(n=0)})
        await post(session, "/api/schedules", {"path": "bench/many", "cron": "0 3 1 1 *", "name": "first"})


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster_growth", description=__doc__)
    parser.add_argument("curves", nargs="*", default=list(SIZES), metavar="CURVE", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--executions", type=int, default=400)
    parser.add_argument("--most", type=int, default=100_000, help="the largest size")
    options = parser.parse_args()
    for curve in options.curves:
        sizes = tuple(size for size in SIZES[curve] if size <= options.most)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
            points = asyncio.run(measure(curve, sizes, options.executions, Path(folder).resolve()))
        sys.stdout.write(f"\n| {NAMES[curve]} | {' | '.join(f'{size:,}' for size in sizes)} |\n")
        sys.stdout.write(f"|---|{'---:|' * len(sizes)}\n")
        for name, values in (
            ("CPU of servers and workers, ms", [f"{each.cpu:.2f}" for each in points]),
            ("callbacks and timers of the servers", [f"{each.loop:.0f}" for each in points]),
            ("queries outside of appends", [f"{each.queries:.1f}" for each in points]),
        ):
            sys.stdout.write(f"| {name} | {' | '.join(values)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
