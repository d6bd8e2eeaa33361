"""The end of an execution: no runnable token and nothing in flight, an unhandled failure, or a cancellation.

An execution that ends early is first shut down: open step runs fail with kind `cancelled`, waiting
tokens are skipped, children are cancelled and awaited, completed steps are undone. In every case there is exactly one
`workflow.finished` and one `playbook.processed`.
"""

from __future__ import annotations

from msgspec import to_builtins

from noetl.core.engine.evaluation.context import EvaluationContext
from noetl.core.engine.handlers.compensation import counts_of, start_next
from noetl.core.engine.handlers.state_commit import commit
from noetl.core.engine.state import Ending, State
from noetl.core.model.compensation import CompensationCounts
from noetl.core.model.events import (
    Event,
    FinalStatus,
    PlaybookProcessed,
    StateCommitted,
    StepFailed,
    StepSkipped,
    WorkflowFinished,
)
from noetl.core.model.outcome import Outcome, error_info, ok


def conclude(state: State, env: EvaluationContext) -> list[Event]:
    """The events that end the execution, once nothing else can be decided."""
    if state.finished is not None or state.request is None:
        return []
    if state.ending is not None:
        return _shut_down(state, env, state.ending)
    if not state.started or state.paused or state.runs or state.children or state.unexamined:
        return []
    step, output = _output(state)
    ended = [*_skip_waiting(state), *_finish("success", WorkflowFinished("success", output, None, step))]
    if not state.uncommitted:
        return ended
    committed = commit(state, env)
    return [committed, *ended] if type(committed) is StateCommitted else [committed]


def _shut_down(state: State, env: EvaluationContext, ending: Ending) -> list[Event]:
    if len(state.runs) > len(state.compensating) or state.runs.keys() - state.compensating.keys():
        why = "the execution was cancelled" if ending.status == "cancelled" else _failure_reason(ending)
        outcome = Outcome("error", error=error_info("cancelled", why))
        return [
            StepFailed(step=step_run.step.name, step_run_id=step_run.id, output=outcome, by_server=True)
            for step_run in state.runs.values()
            if step_run.id not in state.compensating
        ]
    if ending.compensate and not any(child.run_id not in state.compensating for child in state.children.values()):
        started = start_next(state, env)
        if started:
            return started
    if state.children or state.compensating:
        return []
    counts = counts_of(state)
    if ending.status == "success":  # an execution that only undoes what another one completed
        return _finish_compensation(counts or CompensationCounts())
    output = ending.outcome or Outcome("error", error=ending.error)
    last = WorkflowFinished(ending.status, output, ending.error, ending.step, counts)
    return [*_skip_waiting(state), *_finish(ending.status, last)]


def _finish_compensation(counts: CompensationCounts) -> list[Event]:
    if counts.failed:
        error = error_info("unknown", f"{counts.failed} of its compensations failed")
        return _finish("failed", WorkflowFinished("failed", Outcome("error", error=error), error, None, counts))
    return _finish("success", WorkflowFinished("success", ok(to_builtins(counts)), None, None, counts))


def _failure_reason(ending: Ending) -> str:
    return f'the execution failed at step "{ending.step}"' if ending.step else "the execution failed"


def _finish(status: FinalStatus, last: WorkflowFinished) -> list[Event]:
    return [last, PlaybookProcessed(status)]


def _skip_waiting(state: State) -> list[Event]:
    reasons = {"admission": "the gate stayed closed", "join": "the join was not completed"}
    return [
        StepSkipped(step=token.step, token=token.id, reason=reasons.get(token.reason or "", "the execution ended"))
        for group in state.waiting.values()
        for token in group
    ]


def _output(state: State) -> tuple[str | None, Outcome]:
    """The execution's own output (LANGUAGE section 2)."""
    named = (state.request.return_step if state.request else None) or state.playbook.return_step
    if named is None:
        end = state.steps.get("end")
        named = "end" if end is not None and end.outcome is not None else state.last_leaf
    record = state.steps.get(named) if named else None
    if record is None or record.outcome is None:
        return None, ok()
    return named, record.outcome
