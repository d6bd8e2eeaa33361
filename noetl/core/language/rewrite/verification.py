"""Whether a rewritten text means the same as its source: its data, its comments, its model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from noetl.core.language.compile import Compilation
from noetl.core.language.rewrite.concrete_syntax import Unsupported, parse
from noetl.core.language.source.nodes import data_of
from noetl.core.language.source.yaml_source import read_source

# Fields of the model that tell where something is written.
_PLACES = frozenset({"locations", "digest", "surface", "file"})


def has_same_data(before: str, after: str) -> bool:
    """Whether two texts are the same YAML data."""
    return before == after or _data(before) == _data(after)


def _data(text: str) -> tuple[str, list[str]]:
    source = read_source(text)
    return repr(data_of(source.root)), [problem.code for problem in source.problems]


def has_comments(text: str, comments: list[str], *, added: str = "") -> bool:
    """Whether a text has exactly these comments; those that start with `added` are not counted."""
    try:
        found = parse(text).comments
    except Unsupported:
        return False
    return _counted(found, added) == _counted(comments, added)


def _counted(comments: list[str], added: str) -> Counter[str]:
    return Counter(each for each in comments if not added or not each.startswith(f"# {added}"))


def model_of(compiled: Compilation) -> Any:
    """What a playbook means, as plain data without the places of its text; its errors if it does not compile."""
    if compiled.playbook is None:
        return [(one.code, one.message) for one in compiled.diagnostics if one.severity == "error"]
    model = _plain(compiled.playbook, "playbook")
    model["executor"]["spec"].pop("extensions", None)  # it says which dialect is read, not what the playbook does
    return model


def _plain(value: Any, inside: str = "") -> Any:
    if isinstance(value, msgspec.Struct):
        return {
            name: _plain(getattr(value, name))
            for name in value.__struct_fields__
            if name not in _PLACES and (name != "path" or inside == "playbook") and name != "extensions"
        }
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return (type(value).__name__, value) if isinstance(value, bool | int | float) else value


def first_difference(one: Any, other: Any, path: str = "") -> str:
    """The path of the first place where two models differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if one.get(key) != other.get(key):
                return first_difference(one.get(key), other.get(key), f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            if left != right:
                return first_difference(left, right, f"{path}/{number}")
    return path
