"""Whether a value is one that a field of a tool kind accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.model.tool import Field


def number_of(value: Any) -> float | None:
    """A number, also one that is written as text; None for every other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def out_of_range(value: Any, field: Field) -> str | None:
    """What a number must be if it is outside the range of its field; None for other values and fields."""
    number = number_of(value) if field.least is not None or field.most is not None else None
    if number is None:
        return None
    if field.least is not None and not number >= field.least:  # also for nan
        return f"at least {field.least:g}"
    if field.most is not None and number > field.most:
        return f"at most {field.most:g}"
    return None


def rendered_problem(name: str, value: Any, field: Field) -> str | None:
    """What is wrong with the number, or the numbers, that templates have given; None if nothing is."""
    if value is None:
        return None
    if isinstance(value, Mapping) and field.members is not None:
        inside = [(f"{name}.{key}", each, field.members.fields.get(key)) for key, each in value.items()]
        return next((found for n, v, f in inside if f is not None and (found := rendered_problem(n, v, f))), None)
    if isinstance(value, list | tuple) and field.each is not None:
        return next((found for each in value if (found := rendered_problem(name, each, field.each))), None)
    types = set(field.accepts or (field.type,))
    if types <= {"integer", "number"} and number_of(value) is None:
        return f"`{name}` must be a number, not {value!r}"
    wanted = out_of_range(value, field)
    return f"`{name}` must be {wanted}, not {value!r}" if wanted is not None else None
