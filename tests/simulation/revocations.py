"""Leases that the server itself ends: their workers are notified at once, not by the next heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from noetl.core.engine.decision import Decision
from noetl.core.model.events import (
    ChildRequested,
    IterationDone,
    IterationFailed,
    IterationStarted,
    Recorded,
    StepDone,
    StepFailed,
    StepStarted,
    WaitStarted,
    WorkerLost,
)
from noetl.server.orchestrator.service import Orchestrator
from tests.simulation.log_oracles import run_of

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


def watch_revocations(orchestrator: Orchestrator, cluster: Cluster) -> None:
    """Report a lease of an ended step that a decision of this server does not revoke."""
    effects, leases = orchestrator.effects, orchestrator.work.leases
    written, revoke = effects.events_written, leases.revoke
    revoked: set[tuple[str, int]] = set()

    def noted(run_id: str, epoch: int, worker: str) -> None:
        revoked.add((run_id, epoch))
        revoke(run_id, epoch, worker)

    def checked(execution: Any, decision: Decision) -> None:
        known = {(each.run_id, each.epoch) for each in leases.of_execution(execution.id)}
        revoked.clear()
        written(execution, decision)
        left = known & ended_by_server(decision.events, cluster.store.log_of(execution.id)) - revoked
        cluster.violations += [f"{run}: its step ended, and its worker was not notified" for run, _ in sorted(left)]

    effects.events_written = checked  # type: ignore[method-assign]
    leases.revoke = noted  # type: ignore[method-assign]


def ended_by_server(events: Sequence[Recorded], log: Sequence[Recorded]) -> set[tuple[str, int]]:
    """The leases that were open when these events of a log ended their steps without a report of the run itself."""
    steps = {each.body.step_run_id for each in events if isinstance(each.body, StepFailed) and each.body.by_server}
    if not steps:
        return set()
    first = events[0].seq
    open_: dict[str, int] = {}
    for each in log:
        body = each.body
        if each.seq >= first and not isinstance(body, IterationDone | IterationFailed):
            continue  # a run that reports its own end in this decision is not left
        if isinstance(body, StepStarted | IterationStarted):
            open_[run_of(body)] = body.epoch
        elif isinstance(body, _ENDS) or (isinstance(body, ChildRequested) and body.wait):
            open_.pop(run_of(body), None)
    return {(run, epoch) for run, epoch in open_.items() if run.partition("/")[0] in steps}


_ENDS = (StepDone, StepFailed, IterationDone, IterationFailed, WorkerLost, WaitStarted)
