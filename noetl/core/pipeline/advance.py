"""The state machine of a pipeline: the next action, and the effect of an outcome.

The shell calls `next_action(frame)`, performs the action, passes the outcome to `apply_outcome`, and
repeats until the run is `Finished` or suspended. Nothing here waits, reads a clock or performs I/O.
When a template needs a stored payload or a secret that is not available, either function raises
`NeedsPayload` or `NeedsSecret` and leaves the frame unchanged; the shell fetches it
(`frame.shared.provide`) and calls again.

Order around one task (LANGUAGE section 3): pre-conditions (`skip`) -> input rendered -> tool ->
the task's own `set` -> rules -> the chosen rule's `set` -> directive -> next task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.core.model.events import Event, TaskDone
from noetl.core.model.outcome import ErrorInfo, Outcome, error_info, with_secondary
from noetl.core.model.position import PendingMove
from noetl.core.model.tool import with_helpers
from noetl.core.pipeline.actions import Action, Finished, KnownOutcome, RecordedInput, Wait
from noetl.core.pipeline.calls import end_pipeline
from noetl.core.pipeline.directives import DIRECTIVES, Move, retry_call
from noetl.core.pipeline.error_locations import MISSING_DATA, info_of, with_unset
from noetl.core.pipeline.frame import Frame, Level, TaskResult, enter, position_after, show
from noetl.core.pipeline.policy import default_directive, matching_rule
from noetl.core.pipeline.program import CompiledRule, CompiledTask, Hooks
from noetl.core.pipeline.run_completion import fail_level, finish, runaway
from noetl.core.pipeline.scopes import RESERVED, show_output
from noetl.core.pipeline.task_assignments import Patch, assign, remember, restore, snapshot
from noetl.core.pipeline.task_start import prepare, resumed, skip, start
from noetl.errors import TemplateError

# The default object of the field: the encoder omits the field if its value is this very object.
_NO_DELAY: float = next(known.default for known in msgspec.structs.fields(TaskDone) if known.name == "delay")

__all__ = ["abort", "abort_calls", "apply_outcome", "next_action"]


def next_action(frame: Frame) -> Action:
    """The next action for the shell."""
    while True:
        if frame.wait:
            seconds, frame.wait = frame.wait, 0.0
            return Wait(seconds, frame.drain())
        frame.meter.reset()
        level = frame.levels[-1]
        if not level.prepared:
            _prepare_all(frame)
            level = frame.levels[-1]
        if frame.resume is not None:
            return resumed(frame, level)
        if level.ended is not None:
            if len(frame.levels) == 1:
                return finish(frame, level)
            outcome = end_pipeline(frame, level)
            if outcome is not None:
                return KnownOutcome(frame.top.task, outcome, frame.drain())
            continue
        compiled = level.compiled
        if frame.undone is not None and len(frame.levels) == 1:
            show_output(frame.shared, level, frame.undone)
        if compiled.skips and skip(frame, level, compiled):
            continue
        if level.task_runs >= compiled.max_task_runs:
            fail_level(frame, level, runaway(frame, level))
            continue
        action = start(frame, level, compiled)
        if action is not None:
            return action


def _prepare_all(frame: Frame) -> None:
    """Prepare every level: one at the start of a run, all of them after a change of worker."""
    for level in list(frame.levels):
        problem = None if level.prepared else prepare(frame, level)
        if problem is not None:
            del frame.levels[frame.levels.index(level) + 1 :]
            level.ended, level.error = "failed", problem
            level.prepared = True
            return


def apply_outcome(
    frame: Frame, outcome: Outcome, recorded: Outcome | None = None, task_input: RecordedInput | None = None
) -> tuple[Event, ...]:
    """Apply the current task's policy to its outcome.

    `recorded` is the outcome as written to the log, `task_input` what the log has of the task's input."""
    level = frame.top
    compiled = level.compiled
    frame.meter.reset()
    frame.task_input = task_input
    if compiled.tool is not None and compiled.tool.helpers:
        outcome = with_helpers(compiled.tool, outcome)
        recorded = None if recorded is None else with_helpers(compiled.tool, recorded)
    recorded = outcome if recorded is None else recorded
    remembered = outcome.state if outcome.status == "ok" else {}
    if outcome.state:
        outcome, recorded = (msgspec.structs.replace(each, state={}) for each in (outcome, recorded))
    mark = frame.nondeterminism.mark()
    try:
        again = retry_call(frame, level, compiled, outcome)
    except MISSING_DATA:
        frame.nondeterminism.rewind(mark)
        raise
    except TemplateError as problem:
        again = Move("fail", error=info_of(problem))
    if again is not None:
        written: Patch = {"ctx": dict(frame.call_patch)} if frame.call_patch else {}
        frame.call_patch = {}
        result = TaskResult(compiled.task.name, outcome, recorded, frame.shared)
        return _record_outcome(frame, level, compiled, result, again, None, written)
    if compiled.without_policy and not frame.call_patch and not remembered:
        result = TaskResult(compiled.task.name, outcome, recorded, frame.shared)
        move = DIRECTIVES[default_directive(compiled, outcome)](frame, level, None, outcome)
        return _record_outcome(frame, level, compiled, result, move, None, {})
    before = snapshot(frame, level)
    patch: Patch = {"ctx": dict(frame.call_patch)} if frame.call_patch else {}
    rule = None
    unset: dict[str, TemplateError] | None = {} if outcome.status == "error" else None
    names, task = level.names, compiled.task
    result = TaskResult(task.name, outcome, recorded, frame.shared)
    shadowed = _HIDDEN
    if task.generated is None:  # else it is transparent: its guards read the output of the task before it
        show_output(frame.shared, level, outcome)
        shadowed = _show_result(level, task.name, result)
    if compiled.policy_reads_input:
        names["input"] = {**level.input, **(level.task_input or {})}
    try:
        if remembered:
            remember(frame, level, remembered, patch)
        assign(frame, level, compiled.assignments, patch, unset)
        rule = matching_rule(frame, level, compiled)
        if rule is None:
            move = DIRECTIVES[default_directive(compiled, outcome)](frame, level, None, outcome)
        else:
            assign(frame, level, rule.then.assignments, patch)
            move = DIRECTIVES[rule.then.do](frame, level, rule, outcome)
    except MISSING_DATA:
        restore(frame, level, before)
        _show_previous(frame, level)
        _hide_result(level, task.name, shadowed)
        raise
    except TemplateError as problem:
        restore(frame, level, before)
        patch = {"ctx": dict(frame.call_patch)} if frame.call_patch else {}
        second = info_of(problem)
        move = Move("fail", error=second if outcome.error is None else with_secondary(outcome.error, second))
    frame.call_patch = {}
    if unset and move.error is not None:
        move = move._replace(error=with_unset(move.error, unset))
    if move.do == "retry":
        _hide_result(level, task.name, shadowed)
    return _record_outcome(frame, level, compiled, result, move, rule, patch)


