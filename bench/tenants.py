"""`python -m bench.tenants [--queued N]`: the latency of one tenant while another has N executions in the queue.

One server and one worker with 8 slots on Postgres; an execution is one task that takes 0.1 s. The small tenant needs a
tenth of what the worker can do (measured first: a busy machine does less), alone and then beside the queue of the large
one. Exits with 1 if its p99 more than doubles.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
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
    """Sorted seconds of the small tenant's requests, and the memory of the server in MB before and after the queue."""

    alone: list[float]
    beside: list[float]
    memory: tuple[float, float]


def _part(latencies: list[float], part: float) -> float:
    return latencies[min(len(latencies) - 1, int(len(latencies) * part))]


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
        beside = await _latencies(session, processes.url, requests, every)
        return Found(alone, beside, (before, processes.memory()[0]))


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
    print(f"memory of the server: {found.memory[0]:.0f} MB before, {found.memory[1]:.0f} MB beside the queue")
    return 0 if _part(found.beside, 0.99) <= 2 * _part(found.alone, 0.99) else 1


if __name__ == "__main__":
    sys.exit(main())
