"""The structure of a text by the indentation of its lines; the text need not be valid YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_LINE = re.compile(r"(?P<indent> *)(?P<dashes>(?:- +)*)(?:(?P<key>[\w.<-]+):(?:\s+(?P<value>.*))?)?(?P<rest>.*)")


class Line(NamedTuple):
    """The parts of a line that show where it belongs."""

    indent: int
    dashes: tuple[int, ...]  # columns of the leading `- `
    key: str | None
    value: str


@lru_cache(maxsize=65_536)  # a request parses every line of the text; most are those of the request before
def parse_line(text: str) -> Line:
    """The parts of a line."""
    found = _LINE.match(text)
    assert found is not None  # every part of it may be empty
    indent = len(found["indent"])
    dashes = tuple(indent + each.start() for each in re.finditer("- +", found["dashes"] or ""))
    return Line(indent, dashes, found["key"], (found["value"] or "").strip())


def key_column(line: Line) -> int:
    """The column of the line's key."""
    return line.dashes[-1] + 2 if line.dashes else line.indent


def parents_of(before: list[Line], depth: int) -> list[str]:
    """The keys that enclose a position of that depth, outermost first."""
    path: list[str] = []
    for line in reversed(before):
        if line.key is None:
            continue
        if key_column(line) < depth:
            path.insert(0, line.key)
            depth = min(key_column(line), line.dashes[0] + 1) if line.dashes else key_column(line)
            if depth == 0:
                break
    return path


def mapping_lines(lines: list[str], row: int, depth: int) -> Iterator[Line]:
    """The lines of the same mapping, above and below."""
    for number in range(row, -1, -1):
        line = parse_line(lines[number])
        if lines[number].strip() and key_column(line) < depth and number != row:
            break
        if number != row and key_column(line) == depth:
            yield line
        if line.dashes and line.dashes[-1] + 2 == depth:
            break
    for number in range(row + 1, len(lines)):
        line = parse_line(lines[number])
        if lines[number].strip() and (key_column(line) < depth or (line.dashes and line.dashes[0] < depth)):
            break
        if key_column(line) == depth:
            yield line


def keyed_lines(lines: list[str]) -> Iterator[tuple[int, tuple[Line, list[str]]]]:
    """The lines that start with a key: index, line, and the enclosing keys."""
    above: list[tuple[int, str]] = []
    for row, text in enumerate(lines):
        line = parse_line(text)
        if line.key is None:
            continue
        depth = line.dashes[0] + 1 if line.dashes else line.indent
        while above and above[-1][0] >= depth:
            above.pop()
        yield row, (line, [key for _, key in above])
        above.append((key_column(line), line.key))


def step_lines(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """The name of each step, with line and column (both from 1)."""
    for row, (line, parents) in keyed_lines(lines):
        if line.key == "step" and parents == ["workflow"] and line.value:
            name = line.value.split(" #")[0].strip().strip("\"'")
            yield name, row + 1, lines[row].index(name, key_column(line) + len("step:")) + 1


def steps(lines: list[str]) -> Iterator[str]:
    """The names of all steps."""
    return (name for name, _, _ in step_lines(lines))


def tasks_of_step(lines: list[str], line: int) -> list[str]:
    """The named tasks of the step that contains a line (from 1)."""
    starts = [at for _, at, _ in step_lines(lines)]
    first = max((at for at in starts if at <= line), default=1)
    last = min((at for at in starts if at > line), default=len(lines) + 1)
    return [
        each.value
        for row, (each, parents) in keyed_lines(lines)
        if first <= row + 1 < last and each.key == "name" and parents == ["workflow", "tool"]
    ]


def named_entries(lines: list[str], root: str) -> Iterator[str]:
    """The entries below a root key: their names in a list, or the keys of a mapping."""
    for _, (line, parents) in keyed_lines(lines):
        if parents == [root] and line.key:
            if line.key == "name":
                yield line.value
            elif root == "workbook" and not line.dashes:
                yield line.key
