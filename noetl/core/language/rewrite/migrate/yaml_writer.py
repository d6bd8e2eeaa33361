"""Write a changed tree as YAML: unchanged parts keep their text.

Comments stay with their lines: a comment above a line is written above the new line, a trailing comment after it. The
comments of removed lines are returned, so that none is lost.
"""

from __future__ import annotations

import json
import re

from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_KEYWORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])
_TRAILING = re.compile(r"[\s,\]}]*?\s(#.*)\Z")


class Writer:
    """Writes nodes; `tree` is the whole source's, `text` its text."""

    def __init__(self, text: str, tree: Node) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.original: set[int] = set()
        self._ends: dict[int, int] = {}
        self._inside: set[int] = set()  # lines that start inside a scalar: a `#` there is not a comment
        self._walk(tree)
        self.above: dict[int, list[str]] = {}
        self.trailing: dict[int, str] = {}
        self._find_comments()

    def _walk(self, node: Node) -> None:
        if id(node) in self.original:
            return
        self.original.add(id(node))
        if isinstance(node, Scalar):
            if node.style in ("|", ">"):
                self._inside.update(range(node.line + 1, node.line + 1 + self._height(node)))
            else:
                self._inside.update(range(node.line + 1, node.end_line + 1))
                self._ends[node.end_line] = max(self._ends.get(node.end_line, 0), node.end)
        elif isinstance(node, Mapping):
            for key, value in node.entries.values():
                self._walk(key)
                self._walk(value)
        elif isinstance(node, Sequence):
            for item in node.items:
                self._walk(item)

    def _height(self, node: Scalar) -> int:
        return self.text.count("\n", node.start, node.end)

    def _find_comments(self) -> None:
        pending: list[str] = []
        offset = 0
        for number, line in enumerate(self.lines, 1):
            bare = line.strip()
            if number not in self._inside and bare.startswith("#"):
                pending.append(bare)
            elif bare:
                if pending:
                    self.above[number], pending = pending, []
                end = self._ends.get(number)
                rest = self.text[end : offset + len(line)] if end is not None else ""
                found = _TRAILING.match(rest)
                if found:
                    self.trailing[number] = found.group(1)
            offset += len(line) + 1

    # --- blocks ---

    def item(self, node: Node, indent: int) -> list[str]:
        """The lines of a list's item, dash included."""
        lines = self.block(node, indent + 2) if _is_block(node) else [" " * (indent + 2) + self.inline(node)]
        for number, line in enumerate(lines):
            if not line.strip().startswith("#"):
                lines[number] = line[:indent] + "- " + line[indent + 2 :]
                break
        return [line[2:] if number < _first(lines) else line for number, line in enumerate(lines)]

    def block(self, node: Node, indent: int) -> list[str]:
        """The lines of a mapping or list."""
        lines: list[str] = []
        if isinstance(node, Mapping):
            for key, (key_node, value) in node.entries.items():
                lines += self.entry(key, key_node, value, indent)
        elif isinstance(node, Sequence):
            for item in node.items:
                lines += self.item(item, indent)
        return lines

    def entry(self, key: str, key_node: Scalar, value: Node, indent: int) -> list[str]:
        """The lines of a key and its value."""
        pad = " " * indent
        later = id(key_node) not in self.original and _has_key_at(value, key_node.line)
        lines = [] if later else [pad + comment for comment in self.above.pop(key_node.line, [])]
        trailing = None if later else self.trailing.pop(key_node.line, None)
        comment = f"  {trailing}" if trailing else ""
        head = f"{pad}{key if _KEY.match(key) else json.dumps(key, ensure_ascii=False)}:"
        if _is_block(value) and not self._is_short(value):
            return [*lines, head + comment, *self.block(value, indent + 2)]
        if isinstance(value, Scalar) and isinstance(value.value, str) and "\n" in value.value:
            header, *rest = _literal(value.value)
            return [*lines, f"{head} {header}{comment}", *(" " * (indent + 2) + line if line else "" for line in rest)]
        return [*lines, f"{head} {self.inline(value)}".rstrip() + comment]

    def _is_short(self, node: Node) -> bool:
        """Whether it was written on one line in flow style and has not changed."""
        flow = isinstance(node, Mapping | Sequence) and node.flow
        return flow and id(node) in self.original and "\n" not in self.text[node.start : node.end]

    def inline(self, node: Node) -> str:
        """A value on one line."""
        if isinstance(node, Scalar):
            if id(node) in self.original and node.style not in ("|", ">"):
                written = self.text[node.start : node.end]
                if "\n" not in written:
                    return written
            return _scalar(node.value)
        if self._is_short(node):
            return self.text[node.start : node.end]
        return "{}" if isinstance(node, Mapping) else "[]"

    def take_unplaced(self, first: int, last: int) -> list[str]:
        """Remove and return the comments of these lines that have not been written."""
        found: list[str] = []
        for number in range(first, last + 1):
            found += self.above.pop(number, [])
            if number in self.trailing:
                found.append(self.trailing.pop(number))
        return found


def _has_key_at(node: Node, line: int) -> bool:
    """Whether a nested key comes from this line; the line's comments then belong to it."""
    if isinstance(node, Mapping):
        return any(key.line == line or _has_key_at(value, line) for key, value in node.entries.values())
    return isinstance(node, Sequence) and any(_has_key_at(item, line) for item in node.items)


def _first(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if not line.strip().startswith("#")), 0)


def _is_block(node: Node) -> bool:
    return (isinstance(node, Mapping) and bool(node.entries)) or (isinstance(node, Sequence) and bool(node.items))


def _literal(value: str) -> list[str]:
    """A block scalar: its header, then its lines."""
    content = value.rstrip("\n")
    tail = len(value) - len(content)
    chomp = "-" if tail == 0 else "" if tail == 1 and content else "+"
    indented = "2" if content[:1] == " " or content[:1] == "\n" else ""
    return [f"|{indented}{chomp}", *(content + "\n" * max(tail - 1, 0)).split("\n")]


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.match(value) and value.lower() not in _KEYWORDS:
        return value
    if value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if value.isprintable() and "'" not in value:
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)
