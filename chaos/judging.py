"""The oracles over a real cluster: every log, its projection, and what was done to the world."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from noetl.core.model.events import ExecutionRequested, PlaybookProcessed, Recorded, TaskStarted, WorkerLost
from noetl.server.orchestrator.catalog import Catalog
from noetl.storage.factory import open_stores
from noetl.tools.registry import specs
from tests.simulation.log_oracles import check_log, check_projection


class Judgement(Struct):
    """What the oracles saw."""

    executions: int = 0
    events: int = 0
    starts: int = 0  # of tasks; those above the number of tasks are work that was done again
    losses: int = 0  # leases of workers that fell silent, taken back
    returns: int = 0  # leases that a worker gave back, which costs no attempt
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def judge(dsn: str, ids: Sequence[str], *, expected: str = "success", others: bool = False) -> Judgement:
    """Every promise that was broken by these executions; `others` may be in the store beside them."""
    return asyncio.run(_judge(dsn, ids, expected, others))


async def _judge(dsn: str, ids: Sequence[str], expected: str, others: bool) -> Judgement:
    events, playbooks = open_stores(dsn)
    catalog = Catalog(playbooks, specs)
    seen = Judgement()
    try:
        doubled = [each for each, count in Counter(ids).items() if count > 1]
        seen.broken += [f"{each} was acknowledged for two requests" for each in doubled]
        if not others:
            left = await events.unfinished()
            seen.broken += [f"execution {each} never ended" for each in left]
        for execution_id in ids:
            log = await events.read(execution_id)
            if not log:
                seen.broken.append(f"execution {execution_id} was acknowledged and is not there")
                continue
            request = log[0].body
            assert isinstance(request, ExecutionRequested)
            problems = list(check_log(log))
            playbook = await catalog.load(request.playbook)
            problems += check_projection(await events.summary(execution_id), log, playbook)
            if not isinstance(log[-1].body, PlaybookProcessed):
                problems.append("it has not ended")
            _count(seen, log)
            summary = await events.summary(execution_id)
            status = summary.status if summary is not None else "missing"
            seen.outcomes[status] += 1
            if status != expected:
                problems.append(f"it ended as {status}: {summary.error if summary else ''}")
            seen.broken += [f"execution {execution_id}: {each}" for each in problems]
    finally:
        await events.close()
    return seen


def _count(seen: Judgement, log: Sequence[Recorded]) -> None:
    seen.executions += 1
    seen.events += len(log)
    seen.starts += sum(isinstance(each.body, TaskStarted) for each in log)
    lost = [each.body.returned for each in log if isinstance(each.body, WorkerLost)]
    seen.losses += lost.count(False)
    seen.returns += lost.count(True)
