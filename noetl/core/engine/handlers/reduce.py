"""Reducers: how the ctx writes of a loop's iterations become one value, in index order.

Every reducer is associative, so the parts of index ranges can be joined as the ranges close:
nothing is kept per iteration. An iteration contributes the last value it wrote; one that failed
contributes nothing. What was in `ctx` before the loop is the starting value.

Joining never fails, since it happens while a log is folded: a contribution of the wrong type is
refused when it is reported (`unfit`), which fails its iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.model.merge import deep_merge
from noetl.core.model.playbook import Reducer


def unfit(reducer: Reducer, value: Any) -> str | None:
    """Why a reducer cannot take this value; None when it can."""
    if reducer == "sum" and (isinstance(value, bool) or not isinstance(value, int | float)):
        return f"`sum` needs a number, not {_kind(value)}"
    if reducer in ("min", "max") and (isinstance(value, bool) or not isinstance(value, int | float | str)):
        return f"`{reducer}` needs a number or a text, not {_kind(value)}"
    if reducer == "extend" and not isinstance(value, list | tuple):
        return f"`extend` needs a list, not {_kind(value)}"
    if reducer == "merge" and not isinstance(value, Mapping):
        return f"`merge` needs a mapping, not {_kind(value)}"
    return None


def part(reducer: Reducer, value: Any) -> Any:
    """What one iteration's value contributes."""
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
    """The reduction of two neighbouring ranges; `left` may be changed."""
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
    """The starting value as a reduction of its own, or why it cannot be one."""
    if reducer in ("append", "extend"):
        return (list(value), None) if isinstance(value, list | tuple) else (None, f"it is {_kind(value)}, not a list")
    if reducer == "count":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return (value, None) if number else (None, f"it is {_kind(value)}, not a number")
    why = unfit(reducer, value)
    return (None, why) if why else (part(reducer, value), None)


def _rank(value: Any) -> tuple[bool, Any]:
    """Numbers before texts, so that a mixture has an order too."""
    return isinstance(value, str), value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else type(value).__name__
