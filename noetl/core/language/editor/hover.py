"""Hover: the documentation of the key, kind or scope at a position.

The position is determined by indentation, as for completion, so the text need not be valid; the documentation comes
from the grammar and the tool specs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from noetl.core.language.editor.autocomplete import KeyPosition, fields_at, fields_of, flow_at, key_at, shape_at
from noetl.core.language.flow.visibility import SCOPES
from noetl.core.language.reference.grammar_page import takes
from noetl.core.language.syntax.grammar import KEYCHAIN_KINDS, SHAPES, Key
from noetl.core.model.tool import Field, ToolSpec


class Hover(NamedTuple):
    """The text at a position, its columns (from 1, the end exclusive), and its documentation."""

    word: str
    column: int
    end_column: int
    doc: str
    takes: str = ""
    required: bool = False
    default: object = None


_WORD = re.compile(r"[\w.<-]+")
_NAME = re.compile(r"[A-Za-z_]\w*")


def hover(text: str, line: int, column: int, specs: Mapping[str, ToolSpec]) -> Hover | None:
    """The documentation at line and column (both from 1); None if there is none."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return None
    position = key_at(lines, line)
    if position is None:
        return None
    begin = position.column + 1
    if begin <= column < begin + len(position.key) + 1:
        return _hover_key(position, lines, specs, begin)
    return (
        _hover_scope(lines[line - 1], column)
        or _hover_flow(lines, line, column, specs)
        or _hover_value([*position.parents], position.key, lines[line - 1], column, specs)
    )


def _hover_key(position: KeyPosition, lines: list[str], specs: Mapping[str, ToolSpec], begin: int) -> Hover | None:
    in_input = position.parents[-1:] == ("input",)
    shape = shape_at([*position.parents[:-1]] if in_input else [*position.parents])
    if shape is None or shape not in SHAPES:
        return None
    spec, entry = fields_at(shape, position, lines, specs)
    return _hover_field("" if in_input else shape, spec, entry, (position.key, begin, begin + len(position.key)))


def _hover_flow(lines: list[str], line: int, column: int, specs: Mapping[str, ToolSpec]) -> Hover | None:
    """A key or a kind inside `{...}`."""
    text = lines[line - 1]
    word = _word_at(_WORD, text, column)
    flow = flow_at(lines, line, text[: word[1] - 1]) if word else None
    if word is None or flow is None:
        return None
    if flow.key is not None:
        return _hover_value(flow.path, flow.key, text, column, specs)
    shape = shape_at(flow.path)
    if text[word[2] - 1 : word[2]] != ":" or shape is None or shape not in SHAPES:
        return None
    kind = flow.given.get("kind") or next(iter(re.findall(r"\bkind: *(\w+)", text[word[2] :])), "")
    return _hover_field(shape, *fields_of(shape, kind, specs), word)


def _hover_field(
    shape: str, spec: ToolSpec | None, entry: Mapping[str, Key], position: tuple[str, int, int]
) -> Hover | None:
    """A key of a shape, or of its kind."""
    word, begin, end = position
    known = SHAPES[shape].keys.get(word) if shape else None
    if known is not None:
        return Hover(word, begin, end, _doc(known), _takes(known), known.required)
    for name, field in spec.fields.items() if spec else ():
        if word == name or word in field.aliases:
            doc = field.doc if word == name else f"{field.doc} (alias of `{name}`)"
            return Hover(word, begin, end, doc, _type(field), field.required, field.default)
    if word in entry:
        return Hover(word, begin, end, _doc(entry[word]), _takes(entry[word]), entry[word].required)
    return None


def _hover_value(path: list[str], key: str, line: str, column: int, specs: Mapping[str, ToolSpec]) -> Hover | None:
    """The kind of a task or of a keychain entry."""
    if key != "kind":
        return None
    word = _word_at(_WORD, line, column)
    shape = shape_at(path)
    if word is None:
        return None
    if shape == "task" and word[0] in specs:
        spec = specs[word[0]]
        needed = [f"`{name}`" for name, field in spec.fields.items() if field.required]
        doc = spec.doc + (f" Required: {', '.join(needed)}." if needed else "")
        return Hover(*word, doc, "a tool kind")
    if shape == "keychain" and word[0] in KEYCHAIN_KINDS:
        fields = ", ".join(f"`{key}`" for key in KEYCHAIN_KINDS[word[0]])
        return Hover(*word, f"Fields: {fields}." if fields else "", "a kind of keychain entry")
    return None


def _hover_scope(line: str, column: int) -> Hover | None:
    """A scope inside a template."""
    for template in re.finditer(r"\{\{.*?(?:\}\}|$)", line):
        if template.start() < column <= template.end():
            word = _word_at(_NAME, line, column)
            before = line[word[1] - 2 : word[1] - 1] if word else ""
            if word and before != "." and word[0] in SCOPES:
                return Hover(*word, SCOPES[word[0]], "a scope")
    return None


def _word_at(pattern: re.Pattern[str], line: str, column: int) -> tuple[str, int, int] | None:
    for found in pattern.finditer(line):
        if found.start() < column <= found.end():
            return found[0], found.start() + 1, found.end() + 1
    return None


_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def _takes(known: Key) -> str:
    """The value description of the reference page, without its links."""
    return _LINK.sub(r"\1", takes(known))


def _doc(known: Key) -> str:
    if known.state in ("v10", "accepted"):
        return f"Deprecated; write `{known.instead}`."
    return "Reserved: accepted and ignored." if known.state == "reserved" else known.doc


def _type(field: Field) -> str:
    if field.choices:
        return ", ".join(f"`{choice}`" for choice in field.choices)
    return "" if field.type == "any" else field.type
