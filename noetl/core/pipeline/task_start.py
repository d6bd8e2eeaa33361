"""The start of a task: pre-conditions, input rendering, the start event.

A task whose input cannot be rendered counts as started, and its outcome is that error, so that its
policy applies. The frame is unchanged when a template needs data that is not available.
"""

from __future__ import annotations

from typing import Any

from noetl.core.model.events import ChildRequested, TaskDone, TaskStarted, WaitStarted
from noetl.core.model.ids import task_run_id
from noetl.core.model.outcome import ErrorInfo, Outcome, error, ok
from noetl.core.model.playbook import WAIT, WORKBOOK
from noetl.core.model.position import PendingMove
from noetl.core.model.tool import rendered_problem
from noetl.core.pipeline.actions import Action, KnownOutcome, RunTask, Suspend
from noetl.core.pipeline.calls import begin_call
from noetl.core.pipeline.child_calls import child_request
from noetl.core.pipeline.directives import DIRECTIVES
from noetl.core.pipeline.error_locations import MISSING_DATA, info_of, located
from noetl.core.pipeline.frame import Frame, Level, enter, position_after, show
from noetl.core.pipeline.policy import skip_rule
from noetl.core.pipeline.program import CompiledField, CompiledTask
from noetl.core.pipeline.quotas import needed_token, release_tokens
from noetl.core.pipeline.run_completion import fail_level
from noetl.core.pipeline.scopes import Scopes
from noetl.core.pipeline.task_assignments import Patch, assign, own_state, restore, snapshot, state_writers
from noetl.core.pipeline.waits import wait_request
from noetl.core.templates.views import StoredView
from noetl.errors import TemplateError


def prepare(frame: Frame, level: Level) -> ErrorInfo | None:
    """Build the names of a level; evaluate the step's `input` if the worker has to."""
    show(frame, level)
    program = level.program
    if (
        program.owner.input
        and level is frame.root
        and not level.input_evaluated
        and (frame.looping or frame.order.context.defer_input)
    ):
        mark = frame.nondeterminism.mark()
        values = {**level.input, **program.static_input}
        try:
            for compiled in program.input:
                values[compiled.name] = _evaluate(frame, level, compiled)
        except MISSING_DATA:
            frame.nondeterminism.rewind(mark)
            raise
        except TemplateError as problem:
            return info_of(problem)
        level.input = values
        level.input_evaluated = True
        level.names["input"] = level.names["args"] = values
    if level is not frame.top:
        _restore_caller(frame, level)
    level.prepared = True
    return None


def _restore_caller(frame: Frame, level: Level) -> None:
    """Restore the names of a calling task after a worker was lost inside the called block."""
    _show_locals(level, level.attempt)
    level.task_input = _render_again(frame, level)


def skip(frame: Frame, level: Level, compiled: CompiledTask) -> bool:
    """Skip the task if a pre-condition is true; its own `set` is not applied."""
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
    except MISSING_DATA:
        restore(frame, level, before)
        raise
    except TemplateError as problem:
        restore(frame, level, before)
        fail_level(frame, level, info_of(problem))
        return True
    visit = level.event_visit
    around = level.program.hooks.get(task.name) if level.program.hooks else None
    if around is None:
        enter(frame, level, level.current + 1)
    elif around.before is not None and around.final is not None:
        level.pending = PendingMove(to=level.program.label_at(around.end))
        enter(frame, level, around.final)
    else:
        enter(frame, level, around.end)
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
            nondeterminism=frame.nondeterminism.take(),
            position=position_after(frame, level),
            skipped=True,
        )
    )
    frame.only_starts = False
    return True


def start(frame: Frame, level: Level, compiled: CompiledTask) -> Action | None:
    """Start an attempt of the current task; None if a call was pushed instead."""
    task = compiled.task
    interrupted = frame.interrupted and task.kind != WORKBOOK
    if interrupted and task.effect == "at_most_once":
        frame.interrupted = False
        _show_locals(level, level.attempt)
        return KnownOutcome(task, _ambiguous(level), frame.drain())
    before = level.attempt
    if interrupted:
        level.attempt += frame.lost
    _show_locals(level, level.attempt)
    mark = frame.nondeterminism.mark()
    problem: TemplateError | None = None
    if level.pending is not None and level.pending.failed is not None and not task.hook:
        return _failed_before(frame, level, level.pending.failed)
    try:
        needed = needed_token(frame, level, compiled)
        if needed is not None:
            frame.interrupted = frame.interrupted and not interrupted  # the attempt has its number
            return needed
        rendered = _render(frame, level, compiled)
        spec = _spec(frame, level, compiled, rendered)
        if task.raw:
            _fetch_for_code(frame, rendered, task.raw)
        state = own_state(frame, level) if frame.playbook.uses_state else {}
        called = begin_call(frame, rendered) if task.kind == WORKBOOK else None
        request = _suspend_request(frame, level, rendered, spec) if compiled.suspends else None
    except MISSING_DATA:
        frame.nondeterminism.rewind(mark)
        level.attempt = before
        raise
    except TemplateError as raised:
        problem = located(frame.playbook, raised, task.path)
    finally:
        level.names["input"] = level.input
    tokens = release_tokens(frame) if frame.tokens else ()
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
        return KnownOutcome(task, Outcome(status="error", error=info_of(problem)), frame.drain())
    level.task_input = rendered
    if task.kind == WORKBOOK:
        return None if called is None else KnownOutcome(task, called, frame.drain())
    if request is not None:
        frame.outbox.append(request)
        return Suspend(frame.drain())
    start_recorded, frame.only_starts = frame.only_starts, False
    frame.keychain.clear()
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
        start_recorded=start_recorded,
        state=state,
        state_writers=state_writers(frame, level) if state else (),
        quotas=tokens,
    )


