"""`python -m bench.many_rows`: lists, searches, ticks and restarts of a server with many schedules and playbooks.

    python -m bench.many_rows --schedules 0 1000 100000 --playbooks 100 10000 --versions 100

One server on Postgres. One schedule and one playbook are created over HTTP; the others are copies of their rows.
For each size: the median time of requests, the memory, the time until a restarted server is ready, and how late the
ticks of 200 schedules start that are due in the same second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from bench.server_workloads import ServerProcesses
from devcluster import services

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: many, path: bench/many}}
workload: {{n: {n}}}
workflow:
  - {{step: start, tool: {{kind: noop}}}}
"""
REPEATS = 15
DUE = 200  # schedules that are due at once
FAR = 4e9  # the next tick of the others

# A document without trailing blanks has no checksum, which would be that of another row.
_SCHEDULES = """
    INSERT INTO noetl_triggers(kind, name, data, revision, wake)
    SELECT kind, 's' || lpad(n::text, 8, '0'), convert_to(regexp_replace(replace(rtrim(convert_from(data,
      'UTF8'), E' \\t\\n'), '"first"', '"s' || lpad(n::text, 8, '0') || '"'), '"id":"[0-9a-f]+"', '"id":"' ||
      left(md5(n::text), 16) || '"'), 'UTF8'), revision, $3
    FROM noetl_triggers, generate_series($1::int8, $2::int8 - 1) AS n WHERE kind = 'schedule' AND name = 'first'
"""
_PLAYBOOKS = """
    INSERT INTO noetl_catalogue(path, version, digest, registered_at, origin)
    SELECT 'team' || p % 100 || '/playbook' || lpad(p::text, 6, '0'), v, c.digest, c.registered_at, c.origin
    FROM noetl_catalogue c, generate_series($1::int8, $2::int8 - 1) AS p, generate_series(1, $3::int8) AS v
    WHERE c.path = 'bench/many' AND c.version = 1
"""
REQUESTS = {
    "schedules, a page": "/api/schedules?limit=100",
    "schedules, a late page": "/api/schedules?limit=100&after=s00{last}",
    "calendar of a day": "/api/schedules/calendar?days=1",
    "home page: history": "/api/history?days=7",
    "playbooks, a page": "/api/catalog?limit=100",
    "playbooks, a late page": "/api/catalog?limit=100&after=team97",
    "search with 1 match": "/api/catalog?search=playbook000001",
    "search without match": "/api/catalog?search=nothing",
    "versions of a playbook": "/api/versions/team1/playbook000001",
    "a playbook": "/api/catalog/team1/playbook000001",
}


async def _request(session: aiohttp.ClientSession, url: str) -> float:
    began = time.perf_counter()
    async with session.get(url) as response:
        body = await response.read()
        if response.status != 200:
            raise RuntimeError(f"{url}: {response.status} {body[:300]!r}")
    return time.perf_counter() - began


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> None:
    """Send a request, which must succeed."""
    async with session.post(url, json=body) as response:
        if response.status >= 300:
            raise RuntimeError(f"{url}: {response.status} {await response.text()}")


async def _late(connection: Any, count: int) -> float:
    """Make schedules due in the same second; seconds until all of their executions exist."""
    at = time.time() + 2
    await connection.execute(
        "UPDATE noetl_triggers SET wake = $1::float8, revision = revision + 1, data = convert_to(regexp_replace("
        "rtrim(convert_from(data, 'UTF8'), E' \\t\\n'), '\"next_at\":[0-9.e+]+', "
        "'\"next_at\":' || ($1::float8)::numeric(20, 3)), 'UTF8') "
        "WHERE kind = 'schedule' AND name IN (SELECT name FROM noetl_triggers WHERE kind = 'schedule' LIMIT $2)",
        at,
        count,
    )
    before = await connection.fetchval("SELECT count(*) FROM noetl_executions")
    while await connection.fetchval("SELECT count(*) FROM noetl_executions") < before + count:
        if time.time() > at + 300:
            raise RuntimeError("the ticks did not start within 300 s")
        await asyncio.sleep(0.1)
    return time.time() - at


