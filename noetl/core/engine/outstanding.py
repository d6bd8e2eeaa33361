"""What the log has promised and nobody has done yet: the commands, all of them, from the state alone.

A server that died between append and dispatch folds the log, asks `outstanding`, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    """Every command that is owed now."""
    if state.finished is not None:
        return list(answer_parent(state))
    commands: list[Effect] = []
    if not state.paused and state.ending is None:
        commands += (enqueue(state, state.open[run_id]) for run_id in state.queued)
        commands += (enqueue_iteration(state, loop, index) for loop in open_loops(state) for index in loop.unclaimed())
    commands += (effect_for(state, child) for child in state.children.values())
    due = next_due(state)
    if due is not None:
        commands.append(SetTimer(due))
    if not is_at_rest(state) or (state.ending is None and (state.waiting or not state.runs)):
        # Whether a decision is owed cannot always be seen from here; an advance without facts finds out.
        commands.append(ContinueLater())
    return commands


def is_at_rest(state: State) -> bool:
    """Whether nothing more can be decided without a new fact."""
    if state.request is None or state.finished is not None:
        return True
    if state.ending is not None:
        return bool(state.children)
    return not state.fresh


def next_due(state: State) -> float | None:
    """When the next timer is due."""
    return min(state.due.values()) if state.due else None


def leases(state: State) -> Iterator[tuple[str, int, str]]:
    """Runs that workers hold: id, epoch, worker. A server that restarts watches them again."""
    for run in state.open.values():
        if run.status == "leased":
            yield run.id, run.epoch, run.worker


def effect_for(state: State, child: Child) -> Effect:
    """What is owed to a child execution: a start, an ear, or an end."""
    if state.ending is not None or child.run_id not in state.open:
        why = "its caller has ended" if child.run_id else "it took longer than the calling task's spec.timeout"
        return CancelChild(child.key, child.child, why)
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
    )


def answer_parent(state: State) -> Iterator[Effect]:
    """The caller of a finished child waits for its output."""
    parent = state.request.parent if state.request else None
    if parent is not None and state.finished is not None:
        outcome = state.output
        if outcome is None or (state.finished != "success" and outcome.status == "ok"):
            error = state.error or error_info("unknown", f"the child execution ended as {state.finished}")
            outcome = Outcome("error", error=error)
        yield AnswerParent(parent, state.execution_id, outcome)


def enqueue(state: State, run: Run) -> EnqueueRun:
    """The command by which an open run gets to a worker."""
    return _enqueue(state, run.step_run, run.id, run.path)


def enqueue_iteration(state: State, loop: Loop, index: int) -> EnqueueRun:
    """The command by which an iteration that nobody has claimed yet gets to a worker."""
    return _enqueue(state, loop.step_run, loop.id_of(index), (*loop.path, index))


def _enqueue(state: State, step_run: StepRun, run_id: str, path: tuple[int, ...]) -> EnqueueRun:
    step = step_run.step
    together = step_run.id if path and is_local(state, step_run) else None
    return EnqueueRun(run_id, step.name, step_run.id, path, step.pool, together)
