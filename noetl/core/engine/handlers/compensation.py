"""Compensation: completed step runs are undone in reverse order of completion, before a failed execution ends.

Only steps that declare a compensation are recorded (`State.completed`), and child executions that completed such steps.
One step run is undone after the other; the iterations of a loop are undone with the loop's `max_in_flight`, latest
first. A compensation is a step run of its own (`STEP.compensation`) with the rules, retries and leases of every other
one; its failure is recorded and the next one starts. A child execution is undone by another execution of the same
playbook, which takes over what the child completed (`CompensationSource`): the log of an ended execution is closed.
"""

from __future__ import annotations

from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.evaluation.names import at_compensation
from noetl.core.engine.run_orders import failure_of
from noetl.core.engine.state import State
from noetl.core.model.compensation import CompensationCounts, CompensationSource, CompletedRun, CompletedStep
from noetl.core.model.events import (
    ChildFinished,
    CompensationDone,
    CompensationFailed,
    CompensationStarted,
    Event,
    StepDone,
    StepFailed,
)
from noetl.core.model.ids import step_run_id
from noetl.core.model.outcome import ErrorInfo, Outcome, error_info
from noetl.core.model.playbook import COMPENSATION


def start_next(state: State, env: EvaluationContext) -> list[Event]:
    """Start the next compensation, if one can start now."""
    if not state.completed:
        return []
    group = state.completed[-1]
    left = len(group.runs) if state.compensations_left is None else state.compensations_left
    run = group.runs[left - 1]
    if state.compensating and not _fits_beside_others(state, group, run):
        return []
    step = group.step
    record = state.steps.get(step + COMPENSATION)
    run_id = step_run_id(state.execution_id, step + COMPENSATION, (record.number if record else 0) + 1)
    if run.child is not None:
        return [CompensationStarted(step, run_id, run.run_id, run.child, run.playbook)]
    try:
        if not _is_needed(state, env, group, run):
            return [CompensationDone(step, run_id, run.run_id, skipped=True)]
    except Failure as failure:
        return [CompensationFailed(step, run_id, run.run_id, failure.error)]
    return [CompensationStarted(step, run_id, run.run_id)]


def _fits_beside_others(state: State, group: CompletedStep, run: CompletedRun) -> bool:
    """Whether a run can be undone while others are: those of the same loop, within its window."""
    under_way = state.compensating.values()
    owner = group.step_run_id
    return len(under_way) < group.window and all(
        each.run.run_id.partition("/")[0] == owner and each.run.run_id != run.run_id for each in under_way
    )


def _is_needed(state: State, env: EvaluationContext, group: CompletedStep, run: CompletedRun) -> bool:
    when = state.net.compiled(group.step).compensate_when
    if when is None:
        return True
    names = at_compensation(state, env, group.step, run, group.args, failure_of(state))
    compensation = state.net.steps[group.step].compensation
    return env.holds(when, names, f"{compensation.path if compensation else ''}/when")


def step_ended(state: State, event: StepDone | StepFailed) -> list[Event]:
    """The end of a compensation that ran as a step."""
    return _ended(state, event.step_run_id, event.output, failed=type(event) is StepFailed)


def child_ended(state: State, event: ChildFinished, env: EvaluationContext) -> list[Event]:
    """The end of a compensation that is a child execution; other children are not concerned."""
    undo = state.compensating.get(event.step_run_id)
    if undo is None or undo.run.child is None:
        return []
    return _ended(state, event.step_run_id, event.outcome, failed=event.outcome.status == "error")


def _ended(state: State, run_id: str, output: Outcome, *, failed: bool) -> list[Event]:
    undo = state.compensating[run_id]
    if failed:
        error = output.error or error_info("unknown", "the compensation failed")
        return [CompensationFailed(undo.step, run_id, undo.run.run_id, error)]
    return [CompensationDone(undo.step, run_id, undo.run.run_id)]


def counts_of(state: State) -> CompensationCounts | None:
    """The counts for the end of the execution; None if nothing was to be undone."""
    return None if state.compensated == CompensationCounts() else state.compensated


def source_of(state: State, failure: ErrorInfo | None) -> CompensationSource:
    """What another execution needs to undo the completed steps of this one."""
    results = {name: record.outcome for name, record in state.steps.items() if record.outcome is not None}
    return CompensationSource(
        state.execution_id, tuple(state.completed), state.workload, dict(state.ctx), results,
        tuple(state.synthesized.values()), failure,
    )  # fmt: skip
