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

from noetl.core.model.events import Event, TaskDone
from noetl.core.model.outcome import ErrorInfo, Outcome, error_info
from noetl.core.model.tool import with_helpers
from noetl.core.pipeline.actions import Action, Finished, Returned, Wait
from noetl.core.pipeline.calls import end_pipeline
from noetl.core.pipeline.directives import DIRECTIVES, Move
from noetl.core.pipeline.error_locations import NEEDS, info_of
from noetl.core.pipeline.frame import Frame, Level, TaskResult, enter, position_of, show
from noetl.core.pipeline.policy import default_directive, matching_rule
from noetl.core.pipeline.program import CompiledRule, CompiledTask
from noetl.core.pipeline.run_completion import fail_level, finish, runaway
from noetl.core.pipeline.scopes import RESERVED, show_output
from noetl.core.pipeline.task_assignments import Patch, assign, restore, snapshot
from noetl.core.pipeline.task_start import prepare, resumed, skip, start
from noetl.errors import TemplateError

# The struct's own default object: encoders leave a field out when it holds just that.
_NO_DELAY: float = next(known.default for known in msgspec.structs.fields(TaskDone) if known.name == "delay")

__all__ = ["abort", "abort_calls", "apply_outcome", "next_action"]


def next_action(frame: Frame) -> Action:
    """What the shell must do now."""
    while True:
        if frame.wait:
            seconds, frame.wait = frame.wait, 0.0
            return Wait(seconds, frame.drain())
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
                return Returned(frame.top.task, outcome, frame.drain())
            continue
        compiled = level.compiled
        if compiled.skips and skip(frame, level, compiled):
            continue
        if level.task_runs >= level.program.owner.max_task_runs:
            fail_level(frame, level, runaway(frame, level))
            continue
        action = start(frame, level, compiled)
        if action is not None:
            return action


def _prepare_all(frame: Frame) -> None:
    """Make every level ready: one at the beginning, all of them when another worker left them."""
    for level in list(frame.levels):
        if level.prepared:
            continue
        problem = prepare(frame, level)
        if problem is not None:
            del frame.levels[frame.levels.index(level) + 1 :]
            level.ended, level.error = "failed", problem
            level.prepared = True
            return


def apply_outcome(frame: Frame, outcome: Outcome, recorded: Outcome | None = None) -> tuple[Event, ...]:
    """Apply the current task's policy to its outcome; `recorded` is the outcome as the log has it."""
    level = frame.top
    compiled = level.compiled
    if compiled.tool is not None and compiled.tool.helpers:
        outcome = with_helpers(compiled.tool, outcome)
        recorded = None if recorded is None else with_helpers(compiled.tool, recorded)
    recorded = outcome if recorded is None else recorded
    if compiled.plain and not frame.call_patch:
        held = TaskResult(compiled.task.name, outcome, recorded, frame.shared)
        move = DIRECTIVES[default_directive(compiled, outcome)](frame, level, None, outcome)
        return _settle(frame, level, compiled, held, move, None, {})
    before = snapshot(frame, level)
    patch: Patch = {"ctx": dict(frame.call_patch)} if frame.call_patch else {}
    rule = None
    unset: dict[str, str] | None = {} if outcome.status == "error" else None
    names, task = level.names, compiled.task
    held = TaskResult(task.name, outcome, recorded, frame.shared)
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
    held: TaskResult,
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
            nondeterminism=frame.nondeterminism.take(),
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
    fail_level(frame, root, problem)
    return finish(frame, root)


def abort_calls(frame: Frame, depth: int) -> None:
    """Take the calls above `depth` off the stack: the calling task's time is up."""
    del frame.levels[depth:]
    frame.wait = 0.0


# ── after a task ────────────────────────────────────────────────────────────────────────


def _move(frame: Frame, level: Level, compiled: CompiledTask, move: Move, held: TaskResult) -> None:
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
        fail_level(frame, level, move.error or error_info("unknown", "the task failed"))
        level.failing = held
    else:
        level.ended = "done"


def _remember(frame: Frame, level: Level, compiled: CompiledTask, held: TaskResult) -> None:
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


def _show_result(level: Level, name: str, held: TaskResult) -> Any:
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
