"""The machine inside a step: what to do next, and what an outcome means.

The shell asks `next_action(frame)`, does the deed, hands the outcome to `apply_outcome`, and asks
again until the run is `Finished` (or suspended). Nothing here waits, reads a clock or touches
the world. When a template needs a stored payload or a secret that is not at hand, either
function raises `NeedsPayload` or `NeedsSecret` and leaves the frame as it was; the shell fetches
it (`frame.shared.provide`) and asks again.

Order around one task (LANGUAGE section 3): pre-conditions (`skip`) -> input rendered -> tool ->
the task's own `set` -> rules -> the chosen rule's `set` -> directive -> next task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.errors import TemplateError
from noetl.expr.template import holds
from noetl.model.events import Event, TaskDone, TaskStarted
from noetl.model.ids import task_run_id
from noetl.model.outcome import ErrorInfo, Outcome, error, error_info, ok
from noetl.model.tool import with_helpers
from noetl.pipeline.actions import Action, Finished, Returned, RunTask, Suspend, Wait
from noetl.pipeline.assignments import Patch, assign, restore, snapshot
from noetl.pipeline.calls import begin_call, end_pipeline, outcome_of
from noetl.pipeline.children import child_request
from noetl.pipeline.directives import DIRECTIVES, Move
from noetl.pipeline.frame import Frame, Held, Level, enter, position_of, show
from noetl.pipeline.places import NEEDS, info_of, located
from noetl.pipeline.policy import default_directive, matching_rule, skip_rule
from noetl.pipeline.program import WORKBOOK, CompiledField, CompiledRule, CompiledTask
from noetl.pipeline.scopes import RESERVED, Scopes, show_output

# The struct's own default object: encoders leave a field out when it holds just that.
_NO_DELAY: float = next(known.default for known in msgspec.structs.fields(TaskDone) if known.name == "delay")

__all__ = ["abort", "abort_calls", "apply_outcome", "next_action"]


def next_action(frame: Frame) -> Action:
    """What the shell must do now."""
    if frame.wait:
        seconds, frame.wait = frame.wait, 0.0
        return Wait(seconds, frame.drain())
    while True:
        level = frame.top
        if not level.prepared and (problem := _prepare(frame, level)) is not None:
            level.ended, level.error = "failed", problem
            level.prepared = True
        if frame.resume is not None:
            return _resumed(frame, level)
        if level.ended is not None:
            if level is frame.root:
                return _finish(frame, level)
            outcome = end_pipeline(frame, level)
            if outcome is not None:
                return Returned(frame.top.task, outcome, frame.drain())
            continue
        compiled = level.compiled
        if compiled.skips and _skip(frame, level, compiled):
            continue
        if level.task_runs >= level.program.owner.max_task_runs:
            _fail(frame, level, _runaway(frame, level))
            continue
        action = _start(frame, level, compiled)
        if action is not None:
            return action


def apply_outcome(frame: Frame, outcome: Outcome, recorded: Outcome | None = None) -> tuple[Event, ...]:
    """Apply the current task's policy to its outcome; `recorded` is the outcome as the log has it."""
    level = frame.top
    compiled = level.compiled
    if compiled.tool is not None and compiled.tool.helpers:
        outcome = with_helpers(compiled.tool, outcome)
        recorded = None if recorded is None else with_helpers(compiled.tool, recorded)
    recorded = outcome if recorded is None else recorded
    if compiled.plain and not frame.call_patch:
        held = Held(compiled.task.name, outcome, recorded, frame.shared)
        move = DIRECTIVES[default_directive(compiled, outcome)](frame, level, None, outcome)
        return _settle(frame, level, compiled, held, move, None, {})
    before = snapshot(frame, level)
    patch: Patch = {"ctx": dict(frame.call_patch)} if frame.call_patch else {}
    rule = None
    unset: dict[str, str] | None = {} if outcome.status == "error" else None
    names, task = level.names, compiled.task
    held = Held(task.name, outcome, recorded, frame.shared)
    unnamed = _NOT_SHOWN
    if task.generated is None:  # else it is transparent: its guards look at the task before it
        show_output(frame.shared, level, outcome)
        unnamed = _show_result(level, task.name, held)
    if compiled.policy_reads_input:
        names["input"] = {**level.input, **(level.task_input or {})}
    try:
        assign(frame, level, compiled.assignments, patch, unset)
        rule = matching_rule(frame, level, compiled)
        if rule is None:
            move = DIRECTIVES[default_directive(compiled, outcome)](frame, level, None, outcome)
        else:
            assign(frame, level, rule.then.assignments, patch)
            move = DIRECTIVES[rule.then.do](frame, level, rule, outcome)
    except NEEDS:
        restore(frame, level, before)
        _show_previous(frame, level)
        _hide_result(level, task.name, unnamed)
        raise
    except TemplateError as problem:
        restore(frame, level, before)
        patch = {"ctx": dict(frame.call_patch)} if frame.call_patch else {}
        move = Move("fail", error=info_of(problem))
    frame.call_patch = {}
    if unset and move.error is not None:
        told = msgspec.structs.replace(move.error, details={**move.error.details, "unset": unset})
        move = move._replace(error=told)
    if move.do == "retry":
        _hide_result(level, task.name, unnamed)
    return _settle(frame, level, compiled, held, move, rule, patch)