def _record_outcome(
    frame: Frame,
    level: Level,
    compiled: CompiledTask,
    result: TaskResult,
    move: Move,
    rule: CompiledRule | None,
    patch: Patch,
) -> tuple[Event, ...]:
    """Apply the move and record `task.done`."""
    context, task = frame.order.context, compiled.task
    visit, attempt = level.event_visit, level.attempt
    _move(frame, level, compiled, move, result)
    frame.outbox.append(
        TaskDone(
            step=context.step,
            step_run_id=context.step_run_id,
            task=level.label(task),
            kind=task.kind,
            outcome=result.recorded,
            visit=visit,
            attempt=attempt,
            path=frame.path,
            do=move.do,
            to=move.to,
            delay=move.delay or _NO_DELAY,
            rule=rule.index if rule else None,
            patch=patch,
            nondeterminism=frame.nondeterminism.take(),
            position=position_after(frame, level),
            input=None if frame.task_input is None else frame.task_input.values,
            input_ref=None if frame.task_input is None else frame.task_input.ref,
        )
    )
    frame.only_starts = False
    return frame.drain()


def abort(frame: Frame, problem: ErrorInfo) -> Finished:
    """End the run from outside (timeout): no further task runs, the step's own `set` is applied."""
    del frame.levels[1:]
    frame.meter.reset()
    show(frame, frame.root)
    fail_level(frame, frame.root, problem)
    return finish(frame, frame.root)


