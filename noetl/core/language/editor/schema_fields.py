"""Completion of the fields of results that have a schema: `{{ fetch.data.` offers the properties.

The schema is inline, or registered: `schemas` has the registered ones by reference (`orders`, `orders/v2`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from noetl.core.language.source.nodes import data_of
from noetl.core.language.source.yaml_source import read_source

_SCHEMA_WORDS = re.compile(r"\b(validation|schema)\b")


class Completion(NamedTuple):
    """A valid key or value, and its line of documentation."""

    word: str
    doc: str
    is_value: bool = False


def may_name_schemas(text: str) -> bool:
    """Whether registered schemas can matter for completion in a text; if not, they need not be read."""
    return _SCHEMA_WORDS.search(text) is not None


def schema_references(text: str, line: int) -> set[str]:
    """The registered schemas that steps and tasks of a text name for their output; `line` is the line that is typed."""
    found: set[str] = set()
    for step in _steps(text.split("\n"), line):
        tasks = step.get("tool")
        for owner in (step, *(tasks if isinstance(tasks, list) else (tasks,))):
            declared = _declared(owner)
            if isinstance(declared, str):
                found.add(declared)
    return found


def schema_fields(path: list[str], lines: list[str], line: int, schemas: Mapping[str, Any]) -> Iterator[Completion]:
    """The properties below a dotted path that starts with the name of a step, by its output schema."""
    name, *rest = path[1:] if path[:1] == ["steps"] else path
    schema = _schema_of(name, lines, line)
    if isinstance(schema, str):
        schema = schemas.get(schema)
    if schema is None:
        return
    if rest[:1] == ["data"]:
        rest = rest[1:]
    elif not rest:
        yield Completion("data", "The payload.", True)
    for key in rest:
        schema = _below(schema, key)
    for key, each in _properties(schema).items():
        kind = each.get("type", "") if isinstance(each, dict) else ""
        doc = each.get("description", "") if isinstance(each, dict) else ""
        yield Completion(key, doc or (kind if isinstance(kind, str) else " or ".join(map(str, kind))), True)


def _steps(lines: list[str], line: int) -> Iterator[dict[str, Any]]:
    """The steps of a text without the line that is typed, which may not be valid."""
    text = "\n".join(each for number, each in enumerate(lines, start=1) if number != line)
    root = read_source(text).root
    document = data_of(root) if root is not None else None
    workflow = document.get("workflow") if isinstance(document, dict) else None
    for step in workflow if isinstance(workflow, list) else ():
        if isinstance(step, dict):
            yield step


def _schema_of(name: str, lines: list[str], line: int) -> Any:
    """The output schema of a step, or the reference of a registered one: its own, or that of its last task."""
    for step in _steps(lines, line):
        if step.get("step") == name:
            tasks = step.get("tool")
            last = tasks[-1] if isinstance(tasks, list) and tasks else tasks
            return _declared(step) or _declared(last)
    return None


def _declared(owner: Any) -> Any:
    for path in (("output", "schema"), ("spec", "validation", "output")):
        found = owner
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict | str):
            return found
    return None


def _below(schema: Any, key: str) -> Any:
    """The schema of a property, or of an element of a list."""
    if not isinstance(schema, dict):
        return None
    return schema.get("items") if key.isdigit() else _properties(schema).get(key)


def _properties(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}
