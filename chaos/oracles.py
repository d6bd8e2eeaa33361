"""Oracles for real clusters: check the event log and the projection of executions."""

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


class OracleReport(Struct):
    """Counts and violations of the checked executions."""

    executions: int = 0
    events: int = 0
    starts: int = 0  # of tasks; more starts than tasks mean repeated work
    losses: int = 0  # expired leases
    returns: int = 0  # leases that a worker returned, which uses up no attempt
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def check_executions(dsn: str, ids: Sequence[str], *, expected: str = "success", others: bool = False) -> OracleReport:
    """Check these executions; with `others` the store may contain other unfinished executions."""
    return asyncio.run(_check_executions(dsn, ids, expected, others))


async def _check_executions(dsn: str, ids: Sequence[str], expected: str, others: bool) -> OracleReport:
    events, playbooks = open_stores(dsn)
    catalog = Catalog(playbooks, specs)
    report = OracleReport()
    try:
        doubled = [each for each, count in Counter(ids).items() if count > 1]
        report.violations += [f"execution {each} was acknowledged for two requests" for each in doubled]
        if not others:
            left = await events.unfinished()
            report.violations += [f"execution {each} did not end" for each in left]
        for execution_id in ids:
            log = await events.read(execution_id)
            if not log:
                report.violations.append(f"execution {execution_id} was acknowledged but does not exist")
                continue
            request = log[0].body
            assert isinstance(request, ExecutionRequested)
            problems = list(check_log(log))
            playbook = await catalog.load(request.playbook)
            problems += check_projection(await events.summary(execution_id), log, playbook)
            if not isinstance(log[-1].body, PlaybookProcessed):
                problems.append("the last event is missing")
            _count(report, log)
            summary = await events.summary(execution_id)
            status = summary.status if summary is not None else "missing"
            report.outcomes[status] += 1
            if status != expected:
                problems.append(f"unexpected status {status}: {summary.error if summary else ''}")
            report.violations += [f"execution {execution_id}: {each}" for each in problems]
    finally:
        await events.close()
    return report


def _count(report: OracleReport, log: Sequence[Recorded]) -> None:
    report.executions += 1
    report.events += len(log)
    report.starts += sum(isinstance(each.body, TaskStarted) for each in log)
    lost = [each.body.returned for each in log if isinstance(each.body, WorkerLost)]
    report.losses += lost.count(False)
    report.returns += lost.count(True)