def _settle(
    frame: Frame,
    level: Level,
    compiled: CompiledTask,
    held: Held,
    move: Move,
    rule: CompiledRule | None,
    patch: Patch,
) -> tuple[Event, ...]:
    """Carry out the move and say what happened."""
    context, task = frame.order.context, compiled.task
    visit, attempt = level.event_visit, level.attempt
    _move(frame, level, compiled, move, held)
    frame.outbox.append(
        TaskDone(
            step=context.step,
            step_run_id=context.step_run_id,
            task=level.label(task),
            kind=task.kind,
            outcome=held.recorded,
            visit=visit,
            attempt=attempt,
            path=frame.path,
            do=move.do,
            to=move.to,
            delay=move.delay or _NO_DELAY,
            rule=rule.index if rule else None,
            patch=patch,
            draws=frame.draws.take(),
            # An ended pipeline is settled by the event that follows in the same report.
            position=None if level.ended else position_of(frame),
        )
    )
    frame.silent = False
    return frame.drain()


def abort(frame: Frame, problem: ErrorInfo) -> Finished:
    """End the run from outside (its time is up): no task goes on, the step's own `set` applies."""
    del frame.levels[1:]
    frame.resume = None
    frame.wait = 0.0
    root = frame.root
    if not root.prepared:
        show(frame, root)
        root.prepared = True
    _fail(frame, root, problem)
    return _finish(frame, root)


def abort_calls(frame: Frame, depth: int) -> None:
    """Take the calls above `depth` off the stack: the calling task's time is up."""
    del frame.levels[depth:]
    frame.wait = 0.0


# ── before a task ───────────────────────────────────────────────────────────────────────


def _prepare(frame: Frame, level: Level) -> ErrorInfo | None:
    """Build the names; evaluate the step's `input` where that is the worker's work."""
    show(frame, level)
    program = level.program
    if program.owner.input and level is frame.root and (frame.looping or frame.order.context.defer_input):
        mark = frame.draws.mark()
        made = {**level.input, **program.static_input}
        try:
            for compiled in program.input:
                made[compiled.name] = _evaluate(frame, level, compiled)
        except NEEDS:
            frame.draws.rewind(mark)
            raise
        except TemplateError as problem:
            return info_of(problem)
        level.input = made
        level.names["input"] = level.names["args"] = made
    level.prepared = True
    return None


def _skip(frame: Frame, level: Level, compiled: CompiledTask) -> bool:
    """Pass over the task when a pre-condition says so; its own `set` is not applied."""
    task = compiled.task
    _show_locals(level, level.attempt)
    before = snapshot(frame, level)
    patch: Patch = {}
    try:
        rule = skip_rule(frame, level, compiled)
        if rule is None:
            return False
        assign(frame, level, rule.then.assignments, patch)
        delay = DIRECTIVES["continue"](frame, level, rule, ok(None)).delay
    except NEEDS:
        restore(frame, level, before)
        raise
    except TemplateError as problem:
        restore(frame, level, before)
        _fail(frame, level, info_of(problem))
        return True
    visit = level.event_visit
    enter(frame, level, level.current + 1)
    frame.wait = delay
    frame.outbox.append(
        TaskDone(
            step=frame.order.context.step,
            step_run_id=frame.order.context.step_run_id,
            task=level.label(task),
            kind=task.kind,
            outcome=ok(None),
            visit=visit,
            path=frame.path,
            do="skip",
            rule=rule.index,
            patch=patch,
            draws=frame.draws.take(),
            position=None if level.ended else position_of(frame),
            skipped=True,
        )
    )
    frame.silent = False
    return True


