"""`doctor --verify` reads every log and finds attempts that were started twice."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.model.events import (
    Event,
    ExecutionRequested,
    Recorded,
    RequestEvaluated,
    StepScheduled,
    StepStarted,
    TaskStarted,
    WorkerLost,
    WorkflowStarted,
)
from noetl.server.lifecycle.log_verifier import verify
from noetl.server.read_models.summaries import project
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.events import Append

BEGIN: tuple[Event, ...] = (
    ExecutionRequested(playbook="d", path="p"),
    RequestEvaluated(),
    WorkflowStarted(entry="start"),
    StepScheduled(step="start", step_run_id="77:start:1", tokens=("77-t1",)),
    StepStarted("start", "77:start:1", 1, "w1"),
    TaskStarted("start", "77:start:1", "pay", "http"),
    WorkerLost("start", "77:start:1", 1, worker="w1"),
    StepStarted("start", "77:start:1", 2, "w2"),
)


@pytest.mark.parametrize(("attempt", "problems"), [(2, 0), (1, 1)])
def test_a_reused_attempt_number_is_found(attempt, problems):
    bodies = (*BEGIN, TaskStarted("start", "77:start:1", "pay", "http", attempt=attempt))
    log = [Recorded("77", seq, 1.0 * seq, body) for seq, body in enumerate(bodies, 1)]

    async def check():
        store = MemoryEventStore()
        await store.append(Append("77", 0, tuple(log), project(None, log)))
        return await verify(store)

    executions, events, damaged = asyncio.run(check())
    assert (executions, events, len(damaged)) == (1, 9 if not problems else 0, problems)
    assert all("attempt 1 of task pay" in each for each in damaged)
