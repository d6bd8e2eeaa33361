"""Workbook calls: a block runs on top of its caller, with its own scopes and possibly a loop.

A call is not a macro: the block has its own `input`, `output`, task names and `step`; `ctx` is
shared, and so is `iter` unless the block loops (then `iter.parent` is the caller's). The iterations
of a looping block run here in sequence, under the lease of the run. Values passed by the call
replace those that the block declares; a declared value whose template reads `input` transforms the
passed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome, error, listed_failure, ok
from noetl.core.model.playbook import MAX_CALL_DEPTH, Block, most_failures
from noetl.core.pipeline.error_locations import MISSING_DATA, info_of, located, with_unset
from noetl.core.pipeline.frame import BlockLoop, Frame, Level, block_iteration, enter, show
from noetl.core.pipeline.scopes import show_output
from noetl.core.pipeline.task_assignments import assign, restore, snapshot
from noetl.core.templates.lookup import NO_ELEMENTS, is_reference
from noetl.core.templates.views import plain
from noetl.errors import TemplateError

MAX_BLOCK_ITERATIONS = 10_000
MAX_FAILURES_LISTED = 100

_PARAMETERS = frozenset({"block", "payload"})


def begin_call(frame: Frame, rendered: Mapping[str, Any]) -> Outcome | None:
    """Push the called block onto the stack; return an outcome instead if there is nothing to run."""
    caller = frame.top
    name = rendered.get("block") or rendered.get("name")
    program = frame.programs.block(str(name)) if name else None
    if program is None:
        known = ", ".join(frame.playbook.blocks) or "none"
        return error("not_found", f'the workbook has no block "{name}"; its blocks are: {known}')
    if len(frame.levels) > MAX_CALL_DEPTH:
        return error("limit", f'the call of block "{name}" exceeds the call depth of {MAX_CALL_DEPTH}')
    given = _given(rendered)
    level = Level(program, prefix=f"{caller.prefix}{caller.task.name}/", call_task=caller.task.name)
    level.input = {**program.static_input, **given}
    level.iter = level.iter_base = caller.iter
    frame.levels.append(level)
    try:
        show(frame, level)
        for compiled in program.input:
            transforms = any(read == "input" or read.startswith("input.") for read in compiled.value.names)
            if compiled.name in given and not transforms:
                continue
            try:
                value = frame.evaluate(level, compiled.value)
            except MISSING_DATA:
                raise
            except TemplateError as problem:
                raise located(frame.playbook, problem, *compiled.paths) from None
            level.input = {**level.input, compiled.name: value}
            level.names["input"] = level.names["args"] = level.input
        level.prepared = True
        if program.loops:
            return _descend_or_end(frame, level)
    except MISSING_DATA:
        frame.levels.pop()
        raise
    except TemplateError as problem:
        frame.levels.pop()
        return Outcome(status="error", error=info_of(problem))
    enter(frame, level, 0)
    return None


def end_pipeline(frame: Frame, level: Level) -> Outcome | None:
    """End the block's pipeline: return its outcome, or None if its loop continues."""
    before, mark = _loop_marks(level), frame.nondeterminism.mark()
    try:
        outcome = _end_iteration(frame, level) if level.loops else outcome_of(level)
        return None if outcome is None else _close(frame, level, outcome)
    except MISSING_DATA:
        _loop_restore(frame, level, before)
        frame.nondeterminism.rewind(mark)
        raise


def _end_iteration(frame: Frame, level: Level) -> Outcome | None:
    try:
        return _ascend(frame, level, recorded_of(level, outcome_of(level)))
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        return Outcome(status="error", error=info_of(problem))


def outcome_of(level: Level) -> Outcome:
    """The outcome of an ended pipeline: that of the last task that completed.

    A failed pipeline has the envelope of the task that failed it, with the error."""
    if level.ended == "failed":
        failing = level.failing.outcome if level.failing else ok(None)
        return replace(failing, status="error", error=level.error)
    return level.last.outcome if level.last else ok(None)


