"""Splits shell text into statements, pipeline segments and words; quotes and substitutions are kept whole.

Every value of a command is followed through the same parts of it, so the parts are cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_BREAKS = re.compile(r"\n|;|&&|\|\||(?<![<>&|])&(?![>&])")
_PIPE = re.compile(r"(?<!\|)\|&?(?!\|)")
_SPACE = re.compile(r"[ \t]+|(?=[<>])(?![<>]\()(?<![<>&\d])|(?<=[<>])(?![<>&=(])")
_COMMA = re.compile(",")
HEREDOC = re.compile(r"<<-?[ \t]*((?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s'\"\\<>|&;()`])+)")


class Word(NamedTuple):
    """A word and where it is; `text` has no quotes and no backslashes."""

    start: int
    end: int
    text: str


@lru_cache(256)
def statements(command: str) -> tuple[tuple[int, int], ...]:
    """Where the statements begin and end: pipelines, with the bodies of their here-documents."""
    return tuple(_statements(command))


def _statements(command: str) -> Iterator[tuple[int, int]]:
    bodies = list(documents(command))
    at = 0
    for start, end in _split(command, 0, len(command), _BREAKS, bodies):
        body = max((stop for head, first, stop in bodies if start <= head < end), default=None)
        if end > at or body:
            yield max(start, at), max(end, body or end)
        elif any(head < start and end <= first for head, first, _ in bodies):
            yield start, end  # after the operator of a here-document, before its body
        at = max(at, body or 0)


@lru_cache(4096)
def segments(command: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The commands of a pipeline."""
    return tuple(_split(command, start, end, _PIPE, list(documents(command))))


@lru_cache(4096)
def words(command: str, start: int, end: int) -> tuple[Word, ...]:
    """The words of a command, redirections included, here-documents excluded."""
    document = next((first for _, first, _ in documents(command) if start <= first < end), end)
    end = min(end, document)
    found = []
    for first, last in _split(command, start, end, _SPACE, []):
        raw = command[first:last].strip()
        if raw:
            first += len(command[first:last]) - len(command[first:last].lstrip())
            if raw[0] == "{" and raw[-1] == "}" and "," in raw:  # `{bash,-c,x}`
                inner = _split(command, first + 1, first + len(raw) - 1, _COMMA, [])
                found += [Word(*span, dequoted(command[slice(*span)])) for span in inner if span[1] > span[0]]
            else:
                found.append(Word(first, first + len(raw), dequoted(raw)))
    return tuple(found)


def dequoted(text: str) -> str:
    """The text without quotes, backslashes and line continuations."""
    text = re.sub(r"\$'((?:[^'\\]|\\.)*)'", lambda found: _unescaped(found[1]), text)
    return re.sub(r"\$(?=['\"])|['\"]|\\\n?", "", text)


def _unescaped(text: str) -> str:
    """The text of `$'...'` with its characters in place of numeric escapes."""
    number = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3}))")

    def character(found: re.Match[str]) -> str:
        digits = found[1] or found[2] or found[3]
        code = int(digits, 16) if digits else int(found[4], 8)
        return chr(code) if 32 <= code < 0x110000 else " "

    return number.sub(character, text)


def documents(command: str) -> Iterator[tuple[int, int, int]]:
    """The here-documents: where their operator is, and where their body begins and ends."""
    for found in HEREDOC.finditer(command):
        if command[found.start() - 1 : found.start()] == "<" or command.startswith("<<<", found.start()):
            continue
        line_end = command.find("\n", found.end())
        if line_end < 0:
            continue
        closing = re.compile(rf"^\t*{re.escape(dequoted(found[1]))}$", re.MULTILINE).search(command, line_end)
        yield found.start(), line_end, closing.end() if closing else len(command)


def is_literal(delimiter: str) -> bool:
    """Whether the delimiter of a here-document has quotes, so that no shell expands the document."""
    return any(sign in delimiter for sign in "'\"\\")


def arithmetic_spans(command: str) -> Iterator[tuple[int, int]]:
    """Where the texts in `((...))` begin and end; one that is not closed ends with the command."""
    for found in re.finditer(r"\(\(", command):
        depth, position = 2, found.end()
        while depth and position < len(command):
            depth += {"(": 1, ")": -1}.get(command[position], 0)
            position += 1
        yield found.end(), position


def enclosing(command: str, at: int) -> Iterator[int]:
    """Where the texts of the subshells and substitutions around an index begin, outermost first."""
    stack: list[str] = []
    opened: list[int] = []
    position = 0
    while position < at:
        before = len(stack)
        position = _step(command, position, stack)
        if len(stack) > before:
            opened.append(position)
        elif len(stack) < before:
            opened.pop()
    yield from (start for start, kind in zip(opened, stack, strict=True) if kind in ")`")


def _split(
    command: str, start: int, end: int, separator: re.Pattern[str], bodies: list[tuple[int, int, int]]
) -> Iterator[tuple[int, int]]:
    """Split at separators outside of quotes, parentheses, `${...}` and here-documents."""
    stack: list[str] = []
    position = begin = start
    while position < end:
        body = next((stop for _, first, stop in bodies if first <= position < stop), None)
        if body is not None and body <= end:
            if separator is _BREAKS:
                yield begin, position
                begin = body
            position = body
            continue
        found = None if stack else separator.match(command, position, end)
        if found is not None and (found.end() > position or position > begin):
            yield begin, position
            begin = found.end()
            position = begin if begin > position else _step(command, position, stack)
            continue
        position = _step(command, position, stack)
    if begin < end:
        yield begin, end


def _step(command: str, position: int, stack: list[str]) -> int:
    character, inner = command[position], stack[-1] if stack else ""
    if character == "\\" and inner != "'":
        return position + 2
    if inner == "'":
        if character == "'":
            stack.pop()
    elif character == inner and character in '"`)}':
        stack.pop()
    elif command.startswith(("$(", "<(", ">("), position):
        stack.append(")")
        return position + 2
    elif command.startswith("${", position):
        stack.append("}")
        return position + 2
    elif character == "`" or (character == '"' and inner != '"'):
        stack.append(character)
    elif inner != '"' and character == "'":
        stack.append("'")
    elif inner != '"' and character == "(":
        stack.append(")")
    return position + 1
