"""Edit the text of a playbook in place: replace ranges of nodes, and move lines left or right.

Text that is not edited does not change, including comments and blank lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.source.scalar_offsets import characters


class Edit(NamedTuple):
    """Replace the characters from `start` to `end` with `text`."""

    start: int
    end: int
    text: str


class Editor:
    """A text and its pending edits."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.edits: list[Edit] = []
        self.shifts: dict[int, int] = {}  # line (from 0) -> columns to the right
        self.starts = [0, *(found.end() for found in re.finditer(r"\n", text))]
        self.inside: set[int] = set()  # lines (from 0) that start inside a value: nothing can be inserted above them

    def replace(self, start: int, end: int, text: str) -> None:
        """Change some characters."""
        self.edits.append(Edit(start, end, text))

    def key(self, key: Scalar, text: str) -> None:
        """Rename a key."""
        self.replace(key.start, key.end, text)

    def comment(self, node: Node, text: str) -> None:
        """Add a comment above the line of a node, or above the value that extends into that line."""
        line = min(node.line - 1, len(self.starts) - 1)
        while line in self.inside:
            line -= 1
        start = self.starts[line]
        self.replace(start, start, " " * self.indent(line) + f"# {text}\n")

    def shift(self, first: int, last: int, columns: int) -> None:
        """Move lines (from 0, both included) to the right."""
        for line in range(first, last + 1):
            self.shifts[line] = self.shifts.get(line, 0) + columns

    def apply(self) -> str:
        """The edited text; of overlapping edits, the first one is applied."""
        edits = sorted(self.edits, key=lambda edit: edit.start)
        for line, columns in self.shifts.items():
            start = self.starts[line]
            if columns and self.line(line).strip() and not any(e.start < start < e.end for e in edits):
                gone = min(-columns, self.indent(line)) if columns < 0 else 0
                edits.append(Edit(start, start + gone, " " * columns))
        parts: list[str] = []
        at = 0
        for edit in sorted(edits, key=lambda edit: edit.start):
            if edit.start < at:
                continue
            parts += [self.text[at : edit.start], edit.text]
            at = edit.end
        return "".join([*parts, self.text[at:]])

    # ── positions ────────────────────────────────────────────────────────────────────────

    def line(self, number: int) -> str:
        """A line (from 0) without its end."""
        stop = self.starts[number + 1] - 1 if number + 1 < len(self.starts) else len(self.text)
        return self.text[self.starts[number] : stop]

    def indent(self, number: int) -> int:
        """The leading spaces of a line."""
        line = self.line(number)
        return len(line) - len(line.lstrip(" "))

    def line_at(self, offset: int) -> int:
        """The line (from 0) of an offset."""
        from bisect import bisect_right

        return bisect_right(self.starts, offset) - 1

    def end(self, node: Node) -> int:
        """The offset after the last character of a node."""
        if isinstance(node, Mapping) and not node.flow:
            own = [pair for pair in node.entries.values() if pair[0].start >= node.start]
            return max([node.start, *(max(key.end, self.end(value)) for key, value in own if value.start >= key.start)])
        if isinstance(node, Sequence) and not node.flow:
            return max([node.start, *(self.end(item) for item in node.items if item.start >= node.start)])
        if isinstance(node, Scalar) and node.style in ("|", ">"):
            return node.start + len(self.text[node.start : node.end].rstrip())
        return node.end

    def last_line(self, node: Node, column: int) -> int:
        """The last line (from 0) of a node, with the comments below it that are indented like it."""
        last = self.line_at(max(node.start, self.end(node) - 1))
        for number in range(last + 1, len(self.starts)):
            line = self.line(number)
            if not line.strip():
                continue
            if line.lstrip(" ").startswith("#") and self.indent(number) >= column:
                last = number
            else:
                break
        return last

    def span(self, node: Scalar, offset: int, length: int) -> tuple[int, int] | None:
        """The range in the text of characters of a scalar's value; None if they are written differently."""
        found = []
        for position, (_, at) in enumerate(characters(self.text, node)):
            if position >= offset + length:
                break
            if position >= offset:
                found.append(at)
        if len(found) != length or not length:
            return None
        start, end = found[0], found[-1] + 1
        value = node.value if isinstance(node.value, str) else node.text
        written = self.text[start:end].replace("''", "'") if node.style == "'" else self.text[start:end]
        return (start, end) if written == value[offset : offset + length] else None