def _close(frame: Frame, level: Level, outcome: Outcome) -> Outcome:
    """Apply the block's own `set`, then pop its level from the stack."""
    if level.program.assignments:
        level.names.pop("iter", None)
        show_output(frame.shared, level, outcome)
        before = snapshot(frame, level)
        patch: dict[str, dict[str, Any]] = {}
        unset: dict[str, TemplateError] = {}
        try:
            assign(frame, level, level.program.assignments, patch, unset if outcome.status == "error" else None)
            if outcome.error is not None:
                outcome = replace(outcome, error=with_unset(outcome.error, unset))
        except MISSING_DATA:
            restore(frame, level, before)
            raise
        except TemplateError as problem:
            restore(frame, level, before)
            patch = {}
            outcome = Outcome(status="error", data=outcome.data, error=info_of(problem), helpers=outcome.helpers)
        frame.call_patch = {**frame.call_patch, **patch.get("ctx", {})}
    frame.levels.remove(level)
    return outcome


def _given(rendered: Mapping[str, Any]) -> dict[str, Any]:
    """The input of the call: `payload`, and every field that is not a parameter of the kind."""
    given = {name: value for name, value in rendered.items() if name not in _PARAMETERS}
    if "block" not in rendered:
        given.pop("name", None)
    payload = rendered.get("payload")
    return {**given, **payload} if isinstance(payload, Mapping) else given


# ── loops of blocks ─────────────────────────────────────────────────────────────────────


def _descend_or_end(frame: Frame, level: Level) -> Outcome | None:
    """Start the loops; a call with an empty collection ends at once."""
    ended = _descend(frame, level)
    if ended is None:
        return None
    collected = _ascend(frame, level, ended) if level.loops else ended
    return None if collected is None else _close(frame, level, collected)


def _descend(frame: Frame, level: Level) -> Outcome | None:
    """Evaluate inner collections until the pipeline can start; return an outcome for an empty one."""
    loops = level.program.loops
    while len(level.loops) < len(loops):
        described = loops[len(level.loops)]
        try:
            items = _items(frame.evaluate(level, described.collection))
        except MISSING_DATA:
            raise
        except TemplateError as problem:
            raise located(frame.playbook, problem, f"{described.path}/in", described.path) from None
        if not items:
            return _collected(BlockLoop(()))
        level.loops.append(BlockLoop(items))
        block_iteration(frame, level)
        show(frame, level)
    _restart(frame, level)
    return None


def _ascend(frame: Frame, level: Level, outcome: Outcome) -> Outcome | None:
    """End an iteration: start the next one and return None, or return the outcome of the whole loop."""
    best_effort = isinstance(level.program.owner, Block) and level.program.owner.failure == "best_effort"
    while level.loops:
        loop = level.loops[-1]
        loop.outputs.append(outcome)
        if len(level.loops) == len(level.program.loops) and level.program.tasks and not level.ran:
            loop.skipped += 1
        if outcome.status == "error" and level.ended == "failed":
            excess = _too_many_failures(level, loop) if best_effort else outcome
            if excess is not None:
                level.loops.clear()
                outcome = excess
                break
        stop = _until_holds(frame, level, outcome)
        loop.index += 1
        if loop.index < len(loop.items) and not stop:
            block_iteration(frame, level)
            show(frame, level)
            inner = _descend(frame, level)
            if inner is None:
                return None
            outcome = inner
            continue
        level.loops.pop()
        outcome = _collected(loop)
        level.ended = "done"
        if level.loops:
            block_iteration(frame, level)
            show(frame, level)
    level.iter = level.iter_base = frame.levels[frame.levels.index(level) - 1].iter
    return outcome


