"""The table of event handlers: `decide(state, event)` reads the state and returns the events that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.evaluation.names import at_step_set
from noetl.core.engine.handlers.admission import examine_waiting_tokens
from noetl.core.engine.handlers.assignments import ctx_patch, evaluate_sets
from noetl.core.engine.handlers.compensation import child_ended, step_ended
from noetl.core.engine.handlers.custom_events import custom_events
from noetl.core.engine.handlers.execution_completion import conclude
from noetl.core.engine.handlers.loops import (
    apply_loop_set,
    begin_loop,
    fail_step,
    iteration_ended,
    iterations_kept,
    loop_done,
    loop_started,
    route_loop,
)
from noetl.core.engine.handlers.routing import route
from noetl.core.engine.handlers.start import start_workflow
from noetl.core.engine.handlers.state_commit import commit
from noetl.core.engine.handlers.synthesis import synthesize
from noetl.core.engine.lease_rules import worker_lost
from noetl.core.engine.state import State, StepRun
from noetl.core.model.events import (
    ChildFinished,
    CtxPatched,
    Event,
    IterationDone,
    IterationFailed,
    IterationsKept,
    LoopDone,
    LoopStarted,
    NextEvaluated,
    RequestEvaluated,
    StateCommitted,
    StepDone,
    StepFailed,
    StepScheduled,
    StepStarted,
    WorkerLost,
    WorkflowSynthesized,
)
from noetl.core.model.outcome import Outcome, ok

Handler = Callable[[State, Any, EvaluationContext], list[Event]]


def decide(state: State, event: Event, env: EvaluationContext) -> list[Event]:
    """The events that follow from an applied event (one that has a handler)."""
    return HANDLERS[type(event)](state, event, env)


def settle(state: State, env: EvaluationContext) -> list[Event]:
    """The events that follow when no handler is pending: examine the waiting tokens, then check for the end."""
    return examine_waiting_tokens(state, env) or conclude(state, env)


def _step_scheduled(state: State, event: StepScheduled, env: EvaluationContext) -> list[Event]:
    step_run = state.runs.get(event.step_run_id)
    if step_run is None or step_run.phase != "open" or state.ending is not None:
        return []
    if step_run.step.loop is not None:
        return begin_loop(state, env, step_run)
    if not step_run.step.tasks:
        return _pass_through(state, env, step_run)
    return []


def _pass_through(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    """Complete a step without tasks at once: it needs no worker."""
    name, run_id = step_run.step.name, step_run.id
    started = StepStarted(step=name, step_run_id=run_id, worker="server", by_server=True)
    compiled = state.net.compiled(name)
    output = ok()
    writes: dict[str, Any] = {}
    if compiled.assignments:
        try:
            names = at_step_set(state, env, step_run, output)
            writes = ctx_patch(env, state.ctx, evaluate_sets(env, compiled.assignments, names, step_run.step.path))
        except Failure as failure:
            return [started, fail_step(state, env, step_run, Outcome("error", error=failure.error))]
    return [started, StepDone(step=name, step_run_id=run_id, output=output, patch=writes, by_server=True)]


def _step_ended(state: State, event: StepDone | StepFailed, env: EvaluationContext) -> list[Event]:
    if event.step_run_id in state.compensating:
        return step_ended(state, event)
    step_run = state.runs.get(event.step_run_id)
    if step_run is None or state.ending is not None:
        return []
    if not event.patch:
        return _synthesize_or_route(state, env, step_run)
    try:
        patch = ctx_patch(env, state.ctx, event.patch)
    except Failure as failure:
        return [NextEvaluated(event.step, event.step_run_id, event.NAME, error=failure.error)]
    return [CtxPatched(patch, "step", event.step, event.step_run_id)]


def _synthesize_or_route(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    """Synthesize, then route, once the step has ended and its `set` is applied."""
    if state.uncommitted and not step_run.failed and state.playbook.executor.state_commit == "step":
        committed = commit(state, env)
        if type(committed) is not StateCommitted:
            return [committed]
        return [committed, *_emitted_and_routed(state, env, step_run)]
    return _emitted_and_routed(state, env, step_run)


def _emitted_and_routed(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    if step_run.step.emits:
        return [*custom_events(state, env, step_run), *_routed(state, env, step_run)]
    return _routed(state, env, step_run)


def _routed(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    if step_run.failed:
        return route(state, env, step_run, "step.failed")
    if step_run.step.synthesize is not None:
        return synthesize(state, env, step_run) or route(state, env, step_run, "step.done")
    return route(state, env, step_run, "step.done")


def _synthesized(state: State, event: WorkflowSynthesized, env: EvaluationContext) -> list[Event]:
    if event.error is not None:
        return []  # the step.failed of the same append is routed
    return route(state, env, state.runs[event.step_run_id], "step.done")


def _ctx_patched(state: State, event: CtxPatched, env: EvaluationContext) -> list[Event]:
    step_run = state.runs.get(event.run_id) if event.run_id else None
    if step_run is None or state.ending is not None:
        return []
    if event.cause == "reduce":
        return apply_loop_set(state, env, step_run)
    if event.cause == "step":
        looped = step_run.phase == "looped"
        return route_loop(state, env, step_run) if looped else _synthesize_or_route(state, env, step_run)
    return []


HANDLERS: dict[type[Event], Handler] = {
    RequestEvaluated: start_workflow,
    StepScheduled: _step_scheduled,
    StepDone: _step_ended,
    StepFailed: _step_ended,
    WorkflowSynthesized: _synthesized,
    CtxPatched: _ctx_patched,
    LoopStarted: loop_started,
    IterationsKept: iterations_kept,
    IterationDone: iteration_ended,
    IterationFailed: iteration_ended,
    LoopDone: loop_done,
    WorkerLost: worker_lost,
    ChildFinished: child_ended,
}
