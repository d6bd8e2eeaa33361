"""Appliers of tokens and step runs."""

from __future__ import annotations

from typing import Any

from noetl.core.engine.evolve.table import applies
from noetl.core.engine.handlers.runaway import bucket_level
from noetl.core.engine.state import BoundaryEvent, Ending, Run, State, StepRecord, StepRun, Token
from noetl.core.model.compensation import CompletedRun, CompletedStep
from noetl.core.model.events import (
    LoopDone,
    NextEvaluated,
    StepDone,
    StepFailed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    TokenMerged,
    TokenParked,
    WorkflowStarted,
)
from noetl.core.model.outcome import Outcome, with_secondary


def record_of(state: State, name: str) -> StepRecord:
    """The record of a step, created on first use."""
    record = state.steps.get(name)
    if record is None:
        record = state.steps[name] = StepRecord(name)
    return record


def boundary_event(
    state: State,
    event: WorkflowStarted | LoopDone | StepDone | StepFailed,
    step_run_id: str | None,
    outcome: Outcome | None,
) -> BoundaryEvent:
    """The event that is being applied, as the guards after it read it."""
    by_server = event.by_server if isinstance(event, StepDone | StepFailed) else True
    return BoundaryEvent(event.NAME, state.seq, state.at, by_server, state._cause, step_run_id, outcome)


def add_token(
    state: State, token: str, step: str, args: dict[str, Any], origin: str | None, event: BoundaryEvent | None
) -> Token:
    """Create a token that waits before a step; `event` is the boundary event that it comes from."""
    state.tokens += 1
    state.unexamined += 1
    created = Token(token, step, args, origin, event.name if event and origin else None, state.seq, None, event)
    group = state.waiting.get(step)
    if group is None:
        state.waiting[step] = [created]
        if state._mask is not None:
            state._mask |= state.net.bits[step]
    else:
        group.append(created)
    return created


def _clear_live_bit(state: State, step: str) -> None:
    """Clear the live bit of a step without waiting tokens and open runs."""
    if state._mask is not None and step not in state.live and step not in state.waiting:
        state._mask &= ~state.net.bits[step]


def _consume(state: State, step: str, tokens: tuple[str, ...]) -> list[Token]:
    group = state.waiting.get(step, [])
    if len(tokens) == len(group):
        taken = state.waiting.pop(step, group)
    else:
        taken = [token for token in group if token.id in tokens]
        state.waiting[step] = [token for token in group if token.id not in tokens]
    for token in taken:
        if token.reason is None:
            state.unexamined -= 1
        else:
            state.due.pop(token.id, None)
    return taken


@applies(TokenParked)
def _parked(state: State, event: TokenParked, at: float) -> None:
    for token in state.waiting[event.step]:
        if token.id == event.token:
            if token.reason is None:
                state.unexamined -= 1
            token.reason = event.reason
    if event.deadline_at is not None:
        state.due[event.token] = event.deadline_at


@applies(StepSkipped, TokenMerged)
def _skipped(state: State, event: StepSkipped | TokenMerged, at: float) -> None:
    _consume(state, event.step, (event.token,))
    _clear_live_bit(state, event.step)


@applies(StepScheduled)
def _scheduled(state: State, event: StepScheduled, at: float) -> None:
    name = event.step
    taken = _consume(state, name, event.tokens)
    origin, boundary = (taken[-1].origin, taken[-1].boundary) if taken else (None, None)
    compiled = state.net.compiled(name)
    record = state.steps.get(name)
    if record is None:
        record = state.steps[name] = StepRecord(name)
    record.number += 1
    if record.number > 1:
        state.bucket = bucket_level(state, at) + 1
        state.bucket_at = at
    record.open += 1
    state.step_runs += 1
    run_id = event.step_run_id
    step_run = state.runs[run_id] = StepRun(
        run_id, compiled.step, record.number, event.args, event.input, at, state.seq, event.defer_input, origin,
        boundary, None, event.timeout_s, event.deadline_at,
    )  # fmt: skip
    if taken:
        step_run.dedupe, step_run.partition = taken[0].dedupe, taken[0].partition
        step_run.priority = max(token.priority for token in taken)
    state.live[name] = state.live.get(name, 0) + 1
    if event.deadline_at is not None:
        state.due[run_id] = event.deadline_at
    if compiled.single_run:
        state.open[run_id] = Run(run_id, step_run, (), "queued", at)
        state.queued[run_id] = None


def mark_started(state: State, step_run: StepRun, at: float) -> None:
    """Record the first start of a step run; its timeout counts from here."""
    step_run.started_at = at
    record = state.steps[step_run.step.name]
    record.running += 1
    record.started_at = at
    if step_run.timeout_s is not None:
        due = step_run.due
        if due is not None:
            state.due[step_run.id] = due


