"""Whether a new version of a JSON Schema accepts everything that the old version accepts (backward compatibility).

The comparison is structural and conservative: a keyword that it cannot compare must be unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_FIXED = ("pattern", "format", "const", "multipleOf", "uniqueItems")  # may be removed, but not added or changed
_ANNOTATIONS = frozenset(
    ("$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
)
_COMPARED = _ANNOTATIONS | {"type", "enum", "required", "properties", "additionalProperties", "items"}
_COMPARED |= {*_LOWER_BOUNDS, *_UPPER_BOUNDS, *_FIXED}
_ALL_TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))


def incompatibilities(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Why values that fit `old` may not fit `new`, as `path: reason`."""
    if new is True or old is False or old == new:
        return
    if new is False or not isinstance(new, Mapping):
        yield _at(path, "no value is accepted any more")
        return
    old = old if isinstance(old, Mapping) else {}
    yield from _types(old, new, path)
    yield from _values(old, new, path)
    yield from _objects(old, new, path)
    if "items" in new:
        yield from incompatibilities(old.get("items", True), new["items"], f"{path}[]")
    for key in sorted({*old, *new} - _COMPARED):
        if key in new and old.get(key) != new[key]:
            yield _at(path, f"`{key}` was added or changed, which cannot be compared")


def _at(path: str, reason: str) -> str:
    return f"{path}: {reason}" if path else reason


def _type_set(schema: Mapping[str, Any]) -> frozenset[str]:
    found = schema.get("type")
    if found is None:
        return _ALL_TYPES
    return frozenset([found] if isinstance(found, str) else found)


def _types(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    allowed = _type_set(new)
    if "number" in allowed:
        allowed |= {"integer"}
    gone = _type_set(old) - allowed
    if gone:
        yield _at(path, f"the type {', '.join(sorted(gone))} is not accepted any more")


def _values(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    if "enum" in new:
        before = old.get("enum", [old["const"]] if "const" in old else None)
        gone = None if before is None else [value for value in before if value not in new["enum"]]
        if gone is None:
            yield _at(path, "`enum` was added")
        elif gone:
            yield _at(path, f"{', '.join(map(repr, gone))} is not accepted any more")
    for key in _LOWER_BOUNDS:
        if key in new and (key not in old or new[key] > old[key]):
            yield _at(path, f"`{key}` was added or raised")
    for key in _UPPER_BOUNDS:
        if key in new and (key not in old or new[key] < old[key]):
            yield _at(path, f"`{key}` was added or lowered")
    for key in _FIXED:
        if key in new and new[key] is not False and old.get(key) != new[key]:
            yield _at(path, f"`{key}` was added or changed")


def _objects(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    added = [name for name in new.get("required", ()) if name not in old.get("required", ())]
    for name in added:
        yield _at(_below(path, name), "is required now")
    before, after = old.get("properties", {}), new.get("properties", {})
    for name, schema in before.items():
        if name in after:
            yield from incompatibilities(schema, after[name], _below(path, name))
        elif new.get("additionalProperties") is False:
            yield _at(_below(path, name), "is not accepted any more")
    others, now = old.get("additionalProperties", True), new.get("additionalProperties", True)
    if others is not False:
        yield from incompatibilities(others, now, _below(path, "*"))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