def _start(frame: Frame, level: Level, compiled: CompiledTask) -> Action | None:
    """Begin an attempt of the current task; None when a call was pushed instead."""
    task, names = compiled.task, level.names
    interrupted = frame.interrupted and task.kind != WORKBOOK
    if interrupted and task.effect == "at_most_once":
        frame.interrupted = False
        _show_locals(level, level.attempt)
        return Returned(task, _ambiguous(level), frame.drain())
    attempt = level.attempt + frame.lost if interrupted else level.attempt
    _show_locals(level, attempt)
    names["input"] = level.input
    mark = frame.draws.mark()
    problem: TemplateError | None = None
    try:
        rendered = _render(frame, level, compiled)
        spec = _spec(frame, level, compiled, rendered)
        names["input"] = level.input
        called = begin_call(frame, rendered) if task.kind == WORKBOOK else None
        request = child_request(frame, level, rendered) if compiled.suspends else None
    except NEEDS:
        frame.draws.rewind(mark)
        names["input"] = level.input
        raise
    except TemplateError as raised:
        names["input"] = level.input
        problem = located(frame.playbook, raised, task.path)
    level.attempt = attempt
    if task.kind != WORKBOOK or problem is not None:
        frame.interrupted = False
    level.task_runs += 1
    frame.outbox.append(
        TaskStarted(
            step=frame.order.context.step,
            step_run_id=frame.order.context.step_run_id,
            task=level.label(task),
            kind=task.kind,
            visit=level.event_visit,
            attempt=level.attempt,
            path=frame.path,
        )
    )
    if problem is not None:
        return Returned(task, Outcome(status="error", error=info_of(problem)), frame.drain())
    level.task_input = rendered
    if task.kind == WORKBOOK:
        return None if called is None else Returned(task, called, frame.drain())
    if request is not None:
        frame.outbox.append(request)
        return Suspend(frame.drain())
    covered, frame.silent = frame.silent, False
    label = level.label(task)
    return RunTask(
        task=task,
        label=label,
        input=rendered,
        spec=spec,
        visit=level.event_visit,
        attempt=level.attempt,
        task_run_id=task_run_id(frame.run_id, label, level.event_visit, level.attempt),
        scopes=Scopes(level),
        events=frame.drain(),
        covered=covered,
    )


def _resumed(frame: Frame, level: Level) -> Action:
    """The outcome a suspended task was waiting for has come."""
    compiled = level.compiled
    names, task = level.names, compiled.task
    _show_locals(level, level.attempt)
    if compiled.policy_reads_input:
        mark = frame.draws.mark()
        try:
            level.task_input = _render(frame, level, compiled)
        except NEEDS:
            raise
        except TemplateError:
            level.task_input = {}  # it could be rendered when the child was asked for; only its rules miss it
        finally:
            frame.draws.rewind(mark)
            names["input"] = level.input
    outcome, frame.resume = frame.resume, None
    assert outcome is not None
    return Returned(task, outcome, frame.drain())


def _render(frame: Frame, level: Level, compiled: CompiledTask) -> dict[str, Any]:
    """The task's input; its own fields are `input.*` to those that are rendered after them."""
    rendered = dict(compiled.static_input)
    if not compiled.fields:
        return rendered
    for each in compiled.fields:
        if compiled.fields_read_input:
            level.names["input"] = {**level.input, **rendered}
        rendered[each.name] = _evaluate(frame, level, each)
    return rendered


def _spec(frame: Frame, level: Level, compiled: CompiledTask, rendered: dict[str, Any]) -> dict[str, Any]:
    spec = dict(compiled.static_spec)
    if compiled.spec and compiled.fields_read_input:
        level.names["input"] = {**level.input, **rendered}
    for each in compiled.spec:
        spec[each.name] = _evaluate(frame, level, each)
    return spec


def _evaluate(frame: Frame, level: Level, compiled: CompiledField) -> Any:
    try:
        return compiled.value.evaluate(level.names, frame.draws)
    except NEEDS:
        raise
    except TemplateError as problem:
        raise located(frame.playbook, problem, *compiled.paths) from None


# ── after a task ────────────────────────────────────────────────────────────────────────


def _move(frame: Frame, level: Level, compiled: CompiledTask, move: Move, held: Held) -> None:
    """Carry out a directive: the program counter, and what the next task sees of this one."""
    frame.wait = move.delay
    if move.do == "retry":
        level.attempt += 1
        _show_previous(frame, level)
        return
    if compiled.task.generated is None:
        _remember(frame, level, compiled, held)
    level.names["input"] = level.input
    if move.target is not None:
        enter(frame, level, move.target)
    elif move.do == "fail":
        _fail(frame, level, move.error or error_info("unknown", "the task failed"))
    else:
        level.ended = "done"


def _remember(frame: Frame, level: Level, compiled: CompiledTask, held: Held) -> None:
    """The task is finished: what comes after it sees its result."""
    name = compiled.task.name
    level.results[name] = level.last = held
    level.previous = name
    level.ran = True
    if "_prev" in level.program.bare:
        level.names["_prev"] = held.view
    if compiled.plain:
        show_output(frame.shared, level, held.outcome)
        _show_result(level, name, held)
    level.fallbacks.discard(name)


def _show_result(level: Level, name: str, held: Held) -> Any:
    """Let the task's result be read by its name; what stood there before is given back."""
    if name not in level.program.bare or name in RESERVED or name in level.iterators:
        return _NOT_SHOWN
    before = level.names.get(name, _NOTHING)
    level.names[name] = held.view
    return before