def _too_many_failures(level: Level, loop: BlockLoop) -> Outcome | None:
    """The outcome of a block's loop of which more iterations failed than may."""
    most = most_failures(level.program.owner, len(loop.items))
    failed = [(index, each.error) for index, each in enumerate(loop.outputs) if each.error is not None]
    if most is None or len(failed) <= most or len(level.loops) > 1:
        return None
    index, cause = failed[0]
    message = f"{len(failed)} of {len(loop.items)} iterations failed, at most {most} may (failure.max_failed); "
    return replace(
        _collected(loop),
        status="error",
        data=None,
        error=replace(cause, message=f"{message}iteration {index}: {cause.message}"),
    )


def _restart(frame: Frame, level: Level) -> None:
    """Restart the pipeline for the next iteration."""
    level.results = {}
    level.previous = None
    level.last = None
    level.failing = None
    level.ran = False
    level.ended = None
    level.error = None
    level.visits = {}
    show(frame, level)
    enter(frame, level, 0)


def _until_holds(frame: Frame, level: Level, outcome: Outcome) -> bool:
    described = level.program.loops[len(level.loops) - 1]
    show_output(frame.shared, level, outcome)
    try:
        return frame.holds(level, described.until)
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        raise located(frame.playbook, problem, f"{described.path}/spec/until", described.path) from None


def _items(value: Any) -> list[Any]:
    if is_reference(value):
        raise TemplateError(NO_ELEMENTS, kind="ref.unresolved")
    if isinstance(value, Mapping):
        value = [{"key": key, "value": each} for key, each in value.items()]
    if not isinstance(value, list):
        raise TemplateError(f"`in` must be a list or a mapping, not {type(value).__name__}", kind="schema")
    if len(value) > MAX_BLOCK_ITERATIONS:
        raise TemplateError(
            f"the loop of a block is limited to {MAX_BLOCK_ITERATIONS:,} elements, this one has {len(value):,}; "
            "use a loop of the step instead",
            kind="limit",
        )
    return value


def _collected(loop: BlockLoop) -> Outcome:
    """The outcome of a loop: the data of the iterations in order, and the same counts as for a step's loop."""
    failures = [
        listed_failure(index, loop.items[index], each.error)
        for index, each in enumerate(loop.outputs)
        if each.error is not None
    ]
    counts: dict[str, Any] = {
        "total": len(loop.items),
        "succeeded": len(loop.outputs) - len(failures) - loop.skipped,
        "failed": len(failures),
        "skipped": len(loop.items) - len(loop.outputs) + loop.skipped,
    }
    if failures:
        counts["failures"] = failures[:MAX_FAILURES_LISTED]
    if len(failures) > MAX_FAILURES_LISTED:
        counts["failures_omitted"] = len(failures) - MAX_FAILURES_LISTED
    return ok([_element(each) for each in loop.outputs], loop=counts)


def _element(outcome: Outcome) -> Any:
    if outcome.status == "error":
        return None
    return plain(outcome.ref) if outcome.ref is not None and outcome.data is None else outcome.data


def recorded_of(level: Level, outcome: Outcome) -> Outcome:
    """The outcome as written to the log: large data by reference."""
    if level.ended == "failed":
        return outcome if level.failing is None else replace(level.failing.recorded, status="error", error=level.error)
    return level.last.recorded if level.last else outcome


Marks = tuple[Literal["done", "failed"] | None, dict[str, Any], list[tuple[BlockLoop, int, int, int]]]


def _loop_marks(level: Level) -> Marks:
    loops = [(loop, loop.index, len(loop.outputs), loop.skipped) for loop in level.loops]
    return level.ended, level.scratch, loops


def _loop_restore(frame: Frame, level: Level, marks: Marks) -> None:
    """Restore the loops before an evaluation is repeated."""
    level.ended, scratch, loops = marks
    level.loops = []
    for loop, index, outputs, skipped in loops:
        loop.index = index
        loop.skipped = skipped
        del loop.outputs[outputs:]
        level.loops.append(loop)
    block_iteration(frame, level)
    level.write_iter(scratch)
    show(frame, level)
