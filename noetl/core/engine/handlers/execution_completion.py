"""The end: no runnable token, nothing in flight; or a failure nobody takes, or a cancellation.

An execution that ends early *winds down*: open step runs fail with kind `cancelled`, waiting tokens
are skipped, children are cancelled and waited for. Then, whichever way it came to this, exactly one
`workflow.finished` and one `playbook.processed`.
"""

from __future__ import annotations

from noetl.core.engine.state import Ending, State
from noetl.core.model.events import Event, FinalStatus, PlaybookProcessed, StepFailed, StepSkipped, WorkflowFinished
from noetl.core.model.outcome import Outcome, error_info, ok


def conclude(state: State) -> list[Event]:
    """What is still to be said when nothing moves any more."""
    if state.finished is not None or state.request is None:
        return []
    if state.ending is not None:
        return _wind_down(state, state.ending)
    if not state.started or state.paused or state.runs or state.children or state.fresh:
        return []
    step, output = _output(state)
    return [*_skip_waiting(state), *_finish("success", WorkflowFinished("success", output, None, step))]


def _wind_down(state: State, ending: Ending) -> list[Event]:
    if state.runs:
        why = "the execution was cancelled" if ending.status == "cancelled" else _because(ending)
        outcome = Outcome("error", error=error_info("cancelled", why))
        return [
            StepFailed(step=step_run.step.name, step_run_id=step_run.id, output=outcome, by_server=True)
            for step_run in state.runs.values()
        ]
    if state.children:
        return []
    output = ending.outcome or Outcome("error", error=ending.error)
    last = WorkflowFinished(ending.status, output, ending.error, ending.step)
    return [*_skip_waiting(state), *_finish(ending.status, last)]


def _because(ending: Ending) -> str:
    return f'the execution failed at step "{ending.step}"' if ending.step else "the execution failed"


def _finish(status: FinalStatus, last: WorkflowFinished) -> list[Event]:
    return [last, PlaybookProcessed(status)]


def _skip_waiting(state: State) -> list[Event]:
    reasons = {"admission": "its gate stayed closed", "join": "others it waited for never came"}
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
        named = "end" if end is not None and end.outcome is not None else state.leaves
    record = state.steps.get(named) if named else None
    if record is None or record.outcome is None:
        return None, ok()
    return named, record.outcome
