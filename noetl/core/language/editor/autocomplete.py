"""Completion: the keys and values that are valid at a position of a text.

The text need not be valid: the position is determined by indentation alone, and the grammar defines what is valid
there. Values with few choices, step names in arcs, tool kinds and registered schemas are offered too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from noetl.core.language.editor.line_structure import (
    key_column,
    mapping_lines,
    named_entries,
    parents_of,
    parse_line,
    steps,
    tasks_of_step,
)
from noetl.core.language.editor.schema_fields import Completion
from noetl.core.language.editor.template_completion import complete_template
from noetl.core.language.syntax.grammar import KEYCHAIN_KINDS, SHAPES, Key
from noetl.core.model.tool import ToolSpec

_NO_SCHEMAS: Mapping[str, Any] = MappingProxyType({})
_SCHEMA_KEYS = {("validation", "input"), ("validation", "output"), ("output", "schema")}


def complete(
    text: str,
    line: int,
    column: int,
    specs: Mapping[str, ToolSpec],
    schemas: Mapping[str, Any] = _NO_SCHEMAS,
) -> tuple[int, list[Completion]]:
    """The completions at line and column, and the column at which the typed text starts (all from 1).

    `schemas` has the registered JSON Schemas by reference (`orders`, `orders/v2`).
    """
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return column, []
    current = lines[line - 1][: column - 1]
    here = parse_line(current)
    if current.rfind("{{") > current.rfind("}}"):
        typed, offered = complete_template(current, lines, line, schemas)
    elif (flow := flow_at(lines, line, current)) is not None:
        typed = flow.typed
        spec = specs.get(flow.given.get("kind", ""))
        offered = _flow_keys(flow, specs)
        if flow.key:
            path = [*flow.path, flow.key]
            offered = [*_schemas(path, schemas), *_values(path, lines, line, spec, specs)]
    elif here.key is not None and ":" in current:
        path = [*parents_of([parse_line(each) for each in lines[: line - 1]], key_column(here)), here.key]
        position = KeyPosition(here.key, key_column(here), tuple(path[:-1]), line - 1)
        values = _values(path, lines, line, fields_at("task", position, lines, specs)[0], specs)
        offered = [*_schemas(path, schemas), *values]
        typed = here.value
    else:
        depth = here.dashes[-1] + 2 if here.dashes else len(current) - len(current.lstrip(" "))
        path = parents_of([parse_line(each) for each in lines[: line - 1]], depth)
        taken = _siblings(lines, line - 1, depth)
        offered = [word for word in _keys(path, lines, line - 1, depth, specs) if word.word not in taken]
        typed = current.strip().removeprefix("- ").strip()
        typed = "" if typed == "-" else typed
    return column - len(typed), [word for word in offered if word.word.startswith(typed)]


class FlowContext(NamedTuple):
    """A position inside `{...}` on one line: the enclosing keys, the entries before it, and the typed text."""

    path: list[str]
    given: dict[str, str]  # the entries before it in the same braces
    key: str | None  # the key whose value is typed; None: a key is typed
    typed: str


_OPAQUE = re.compile(r"""\{\{.*?\}\}|"[^"]*"|'[^']*'""")
_PENDING = re.compile(r"([\w.<-]+):\s*$")
_ENTRY = re.compile(r"\s*([\w.<-]+):(?:\s+(.*)|$)")


def flow_at(lines: list[str], line: int, current: str) -> FlowContext | None:
    """The braces that are open at the end of `current`, which is the start of a line (from 1)."""
    plain = _OPAQUE.sub(lambda found: "x" * len(found[0]), current)
    open_frames: list[tuple[str | None, str, dict[str, str]]] = []  # key before it, brace, entries
    token = ""
    for character in plain:
        if character in "{[":
            pending = _PENDING.search(token)
            open_frames.append((pending[1] if pending else None, character, {}))
        elif character in "}]":
            if not open_frames:
                return None
            open_frames.pop()
        elif character == ",":
            entry = _ENTRY.fullmatch(token)
            if open_frames and entry:
                open_frames[-1][2][entry[1]] = (entry[2] or "").strip()
        else:
            token += character
            continue
        token = ""
    if not open_frames or open_frames[-1][1] != "{":
        return None
    around = parents_of([parse_line(each) for each in lines[: line - 1]], key_column(parse_line(current)))
    path = [*around, *(key for key, _, _ in open_frames if key is not None)]
    entry = _ENTRY.fullmatch(token)
    if entry:
        return FlowContext(path, open_frames[-1][2], entry[1], (entry[2] or "").strip())
    return FlowContext(path, open_frames[-1][2], None, token.strip())


def _flow_keys(flow: FlowContext, specs: Mapping[str, ToolSpec]) -> list[Completion]:
    inside_input = flow.path[-1:] == ["input"]
    shape = shape_at(flow.path)
    if inside_input or shape is None or shape not in SHAPES:
        return []
    completions = _key_completions(shape, *fields_of(shape, flow.given.get("kind", ""), specs))
    return [word for word in completions if word.word not in flow.given]


class KeyPosition(NamedTuple):
    """The position of a key: its column (from 0), the enclosing keys, and its line (from 0)."""

    key: str
    column: int
    parents: tuple[str, ...]
    row: int


def key_at(lines: list[str], line: int) -> KeyPosition | None:
    """The key at the start of a line (from 1)."""
    here = parse_line(lines[line - 1])
    if here.key is None:
        return None
    depth = key_column(here)
    before = [parse_line(each) for each in lines[: line - 1]]
    return KeyPosition(here.key, depth, tuple(parents_of(before, depth)), line - 1)


