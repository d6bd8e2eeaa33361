"""The rules for references in `set` (003 section 9), for values that are known only at run time.

A target that ends in `_ref` receives a reference object (or null, or a list of these); no other target
receives one, neither as the whole value nor inside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.templates.lookup import is_reference


def broken_rule(key: str, value: Any, literal: Any = None) -> str | None:
    """Why this value must not be assigned to a name; None if it may be.

    `literal` is the uncompiled value: the names of a mapping that the author wrote follow the same rules."""
    if key.endswith(("_ref", "_refs")):
        if _all_references(value):
            return None
        wanted = "must receive a reference object such as {{ output.ref }}"
        return f'"{key}" ends in _ref and {wanted}, not {_shape(value)}'
    if isinstance(literal, Mapping) and isinstance(value, Mapping) and not is_reference(value):
        found = (broken_rule(str(name), value[name], below) for name, below in literal.items() if name in value)
        return next((each for each in found if each is not None), None)
    place = _reference_inside(value, key)
    if place is None:
        return None
    return (
        f'an unresolved reference can only be assigned to a name that ends in _ref ("{place}_ref"); '
        "for the payload itself use {{ output.data }} or `kind: resolve`"
    )


def _reference_inside(value: Any, key: str) -> str | None:
    """The name under which a value has a reference, unless that name ends in `_ref`."""
    if isinstance(value, Mapping):
        if is_reference(value):
            return key
        for name, below in value.items():
            if not str(name).endswith(("_ref", "_refs")):
                found = _reference_inside(below, str(name))
                if found is not None:
                    return found
    elif isinstance(value, list):
        for below in value:
            found = _reference_inside(below, key)
            if found is not None:
                return found
    return None


def _all_references(value: Any) -> bool:
    if isinstance(value, list):
        return all(each is None or is_reference(each) for each in value)
    return value is None or is_reference(value)


def _shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping of another shape"
    if isinstance(value, list):
        return "a list of other values"
    return f"{type(value).__name__} {str(value)[:40]!r}"