def _hide_result(level: Level, name: str, before: Any) -> None:
    """The task is not finished after all."""
    if before is _NOTHING:
        del level.names[name]
    elif before is not _NOT_SHOWN:
        level.names[name] = before


_NOTHING: Any = object()
_NOT_SHOWN: Any = object()


def _show_previous(frame: Frame, level: Level) -> None:
    """`output` and `_prev` as the task to run sees them: those of the task before it."""
    held = level.results.get(level.previous) if level.previous else None
    show_output(frame.shared, level, held.outcome if held else None)
    if held is not None and "_prev" in level.program.bare:
        level.names["_prev"] = held.view
    level.names["input"] = level.input


def _show_locals(level: Level, attempt: int) -> None:
    names = level.names
    names["_task"], names["_attempt"], names["_visit"] = level.task.name, attempt, level.visit


def _fail(frame: Frame, level: Level, problem: ErrorInfo) -> None:
    """End the level's pipeline with an error that knows its task and its place."""
    level.ended = "failed"
    details = dict(problem.details)
    if level.program.tasks:
        details.setdefault("task", level.label(level.task))
        details.setdefault("at", frame.playbook.where(level.task.path))
    level.error = msgspec.structs.replace(problem, details=details)


def _finish(frame: Frame, level: Level) -> Finished:
    """The step's (or iteration's) own pipeline has ended."""
    outcome = outcome_of(level)
    recorded = level.last.recorded if level.last and level.ended == "done" else None
    if level.last and level.ended == "failed":
        recorded = msgspec.structs.replace(level.last.recorded, status="error", error=level.error)
    failed = level.ended == "failed"
    patch: Patch = {}
    stop = False
    try:
        if frame.looping:
            stop = not failed and level.program.until is not None and _until_holds(frame, level, outcome)
        elif level.program.assignments:
            _set_at_the_end(frame, level, outcome, patch, failed=failed)
    except NEEDS:
        raise
    except TemplateError as problem:
        patch = {}
        failed = True
        broken = info_of(problem)
        outcome = msgspec.structs.replace(outcome, status="error", error=broken)
        recorded = msgspec.structs.replace(recorded or outcome, status="error", error=broken)
    results = {}
    if level.program.composite and not frame.looping:
        results = {label: held.recorded for label, held in level.results.items()}
    context = frame.order.context
    return Finished(
        step=context.step,
        step_run_id=context.step_run_id,
        path=frame.path,
        status="failed" if failed else "done",
        outcome=outcome,
        recorded=outcome if recorded is None else recorded,
        results=results,
        patch=patch.get("ctx", {}),
        step_patch=_step_patch(frame, level) if frame.looping else {},
        draws=frame.draws.take(),
        events=frame.drain(),
        stop=stop,
        skipped=frame.looping and not failed and not level.ran and bool(level.program.tasks),
        looping=frame.looping,
    )


def _set_at_the_end(frame: Frame, level: Level, outcome: Outcome, patch: Patch, *, failed: bool) -> None:
    """The step's own `set`, which sees the step's output and no `iter`."""
    before = snapshot(frame, level)
    level.names.pop("iter", None)
    show_output(frame.shared, level, outcome)
    try:
        assign(frame, level, level.program.assignments, patch, {} if failed else None)
    except TemplateError:
        restore(frame, level, before)
        raise


def _until_holds(frame: Frame, level: Level, outcome: Outcome) -> bool:
    until = level.program.until
    if until is None:
        return False
    show_output(frame.shared, level, outcome)
    try:
        return holds(until, level.names, frame.draws)
    except NEEDS:
        raise
    except TemplateError as problem:
        loop = level.program.owner.loop
        path = loop.path if loop else ""
        raise located(frame.playbook, problem, f"{path}/spec/until", path) from None


def _step_patch(frame: Frame, level: Level) -> dict[str, Any]:
    """What the iteration changed in `step`, by top-level key."""
    before = frame.order.step_scope
    return {key: value for key, value in level.step.items() if key not in before or before[key] is not value}


def _runaway(frame: Frame, level: Level) -> ErrorInfo:
    limit = level.program.owner.max_task_runs
    message = (
        f"{frame.playbook.where(level.program.owner.path)}: the pipeline ran {limit:,} tasks without coming to an "
        "end; if that many are meant, raise `spec.max_task_runs`"
    )
    return error_info("pipeline.runaway", message)


def _ambiguous(level: Level) -> Outcome:
    return error(
        "ambiguous",
        f'the worker was lost while task "{level.task.name}" ran; whether its effect happened cannot be known, and '
        "`effect: at_most_once` forbids to run it again",
    )
