"""Translate the names in 2025-11 templates: `context.workload.x` becomes `workload.x`, `context.x` becomes `ctx.x`.

Names are replaced token by token, so strings, filters, tests and keyword arguments do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jinja2 import TemplateSyntaxError

from noetl.core.templates.sandbox import SANDBOX


class Replacement(NamedTuple):
    """The text that replaces the first `parts` parts of a dotted name."""

    parts: int
    text: str


Rename = Callable[[tuple[str, ...]], Replacement | None]


class _Token(NamedTuple):
    kind: str
    value: str


def translate_template(text: str, rename: Rename) -> str:
    """Replace every free name of a template with `rename`; a text with a syntax error is returned unchanged."""
    if "{{" not in text and "{%" not in text:
        return text
    try:
        tokens = [_Token(kind, value) for _, kind, value in SANDBOX.lexer.tokeniter(text, None)]
    except TemplateSyntaxError:
        return text
    assigned = _assigned_names(tokens)
    parts: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.kind == "name" and token.value not in assigned and _is_free_name(tokens, index):
            path, indexes = _dotted(tokens, index)
            replacement = rename(path)
            if replacement is not None:
                parts.append(replacement.text)
                index = indexes[replacement.parts - 1] + 1
                continue
        parts.append(token.value)
        index += 1
    return "".join(parts)


def _is_free_name(tokens: list[_Token], index: int) -> bool:
    before, after = _adjacent(tokens, index, -1), _adjacent(tokens, index, 1)
    if before is not None and (before.value in (".", "|") or before.value == "is"):
        return False
    if before is not None and before.value == "not":
        earlier = _adjacent(tokens, _next_index(tokens, index, -1), -1)
        if earlier is not None and earlier.value == "is":
            return False
    return not (after is not None and after.value == "=" and before is not None and before.value in ("(", ","))


def _next_index(tokens: list[_Token], index: int, direction: int) -> int:
    index += direction
    while 0 <= index < len(tokens) and tokens[index].kind == "whitespace":
        index += direction
    return index


def _adjacent(tokens: list[_Token], index: int, direction: int) -> _Token | None:
    neighbor = _next_index(tokens, index, direction)
    return tokens[neighbor] if 0 <= neighbor < len(tokens) else None


def _dotted(tokens: list[_Token], index: int) -> tuple[tuple[str, ...], list[int]]:
    path, indexes = [tokens[index].value], [index]
    while True:
        dot = _next_index(tokens, index, 1)
        name = _next_index(tokens, dot, 1)
        if name >= len(tokens) or tokens[dot].value != "." or tokens[name].kind != "name":
            return tuple(path), indexes
        path.append(tokens[name].value)
        indexes.append(name)
        index = name


def _assigned_names(tokens: list[_Token]) -> set[str]:
    """Names that the template binds itself: `{% for x in ... %}`, `{% set x = ... %}`."""
    code = [token for token in tokens if token.kind != "whitespace"]
    found: set[str] = set()
    for index, token in enumerate(code):
        if token.kind == "name" and token.value in ("for", "set") and index and code[index - 1].kind == "block_begin":
            for word in code[index + 1 :]:
                if word.value in ("in", "=") or word.kind == "block_end":
                    break
                if word.kind == "name":
                    found.add(word.value)
    return found