async def copy_schedules(connection: Any, begin: int, end: int) -> None:
    """Copies of the schedule `first`, whose next tick is far in the future."""
    await connection.execute(_SCHEDULES, begin, end, FAR, timeout=3600)


class Bench:
    """One server, and the tables of its results."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._postgres = stack.enter_context(services.Postgres(str(folder / "pg"), durable=True))
        self._starts = 0
        self.rows: dict[str, list[str]] = {}

    async def measure(self, schedules: int, fill: Callable[[Any], Awaitable[None]]) -> None:
        """Fill the tables, restart the server, and measure."""
        connection = await asyncpg.connect(self._postgres.dsn())
        try:
            await fill(connection)
            await connection.execute("ANALYZE")
            self._starts += 1
            began = time.perf_counter()
            with ServerProcesses(self._folder / str(self._starts), 1, 1, self._postgres.dsn(), None) as processes:
                self._add("restart: ready", time.perf_counter() - began)
                async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {processes.token}"}) as session:
                    if not await connection.fetchval("SELECT count(*) FROM noetl_catalogue WHERE path = 'bench/many'"):
                        raise RuntimeError("the catalogue is empty")
                    for name, path in REQUESTS.items():
                        url = processes.url + path.format(last=f"{max(0, schedules - 200):06d}")
                        taken = [await _request(session, url) for _ in range(REPEATS)]
                        self._add(name, statistics.median(taken))
                    if schedules:
                        self._add(f"{DUE} ticks: all started", await _late(connection, DUE))
                    else:
                        self._add(f"{DUE} ticks: all started", None)
                    self.rows.setdefault("memory", []).append(f"{processes.memory()[0]:.0f} MB")
        finally:
            await connection.close()

    async def first(self) -> None:
        """Create the rows that are copied."""
        with ServerProcesses(self._folder / "first", 1, 0, self._postgres.dsn(), None) as processes:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {processes.token}"}) as session:
                for version in (1, 2):
                    body = {"content": PLAYBOOK.format(n=version)}
                    await post(session, f"{processes.url}/api/catalog/register", body)
                body = {"path": "bench/many", "cron": "0 4 1 1 *", "name": "first"}
                await post(session, f"{processes.url}/api/schedules", body)

    def _add(self, name: str, seconds: float | None) -> None:
        self.rows.setdefault(name, []).append("" if seconds is None else f"{1000 * seconds:.0f} ms")


async def run(schedules: Sequence[int], playbooks: Sequence[int], versions: int, folder: Path) -> None:
    """Measure every size and print the tables."""
    async with AsyncExitStack() as stack:
        bench = Bench(stack, folder)
        await bench.first()
        done = (0, 0)
        sizes = [(s, playbooks[0]) for s in schedules] + [(schedules[-1], p) for p in playbooks[1:]]
        for size in sizes:

            async def fill(connection: Any, size: tuple[int, int] = size, done: tuple[int, int] = done) -> None:
                await copy_schedules(connection, done[0], size[0])
                await connection.execute(_PLAYBOOKS, done[1], size[1], versions, timeout=3600)

            await bench.measure(size[0], fill)
            done = size
            print(f"measured {size[0]:,} schedules and {size[1]:,} playbooks", flush=True)
    titles = [f"{s:,} / {p:,} x {versions}" for s, p in sizes]
    print("| schedules / playbooks x versions | " + " | ".join(titles) + " |")
    print("|---|" + "---:|" * len(titles))
    for name, values in bench.rows.items():
        print(f"| {name} | " + " | ".join(values) + " |")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_rows", description=__doc__)
    parser.add_argument("--schedules", type=int, nargs="+", default=[0, 1_000, 100_000])
    parser.add_argument("--playbooks", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--versions", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        asyncio.run(run(given.schedules, given.playbooks, given.versions, Path(folder).resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
