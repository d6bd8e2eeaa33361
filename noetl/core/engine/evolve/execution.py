"""Appliers of the execution as a whole: request, pause, cancellation, `ctx`, the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.engine.evolve.steps import add_token, boundary_event, record_of, remove_step_run
from noetl.core.engine.evolve.table import applies
from noetl.core.engine.identity import recorded_content
from noetl.core.engine.state import Ending, State
from noetl.core.model.compensation import CompensationSource
from noetl.core.model.events import (
    CtxPatched,
    CustomEvent,
    Event,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionRequested,
    ExecutionResumed,
    PlaybookProcessed,
    RequestEvaluated,
    SignalReceived,
    StateCommitted,
    TaskProgress,
    WorkflowFinished,
    WorkflowStarted,
    WorkflowSynthesized,
)
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.playbook import STATE_KEY

MAX_KEYS = 1_000  # idempotency keys that are remembered


@applies(ExecutionRequested)
def _requested(state: State, event: ExecutionRequested, at: float) -> None:
    state.request = event
    state.started_at = at


@applies(RequestEvaluated)
def _evaluated(state: State, event: RequestEvaluated, at: float) -> None:
    state.workload = event.workload
    state.ctx = {STATE_KEY + key: value for key, value in event.state.items()}
    state.versions = dict(event.state_versions)
    if event.error is not None:
        state.ending = Ending("failed", event.error)
        return
    if state.request is not None and state.request.compensates is not None:
        _take_over(state, state.request.compensates, at)
        return
    rerun = state.request.rerun if state.request else None
    if rerun is not None:
        state.ctx = {**state.ctx, **rerun.ctx}
        _note_state_writes(state, rerun.ctx)
        for name, outcome in rerun.results.items():
            record = record_of(state, name)
            record.outcome = outcome
            record.failed = outcome.status == "error"
            record.finished_at = at
            record.results = rerun.task_results.get(name, {})


def _take_over(state: State, source: CompensationSource, at: float) -> None:
    """Take over what another execution completed, to undo it."""
    state.ctx = source.ctx
    state.completed = list(source.completed)
    state.ending = Ending("success", source.failure)
    for step in source.steps:
        state.synthesized[step.name] = step
    if source.steps:
        state.net = state.net.extended(state.synthesized)
    for name, outcome in source.results.items():
        record = record_of(state, name)
        record.outcome = outcome
        record.finished_at = at


@applies(WorkflowStarted)
def _started(state: State, event: WorkflowStarted, at: float) -> None:
    state.started = True
    state.entry = event.entry
    if state.ending is not None:  # it only undoes what another execution completed
        return
    rerun = state.request.rerun if state.request else None
    begun = boundary_event(state, event, None, None)
    if rerun is not None and rerun.tokens:
        for kept in rerun.tokens:
            add_token(state, f"t{state.tokens + 1}", kept.step, kept.args, None, begun)
    else:
        add_token(state, f"t{state.tokens + 1}", event.entry, rerun.args if rerun else {}, None, begun)


def remember_key(state: State, event: ExecutionCancelled | ExecutionPaused | ExecutionResumed | SignalReceived) -> None:
    """Remember the idempotency key of a command, so that a repetition has no effect."""
    if event.id:
        state.signal_ids[event.id] = recorded_content(event)
        while len(state.signal_ids) > MAX_KEYS:
            del state.signal_ids[next(iter(state.signal_ids))]


@applies(ExecutionPaused)
def _paused(state: State, event: ExecutionPaused, at: float) -> None:
    remember_key(state, event)
    state.paused = True


@applies(ExecutionResumed)
def _resumed(state: State, event: ExecutionResumed, at: float) -> None:
    remember_key(state, event)
    state.paused = False


@applies(CustomEvent, TaskProgress)
def _no_change(state: State, event: Event, at: float) -> None:
    """No change: the consequences for the state are separate events."""


@applies(ExecutionCancelled)
def _cancelled(state: State, event: ExecutionCancelled, at: float) -> None:
    remember_key(state, event)
    if event.error is not None:
        state.ending = Ending("failed", event.error)
    else:
        error = ErrorInfo("cancelled", event.reason or "the execution was cancelled")
        state.ending = Ending("cancelled", error, compensate=event.compensate)
    for step_run in [each for each in state.runs.values() if each.phase == "ended"]:
        remove_step_run(state, step_run)


@applies(CtxPatched)
def _patched(state: State, event: CtxPatched, at: float) -> None:
    state.ctx = {**state.ctx, **event.patch}
    _note_state_writes(state, event.patch)


def _note_state_writes(state: State, patch: Mapping[str, Any]) -> None:
    if state.playbook.uses_state:
        for key in patch:
            if key.startswith(STATE_KEY):
                state.uncommitted[key.removeprefix(STATE_KEY)] = None


@applies(StateCommitted)
def _committed(state: State, event: StateCommitted, at: float) -> None:
    state.versions = {**state.versions, **dict.fromkeys(event.values, event.version)}
    state.uncommitted = {}


@applies(WorkflowSynthesized)
def _synthesized(state: State, event: WorkflowSynthesized, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    step_run.synthesized = True
    if event.error is not None:
        return
    for step in event.steps:
        state.synthesized[step.name] = step
    state.net = state.net.extended(state.synthesized)
    state._mask = None
    if event.entry is not None:
        add_token(state, f"t{state.tokens + 1}", event.entry, {}, event.step, state.runs[event.step_run_id].event)


@applies(WorkflowFinished)
def _finished(state: State, event: WorkflowFinished, at: float) -> None:
    state.finished = event.outcome
    state.output = event.output
    state.error = event.error
    state.result_step = event.step


@applies(PlaybookProcessed)
def _processed(state: State, event: PlaybookProcessed, at: float) -> None:
    state.processed = True
