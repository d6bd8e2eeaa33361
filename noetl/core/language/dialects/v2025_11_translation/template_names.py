"""Templates of 2025-11 in canonical words: `context.workload.x` is `workload.x`, `context.x` is `ctx.x`.

Names are replaced token by token, so strings, filters, tests and keyword arguments stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jinja2 import TemplateSyntaxError

from noetl.core.templates.sandbox import SANDBOX


class Renamed(NamedTuple):
    """The first `parts` parts of a dotted name are told as `text`."""

    parts: int
    text: str


Rename = Callable[[tuple[str, ...]], Renamed | None]


class _Token(NamedTuple):
    kind: str
    value: str


def translate_template(text: str, rename: Rename) -> str:
    """The template with every outside name told by `rename`; a text that cannot be read stays as it is."""
    if "{{" not in text and "{%" not in text:
        return text
    try:
        tokens = [_Token(kind, value) for _, kind, value in SANDBOX.lexer.tokeniter(text, None)]
    except TemplateSyntaxError:
        return text
    own = _own_names(tokens)
    made: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "name" and token.value not in own and _is_outside(tokens, at):
            path, places = _dotted(tokens, at)
            renamed = rename(path)
            if renamed is not None:
                made.append(renamed.text)
                at = places[renamed.parts - 1] + 1
                continue
        made.append(token.value)
        at += 1
    return "".join(made)


def _is_outside(tokens: list[_Token], at: int) -> bool:
    before, after = _beside(tokens, at, -1), _beside(tokens, at, 1)
    if before is not None and (before.value in (".", "|") or before.value == "is"):
        return False
    if before is not None and before.value == "not":
        earlier = _beside(tokens, _place(tokens, at, -1), -1)
        if earlier is not None and earlier.value == "is":
            return False
    return not (after is not None and after.value == "=" and before is not None and before.value in ("(", ","))


def _place(tokens: list[_Token], at: int, way: int) -> int:
    at += way
    while 0 <= at < len(tokens) and tokens[at].kind == "whitespace":
        at += way
    return at


def _beside(tokens: list[_Token], at: int, way: int) -> _Token | None:
    place = _place(tokens, at, way)
    return tokens[place] if 0 <= place < len(tokens) else None


def _dotted(tokens: list[_Token], at: int) -> tuple[tuple[str, ...], list[int]]:
    path, places = [tokens[at].value], [at]
    while True:
        dot = _place(tokens, at, 1)
        name = _place(tokens, dot, 1)
        if name >= len(tokens) or tokens[dot].value != "." or tokens[name].kind != "name":
            return tuple(path), places
        path.append(tokens[name].value)
        places.append(name)
        at = name


def _own_names(tokens: list[_Token]) -> set[str]:
    """Names that the template binds itself: `{% for x in ... %}`, `{% set x = ... %}`."""
    words = [token for token in tokens if token.kind != "whitespace"]
    found: set[str] = set()
    for at, token in enumerate(words):
        if token.kind == "name" and token.value in ("for", "set") and at and words[at - 1].kind == "block_begin":
            for word in words[at + 1 :]:
                if word.value in ("in", "=") or word.kind == "block_end":
                    break
                if word.kind == "name":
                    found.add(word.value)
    return found