def lease(state: State, run: Run, epoch: int, worker: str) -> None:
    """Lease a run to a worker under a new epoch."""
    if run.status != "leased":
        name = run.step_run.step.name
        state.leased[name] = state.leased.get(name, 0) + 1
        state.begun = True
    run.status = "leased"
    run.epoch = epoch
    run.worker = worker
    run.seq = state.seq
    run.at = state.at
    run.current = None
    run.latest = ()
    run.seen = {}
    state.queued.pop(run.id, None)


def release_lease(state: State, run: Run) -> None:
    """Release the lease of a run, if it has one."""
    if run.status == "leased":
        name = run.step_run.step.name
        left = state.leased[name] - 1
        if left:
            state.leased[name] = left
        else:
            del state.leased[name]


def close_run(state: State, run_id: str) -> Run | None:
    """Remove an open run that has ended, with its lease or its wait."""
    run = state.open.pop(run_id, None)
    if run is None:
        return None
    release_lease(state, run)
    state.queued.pop(run_id, None)
    state.isolated.pop(run_id, None)
    if run.child is not None and run.child in state.waits:
        del state.waits[run.child]
        state.due.pop(run.child, None)
    return run


@applies(StepStarted)
def _step_started(state: State, event: StepStarted, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    if step_run.started_at is None:
        mark_started(state, step_run, at)
    run = state.open.get(event.step_run_id)
    if run is not None:
        lease(state, run, event.epoch, event.worker)


def _close_runs(state: State, step_run: StepRun) -> None:
    for run_id in step_run.open:
        close_run(state, run_id)
    step_run.open = {}
    step_run.loops = {}
    del state.looping[step_run.id]


def remove_step_run(state: State, step_run: StepRun) -> None:
    """Remove a step run that has been routed, or that never will be."""
    del state.runs[step_run.id]
    if step_run.id in state.compensating:
        return
    name = step_run.step.name
    left = state.live[name] - 1
    if left:
        state.live[name] = left
    else:
        del state.live[name]
        _clear_live_bit(state, name)


@applies(StepDone, StepFailed)
def _step_ended(state: State, event: StepDone | StepFailed, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    record = state.steps[event.step]
    if step_run.phase != "ended":
        record.open -= 1
        if step_run.started_at is not None:
            record.running -= 1
    if step_run.loops:
        _close_runs(state, step_run)
    else:
        close_run(state, step_run.id)
    step_run.phase = "ended"
    step_run.event = boundary_event(state, event, step_run.id, event.output)
    step_run.outcome = record.outcome = event.output
    step_run.failed = record.failed = type(event) is StepFailed
    step_run.results = record.results = event.results
    if event.input:
        step_run.input = event.input
    record.finished_at = at
    record.last = step_run.id
    record.ended = event
    if step_run.completed or (step_run.step.compensation is not None and type(event) is StepDone):
        _record_completed(state, step_run, event)
    state.due.pop(step_run.id, None)
    if state.ending is not None:
        remove_step_run(state, step_run)
    elif type(event) is StepFailed and event.fatal:
        state.ending = Ending("failed", event.output.error, event.step, event.output)
        remove_step_run(state, step_run)


def _record_completed(state: State, step_run: StepRun, event: StepDone | StepFailed) -> None:
    """Record what a compensation has to undo: the step run itself, or its iterations and child executions."""
    step = step_run.step
    runs = step_run.completed
    if type(event) is StepDone and step.compensation is not None and step.loop is None:
        runs = [*runs, CompletedRun(step_run.id, step_run.input, event.output)]
    if runs:
        state.completed.append(CompletedStep(step.name, step_run.id, tuple(runs), step_run.window, step_run.args))
        step_run.completed = []


@applies(NextEvaluated)
def _routed(state: State, event: NextEvaluated, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    taken = False
    for arc in event.arcs:
        if arc.token is not None:
            taken = True
            token = add_token(state, arc.token, arc.target, arc.args, event.step, step_run.event)
            token.dedupe, token.partition, token.priority = arc.dedupe, arc.partition, arc.priority
    if event.error is not None:
        own = step_run.outcome.error if step_run.failed and step_run.outcome else None
        error = event.error if own is None else with_secondary(own, event.error)
        state.ending = Ending("failed", error, event.step, step_run.outcome)
        if step_run.phase == "ended":
            remove_step_run(state, step_run)
        return
    if event.boundary == "loop.done":
        step_run.fired = tuple(arc.index for arc in event.arcs if arc.token is not None)
        return
    remove_step_run(state, step_run)
    if taken or step_run.fired:
        return
    if event.boundary == "step.failed":
        outcome = step_run.outcome
        state.ending = Ending("failed", outcome.error if outcome else None, event.step, outcome)
    else:
        state.last_leaf = event.step
