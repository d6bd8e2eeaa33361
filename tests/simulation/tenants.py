"""Two tenants in virtual time: how long the executions of one wait while the other has many in the queue.

Runs are taken from the real queue by a number of slots; each run takes a time with a known distribution. Nothing else is
simulated, so the result shows the order of the queue alone.
"""

from __future__ import annotations

import asyncio
import heapq
import random

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import QueuedRun
from noetl.storage.queue.memory import MemoryRunQueue

SLOTS = 16
SECONDS = 0.1  # of one run, on average
SHARE = 0.1  # of the slots that the small tenant needs


def p99(waiting: int, *, requests: int = 400, seed: int = 1, tenants: bool = True) -> float:
    """The 99th percentile of the latency of tenant `small`, while `waiting` runs of tenant `large` are in the queue."""
    latencies = sorted(asyncio.run(_latencies(waiting, requests, random.Random(seed), tenants)))
    return latencies[int(len(latencies) * 0.99)]


async def _latencies(waiting: int, requests: int, chance: random.Random, tenants: bool) -> list[float]:
    queue = MemoryRunQueue()
    large, small = ("large", "small") if tenants else ("", "")
    await queue.put([QueuedRun(f"{n}", f"{n}:s:1", tenant=large) for n in range(waiting)])
    requested: dict[str, float] = {}
    at = 0.0
    for n in range(requests):
        at += chance.expovariate(SHARE * SLOTS / SECONDS)
        requested[f"r{n}:s:1"] = at
    happens: list[tuple[float, str]] = [(at, run_id) for run_id, at in requested.items()]  # an empty id: a run ends
    heapq.heapify(happens)
    latencies: list[float] = []
    free, now = SLOTS, 0.0
    while len(latencies) < requests:
        for run in await queue.take(Claim("w", free)) if free else ():
            free -= 1
            end = now + chance.uniform(0.5, 1.5) * SECONDS
            heapq.heappush(happens, (end, ""))
            if run.run_id in requested:
                latencies.append(end - requested[run.run_id])
        now, run_id = heapq.heappop(happens)
        if run_id:
            await queue.put([QueuedRun(run_id.partition(":")[0], run_id, tenant=small)])
        else:
            free += 1
    return latencies
