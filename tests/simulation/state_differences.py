"""Compares two states of the engine attribute by attribute, without the encoder of snapshots: what that omits is seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

COUNTS = frozenset({"state.leased"})  # the order of its keys has no meaning
# The event of a step's end, or its checksum after a snapshot: two forms of the same information.
SAME = frozenset({"ended", "checksum"})


def differences(one: object, other: object, path: str = "state", seen: set[int] | None = None) -> Iterator[str]:
    """The paths at which two states differ; attributes that begin with an underscore are caches."""
    seen = set() if seen is None else seen
    if one is other or id(one) in seen:
        return
    seen.add(id(one))
    if type(one) is not type(other):
        yield f"{path}: {type(one).__name__} and {type(other).__name__}"
    elif isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other) and (path not in COUNTS or one.keys() != other.keys()):
            yield f"{path}: the keys {list(one)} and {list(other)}"
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{path}[{key!r}]", seen)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{path}: {len(one)} and {len(other)} elements"
        for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from differences(mine, theirs, f"{path}[{index}]", seen)
    elif type(one).__module__.startswith("noetl.core.engine"):
        for name in _attributes(one):
            yield from differences(getattr(one, name), getattr(other, name, None), f"{path}.{name}", seen)
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"


def _attributes(value: Any) -> list[str]:
    names = [*getattr(type(value), "__struct_fields__", ()), *getattr(value, "__dict__", ())]
    for each in type(value).__mro__:
        names += each.__dict__.get("__slots__", ())
    return [name for name in dict.fromkeys(names) if name[0] != "_" and name not in SAME and hasattr(value, name)]
