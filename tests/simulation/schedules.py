"""A schedule in the simulation: every server runs the production scheduler; each tick starts one execution."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from noetl.core.model.events import ExecutionRequested, Recorded, WorkflowFinished
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.kinds import KINDS
from noetl.server.scheduling.scheduler import Scheduler
from noetl.server.scheduling.schedules import Schedule
from noetl.server.scheduling.trigger_service import Triggers
from noetl.server.scheduling.triggers import Overlap
from noetl.storage.ports.events import Append
from tests.simulation.virtual_time import EPOCH, block_if_dead

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

NAME = "every-ten-seconds"
TICKS = tuple(EPOCH + 10.0 * number for number in range(1, 8))  # those of the expression after the beginning
CRON = "*/10 6,7 15 15 6 *"
GRACE_SECONDS = 30.0  # after the last fault, until a tick must have been started


class Boundary:
    """A store as a server process reaches it: with a delay, and without effect once the process is dead."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*values: Any, **named: Any) -> Any:
            await asyncio.sleep(0.001)
            await block_if_dead()
            return await method(*values, **named)

        return call


def overlap_of(seed: int) -> Overlap | None:
    """What the schedule of a seed does while its last execution is running; most seeds have no schedule."""
    return {4: "allow", 9: "queue"}.get(seed % 10)  # type: ignore[return-value]


async def add_schedule(cluster: Cluster, overlap: Overlap) -> None:
    """Store the schedule."""
    schedule = Schedule(id="s", name=NAME, path="called", cron=CRON, catch_up="all", overlap=overlap, created_at=EPOCH)
    await cluster.limits.add(schedule.prepared(None, EPOCH).row(1))


def scheduler_of(cluster: Cluster, orchestrator: Orchestrator) -> Scheduler:
    """The scheduler of a server."""
    rows: Any = Boundary(cluster.limits)
    triggers = Triggers(rows, orchestrator.catalog, cluster.clock, KINDS)
    deliveries: Any = Boundary(cluster.deliveries)
    return Scheduler(rows, Deliveries(deliveries, triggers, orchestrator, cluster.clock), cluster.clock)


def check_schedule(cluster: Cluster, logs: Mapping[str, Sequence[Recorded]]) -> Iterator[str]:
    """Every tick has started one execution; with `queue` they do not overlap and have the order of the ticks."""
    if cluster.overlap is None:
        return
    requests = [log[0].body for log in logs.values()]
    found = Counter(each.due for each in requests if isinstance(each, ExecutionRequested) and each.due is not None)
    for tick, count in found.items():
        if count > 1:
            yield f"tick {tick - EPOCH:.0f} started {count} executions"
        if tick not in TICKS:
            yield f"{tick - EPOCH:.0f} is no tick of the schedule"
    for tick in TICKS:
        if tick not in found and tick < cluster.clock.now() - GRACE_SECONDS:
            yield f"tick {tick - EPOCH:.0f} started no execution"
    yield from _order(cluster.store.order, cluster.overlap)


def _order(appends: Sequence[Append], overlap: Overlap) -> Iterator[str]:
    running: set[str] = set()
    last = 0.0
    for append in appends:
        for each in append.events:
            body = each.body
            if isinstance(body, ExecutionRequested) and body.due is not None:
                if running and overlap == "queue":
                    yield f"tick {body.due - EPOCH:.0f} started while the execution of another one ran"
                if body.due < last:
                    yield f"tick {body.due - EPOCH:.0f} started after a later one"
                last = body.due
                running.add(append.execution_id)
            elif isinstance(body, WorkflowFinished):
                running.discard(append.execution_id)
