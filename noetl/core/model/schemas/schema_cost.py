"""How much work it is to check a value against a JSON Schema, counted before it is done.

Schemas may apply others several times to one value (`allOf` of two references to a schema that does the same): a schema
of thirty lines can have a thousand million branches. A validator traverses them all, and with `anyOf` it keeps a
message for each. So a server counts the pairs of a schema and a value that would be visited; each pair is counted once
and multiplied by its uses, so that counting is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

MOST_STEPS = 100_000  # pairs of a schema and a value: a part of a second
_DIVISION = 50  # steps of `multipleOf`, which calculates with many digits
_IN_PLACE = ("not", "if", "then", "else")
_LISTS = ("allOf", "anyOf", "oneOf")
_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_ELEMENTS = ("items", "additionalItems", "unevaluatedItems", "contains")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor", "$id")


def is_affordable(schema: Any, value: Any, most: int = MOST_STEPS) -> bool:
    """Whether checking a value needs at most so many steps."""
    try:
        return _Count(schema, most).steps(schema, value) <= most
    except (RecursionError, _TooMany):
        return False


class _TooMany(Exception):
    pass


class _Count:
    def __init__(self, root: Any, most: int) -> None:
        self._root = root
        self._most = most
        self._known: dict[tuple[int, int], int] = {}
        self._kept: list[Any] = []  # their ids stay unique
        self._resources = [root]
        self._anchors: dict[str, list[Any]] = {}
        for each in _mappings(root):
            if "$id" in each and each is not root:
                self._resources.append(each)
            for name in _ANCHORS:
                if name in each:
                    self._anchors.setdefault(str(each[name]).rpartition("#")[2], []).append(each)

    def steps(self, schema: Any, value: Any) -> int:
        """The pairs that are visited for a schema and a value."""
        if not isinstance(schema, Mapping):
            return 1
        key = id(schema), id(value)
        if key not in self._known:
            self._known[key] = 1  # while it is counted: a schema that refers to itself for the same value
            self._kept += (schema, value)
            total = 1 + len(schema) + self._own(schema, value) + self._in_place(schema, value)
            if isinstance(value, Mapping):
                total += self._members(schema, value)
            elif isinstance(value, list | tuple):
                total += self._elements(schema, value)
            if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
                total *= 2  # what was evaluated is evaluated again
            if total > self._most:
                raise _TooMany
            self._known[key] = total
        return self._known[key]

    def _own(self, schema: Mapping[str, Any], value: Any) -> int:
        total = sum(_size(schema[name], self._most) for name in ("enum", "const") if name in schema)
        if isinstance(value, str):
            total += len(value) >> 4
        return total + (_DIVISION if "multipleOf" in schema else 0)

    def _in_place(self, schema: Mapping[str, Any], value: Any) -> int:
        parts = [schema[name] for name in _IN_PLACE if name in schema]
        parts += [each for name in _LISTS if isinstance(schema.get(name), list | tuple) for each in schema[name]]
        for name in ("dependentSchemas", "dependencies"):
            if isinstance(schema.get(name), Mapping):
                parts += schema[name].values()
        total = sum(self.steps(each, value) for each in parts)
        for name in _REFERENCES:
            if name in schema:
                total += max((self.steps(each, value) for each in self._targets(str(schema[name]))), default=1)
        return total

    def _members(self, schema: Mapping[str, Any], value: Mapping[str, Any]) -> int:
        named = schema.get("properties")
        total = len(value)
        if isinstance(named, Mapping):
            total += sum(self.steps(named[name], value[name]) for name in value if name in named)
        rest = [schema[name] for name in _MEMBERS if name in schema]
        if isinstance(schema.get("patternProperties"), Mapping):
            rest += schema["patternProperties"].values()
        total += sum(self.steps(each, member) for each in rest for member in value.values())
        if "propertyNames" in schema:
            total += sum(self.steps(schema["propertyNames"], name) for name in value)
        return total

    def _elements(self, schema: Mapping[str, Any], value: Any) -> int:
        total = len(value)
        for name in ("prefixItems", "items"):
            if isinstance(schema.get(name), list | tuple):
                total += sum(self.steps(*pair) for pair in zip(schema[name], value, strict=False))
        whole = [schema[name] for name in _ELEMENTS if isinstance(schema.get(name), Mapping)]
        return total + sum(self.steps(each, element) for each in whole for element in value)

    def _targets(self, reference: str) -> list[Any]:
        """The schemas that a reference may name: a document may have several resources (`$id`)."""
        place = reference.partition("#")[2]
        if place.startswith("/"):
            return [found for each in self._resources if (found := _part(each, place)) is not None]
        return self._anchors.get(place, []) if place else self._resources


def _part(value: Any, place: str) -> Any:
    """The part of a schema at a JSON pointer; None if it has none."""
    for part in unquote(place).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """All mappings in data."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            yield each
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each


def _size(value: Any, most: int) -> int:
    """The number of values in data, nested ones included."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        total += 1
        if total > most:
            raise _TooMany
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
    return total
