"""`set`: write evaluated values to `ctx`, `step` and `iter`, in written order.

Each assignment sees the values written by the ones before it. A write to `ctx` is visible to this run
at once; the server receives it with the task's event. The reference rules (003 section 9) are checked
here for values that are known only at run time: a target that ends in `_ref` receives a reference
object (or null), any other target never receives an unresolved one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.core.model.merge import add_write, put_path
from noetl.core.model.playbook import STATE_KEY
from noetl.core.pipeline.error_locations import MISSING_DATA, located
from noetl.core.pipeline.frame import Frame, Level
from noetl.core.pipeline.program import CompiledAssignment
from noetl.core.pipeline.scopes import show_ctx
from noetl.core.templates.reference_rules import broken_rule
from noetl.core.templates.views import StoredView
from noetl.errors import TemplateError

Patch = dict[str, dict[str, Any]]

# `ctx` is for small shared state: every value is stored in the log and in the server's memory.
MAX_CTX_VALUE = 1024 * 1024

_encode = msgspec.json.Encoder().encode


def assign(
    frame: Frame,
    level: Level,
    assignments: tuple[CompiledAssignment, ...],
    patch: Patch,
    unset: dict[str, TemplateError] | None = None,
) -> None:
    """Evaluate and apply assignments; their writes are added to `patch` (scope -> dotted path -> value).

    With `unset` (after an error) a target whose value cannot be evaluated is left unset and listed there:
    a failed task has no data, and its own error must not be hidden."""
    for assignment in assignments:
        try:
            value = _evaluate(frame, level, assignment)
        except MISSING_DATA:
            raise
        except TemplateError as problem:
            if unset is None:
                raise
            unset[assignment.target] = problem
            continue
        _write(frame, level, assignment, value)
        add_write(patch.setdefault(assignment.scope, {}), assignment.keys, value)


def remember(frame: Frame, level: Level, values: Mapping[str, Any], patch: Patch) -> None:
    """Write what a tool remembers for the next execution to `state.<step>.<task>`."""
    own = (STATE_KEY + frame.order.context.step, level.label(level.task))
    for name, value in values.items():
        _write_ctx(frame, (*own, name), value)
        add_write(patch.setdefault("ctx", {}), (*own, name), value)


def own_state(frame: Frame, level: Level) -> Mapping[str, Any]:
    """What the tool of the current task has remembered."""
    value: Any = frame.ctx.get(STATE_KEY + frame.order.context.step)
    value = value.value() if isinstance(value, StoredView) else value
    own = value.get(level.label(level.task)) if isinstance(value, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def state_writers(frame: Frame, level: Level) -> tuple[str, ...]:
    """The executions whose writes to what the tool of the current task has remembered are not committed."""
    whole = STATE_KEY + frame.order.context.step
    own = f"{whole}.{level.label(level.task)}."
    if any(key == whole or key.startswith(own) for key in frame.written):
        return frame.order.state_writers or (frame.order.context.execution_id,)
    return frame.order.state_writers


def _evaluate(frame: Frame, level: Level, assignment: CompiledAssignment) -> Any:
    playbook = frame.playbook
    try:
        if assignment.reads_secret:
            raise TemplateError("a secret cannot be assigned to a scope")
        value = frame.evaluate(level, assignment.value)
        broken = broken_rule(assignment.keys[-1], value, assignment.literal)
        if broken is not None:
            raise TemplateError(broken, kind="schema")
        if assignment.scope == "ctx" and not assignment.value.static:
            _check_size(value)
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        problem.message = f"set {assignment.target}: {problem.message}"
        raise located(playbook, problem, assignment.path) from None
    return value


def _check_size(value: Any) -> None:
    size = len(_encode(value))
    if size > MAX_CTX_VALUE:
        raise TemplateError(
            f"the value has {size:,} bytes, the limit of `ctx` is {MAX_CTX_VALUE:,}; assign a large payload "
            "by reference (`..._ref: {{ output.ref }}`) and read it with `kind: resolve`",
            kind="limit",
        )


def _write(frame: Frame, level: Level, assignment: CompiledAssignment, value: Any) -> None:
    keys = assignment.keys
    if assignment.scope == "ctx":
        _write_ctx(frame, keys, value)
    elif assignment.scope == "step":
        level.step = put_path(level.step, keys, value)
        level.names["step"] = level.step
    elif assignment.scope == "iter":
        owner = frame.iter_owner(level)
        owner.write_iter(put_path(_scratch_below(owner, keys), keys, value))
        for each in frame.levels[frame.levels.index(owner) : frame.levels.index(level) + 1]:
            each.iter = owner.iter
            each.names["iter"] = owner.iter
    else:
        raise located(frame.playbook, TemplateError(f"a task cannot set {assignment.scope}.*"), assignment.path)


def _write_ctx(frame: Frame, keys: tuple[str, ...], value: Any) -> None:
    stored = frame.ctx.get(keys[0])
    if len(keys) > 1 and isinstance(stored, StoredView):
        frame.ctx = {**frame.ctx, keys[0]: stored.value()}
    frame.ctx = put_path(frame.ctx, keys, value)
    frame.written = dict(frame.written)
    # Another lease has only the marker of a stored value, so a write below it is remembered as the whole value.
    whole = isinstance(stored, StoredView)
    add_write(frame.written, keys[:1] if whole else keys, frame.ctx[keys[0]] if whole else value)
    for each in frame.levels:
        show_ctx(frame.shared, each, frame.ctx, keys[:1])


def _scratch_below(owner: Level, keys: tuple[str, ...]) -> dict[str, Any]:
    """The writes so far; a nested write to the loop's element starts from that element."""
    head = keys[0]
    if head not in owner.scratch and isinstance(owner.iter_base.get(head), Mapping):
        return {**owner.scratch, head: owner.iter_base[head]}
    return owner.scratch


def snapshot(frame: Frame, level: Level) -> tuple[Any, ...]:
    """The current scopes, to be restored if an evaluation is repeated."""
    owner = frame.iter_owner(level)
    return frame.ctx, frame.written, level.step, owner.scratch, frame.nondeterminism.mark()


def restore(frame: Frame, level: Level, before: tuple[Any, ...]) -> None:
    """Restore the scopes of `snapshot`."""
    ctx, frame.written, level.step, scratch, mark = before
    frame.nondeterminism.rewind(mark)
    owner = frame.iter_owner(level)
    owner.write_iter(scratch)
    for each in frame.levels[frame.levels.index(owner) :]:
        each.iter = owner.iter
        each.names["iter"] = owner.iter
    level.names["step"] = level.step
    if frame.ctx is not ctx:
        changed = [key for key in frame.ctx if frame.ctx[key] is not ctx.get(key)]
        frame.ctx = ctx
        for each in frame.levels:
            show_ctx(frame.shared, each, ctx, changed)
