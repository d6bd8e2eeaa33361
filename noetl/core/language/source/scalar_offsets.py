"""The position in the text of a character of a scalar's value.

Block, folded and quoted scalars are aligned with their source, because folding and escapes make the value differ from
its text. Only diagnostics about characters inside a value need this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from noetl.core.language.source.nodes import Scalar
from noetl.core.language.source.yaml_source import LINE_BREAK

# Beyond this offset of a folded or quoted value, its start is used as the position.
MAX_OFFSET = 100_000


def locate(text: str, node: Scalar, offset: int) -> tuple[int, int]:
    """Line and column (from 1) of character `offset` of a scalar's value."""
    line, column = node.line, node.column
    if node.start >= node.end:
        return line, column
    if node.style == "|":
        # Lines of a literal block are lines of the text, indented.
        header = LINE_BREAK.search(text, node.start)
        indent = _block_indent(text, node, header.end() if header else node.end)
        return line + 1 + node.text.count("\n", 0, offset), indent + offset - node.text.rfind("\n", 0, offset)
    if offset > MAX_OFFSET:
        return line, column
    at = max(node.start, node.end - 1)
    for position, (_, here) in enumerate(characters(text, node)):
        if position == offset:
            at = here
            break
    begin = node.start
    for found in LINE_BREAK.finditer(text, node.start, at):
        line, begin = line + 1, found.end()
        column = 1
    return line, column + at - begin


def characters(text: str, node: Scalar) -> Iterator[tuple[str, int]]:
    """The value's characters, each with its offset in the text."""
    if node.style in ("|", ">"):
        header = LINE_BREAK.search(text, node.start)
        yield from _align(text, node.text, header.end() if header else node.end, node.end)
    else:
        quoted = node.style in ("'", '"')
        yield from _align(text, node.text, node.start + (1 if quoted else 0), node.end, node.style)


def _block_indent(text: str, node: Scalar, cursor: int) -> int:
    while cursor < node.end:
        found = LINE_BREAK.search(text, cursor)
        stop = found.start() if found else len(text)
        content = text[cursor:stop]
        if content.strip(" "):
            explicit = re.match(r"[|>][-+]?([1-9])", text[node.start : node.start + 3])
            if not explicit:
                return len(content) - len(content.lstrip(" "))
            first = node.value.split("\n", 1)[0] if isinstance(node.value, str) else ""
            return max(0, len(content) - len(first))
        cursor = found.end() if found else stop
        if found is None:
            break
    return 0


def _align(text: str, value: str, cursor: int, end: int, style: str = "") -> Iterator[tuple[str, int]]:
    """Walk value and source in parallel: runs of white space match each other, escapes match their characters."""
    for character in value:
        if style == '"' and text.startswith("\\", cursor):
            while (joined := _ESCAPED_BREAK.match(text, cursor)) is not None:
                cursor = joined.end()
        if character in " \n\t":
            yield character, min(cursor, end)
            if cursor < end and text[cursor] in " \t\n\r":
                if character == " " and text[cursor] == " " and not _FOLD.match(text, cursor):
                    cursor += 1
                else:
                    folded = _FOLD.match(text, cursor) or _SPACE.match(text, cursor)
                    cursor = folded.end() if folded else cursor + 1
            elif style == '"' and text.startswith("\\", cursor):
                cursor += _escape_length(text, cursor)
            continue
        while cursor < end and text[cursor] in " \t\r\n":
            cursor += 1
        yield character, min(cursor, end)
        if style == '"' and text.startswith("\\", cursor):
            cursor += _escape_length(text, cursor)
        elif style == "'" and text.startswith("''", cursor):
            cursor += 2
        else:
            cursor += 1


_FOLD = re.compile(r"[ \t]*(?:\r\n|\n|\r)[ \t]*")
_SPACE = re.compile(r"[ \t]")
_ESCAPED_BREAK = re.compile(r"\\(?:\r\n|\n|\r)[ \t]*")


def _escape_length(text: str, cursor: int) -> int:
    return {"x": 4, "u": 6, "U": 10}.get(text[cursor + 1 : cursor + 2], 2)
