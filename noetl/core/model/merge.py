"""Deep merge: the rule by which workloads, payloads and specs are merged.

Scalars: the inner one wins. Mappings: merged key by key. Lists: replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core.model.reference import is_stored


def deep_merge(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `inner` over `outer`; neither is changed."""
    merged = dict(outer)
    for key, value in inner.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and not is_stored(below) and not is_stored(value):
            merged[key] = deep_merge(below, value)
        else:
            merged[key] = value
    return merged


def put_path(target: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of `target` in which `path` holds `value`; mappings along the path are created or copied."""
    changed = dict(target)
    head, rest = path[0], path[1:]
    if rest:
        below = changed.get(head)
        changed[head] = put_path(below if isinstance(below, Mapping) else {}, rest, value)
    else:
        changed[head] = value
    return changed


def has_path(target: Any, path: Sequence[str]) -> bool:
    """Whether mappings along the path hold a value."""
    for key in path:
        if not isinstance(target, Mapping) or key not in target:
            return False
        target = target[key]
    return True


def without_path(target: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """A copy of `target` without the value at `path`; unchanged if there is none."""
    if not has_path(target, path):
        return dict(target)
    rest = {key: value for key, value in target.items() if key != path[0]}
    return {**rest, path[0]: without_path(target[path[0]], path[1:])} if len(path) > 1 else rest


def add_write(writes: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Add a write by dotted path after the earlier ones; those to the same place or below it are superseded."""
    dotted = ".".join(path)
    for earlier in [key for key in writes if key == dotted or key.startswith(f"{dotted}.")]:
        del writes[earlier]
    writes[dotted] = value