def lines_inside(node: Node) -> Iterator[int]:
    """Lines (from 0) that start inside a scalar of several lines."""
    if isinstance(node, Scalar):
        last = node.end_line if node.last.column or node.style not in ("|", ">") else node.end_line - 1
        yield from range(node.line, last)
    elif isinstance(node, Mapping):
        for key, value in node.entries.values():
            yield from lines_inside(key)
            yield from lines_inside(value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from lines_inside(item)


# ── edits that the formatter and migrations share ───────────────────────────────────────────


def name_task(editor: Editor, item: Mapping, *, named: bool = False) -> bool:
    """Rewrite `- fetch: {kind: http}` to `- {name: fetch, kind: http}`, in block and flow style; False if it cannot.

    With `named` the caller handles a `name` inside the task.
    """
    ((label, inner),) = item.entries.values()
    if not isinstance(inner, Mapping) or not inner.entries or inner.start < label.start or item.merges:
        return False
    text = editor.text
    between = text[label.end : inner.start]
    if not _PLAIN_GAP.fullmatch(between) or ("name" in inner.entries and not named):
        return False
    name = text[label.start : label.end]
    if inner.flow:
        if item.flow:
            editor.replace(label.start, inner.start + 1, f"name: {name}, ")
            editor.replace(inner.end - 1, inner.end, "")
        else:
            if "\n" in between:
                return False
            editor.replace(label.start, inner.start + 1, f"{{name: {name}, ")
        return True
    columns = inner.column - label.column
    first = label.line  # the line after the label
    if columns <= 0 or inner.line == label.line:
        return False
    editor.replace(label.start, label.end + text[label.end :].index(":") + 1, f"name: {name}")
    editor.shift(first, editor.last_line(inner, inner.column - 1), -columns)
    return True


_PLAIN_GAP = re.compile(r"\s*:(?:[ \t]+#[^\n]*|[ \t]*\n[ \t]*#[^\n]*|\s)*")


def flatten_scope(editor: Editor, key: Scalar, scope: str, inner: Node, around: Mapping) -> bool:
    """Rewrite `ctx: {a: 1}` inside `set` to `ctx.a: 1`; False if it cannot."""
    if not isinstance(inner, Mapping) or not inner.entries or inner.merges or inner.start < key.start:
        return False
    text = editor.text
    gap = text[key.end : inner.start]
    keys = [inner_key for inner_key, _ in inner.entries.values()]
    if not _PLAIN_GAP.fullmatch(gap):
        return False
    if inner.flow:
        inside = text[inner.start + 1 : inner.end - 1]
        if "\n" in inside or "#" in inside or "\n" in gap or "#" in gap:
            return False
        if around.flow:
            body = _prefixed(text, inner, scope)
            editor.replace(key.start, inner.end, ", ".join(body))
        else:
            indent = "\n" + " " * (key.column - 1)
            editor.replace(key.start, inner.end, indent.join(_prefixed(text, inner, scope)))
        return True
    if around.flow or inner.line == key.line:
        return False
    columns = inner.column - key.column
    comments = re.findall(r"#[^\n]*", gap)
    above = "".join(f"{comment}\n{' ' * (key.column - 1)}" for comment in comments)
    first = keys[0]
    editor.replace(key.start, first.end, above + dotted(scope, first))
    for other in keys[1:]:
        editor.key(other, dotted(scope, other))
    editor.shift(key.line, editor.last_line(inner, inner.column - 1), -columns)
    return True


def _prefixed(text: str, mapping: Mapping, scope: str) -> list[str]:
    """The entries of a flow mapping as texts, each key below the scope."""
    return [
        f"{dotted(scope, key)}: {text[value.start : value.end] if value.end > value.start else 'null'}"
        for key, value in mapping.entries.values()
    ]


def dotted(scope: str, key: Scalar) -> str:
    """A key below a scope, quoted when it must be."""
    name = key.text.removeprefix(f"{scope}.")
    if re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        return f"{scope}.{name}"
    return '"' + f"{scope}.{name}".replace("\\", "\\\\").replace('"', '\\"') + '"'


def entries_in_place(node: Mapping) -> bool:
    """Whether all entries of a mapping are written in it, without merge keys and aliases."""
    return not node.merges and all(
        node.start <= key.start <= value.start <= node.end for key, value in node.entries.values()
    )