def fields_at(
    shape: str, position: KeyPosition, lines: list[str], specs: Mapping[str, ToolSpec]
) -> tuple[ToolSpec | None, Mapping[str, Key]]:
    """The fields that the `kind` of the same mapping (or of the one that contains `input`) adds to its shape."""
    row, depth = position.row, position.column
    if position.parents[-1:] == ("input",):
        row = next(
            row
            for row in range(row, -1, -1)
            if parse_line(lines[row]).key == "input" and _line_depth(lines[row]) < depth
        )
        depth = _line_depth(lines[row])
    return fields_of(shape, _value_of(lines, row, depth, "kind"), specs)


def fields_of(shape: str, kind: str, specs: Mapping[str, ToolSpec]) -> tuple[ToolSpec | None, Mapping[str, Key]]:
    """The fields that a kind adds to its shape: those of a tool or of a keychain entry."""
    return (specs.get(kind) if shape == "task" else None, KEYCHAIN_KINDS.get(kind, {}) if shape == "keychain" else {})


def _line_depth(line: str) -> int:
    return key_column(parse_line(line))


def _siblings(lines: list[str], row: int, depth: int) -> set[str]:
    return {line.key for line in mapping_lines(lines, row, depth) if line.key is not None}


def _value_of(lines: list[str], row: int, depth: int, key: str) -> str:
    return next((line.value for line in mapping_lines(lines, row, depth) if line.key == key), "")


# --- the grammar at a path ----------------------------------------------------------------------


def shape_at(path: list[str]) -> str | None:
    """The shape of the mapping below this path."""
    shape: str | None = "playbook"
    for key in path:
        shape = _below(shape, key)
        if shape is None:
            return None
    return shape


def _below(shape: str | None, key: str) -> str | None:
    if shape is None:
        return None
    if shape == "blocks":
        return "block"
    known = SHAPES[shape].keys.get(key) if shape in SHAPES else None
    if known is None:
        return None
    if known.shape:
        return known.shape
    if known.type == "tasks":
        return "task"
    if known.type == "blocks":
        return "blocks"
    return shape if known.type == "else" else None


def _keys(path: list[str], lines: list[str], row: int, depth: int, specs: Mapping[str, ToolSpec]) -> list[Completion]:
    inside_input = path[-1:] == ["input"]
    shape = shape_at(path[:-1] if inside_input else path)
    if shape is None or shape not in SHAPES or (inside_input and shape != "task"):
        return []
    spec, entry = fields_at(shape, KeyPosition("", depth, tuple(path), row), lines, specs)
    return _key_completions("" if inside_input else shape, spec, entry)


def _key_completions(shape: str, spec: ToolSpec | None, entry: Mapping[str, Key]) -> list[Completion]:
    """The keys of a shape, and those that its kind adds."""
    keys = SHAPES[shape].keys if shape else {}
    completions = [Completion(key, known.doc) for key, known in keys.items() if known.state == "canonical"]
    if spec is not None:
        completions += [Completion(name, field.doc) for name, field in spec.fields.items() if name not in keys]
    return completions + [Completion(key, known.doc) for key, known in entry.items() if known.state == "canonical"]


def _values(
    path: list[str], lines: list[str], line: int, spec: ToolSpec | None, specs: Mapping[str, ToolSpec]
) -> Iterator[Completion]:
    """The values of a key; `spec` is that of the kind beside it."""
    *parents, key = path
    inside_input = parents[-1:] == ["input"]
    shape = shape_at(parents[:-1] if inside_input else parents)
    if shape is None or shape not in SHAPES or (inside_input and shape != "task"):
        return
    known: Key | None = None if inside_input else SHAPES[shape].keys.get(key)
    if shape == "task" and key == "kind":
        for name, each in sorted(specs.items()):
            if name == each.kind:
                yield Completion(name, each.doc, True)
    elif shape == "keychain" and key == "kind":
        yield from (Completion(name, "", True) for name in KEYCHAIN_KINDS)
    elif (shape == "arc" and key == "step") or (known is not None and key in ("entry_step", "return_step")):
        yield from (Completion(step, "", True) for step in steps(lines))
    elif shape == "directive" and key == "to":
        yield from (Completion(task, "", True) for task in tasks_of_step(lines, line))
    elif known is not None:
        yield from _choices(known.choices, known.type, known.doc)
    elif shape != "task" or spec is None:
        return
    elif spec.kind == "workbook" and key == "block":
        yield from (Completion(name, "", True) for name in named_entries(lines, "workbook"))
    elif key == "auth":
        yield from (Completion(name, "", True) for name in named_entries(lines, "keychain"))
    elif key in spec.fields:
        field = spec.fields[key]
        yield from _choices(field.choices, field.type, field.doc)


def _schemas(path: list[str], schemas: Mapping[str, Any]) -> Iterator[Completion]:
    if (shape_at(path[:-1]), path[-1]) in _SCHEMA_KEYS:
        for reference, schema in schemas.items():
            title = schema.get("title", "") if isinstance(schema, dict) else ""
            yield Completion(reference, str(title), True)


def _choices(choices: Iterable[object], type: str, doc: str) -> Iterator[Completion]:
    yield from (Completion(str(choice), doc, True) for choice in choices)
    if type == "boolean":
        yield from (Completion(word, doc, True) for word in ("true", "false"))