def _failed_before(frame: Frame, level: Level, failure: ErrorInfo) -> KnownOutcome:
    """The outcome of a task whose `before` has failed: its tool does not run."""
    frame.interrupted = False
    level.task_runs += 1
    context = frame.order.context
    frame.outbox.append(
        TaskStarted(
            step=context.step,
            step_run_id=context.step_run_id,
            task=level.label(level.task),
            kind=level.task.kind,
            visit=level.event_visit,
            attempt=level.attempt,
            path=frame.path,
        )
    )
    return KnownOutcome(level.task, Outcome(status="error", error=failure), frame.drain())


def _fetch_for_code(frame: Frame, rendered: dict[str, Any], raw: tuple[str, ...]) -> None:
    """Fetch the stored values of `ctx` that code may read: all of them if it is not part of the playbook."""
    stored = [(name, value) for name, value in frame.ctx.items() if isinstance(value, StoredView)]
    if stored:
        code = " ".join(str(rendered[name]) for name in raw if rendered.get(name))
        whole = not code or "ctx" in code or "context" in code
        for name, value in stored:
            if whole or name in code:
                value.value()


def _suspend_request(
    frame: Frame, level: Level, rendered: dict[str, Any], spec: dict[str, Any]
) -> ChildRequested | WaitStarted:
    """The event that hands the task over to the server: a wait, or the call of a playbook."""
    if level.task.kind == WAIT:
        return wait_request(frame, level, rendered)
    return child_request(frame, level, rendered, spec)


def resumed(frame: Frame, level: Level) -> Action:
    """The action for a suspended task whose outcome is available."""
    task = level.task
    _show_locals(level, level.attempt)
    level.task_input = _render_again(frame, level)
    outcome, frame.resume = frame.resume, None
    assert outcome is not None
    return KnownOutcome(task, outcome, frame.drain())


def _render_again(frame: Frame, level: Level) -> dict[str, Any] | None:
    """The input of a task that started under an earlier lease, if its rules read it."""
    if not level.compiled.policy_reads_input:
        return None
    mark = frame.nondeterminism.mark()
    try:
        return _render(frame, level, level.compiled)
    except MISSING_DATA:
        raise
    except TemplateError:
        return None  # it was rendered when the task started; only its rules read it now
    finally:
        frame.nondeterminism.rewind(mark)
        level.names["input"] = level.input


def _render(frame: Frame, level: Level, compiled: CompiledTask) -> dict[str, Any]:
    """Render the task's input; rendered fields are visible to later ones as `input.*`."""
    rendered = dict(compiled.static_input)
    for each in compiled.fields:
        if compiled.fields_read_input:
            level.names["input"] = {**level.input, **rendered}
        rendered[each.name] = _evaluate(frame, level, each)
    return rendered


def _spec(frame: Frame, level: Level, compiled: CompiledTask, rendered: dict[str, Any]) -> dict[str, Any]:
    spec = dict(compiled.static_spec)
    if compiled.fields_read_input:
        level.names["input"] = {**level.input, **rendered}
    for each in compiled.spec:
        spec[each.name] = value = _evaluate(frame, level, each)
        field = compiled.tool.spec_fields.get(each.name) if compiled.tool is not None else None
        problem = rendered_problem(f"spec.{each.name}", value, field) if field is not None else None
        if problem is not None:
            raise located(frame.playbook, TemplateError(problem, kind="schema"), *each.paths)
    return spec


def _evaluate(frame: Frame, level: Level, compiled: CompiledField) -> Any:
    try:
        return frame.evaluate(level, compiled.value)
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        raise located(frame.playbook, problem, *compiled.paths) from None


def _show_locals(level: Level, attempt: int) -> None:
    names = level.names
    names["_task"], names["_attempt"], names["_visit"] = level.task.name, attempt, level.visit


def _ambiguous(level: Level) -> Outcome:
    return error(
        "ambiguous",
        f'the worker was lost while task "{level.task.name}" was running; whether it took effect is unknown, and '
        "a task with `effect: at_most_once` is not run again",
    )
