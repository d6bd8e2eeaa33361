"""What the servers of the generated scenarios have in memory, as plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.server.orchestrator.service import Orchestrator
from noetl.storage.queue.memory import MemoryRunQueue
from tests.simulation.virtual_time import EPOCH


class Payloads(dict[str, Any]):
    """The stored payloads by key."""

    def __init__(self, results: Any) -> None:
        super().__init__()
        self._results = results

    def __missing__(self, key: str) -> Any:
        return msgspec.json.decode(self._results._payloads[key])


def relative(instant: float | None) -> float | None:
    """An instant in seconds since the start."""
    return None if instant is None else round(instant - EPOCH, 3)


def tables_of(server: Orchestrator) -> dict[str, Any]:
    """What a server has in memory."""
    leases = server.work.leases
    return {
        "leases": sorted(
            [e.run_id, e.epoch, e.worker, round(e.since, 3), round(e.expires_at, 3)] for e in leases._leases.values()
        ),
        "timers": sorted([execution_id, relative(at)] for execution_id, at in server.timers._at.items()),
        "running": sorted(server.cache._running),
        "cached": len(server.cache),
        "limits": sorted(server.limiter.most.items()),
        "weights": sorted(server.limiter.weights.items()),
        "workers": sorted(
            [name, each.claim.pool, each.free, each.held, each.holders, len(each.orders), each.poll is not None]
            for name, each in server.work._dispatcher._workers.items()
        ),
        "live": {pool: server.work._dispatcher.live_workers(pool) for pool in ("default", "light")},
    }


def waiting_runs(queue: MemoryRunQueue) -> list[Any]:
    """The runs of a queue, also those that wait for a limit."""
    tenants = [*queue._pools.values(), *queue._parked.values()]
    return [
        [
            run.run_id,
            run.pool,
            run.affinity,
            run.limit,
            run.weight,
            run.priority,
            run.labels,
            run.cost,
            run.tenant,
            relative(run.since),
        ]
        for each in tenants
        for waiting in each.values()
        for runs in waiting.executions.values()
        for run in runs.values()
    ]
