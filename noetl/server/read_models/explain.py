"""Explains the status of an execution: `noetl why`.

Everything follows from the log, which has every decision: the arcs that were taken and their guards, the policy rules
that applied to outcomes, and what the execution waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from noetl.core.engine.state import State
from noetl.core.engine.views.waiting import Placement, waiting_reasons
from noetl.core.model import events as ev
from noetl.core.model.ids import iteration_id
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.playbook import Playbook, Step, Task

MAX_EVENTS = 5_000  # of the end of a log, which an explanation reads
MAX_PATH = 100  # lines of the path of the tokens


_EXPLAINED = (
    ev.ExecutionRequested, ev.RequestEvaluated, ev.WorkflowStarted, ev.NextEvaluated, ev.StepFailed, ev.StepSkipped,
    ev.IterationFailed, ev.ChildFinished, ev.CompensationDone, ev.CompensationFailed, ev.ExecutionCancelled,
)  # fmt: skip


def is_explained(recorded: ev.Recorded) -> bool:
    """Whether an explanation uses an event; the others can be large."""
    body = recorded.body
    return isinstance(body, _EXPLAINED) or (isinstance(body, ev.TaskDone) and body.outcome.error is not None)


class Explanation(Struct, frozen=True):
    """`summary` is one sentence, `because` its reasons, `way` the path of the tokens, oldest first."""

    execution_id: str
    status: str
    summary: str
    because: tuple[str, ...] = ()
    way: tuple[str, ...] = ()
    way_omitted: bool = False  # the path has earlier parts that are not listed


def explain(
    state: State,
    log: Sequence[ev.Recorded],
    at: float,
    reached: Mapping[str, str] | None = None,
    placement: Placement | None = None,
) -> Explanation:
    """Explain an execution from its folded state and its log (or the end of a long one) at an instant; the log may have
    only the events that `is_explained` selects.

    `reached` are descriptions of the limits that are reached."""
    path = deque(_path(state.playbook, log), MAX_PATH + 1)
    return Explanation(
        execution_id=state.execution_id,
        status=state.status,
        summary=_summary(state, at),
        because=tuple(_because(state, log, at, reached or {}, placement)),
        way=tuple(path)[-MAX_PATH:],
        way_omitted=len(path) > MAX_PATH or (len(log) > 0 and log[0].seq > 1),
    )


def _summary(state: State, at: float) -> str:
    verbs = {"success": "succeeded", "failed": "failed", "cancelled": "was cancelled"}
    if state.status in verbs:
        return f"{state.playbook.path} {verbs[state.status]} after {state.at - state.started_at:.2f} s"
    return (
        f"{state.playbook.path} is {state.status}; it started {at - state.started_at:.0f} s ago, "
        f"the last event was {at - state.at:.0f} s ago"
    )


# ── reasons ─────────────────────────────────────────────────────────────────────────────


def _because(
    state: State, log: Sequence[ev.Recorded], at: float, reached: Mapping[str, str], placement: Placement | None
) -> Iterator[str]:
    if state.status == "success":
        if state.result_step:
            yield f"no step is left to run; its output is the output of step {state.result_step}"
    elif state.status == "failed":
        yield from _failure(state, log)
        yield from _compensations(state, log)
    elif state.status == "cancelled":
        reasons = [event.body.reason for event in log if isinstance(event.body, ev.ExecutionCancelled)]
        yield f"it was cancelled: {reasons[-1]}" if reasons and reasons[-1] else "it was cancelled"
        yield from _interrupted(log)
        yield from _compensations(state, log)
    else:
        yield from (finding.text for finding in waiting_reasons(state, at, reached, placement))


def _failure(state: State, log: Sequence[ev.Recorded]) -> Iterator[str]:
    for event in log:
        if isinstance(event.body, ev.RequestEvaluated) and event.body.error:
            yield f"the request could not be evaluated: {_error(event.body.error)}"
            return
    cause = _cause(log)
    if cause is None:
        if state.error:
            yield _error(state.error)
        return
    step, failed, routing = cause
    if failed is not None:
        handled = "" if routing else ", and none of its arcs handles a failure"
        yield f"step {step} failed{handled}: {_error(failed.output.error)}"
    if routing is not None:
        yield f"an arc of step {step} could not be evaluated: {_error(routing)}"
    if failed is not None:
        yield from _failed_task(state, log, failed)


def _cause(log: Sequence[ev.Recorded]) -> tuple[str, ev.StepFailed | None, ErrorInfo | None] | None:
    """What failed first and was not handled: the step, its failure, and the error of its arcs.

    The steps that were cancelled because of it have failed too, but after it."""
    failures: dict[str, ev.StepFailed] = {}
    routed: set[str] = set()
    for event in log:
        body = event.body
        if isinstance(body, ev.StepFailed):
            failures[body.step_run_id] = body
            if body.fatal:
                return body.step, body, None
        elif isinstance(body, ev.NextEvaluated):
            if any(arc.token for arc in body.arcs):
                routed.add(body.step_run_id)
            elif body.error is not None or (body.boundary == "step.failed" and body.step_run_id not in routed):
                return body.step, failures.get(body.step_run_id), body.error
    return None


def _failed_task(state: State, log: Sequence[ev.Recorded], failed: ev.StepFailed) -> Iterator[str]:
    """The task attempt that caused the failure of a step; of a loop, that of the iteration that failed first."""
    run = failed.step_run_id
    bodies = [event.body for event in log if getattr(event.body, "step_run_id", None) == run]
    iteration = next((body for body in bodies if isinstance(body, ev.IterationFailed)), None)
    path = iteration.path if iteration else ()
    where = iteration_id(failed.step, path)
    for body in reversed(bodies):
        if isinstance(body, ev.TaskDone) and body.path[: len(path)] == path and body.outcome.error:
            location = _location_of(state, body.step, body.task)
            attempt = f", attempt {body.attempt}" if body.attempt > 1 else ""
            yield f"task {body.task} of {where}{attempt} ({location}) ended with {_error(body.outcome.error)}"
            yield _verdict(body)
            return
    if iteration is not None:
        yield f"iteration {where} failed: {_error(iteration.output.error)}"


def failed_child(log: Sequence[ev.Recorded]) -> str | None:
    """The child execution whose failure caused that of this execution."""
    _, failed, _ = _cause(log) or ("", None, None)
    if failed is None:
        return None
    children = [
        event.body
        for event in log
        if isinstance(event.body, ev.ChildFinished)
        and event.body.step_run_id == failed.step_run_id
        and event.body.outcome.error
        and failed.output.error
        and event.body.outcome.error.message in failed.output.error.message
    ]
    return children[0].child or None if children else None


def _verdict(body: ev.TaskDone) -> str:
    if body.rule is None:
        return f"no rule of its policy applied: {body.do}"
    return f"rule {body.rule + 1} of its policy applied: {body.do}" + (f" to {body.to}" if body.to else "")


def _compensations(state: State, log: Sequence[ev.Recorded]) -> Iterator[str]:
    """What was undone, and which compensations failed."""
    counts = state.compensated
    if counts.done or counts.failed or counts.skipped:
        skipped = f", {counts.skipped} not needed" if counts.skipped else ""
        yield f"compensations of completed steps: {counts.done} done, {counts.failed} failed{skipped}"
    for event in log:
        if isinstance(event.body, ev.CompensationFailed):
            yield f"the compensation of {_run_name(event.body)} failed: {_error(event.body.error)}"


def _run_name(body: ev.CompensationStarted | ev.CompensationDone | ev.CompensationFailed) -> str:
    """The step, or the iteration of it, that was undone."""
    _, _, iteration = body.run_id.partition("/")
    return f"iteration {iteration} of step {body.step}" if iteration else f"step {body.step}"


def _interrupted(log: Sequence[ev.Recorded]) -> Iterator[str]:
    for event in log:
        body = event.body
        if isinstance(body, ev.StepFailed) and body.output.error and body.output.error.kind == "cancelled":
            yield f"step {body.step} was running"


# ── the path of the tokens ──────────────────────────────────────────────────────────────


def _path(playbook: Playbook, log: Sequence[ev.Recorded]) -> Iterator[str]:
    for event in log:
        body = event.body
        if isinstance(body, ev.WorkflowStarted):
            yield f"{event.seq}: started at step {body.entry}"
        elif isinstance(body, ev.NextEvaluated):
            yield f"{event.seq}: {_routed(playbook, body)}"
        elif isinstance(body, ev.StepSkipped):
            yield f"{event.seq}: step {body.step} was skipped: {body.reason or 'its gate stayed closed'}"
        elif isinstance(body, ev.CompensationDone):
            how = "needed no compensation: its `when` was false" if body.skipped else "was undone"
            yield f"{event.seq}: {_run_name(body)} {how}"
        elif isinstance(body, ev.CompensationFailed):
            yield f"{event.seq}: {_run_name(body)} could not be undone: {_error(body.error)}"


def _routed(playbook: Playbook, body: ev.NextEvaluated) -> str:
    step = playbook.steps_by_name.get(body.step)
    taken = [arc for arc in body.arcs if arc.token]
    passed = [arc for arc in body.arcs if not arc.held]
    text = f"step {body.step} ended with {body.boundary}"
    if taken:
        text += " and continued with " + ", ".join(f"{arc.target}{_guard(step, arc.index)}" for arc in taken)
    elif not body.arcs:
        has_arcs = step is not None and step.router.arcs
        return text + ("; its arcs were evaluated before" if has_arcs else "; it has no arcs")
    else:
        text += "; no arc was taken"
    guarded = [f"{arc.target}{guard}" for arc in passed if (guard := _guard(step, arc.index))]
    unguarded = [arc.target for arc in passed if not _guard(step, arc.index)]
    if guarded:
        text += f"; the guard was false for {', '.join(guarded)}"
    if unguarded:
        text += f"; without a guard {', '.join(unguarded)} is taken after success only"
    return text


def _guard(step: Step | None, index: int) -> str:
    if step is None or index >= len(step.router.arcs) or step.router.arcs[index].when is None:
        return ""
    return f" (when {step.router.arcs[index].when})"


def _location_of(state: State, step_name: str, task_name: str) -> str:
    step = state.playbook.steps_by_name.get(step_name) or state.synthesized.get(step_name)
    if step is None:
        return step_name
    task: Task | None = next((task for task in step.tasks if task.name == task_name.partition("/")[0]), None)
    return state.playbook.where(task.path if task else step.path)


def _error(error: ErrorInfo | None) -> str:
    return f"{error.kind}: {' '.join(error.message.split())}" if error else "no error details"