def abort_calls(frame: Frame, depth: int) -> None:
    """Remove the calls above `depth` from the stack (timeout of the calling task)."""
    del frame.levels[depth:]


# ── after a task ────────────────────────────────────────────────────────────────────────


def _move(frame: Frame, level: Level, compiled: CompiledTask, move: Move, result: TaskResult) -> None:
    """Apply a directive: move the program counter and make the result visible to the next task."""
    around = level.program.hooks.get(compiled.task.hook_of or compiled.task.name)
    if around is not None:
        leave = _leave_hook if compiled.task.hook else _leave_main
        leave(frame, level, compiled, around, move, result)
        return
    frame.wait = move.delay
    if move.do == "retry":
        level.attempt += 1
        _show_previous(frame, level)
        return
    if compiled.task.generated is None:
        _remember(frame, level, compiled, result)
    level.names["input"] = level.input
    if move.target is not None:
        enter(frame, level, move.target)
    elif move.do == "fail":
        fail_level(frame, level, move.error or error_info("unknown", "the task failed"))
        level.failing = result
    else:
        level.ended = "done"


# ── the tasks around a task: before, after, finally ─────────────────────────────────────


def _leave_main(
    frame: Frame, level: Level, compiled: CompiledTask, around: Hooks, move: Move, result: TaskResult
) -> None:
    """Go on with the tasks after a task; its move is pending until they have run."""
    failed_before = level.pending is not None and level.pending.failed is not None
    if move.do == "retry":
        frame.wait = move.delay
        level.attempt += 1
        _show_previous(frame, level)
        if failed_before and around.before is not None:  # the tasks before it run again
            level.pending = PendingMove(attempt=level.attempt, visit=level.visit, event_visit=level.event_visit)
            enter(frame, level, around.before)
        return
    _remember(frame, level, compiled, result)
    level.names["input"] = level.input
    target = around.end if move.do == "continue" else move.target
    level.pending = PendingMove(move.do, level.program.label_at(target), move.delay, move.error)
    succeeded = result.outcome.status == "ok" and move.do != "fail"
    _enter_next(frame, level, around, around.after if succeeded and around.after is not None else around.final)


def _leave_hook(
    frame: Frame, level: Level, compiled: CompiledTask, around: Hooks, move: Move, result: TaskResult
) -> None:
    """Go on after a task around another one. It does not change `output`, `_prev` and the result of the pipeline."""
    task = compiled.task
    level.results[task.name] = result
    _show_result(level, task.name, result)
    level.fallbacks.discard(task.name)
    _show_previous(frame, level)
    failure = (move.error or error_info("unknown", "the task failed")) if move.do == "fail" else None
    following = level.program.hook_after(level.current)
    if task.hook == "before":
        if failure is not None:
            level.pending = msgspec.structs.replace(level.pending or PendingMove(), failed=failure)
        if failure is not None or following is None:
            _enter_main(frame, level, around)
        else:
            enter(frame, level, following)
        return
    assert level.pending is not None
    if failure is not None and task.hook == "after":
        level.pending = PendingMove("fail", error=failure)
        following = None
    elif failure is not None:
        _record_beside(frame, level, task.hook_of, failure)
    if following is None and task.hook == "after":
        following = around.final
    _enter_next(frame, level, around, following)


