"""The end of a run: the step's own `set`, a loop's `until`, and the content of the terminal event."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.core.model.outcome import ErrorInfo, Outcome, error_info
from noetl.core.pipeline.actions import Finished
from noetl.core.pipeline.calls import outcome_of, recorded_of
from noetl.core.pipeline.error_locations import MISSING_DATA, info_of, located, with_unset
from noetl.core.pipeline.frame import Frame, Level
from noetl.core.pipeline.scopes import show_output, show_own_result
from noetl.core.pipeline.task_assignments import Patch, assign, restore, snapshot
from noetl.core.templates.views import ResultView
from noetl.errors import TemplateError

MAX_ITEM = 512  # bytes of an element that a failure lists

_encode = msgspec.json.Encoder().encode


def finish(frame: Frame, level: Level) -> Finished:
    """Finish a run whose own pipeline (of the step or the iteration) has ended."""
    outcome = outcome_of(level)
    recorded = recorded_of(level, outcome)
    failed = level.ended == "failed"
    patch: Patch = {}
    stop = False
    try:
        if frame.looping:
            stop = not failed and _until_holds(frame, level, outcome)
        elif level.program.assignments:
            unset = _apply_step_set(frame, level, outcome, patch, failed=failed)
            stored = frame.shared.with_reference(outcome)
            if stored is not outcome:
                outcome, recorded = stored, msgspec.structs.replace(recorded, ref=stored.ref)
            if outcome.error is not None:
                incomplete = with_unset(outcome.error, unset)
                outcome = msgspec.structs.replace(outcome, error=incomplete)
                recorded = msgspec.structs.replace(recorded, error=incomplete)
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        patch = {}
        failed = True
        broken = info_of(problem)
        outcome = msgspec.structs.replace(outcome, status="error", error=broken)
        recorded = msgspec.structs.replace(recorded, status="error", error=broken)
    results = {}
    if level.program.composite and not frame.looping:
        results = {label: result.recorded for label, result in level.results.items()}
    context = frame.order.context
    return Finished(
        step=context.step,
        step_run_id=context.step_run_id,
        path=frame.path,
        status="failed" if failed else "done",
        outcome=outcome,
        recorded=recorded,
        results=results,
        patch=patch.get("ctx", {}),
        step_patch=_step_patch(frame, level) if frame.looping else {},
        nondeterminism=frame.nondeterminism.take(),
        events=frame.drain(),
        stop=stop,
        skipped=frame.looping and not failed and not level.ran and bool(level.program.tasks),
        looping=frame.looping,
        item=_stored_item(frame, level) if failed and frame.looping else None,
        input=level.input if level.input_evaluated and level.program.reports_input else None,
    )


def _stored_item(frame: Frame, level: Level) -> Any:
    """The element of a failed iteration, if it is small and its collection is stored: the server has only the index."""
    items = frame.order.items
    if not items or items[-1].collection is None:
        return None
    value = level.iter_base.get(items[-1].name)
    return value if len(_encode(value)) <= MAX_ITEM else None


def _apply_step_set(
    frame: Frame, level: Level, outcome: Outcome, patch: Patch, *, failed: bool
) -> dict[str, TemplateError]:
    """Apply the step's own `set`, which reads the step's output and no `iter`.

    Returns the targets that were left unset because the step failed and their values could not be evaluated."""
    before = snapshot(frame, level)
    level.names.pop("iter", None)
    level.names["result"] = ResultView(outcome, name="result", resolve=frame.shared.resolve, locate=frame.shared.locate)
    show_output(frame.shared, level, outcome)
    show_own_result(frame.shared, level, outcome)
    unset: dict[str, TemplateError] = {}
    try:
        assign(frame, level, level.program.assignments, patch, unset if failed else None)
    except TemplateError:
        restore(frame, level, before)
        raise
    return unset


def _until_holds(frame: Frame, level: Level, outcome: Outcome) -> bool:
    show_output(frame.shared, level, outcome)
    try:
        return frame.holds(level, level.program.until)
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        loop = level.program.owner.loop
        path = loop.path if loop else ""
        raise located(frame.playbook, problem, f"{path}/spec/until", path) from None


def _step_patch(frame: Frame, level: Level) -> dict[str, Any]:
    """The changes of the iteration to `step`, by top-level key."""
    before = frame.order.step_scope
    return {key: value for key, value in level.step.items() if key not in before or before[key] is not value}


def fail_level(frame: Frame, level: Level, problem: ErrorInfo) -> None:
    """End the level's pipeline with an error that names its task and location."""
    level.ended = "failed"
    details = dict(problem.details)
    if level.program.tasks:
        details.setdefault("task", level.label(level.task))
        details.setdefault("at", frame.playbook.where(level.task.path))
    level.error = msgspec.structs.replace(problem, details=details)


def runaway(frame: Frame, level: Level) -> ErrorInfo:
    """The error of a pipeline that exceeds its limit of task runs."""
    limit = level.compiled.max_task_runs
    message = (
        f"{frame.playbook.where(level.program.owner.path)}: the pipeline exceeded the limit of {limit:,} task "
        "runs; to allow more, raise `spec.max_task_runs`"
    )
    return error_info("pipeline.runaway", message)
