"""Checks the rendered parameters of plug-ins against the fields that they declare, before the plug-in is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core.model.tool import Field, rendered_problem
from noetl.data.content import reference_in

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "mapping": ((Mapping,), "a mapping"),
    "list": ((list, tuple), "a list"),
    "boolean": ((bool,), "true or false"),
    "string": ((str, int, float), "text"),
}
_SHOWN = 60


def field_problem(
    declared: Mapping[str, Field], given: Mapping[str, Any], requires: Sequence[Sequence[str]] = ()
) -> str | None:
    """What is wrong with the first value that its field does not accept; None if nothing is.

    A required field can be missing after all: its template was rendered to null. Of each group in `requires` one field
    must be there."""
    found = {
        name: next((each for each in (name, *field.aliases) if given.get(each) is not None), None)
        for name, field in declared.items()
    }
    for name, field in declared.items():
        spelled = found[name]
        if spelled is None:
            if field.required:
                return f"`{name}` is required, and has no value"
        elif not field.late:
            problem = _problem(spelled, given[spelled], field)
            if problem is not None:
                return problem
    for group in requires:
        if all(name in found and found[name] is None for name in group):
            return f"{' or '.join(f'`{name}`' for name in group)} is required, and has no value"
    return None


def _problem(name: str, value: Any, field: Field) -> str | None:
    types = set(field.accepts or (field.type,))
    if isinstance(value, str) and not value.strip() and "string" not in types:
        return None  # empty: as if it were not given
    number = rendered_problem(name, value, field)
    if number is not None:
        return number
    known = [_TYPES[each] for each in types if each in _TYPES]
    if len(known) == len(types) and not isinstance(value, tuple(one for each in known for one in each[0])):
        if isinstance(value, Mapping) and reference_in(value) is not None:
            return None  # a stored result
        return f"`{name}` must be {' or '.join(sorted(text for _, text in known))}, not {_shown(value)}"
    if field.choices and isinstance(value, str) and value.strip():
        known_words = {each.lower() for each in (*field.choices, *field.also)}
        accepted = value.strip().lower() in known_words
        return None if accepted else f"`{name}` must be one of {', '.join(field.choices)}, not {_shown(value)}"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, str | int | float | bool):
        text = repr(value)
        return text if len(text) <= _SHOWN else f"a text of {len(text):,} characters"
    return {"dict": "a mapping", "list": "a list"}.get(type(value).__name__, type(value).__name__)
