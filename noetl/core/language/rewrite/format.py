"""`noetl fmt`: one canonical layout without a change of meaning.

The formatter changes line ends, trailing white space, the final newline, indentation (two columns), nested `set`
targets, labelled tasks, and `else` without `then`. Comments, blank lines, quotes, flow and block style and the order
of keys stay. A change is applied only if the text compiles to the same playbook afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping as Table
from typing import Any

import msgspec

from noetl.core.language.compile import compile_playbook
from noetl.core.language.rewrite.text_edits import Editor, entries_in_place, flatten_scope, name_task
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, data_of
from noetl.core.language.source.yaml_source import read_source
from noetl.core.language.syntax.grammar import SCOPES
from noetl.core.language.syntax.tasks import is_labelled
from noetl.core.language.syntax.tree import DocumentSyntax
from noetl.core.model.tool import ToolSpec


def format_text(text: str, specs: Table[str, ToolSpec]) -> str:
    """The text in its canonical layout; a text that is not valid YAML is returned unchanged."""
    source = read_source(text)
    if source.root is None or any(problem.code != "yaml-number" for problem in source.problems):
        return text
    text = source.text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    for change in (_name_labelled_tasks, _flatten_sets, _nest_elses):
        text = _keep_if_equal(text, _rewrite(text, specs, change), lambda one: _compiled(one, specs))
    text = _keep_if_equal(text, _reindent(text), _data)
    return _keep_if_equal(text, _trim(text), _data)


def _keep_if_equal(before: str, after: str, meaning: Callable[[str], Any]) -> str:
    return after if after != before and meaning(after) == meaning(before) else before


def _data(text: str) -> Any:
    source = read_source(text)
    return None if source.root is None or source.problems else repr(data_of(source.root))


def _compiled(text: str, specs: Table[str, ToolSpec]) -> Any:
    compiled = compile_playbook(text, file="", specs=specs)
    if compiled.playbook is None:
        return [(one.code, one.message) for one in compiled.diagnostics if one.severity == "error"]
    return msgspec.json.encode(msgspec.structs.replace(compiled.playbook, locations={}, digest="", surface="canonical"))


def _rewrite(text: str, specs: Table[str, ToolSpec], change: Callable[[Editor, DocumentSyntax], None]) -> str:
    document = compile_playbook(text, file="", specs=specs).document
    if document is None:
        return text
    editor = Editor(text)
    change(editor, document)
    return editor.apply()


# ── spellings ───────────────────────────────────────────────────────────────────────────────


def _name_labelled_tasks(editor: Editor, document: DocumentSyntax) -> None:
    for item in labelled_items(document.node):
        name_task(editor, item)


def labelled_items(root: Node) -> list[Mapping]:
    """Tasks under their labels, in every task list."""
    found: list[Mapping] = []
    for body in _bodies(root):
        if isinstance(body, Mapping):
            _collect_labelled(body.get("tool"), found)
    return found


def _bodies(root: Node) -> list[Node]:
    """The steps and blocks of a document."""
    if not isinstance(root, Mapping):
        return []
    workflow, workbook = root.get("workflow"), root.get("workbook")
    bodies = [*workflow.items] if isinstance(workflow, Sequence) else []
    if isinstance(workbook, Mapping):
        return bodies + [value for _, value in workbook.entries.values()]
    return bodies + (workbook.items if isinstance(workbook, Sequence) else [])


def _collect_labelled(tasks: Node | None, found: list[Mapping]) -> None:
    for item in tasks.items if isinstance(tasks, Sequence) else [tasks]:
        if not isinstance(item, Mapping):
            continue
        for inner in [] if "kind" in item.entries else _construct_tasks(item):
            _collect_labelled(inner, found)
        if is_labelled(item) and entries_in_place(item):
            found.append(item)


def _construct_tasks(item: Mapping) -> list[Node | None]:
    """The task lists inside a `choose`, `while` or `until`."""
    bodies = [item.get(word) for word in ("while", "until")]
    lists = [body.get("tool") for body in bodies if isinstance(body, Mapping)]
    chosen = item.get("choose")
    for branch in chosen.items if isinstance(chosen, Sequence) else ():
        if isinstance(branch, Mapping):
            other = branch.get("else")
            lists += [branch.get("then"), other.get("then") if isinstance(other, Mapping) else None]
    return lists


def _flatten_sets(editor: Editor, document: DocumentSyntax) -> None:
    for node in _set_blocks(document.node):
        if not entries_in_place(node):
            continue
        for text, (key, value) in node.entries.items():
            if text in SCOPES:
                flatten_scope(editor, key, text, value, node)


def _set_blocks(root: Node) -> list[Mapping]:
    """Every `set` block of steps, blocks, arcs, tasks and rules."""
    found: list[Mapping] = []

    def walk(node: Node, inside: str) -> None:
        if isinstance(node, Mapping):
            for text, (_, value) in node.entries.items():
                if text == "set" and isinstance(value, Mapping) and inside not in _DATA_KEYS:
                    found.append(value)
                elif text not in _DATA_KEYS:
                    walk(value, text)
        elif isinstance(node, Sequence):
            for each in node.items:
                walk(each, inside)

    if isinstance(root, Mapping):
        for word in ("workflow", "workbook"):
            node = root.get(word)
            if node is not None:
                walk(node, word)
    return found


# Blocks with keys that the author defines.
_DATA_KEYS = frozenset(
    {"input", "args", "payload", "params", "headers", "json", "body", "data", "form", "set", "workload"}
)


def _nest_elses(editor: Editor, document: DocumentSyntax) -> None:
    for node in _else_rules(document.node):
        _nest_else(editor, node)


def _else_rules(root: Node) -> list[Mapping]:
    found: list[Mapping] = []

    def walk(node: Node) -> None:
        if isinstance(node, Mapping):
            for text, (_, value) in node.entries.items():
                if text in ("rules", "choose") and isinstance(value, Sequence):
                    found.extend(one for one in value.items if isinstance(one, Mapping) and "else" in one.entries)
                if text not in _DATA_KEYS:
                    walk(value)
        elif isinstance(node, Sequence):
            for each in node.items:
                walk(each)

    if isinstance(root, Mapping):
        for word in ("workflow", "workbook"):
            node = root.get(word)
            if node is not None:
                walk(node)
    return found


def _nest_else(editor: Editor, rule: Mapping) -> None:
    if not entries_in_place(rule):
        return
    key, inner = rule.entries["else"]
    if list(rule.entries) == ["else", "then"] and isinstance(inner, Scalar):
        then, value = rule.entries["then"]
        if "#" in editor.text[key.end : then.start]:
            return
        if rule.flow:
            editor.replace(key.end, then.start, ": {")
            editor.replace(value.end, value.end, "}")
        elif then.line > key.line:
            indent = " " * (then.column - 1)
            editor.replace(key.end, then.start, f":\n{indent}")
            editor.shift(then.line - 1, editor.last_line(value, then.column), 2)
            editor.edits[-1] = editor.edits[-1]._replace(text=f":\n{indent}  ")
    elif (
        list(rule.entries) == ["else"] and isinstance(inner, Mapping) and "then" not in inner.entries and inner.entries
    ):
        if inner.flow:
            editor.replace(inner.start, inner.start, "{then: ")
            editor.replace(inner.end, inner.end, "}")
        elif inner.line > key.line:
            start = editor.starts[inner.line - 1]
            editor.replace(start, start, " " * (inner.column - 1) + "then:\n" + "  ")
            last = editor.last_line(inner, inner.column - 1)
            editor.shift(inner.line, last, 2)


# ── layout ──────────────────────────────────────────────────────────────────────────────────


def _trim(text: str) -> str:
    """Remove trailing white space, and end the file with one newline."""
    root = read_source(text).root
    literal = _literal_lines(root) if root is not None else set()
    lines = [line if number in literal else line.rstrip(" \t") for number, line in enumerate(text.split("\n"))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _literal_lines(root: Node) -> set[int]:
    """Lines inside scalars, where white space may be content."""
    literal: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Scalar):
            if node.end_line > node.line:
                literal.update(range(node.line - (0 if node.style in ("|", ">") else 1), node.end_line))
        elif isinstance(node, Mapping):
            pending += [value for _, value in node.entries.values()]
        elif isinstance(node, Sequence):
            pending += node.items
    return literal


def _reindent(text: str) -> str:
    """Indent every block mapping and list by two columns."""
    root = read_source(text).root
    if root is None or "\t" in text[: text.find("\n") + 1]:
        return text
    editor = Editor(text)
    starts_at: dict[int, tuple[int, int]] = {}  # line -> old and new column of its first entry
    gaps: list[tuple[int, int]] = []
    _ColumnFinder(editor, starts_at, gaps).walk(root, 0)
    moves = {line: new - old for line, (old, new) in starts_at.items()}
    follow = 0
    for line in range(len(editor.starts)):
        if line in moves:
            follow = moves[line]
            columns = follow
        elif editor.line(line).lstrip(" ").startswith("#"):
            columns = _comment_shift(editor, starts_at, line, follow)
        else:
            columns = follow
        if columns:
            editor.shift(line, line, columns)
    for start, end in gaps:
        editor.replace(start, end, " ")
    return editor.apply()


def _comment_shift(editor: Editor, starts_at: dict[int, tuple[int, int]], line: int, follow: int) -> int:
    """How far a comment moves: with the line below if both have the same column, else with the line above."""
    column = editor.indent(line)
    for number in range(line + 1, min(line + 50, len(editor.starts))):
        if number in starts_at:
            old, new = starts_at[number]
            return new - old if old == column else follow
    return follow


class _ColumnFinder:
    """Finds the lines where block entries start, and their new columns."""

    def __init__(self, editor: Editor, starts_at: dict[int, tuple[int, int]], gaps: list[tuple[int, int]]) -> None:
        self.editor = editor
        self.starts_at = starts_at
        self.gaps = gaps

    def walk(self, root: Node, column: int) -> None:
        pending = [(root, column, 0)]
        while pending:
            node, new, after = pending.pop()
            if node.start < after:
                continue  # an alias: its text is elsewhere
            if isinstance(node, Mapping) and not node.flow:
                for key, value in node.entries.values():
                    if key.start >= node.start:
                        self._add_start(key.start, new)
                        pending.append((value, new + 2, key.start))
            elif isinstance(node, Sequence) and not node.flow:
                for item in node.items:
                    dash = self._dash_offset(item)
                    if dash is not None:
                        self._add_start(dash, new)
                        pending.append((item, new + 2, dash))

    def _add_start(self, offset: int, new: int) -> None:
        line = self.editor.line_at(offset)
        start = self.editor.starts[line]
        if not self.editor.text[start:offset].strip(" "):
            self.starts_at[line] = (offset - start, new)

    def _dash_offset(self, item: Node) -> int | None:
        """The offset of the dash of an item, if it is on the item's line."""
        start = self.editor.starts[self.editor.line_at(item.start)]
        before = re.search(r"-([ ]+)\Z", self.editor.text[start : item.start])
        if before is None:
            return None
        if len(before.group(1)) > 1:
            self.gaps.append((start + before.start(1), item.start))
        return start + before.start()
