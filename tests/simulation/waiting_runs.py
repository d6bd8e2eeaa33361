"""Runs with priorities in virtual time: more arrive than are executed, and none waits longer than its bound.

The rank of a run is the time of its arrival, `AGEING` seconds earlier for each point of its priority. A run waits for the
runs of a smaller rank, whenever they arrive, and for no others. A run without a priority also waits for its turn among the
executions.
"""

from __future__ import annotations

import asyncio
import random

from msgspec import Struct

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import QueuedRun
from noetl.storage.queue.memory import MemoryRunQueue

PRIORITIES = (0, 1, 5, 5, 5, 5)
AGEING = 10.0  # as documented
SLOTS = 3  # runs that are executed per second
EXECUTIONS = 12
SECONDS = 200  # of arrivals


class _Waiting(Struct):
    """A run with what is known at its arrival."""

    run: QueuedRun
    in_queue: list[QueuedRun]
    behind_its_own: bool  # other runs of its execution are in turn before it
    taken_at: float = 0.0


def starved(seed: int) -> list[str]:
    """Runs that waited longer than their bound."""
    arrived = asyncio.run(_executed(seed))
    found = []
    for number, each in enumerate(arrived):
        run = each.run
        later = [other.run for other in arrived[number + 1 :] if other.run.since <= each.taken_at]
        before = sum(_rank(other) <= _rank(run) for other in (*each.in_queue, *later))
        bound = (before + EXECUTIONS) / SLOTS + 1
        waited = each.taken_at - run.since
        if waited > bound and not each.behind_its_own:
            found.append(f"{run.run_id} with priority {run.priority:g} waited {waited:g} s, its bound is {bound:.1f} s")
    return found


def _rank(run: QueuedRun) -> float:
    return run.since - AGEING * run.priority


async def _executed(seed: int) -> list[_Waiting]:
    chance = random.Random(seed)
    queue = MemoryRunQueue()
    arrived: list[_Waiting] = []
    open_: dict[str, _Waiting] = {}
    second = 0
    while open_ or second < SECONDS:
        second += 1
        for number in range(chance.choice((3, 4, 5)) if second <= SECONDS else 0):
            execution, priority = str(chance.randint(1, EXECUTIONS)), float(chance.choice(PRIORITIES))
            run = QueuedRun(execution, f"{execution}:s{second}:{number}", since=float(second), priority=priority)
            waiting = [each.run for each in open_.values()]
            behind = not priority and any(not each.priority and each.execution_id == execution for each in waiting)
            open_[run.run_id] = _Waiting(run, waiting, behind)
            arrived.append(open_[run.run_id])
            await queue.put([run])
        for run in await queue.take(Claim("w", SLOTS)):
            open_.pop(run.run_id).taken_at = float(second)
    return arrived
