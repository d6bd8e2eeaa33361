"""Which words can stand at a place of a text that is being written.

The text need not be valid: the place is found by indentation alone, the way a person sees it, and the grammar
says what belongs there. Values with a few choices, step names in arcs and tool kinds are offered too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from noetl.dsl.grammar import KEYCHAIN_KINDS, SHAPES, Key
from noetl.model.tool import ToolSpec


class Completion(NamedTuple):
    """A word that can stand here, and its line of documentation."""

    word: str
    doc: str
    is_value: bool = False


class _Line(NamedTuple):
    indent: int
    dashes: tuple[int, ...]  # columns of the `- ` that begin it
    key: str | None
    value: str


_LINE = re.compile(r"(?P<indent> *)(?P<dashes>(?:- +)*)(?:(?P<key>[\w.<-]+):(?:\s+(?P<value>.*))?)?(?P<rest>.*)")


def complete(text: str, line: int, column: int, specs: Mapping[str, ToolSpec]) -> list[Completion]:
    """The words that can stand at line and column (both from 1)."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return []
    current = lines[line - 1][: column - 1]
    before = [_read(each) for each in lines[: line - 1]]
    here = _read(current)
    typed = current.strip().removeprefix("- ").strip()
    if here.key is not None and ":" in current:
        path = [*_parents(before, _column(here)), here.key]
        offered = list(_values(path, lines, specs))
        typed = here.value
    else:
        depth = here.dashes[-1] + 2 if here.dashes else len(current) - len(current.lstrip(" "))
        path = _parents(before, depth)
        taken = _siblings(lines, line - 1, depth)
        offered = [word for word in _keys(path, lines, line - 1, depth, specs) if word.word not in taken]
    return [word for word in offered if word.word.startswith(typed)]


def _read(text: str) -> _Line:
    found = _LINE.match(text)
    assert found is not None  # every part of it may be empty
    indent = len(found["indent"])
    dashes = tuple(indent + each.start() for each in re.finditer("- +", found["dashes"] or ""))
    return _Line(indent, dashes, found["key"], (found["value"] or "").strip())


def _column(line: _Line) -> int:
    """The column at which the line's key stands."""
    return line.dashes[-1] + 2 if line.dashes else line.indent


def _parents(before: list[_Line], depth: int) -> list[str]:
    """The keys around a place of that depth, outermost first."""
    path: list[str] = []
    for line in reversed(before):
        if line.key is None:
            continue
        if _column(line) < depth:
            path.insert(0, line.key)
            depth = min(_column(line), line.dashes[0] + 1) if line.dashes else _column(line)
            if depth == 0:
                break
    return path


def _around(lines: list[str], at: int, depth: int) -> Iterator[_Line]:
    """The lines of the same mapping, above and below."""
    for number in range(at, -1, -1):
        line = _read(lines[number])
        if lines[number].strip() and _column(line) < depth and number != at:
            break
        if number != at and _column(line) == depth:
            yield line
        if line.dashes and line.dashes[-1] + 2 == depth:
            break
    for number in range(at + 1, len(lines)):
        line = _read(lines[number])
        if lines[number].strip() and (_column(line) < depth or (line.dashes and line.dashes[0] < depth)):
            break
        if _column(line) == depth:
            yield line


def _siblings(lines: list[str], at: int, depth: int) -> set[str]:
    return {line.key for line in _around(lines, at, depth) if line.key is not None}


def _value_of(lines: list[str], at: int, depth: int, key: str) -> str:
    return next((line.value for line in _around(lines, at, depth) if line.key == key), "")


# --- what the grammar says about a path ---------------------------------------------------------


def shape_at(path: list[str]) -> str | None:
    """The shape of the mapping whose keys stand below this path."""
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


def _keys(path: list[str], lines: list[str], at: int, depth: int, specs: Mapping[str, ToolSpec]) -> list[Completion]:
    inside_input = path[-1:] == ["input"]
    shape = shape_at(path[:-1] if inside_input else path)
    if inside_input and shape != "task":
        return []
    if shape is None or shape not in SHAPES:
        return []
    keys = SHAPES[shape].keys
    words = (
        []
        if inside_input
        else [Completion(key, known.doc) for key, known in keys.items() if known.state == "canonical"]
    )
    if shape == "task" and not inside_input:
        spec = specs.get(_value_of(lines, at, depth, "kind"))
        words += (
            [Completion(name, field.doc) for name, field in spec.fields.items() if name not in keys] if spec else []
        )
    if shape == "keychain":
        fields = KEYCHAIN_KINDS.get(_value_of(lines, at, depth, "kind"), {})
        words += [Completion(key, known.doc) for key, known in fields.items() if known.state == "canonical"]
    return words


def _values(path: list[str], lines: list[str], specs: Mapping[str, ToolSpec]) -> Iterator[Completion]:
    shape = shape_at(path[:-1])
    if shape is None or shape not in SHAPES:
        return
    key = path[-1]
    known: Key | None = SHAPES[shape].keys.get(key)
    if shape == "task" and key == "kind":
        for kind, spec in sorted(specs.items()):
            if kind == spec.kind:
                yield Completion(kind, spec.doc, True)
    elif shape == "keychain" and key == "kind":
        yield from (Completion(kind, "", True) for kind in KEYCHAIN_KINDS)
    elif shape == "arc" and key == "step":
        for line in lines:
            step = re.match(r" *- step: *([\w-]+)", line)
            if step and not re.match(r" {8,}", line):
                yield Completion(step.group(1), "", True)
    elif known is not None:
        yield from (Completion(choice, known.doc, True) for choice in known.choices)
        if known.type == "boolean":
            yield from (Completion(word, known.doc, True) for word in ("true", "false"))
