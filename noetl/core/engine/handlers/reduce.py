"""Reducers: how the writes of a loop's iterations to `ctx` and `step` become one value, in index order.

Every reducer is associative, so the parts of adjacent index ranges can be joined as they complete:
nothing is stored per iteration. An iteration contributes the last value that it wrote; a failed
one contributes nothing. The value in `ctx` before the loop is the initial value.

Joining never fails, since it happens while a log is folded: a contribution of the wrong type is
rejected when it is reported (`mismatch`), which fails its iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.model.events import TaskDone
from noetl.core.model.merge import deep_merge
from noetl.core.model.playbook import STEP_KEY, Reducer


def shared_writes(event: TaskDone) -> dict[str, Any]:
    """What a task of an iteration wrote to the scopes that iterations share: path below ctx, or `step:` path -> value.

    The `step` of a called block is its own, and is not shared."""
    writes = event.patch.get("ctx") or {}
    own = event.patch.get("step")
    if not own or "/" in event.task:
        return writes
    return {**writes, **{f"{STEP_KEY}{path}": value for path, value in own.items()}}


def mismatch(reducer: Reducer, value: Any) -> str | None:
    """Why a reducer does not accept this value; None if it does."""
    if reducer == "sum" and (isinstance(value, bool) or not isinstance(value, int | float)):
        return f"`sum` requires a number, not {_kind(value)}"
    if reducer in ("min", "max") and (isinstance(value, bool) or not isinstance(value, int | float | str)):
        return f"`{reducer}` requires a number or a string, not {_kind(value)}"
    if reducer == "extend" and not isinstance(value, list | tuple):
        return f"`extend` requires a list, not {_kind(value)}"
    if reducer == "merge" and not isinstance(value, Mapping):
        return f"`merge` requires a mapping, not {_kind(value)}"
    return None


def part(reducer: Reducer, value: Any) -> Any:
    """The contribution of one iteration's value."""
    if reducer == "count":
        return 1
    if reducer == "append":
        return [value]
    if reducer == "extend":
        return list(value)
    if reducer in ("any", "all"):
        return bool(value)
    return value


def join(reducer: Reducer, left: Any, right: Any) -> Any:
    """The reduction of two adjacent ranges; `left` may be changed."""
    if reducer in ("sum", "count"):
        return left + right
    if reducer in ("append", "extend"):
        left.extend(right)
        return left
    if reducer == "merge":
        return deep_merge(left, right)
    if reducer == "any":
        return left or right
    if reducer == "all":
        return left and right
    if reducer == "last":
        return right
    first, second = _rank(left), _rank(right)
    if reducer == "min":
        return right if second < first else left
    return right if second > first else left


def start(reducer: Reducer, value: Any) -> tuple[Any, str | None]:
    """The initial value as a reduction, or why it cannot be one."""
    if reducer in ("append", "extend"):
        return (list(value), None) if isinstance(value, list | tuple) else (None, f"it is {_kind(value)}, not a list")
    if reducer == "count":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return (value, None) if number else (None, f"it is {_kind(value)}, not a number")
    why = mismatch(reducer, value)
    return (None, why) if why else (part(reducer, value), None)


def _rank(value: Any) -> tuple[bool, Any]:
    """Sort key: numbers before strings, so that mixed values have an order."""
    return isinstance(value, str), value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else type(value).__name__
