"""Appliers of compensation: which completed run is undone, and how many were."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.engine.evolve.steps import record_of
from noetl.core.engine.evolve.table import applies
from noetl.core.engine.state import Child, Compensating, Run, State, StepRun
from noetl.core.model.compensation import CompletedRun
from noetl.core.model.events import ChildRequested, CompensationDone, CompensationFailed, CompensationStarted
from noetl.core.model.ids import task_run_id
from noetl.core.model.playbook import COMPENSATION

CHILD_TASK = "compensation"  # the task of a compensation that is a child execution


def _take(state: State) -> CompletedRun:
    """Remove the run that completed last from those that are to be undone."""
    group = state.completed[-1]
    left = len(group.runs) if state.compensations_left is None else state.compensations_left
    state.compensations_left = left - 1
    if not state.compensations_left:
        state.completed.pop()
        state.compensations_left = None
    return group.runs[left - 1]


@applies(CompensationStarted)
def _started(state: State, event: CompensationStarted, at: float) -> None:
    args = state.completed[-1].args
    run = _take(state)
    run_id = event.step_run_id
    record = record_of(state, event.step + COMPENSATION)
    record.number += 1
    state.compensating[run_id] = Compensating(event.step, run)
    if event.child is not None:
        key = task_run_id(run_id, CHILD_TASK, 1, 1)
        request = ChildRequested(event.step, run_id, CHILD_TASK, run.playbook or "")
        state.children[key] = Child(key, run_id, request, state.seq)
        return
    record.open += 1
    step = state.net.compiled(event.step + COMPENSATION).step
    step_run = state.runs[run_id] = StepRun(run_id, step, record.number, args, run.input, at, state.seq)
    state.open[run_id] = Run(run_id, step_run, (), "queued", at)
    state.queued[run_id] = None


@applies(CompensationDone, CompensationFailed)
def _ended(state: State, event: CompensationDone | CompensationFailed, at: float) -> None:
    if state.compensating.pop(event.step_run_id, None) is None:  # it ended before it started
        _take(state)
        record_of(state, event.step + COMPENSATION).number += 1
    counts = state.compensated
    if isinstance(event, CompensationFailed):
        state.compensated = replace(counts, failed=counts.failed + 1)
    elif event.skipped:
        state.compensated = replace(counts, skipped=counts.skipped + 1)
    else:
        state.compensated = replace(counts, done=counts.done + 1)
