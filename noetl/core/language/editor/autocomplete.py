"""Completion: the keys and values that are valid at a position of a text.

The text need not be valid: the position is determined by indentation alone, and the grammar defines what is valid
there. Values with few choices, step names in arcs and tool kinds are offered too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from noetl.core.language.editor.schema_fields import Completion, schema_fields
from noetl.core.language.flow.visibility import OLDER_SCOPES, SCOPES, STATUS_HELPERS
from noetl.core.language.syntax.grammar import ITERATION_NAMES, KEYCHAIN_KINDS, SHAPES, Key
from noetl.core.model.tool import ToolSpec
from noetl.core.templates.free_names import filters

ENVELOPE = {
    "status": "`ok` or `error`.",
    "data": "The payload.",
    "ref": "Where a large payload is stored.",
    "error": "The error: `kind`, `message`, `retryable`.",
    "http": "Status, headers, url of an http task.",
}


class _Line(NamedTuple):
    indent: int
    dashes: tuple[int, ...]  # columns of the leading `- `
    key: str | None
    value: str


_LINE = re.compile(r"(?P<indent> *)(?P<dashes>(?:- +)*)(?:(?P<key>[\w.<-]+):(?:\s+(?P<value>.*))?)?(?P<rest>.*)")


def complete(text: str, line: int, column: int, specs: Mapping[str, ToolSpec]) -> tuple[int, list[Completion]]:
    """The completions at line and column, and the column at which the typed text starts (all from 1)."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return column, []
    current = lines[line - 1][: column - 1]
    here = _parse_line(current)
    if current.rfind("{{") > current.rfind("}}"):
        typed, offered = _in_template(current, lines, line)
    elif (flow := flow_at(lines, line, current)) is not None:
        typed = flow.typed
        spec = specs.get(flow.given.get("kind", ""))
        offered = (
            list(_values([*flow.path, flow.key], lines, line, spec, specs)) if flow.key else _flow_keys(flow, specs)
        )
    elif here.key is not None and ":" in current:
        path = [*_parents([_parse_line(each) for each in lines[: line - 1]], _key_column(here)), here.key]
        position = KeyPosition(here.key, _key_column(here), tuple(path[:-1]), line - 1)
        offered = list(_values(path, lines, line, fields_at("task", position, lines, specs)[0], specs))
        typed = here.value
    else:
        depth = here.dashes[-1] + 2 if here.dashes else len(current) - len(current.lstrip(" "))
        path = _parents([_parse_line(each) for each in lines[: line - 1]], depth)
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
    around = _parents([_parse_line(each) for each in lines[: line - 1]], _key_column(_parse_line(current)))
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
    here = _parse_line(lines[line - 1])
    if here.key is None:
        return None
    depth = _key_column(here)
    before = [_parse_line(each) for each in lines[: line - 1]]
    return KeyPosition(here.key, depth, tuple(_parents(before, depth)), line - 1)


def fields_at(
    shape: str, position: KeyPosition, lines: list[str], specs: Mapping[str, ToolSpec]
) -> tuple[ToolSpec | None, Mapping[str, Key]]:
    """The fields that the `kind` of the same mapping (or of the one that contains `input`) adds to its shape."""
    row, depth = position.row, position.column
    if position.parents[-1:] == ("input",):
        row = next(
            row
            for row in range(row, -1, -1)
            if _parse_line(lines[row]).key == "input" and _line_depth(lines[row]) < depth
        )
        depth = _line_depth(lines[row])
    return fields_of(shape, _value_of(lines, row, depth, "kind"), specs)


def fields_of(shape: str, kind: str, specs: Mapping[str, ToolSpec]) -> tuple[ToolSpec | None, Mapping[str, Key]]:
    """The fields that a kind adds to its shape: those of a tool or of a keychain entry."""
    return (specs.get(kind) if shape == "task" else None, KEYCHAIN_KINDS.get(kind, {}) if shape == "keychain" else {})


def _line_depth(line: str) -> int:
    return _key_column(_parse_line(line))


@lru_cache(maxsize=65_536)  # a request parses every line of the text; most are those of the request before
def _parse_line(text: str) -> _Line:
    found = _LINE.match(text)
    assert found is not None  # every part of it may be empty
    indent = len(found["indent"])
    dashes = tuple(indent + each.start() for each in re.finditer("- +", found["dashes"] or ""))
    return _Line(indent, dashes, found["key"], (found["value"] or "").strip())


def _key_column(line: _Line) -> int:
    """The column of the line's key."""
    return line.dashes[-1] + 2 if line.dashes else line.indent


def _parents(before: list[_Line], depth: int) -> list[str]:
    """The keys that enclose a position of that depth, outermost first."""
    path: list[str] = []
    for line in reversed(before):
        if line.key is None:
            continue
        if _key_column(line) < depth:
            path.insert(0, line.key)
            depth = min(_key_column(line), line.dashes[0] + 1) if line.dashes else _key_column(line)
            if depth == 0:
                break
    return path


def _mapping_lines(lines: list[str], row: int, depth: int) -> Iterator[_Line]:
    """The lines of the same mapping, above and below."""
    for number in range(row, -1, -1):
        line = _parse_line(lines[number])
        if lines[number].strip() and _key_column(line) < depth and number != row:
            break
        if number != row and _key_column(line) == depth:
            yield line
        if line.dashes and line.dashes[-1] + 2 == depth:
            break
    for number in range(row + 1, len(lines)):
        line = _parse_line(lines[number])
        if lines[number].strip() and (_key_column(line) < depth or (line.dashes and line.dashes[0] < depth)):
            break
        if _key_column(line) == depth:
            yield line


