"""Outstanding effects: all effects that the log implies and that are not done yet, from the state alone.

A server that restarts between append and dispatch folds the log and performs `outstanding(state)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from noetl.core.engine.effects import (
    AnswerParent,
    AwaitChild,
    CancelChild,
    ContinueLater,
    Effect,
    EnqueueRun,
    SetTimer,
    StartChild,
)
from noetl.core.engine.lease_rules import is_local, open_loops
from noetl.core.engine.state import Child, Loop, Run, State, StepRun
from noetl.core.model.events import Parent
from noetl.core.model.outcome import Outcome, error_info


def outstanding(state: State) -> list[Effect]:
    """Every effect that is outstanding now."""
    if state.finished is not None:
        return list(answer_parent(state))
    effects: list[Effect] = []
    if state.accepts_claims:
        effects += (enqueue(state, state.open[run_id]) for run_id in state.queued)
        effects += (enqueue_iteration(state, loop, index) for loop in open_loops(state) for index in loop.unclaimed())
    effects += (effect_for(state, child) for child in state.children.values())
    due = next_due(state)
    if due is not None:
        effects.append(SetTimer(due))
    if not is_settled(state) or (state.ending is None and (state.waiting or not state.runs)):
        # The state alone does not always show whether a decision is outstanding; an advance without commands does.
        effects.append(ContinueLater())
    return effects


def is_settled(state: State) -> bool:
    """Whether nothing more can be decided without a new command."""
    if state.request is None or state.finished is not None:
        return True
    if state.ending is not None:
        return bool(state.children or state.compensating)
    return not state.unexamined


def next_due(state: State) -> float | None:
    """When the next timer is due."""
    return min(state.due.values()) if state.due else None


def leases(state: State) -> Iterator[tuple[str, int, str]]:
    """Leased runs: id, epoch, worker. A server that restarts watches these leases again."""
    for run in state.open.values():
        if run.status == "leased":
            yield run.id, run.epoch, run.worker


def effect_for(state: State, child: Child) -> Effect:
    """The effect that a child execution needs: start it, await it, or cancel it."""
    undo = state.compensating.get(child.run_id)
    if undo is None and (state.ending is not None or child.run_id not in state.open):
        why = "the calling run has ended" if child.run_id else "the calling task's spec.timeout was exceeded"
        return CancelChild(child.key, child.child, why, state.ending is None or state.ending.compensate)
    if child.child is not None:
        return AwaitChild(child.key, child.child)
    request = child.request
    return StartChild(
        key=child.key,
        parent=Parent(state.execution_id, child.run_id, child.key, state.depth + 1),
        playbook=request.playbook,
        payload=request.payload,
        version=request.version,
        entry_step=request.entry_step,
        return_step=request.return_step,
        compensates=None if undo is None else undo.run.child,
        failure=None if undo is None or state.ending is None else state.ending.error,
    )


def answer_parent(state: State) -> Iterator[Effect]:
    """The effect that gives the calling execution the output of this finished child."""
    parent = state.request.parent if state.request else None
    if parent is not None and state.finished is not None:
        outcome = state.output
        if state.finished != "success":
            error = state.error or error_info("unknown", f"the child execution ended with status {state.finished}")
            outcome = structs.replace(outcome or Outcome("error"), status="error", error=error)
        elif outcome is None:
            outcome = Outcome("ok")
        compensable = state.finished == "success" and bool(state.completed)
        yield AnswerParent(parent, state.execution_id, outcome, compensable)


def enqueue(state: State, run: Run) -> EnqueueRun:
    """The effect that enqueues an open run for the workers."""
    return _enqueue(state, run.step_run, run.id, run.path)


def enqueue_iteration(state: State, loop: Loop, index: int) -> EnqueueRun:
    """The effect that enqueues an iteration that no worker has claimed yet."""
    return _enqueue(state, loop.step_run, loop.id_of(index), (*loop.path, index))


def _enqueue(state: State, step_run: StepRun, run_id: str, path: tuple[int, ...]) -> EnqueueRun:
    step = step_run.step
    affinity = step_run.id if path and is_local(state, step_run) else None
    return EnqueueRun(
        run_id, step.name, step_run.id, path, step.pool, affinity, None, step_run.priority, step.labels, step.cost
    )
