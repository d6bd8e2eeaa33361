"""`python -m bench.tenants [--queued N]`: the latency of one tenant while another has N executions in the queue.

One server and one worker with 8 slots on Postgres; an execution is one task that takes 0.1 s. The small tenant needs a
tenth of what the worker can do (measured first: a busy machine does less), alone and then beside the queue of the large
one. Exits with 1 if its p99 more than doubles. Times depend on what else the machine does; the number of executions of
the large tenant that end while one of the small tenant waits and runs does not. In a fair queue it is about the number
of slots (those that run meanwhile), with one that serves in order it is the number of queued ones.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import asyncpg
import msgspec

from bench.server_workloads import ServerProcesses
from devcluster import services

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: sleep, path: bench/sleep}
workflow:
  - {step: start, tool: {kind: shell, command: sleep 0.1}}
"""
SLOTS = 8
BURST = 200  # executions whose rate is measured
SHARE = 0.1  # of that rate, for the small tenant
SENDERS = 50  # concurrent requests while the queue is filled


async def _run(session: aiohttp.ClientSession, url: str, tenant: str, *, follow: bool) -> float:
    """Submit an execution, and follow it to its end; the seconds it took."""
    began = time.perf_counter()
    body = {"content": PLAYBOOK, "labels": {"tenant": tenant}}
    async with session.post(f"{url}/api/execute", json=body) as response:
        if response.status != 202:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        execution_id = msgspec.json.decode(await response.read())["execution_id"]
    if follow:
        async with session.get(f"{url}/api/executions/{execution_id}/events/stream") as response:
            await response.read()
    return time.perf_counter() - began


async def _rate(session: aiohttp.ClientSession, url: str) -> float:
    """Executions per second while all slots are busy."""
    began = time.perf_counter()
    await asyncio.gather(*(_run(session, url, "large", follow=True) for _ in range(BURST)))
    return BURST / (time.perf_counter() - began)


async def _latencies(session: aiohttp.ClientSession, url: str, requests: int, every: float) -> list[float]:
    tasks = []
    for _ in range(requests):
        tasks.append(asyncio.create_task(_run(session, url, "small", follow=True)))
        await asyncio.sleep(every)
    return sorted(await asyncio.gather(*tasks))


async def _fill(session: aiohttp.ClientSession, url: str, count: int) -> None:
    left = iter(range(count))

    async def sender() -> None:
        for _ in left:
            await _run(session, url, "large", follow=False)

    await asyncio.gather(*(sender() for _ in range(SENDERS)))


class Found(NamedTuple):
    """Of the small tenant's requests: sorted seconds, and how many executions of the large one ended during each; the
    memory of the server in MB before and after the queue."""

    alone: list[float]
    beside: list[float]
    overtaken: list[int]
    memory: tuple[float, float]


class _Ended(msgspec.Struct):
    """What is read of the row of an execution."""

    started_at: float
    ended_at: float
    labels: tuple[str, ...] = ()


async def _overtaken(dsn: str, since: float) -> list[int]:
    """For each execution of the small tenant since then: how many of the large one ended from its start to its end."""
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("SELECT data FROM noetl_executions WHERE ended")
    await connection.close()
    ended = [msgspec.json.decode(row[0], type=_Ended) for row in rows]
    large = sorted(each.ended_at for each in ended if "tenant=large" in each.labels)
    small = [each for each in ended if "tenant=small" in each.labels and each.started_at >= since]
    return sorted(bisect_left(large, each.ended_at) - bisect_left(large, each.started_at) for each in small)


def _part(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))]


async def measure(queued: int, requests: int, folder: Path) -> Found:
    """The latencies of the small tenant alone, and beside the queue."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(services.Postgres(str(folder / "pg"), durable=True))
        processes = stack.enter_context(
            ServerProcesses(folder, 1, 1, postgres.dsn(), None, {"NOETL_SLOTS": str(SLOTS)})
        )
        session = await stack.enter_async_context(
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {processes.token}"})
        )
        await _rate(session, processes.url)  # warm up
        rate = await _rate(session, processes.url)
        every = 1 / (SHARE * rate)
        print(f"{rate:.0f} executions/s; the small tenant sends one every {every:.2f} s", flush=True)
        alone = await _latencies(session, processes.url, requests, every)
        before = processes.memory()[0]
        began = time.perf_counter()
        await _fill(session, processes.url, queued)
        print(f"{queued:,} executions accepted in {time.perf_counter() - began:.0f} s", flush=True)
        since = time.time()
        beside = await _latencies(session, processes.url, requests, every)
        overtaken = await _overtaken(postgres.dsn(), since)
        return Found(alone, beside, overtaken, (before, processes.memory()[0]))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.tenants", description=__doc__)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        found = asyncio.run(measure(options.queued, options.requests, Path(folder).resolve()))
    for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        print(
            f"{name} of the small tenant: {_part(found.alone, part):.3f} s alone, {_part(found.beside, part):.3f} s "
            f"beside {options.queued:,} executions of another"
        )
    print(
        f"executions of the other that ended during one of the small tenant ({SLOTS} slots): "
        f"p50 {_part(found.overtaken, 0.5)}, p99 {_part(found.overtaken, 0.99)}"
    )
    print(f"memory of the server: {found.memory[0]:.0f} MB before, {found.memory[1]:.0f} MB beside the queue")
    return 0 if _part(found.beside, 0.99) <= 2 * _part(found.alone, 0.99) else 1


if __name__ == "__main__":
    sys.exit(main())