def _siblings(lines: list[str], row: int, depth: int) -> set[str]:
    return {line.key for line in _mapping_lines(lines, row, depth) if line.key is not None}


def _value_of(lines: list[str], row: int, depth: int, key: str) -> str:
    return next((line.value for line in _mapping_lines(lines, row, depth) if line.key == key), "")


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
        yield from (Completion(step, "", True) for step in _steps(lines))
    elif shape == "directive" and key == "to":
        yield from (Completion(task, "", True) for task in _tasks_of_step(lines, line))
    elif known is not None:
        yield from _choices(known.choices, known.type, known.doc)
    elif shape != "task" or spec is None:
        return
    elif spec.kind == "workbook" and key == "block":
        yield from (Completion(name, "", True) for name in _named(lines, "workbook"))
    elif key == "auth":
        yield from (Completion(name, "", True) for name in _named(lines, "keychain"))
    elif key in spec.fields:
        field = spec.fields[key]
        yield from _choices(field.choices, field.type, field.doc)


def _choices(choices: Iterable[object], type: str, doc: str) -> Iterator[Completion]:
    yield from (Completion(str(choice), doc, True) for choice in choices)
    if type == "boolean":
        yield from (Completion(word, doc, True) for word in ("true", "false"))


def _tasks_of_step(lines: list[str], line: int) -> list[str]:
    """The named tasks of the step that contains a line (from 1)."""
    starts = [at for _, at, _ in step_lines(lines)]
    first = max((at for at in starts if at <= line), default=1)
    last = min((at for at in starts if at > line), default=len(lines) + 1)
    return [
        each.value
        for row, (each, parents) in _keyed_lines(lines)
        if first <= row + 1 < last and each.key == "name" and parents == ["workflow", "tool"]
    ]


def _named(lines: list[str], root: str) -> Iterator[str]:
    """The entries below a root key: their names in a list, or the keys of a mapping."""
    for _, (line, parents) in _keyed_lines(lines):
        if parents == [root] and line.key:
            if line.key == "name":
                yield line.value
            elif root == "workbook" and not line.dashes:
                yield line.key


# --- names inside a template ---------------------------------------------------------------------

_DOTTED = re.compile(r"[\w.]*$")


_FILTER = re.compile(r"\|\s*(\w*)$")
_QUOTED_STEP = re.compile(rf"""(?:\b(?:{"|".join(sorted(STATUS_HELPERS))})\([^)]*|\bsteps\[)['"]([\w-]*)$""")


def _in_template(current: str, lines: list[str], line: int) -> tuple[str, list[Completion]]:
    """The typed text and the names that can stand at the end of `current`, which ends inside a template."""
    inside = current[current.rfind("{{") :]
    quoted = _QUOTED_STEP.search(inside)
    if quoted:
        return quoted[1], [Completion(step, "", True) for step in _steps(lines)]
    filter = _FILTER.search(inside)
    if filter:
        return filter[1], [Completion(name, doc, True) for name, doc in filters().items()]
    *path, typed = _DOTTED.findall(current)[0].split(".")
    return typed, list(_names(path, lines)) or list(schema_fields(path, lines, line))


def _names(path: list[str], lines: list[str]) -> Iterator[Completion]:
    """The names that can follow `{{`, or a dot inside it."""
    if not path:
        yield from (Completion(scope, doc, True) for scope, doc in SCOPES.items() if scope not in OLDER_SCOPES)
        yield from (Completion(step, "The output of this step.", True) for step in _steps(lines))
    elif path == ["iter"]:
        yield from (Completion(name, "The current item.", True) for name in _find_all(lines, r"iterator: *([\w-]+)"))
        yield from (Completion(name, "", True) for name in ITERATION_NAMES)
    elif path == ["ctx"] or path == ["step"]:
        yield from (Completion(name, "", True) for name in _find_all(lines, rf"\b{path[0]}\.(\w+) *:"))
    elif path == ["output"]:
        yield from (Completion(name, doc, True) for name, doc in ENVELOPE.items())
    elif path == ["steps"]:
        yield from (Completion(step, "", True) for step in _steps(lines))
    elif path == ["keychain"]:
        yield from (Completion(name, "", True) for name in _named(lines, "keychain"))
    elif path[0] == "workload":
        for _, (line, parents) in _keyed_lines(lines):
            if parents == path and line.key:
                yield Completion(line.key, f"default: {line.value}" if line.value else "", True)


def _keyed_lines(lines: list[str]) -> Iterator[tuple[int, tuple[_Line, list[str]]]]:
    """The lines that start with a key: index, line, and the enclosing keys."""
    above: list[tuple[int, str]] = []
    for row, text in enumerate(lines):
        line = _parse_line(text)
        if line.key is None:
            continue
        depth = line.dashes[0] + 1 if line.dashes else line.indent
        while above and above[-1][0] >= depth:
            above.pop()
        yield row, (line, [key for _, key in above])
        above.append((_key_column(line), line.key))


def step_lines(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """The name of each step, with line and column (both from 1)."""
    for row, (line, parents) in _keyed_lines(lines):
        if line.key == "step" and parents == ["workflow"] and line.value:
            name = line.value.split(" #")[0].strip().strip("\"'")
            yield name, row + 1, lines[row].index(name, _key_column(line) + len("step:")) + 1


def _steps(lines: list[str]) -> Iterator[str]:
    return (name for name, _, _ in step_lines(lines))


def _find_all(lines: list[str], pattern: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in re.findall(pattern, line)))