def _record_beside(frame: Frame, level: Level, name: str, failure: ErrorInfo) -> None:
    """Record the failure of a `finally` beside the outcome of its task."""
    pending = level.pending
    assert pending is not None
    if pending.error is not None:
        level.pending = msgspec.structs.replace(pending, error=with_secondary(pending.error, failure))
    main = level.results.get(name)
    if main is not None:
        note = {"finally": {"kind": failure.kind, "message": failure.message}}
        outcome, recorded = (
            msgspec.structs.replace(each, meta={**each.meta, **note}) for each in (main.outcome, main.recorded)
        )
        level.results[name] = noted = TaskResult(name, outcome, recorded, frame.shared)
        level.last = noted if level.last is main else level.last


def _enter_main(frame: Frame, level: Level, around: Hooks) -> None:
    """Enter the task after the tasks before it: a new visit, or the next attempt if they ran again."""
    pending = level.pending
    if pending is not None and pending.attempt:
        level.task_input = None
        level.current = around.main
        level.attempt, level.visit, level.event_visit = pending.attempt, pending.visit, pending.event_visit
    else:
        enter(frame, level, around.main)
    if pending is not None and pending.failed is None:
        level.pending = None


def _enter_next(frame: Frame, level: Level, around: Hooks, index: int | None) -> None:
    """Enter the next task around a task; if there is none, make the pending move."""
    if index is not None:
        enter(frame, level, index)
        return
    pending, level.pending = level.pending, None
    assert pending is not None
    level.current = around.main
    frame.wait = pending.delay
    if pending.do == "fail":
        fail_level(frame, level, pending.error or error_info("unknown", "the task failed"))
        level.failing = level.results.get(level.task.name)
    elif pending.to is not None:
        enter(frame, level, level.program.index[pending.to])
    else:
        level.ended = "done"


def final_tasks(frame: Frame) -> list[tuple[Level, int]]:
    """The `finally` tasks that are still to run when the run is ended from outside, innermost first."""
    found = []
    for level in reversed(frame.levels):
        if level.ended is not None or not level.program.hooks or not level.program.tasks:
            continue
        task = level.task
        around = level.program.hooks.get(task.hook_of or task.name)
        index = None if around is None else level.current if task.hook == "finally" else around.final
        while index is not None:
            found.append((level, index))
            index = level.program.hook_after(index)
    return found


def start_final(frame: Frame, level: Level, index: int) -> Action | None:
    """Start a task of `final_tasks`; its attempt is 0, because the log has no attempt of it."""
    frame.meter.reset()
    enter(frame, level, index)
    level.attempt = 0
    frame.began, frame.tokens = True, {False: None}  # it does not wait for a quota
    return start(frame, level, level.compiled)


def _remember(frame: Frame, level: Level, compiled: CompiledTask, result: TaskResult) -> None:
    """Make the result of a finished task visible to the tasks after it."""
    name = compiled.task.name
    level.results[name] = level.last = result
    level.previous = name
    level.ran = True
    if "_prev" in level.program.bare:
        level.names["_prev"] = result.view
    show_output(frame.shared, level, result.outcome)
    _show_result(level, name, result)
    level.fallbacks.discard(name)


def _show_result(level: Level, name: str, result: TaskResult) -> Any:
    """Make the task's result readable by its name; return the previous value of that name."""
    if name not in level.program.bare or name in RESERVED or name in level.iterators:
        return _HIDDEN
    before = level.names.get(name, _UNDEFINED)
    level.names[name] = result.view
    return before


def _hide_result(level: Level, name: str, before: Any) -> None:
    """Restore the previous value of the task's name: the task runs again."""
    if before is _UNDEFINED:
        del level.names[name]
    elif before is not _HIDDEN:
        level.names[name] = before


_UNDEFINED: Any = object()
_HIDDEN: Any = object()


def _show_previous(frame: Frame, level: Level) -> None:
    """Set `output` to that of the previous task, as the next attempt reads it."""
    result = level.results.get(level.previous) if level.previous else None
    show_output(frame.shared, level, result.outcome if result else None)
    level.names["input"] = level.input
