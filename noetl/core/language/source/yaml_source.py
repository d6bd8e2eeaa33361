"""Read YAML text into a tree of nodes with positions.

The tree is built from the parser's events with an explicit stack, so that depth, size and aliases are limited while
reading and nothing recurses. Scalars follow the YAML 1.2 core schema: only `true` and `false` (in three spellings) are
booleans, `on` and `yes` are text, numbers are decimal, `0o17` or `0x1f`, and dates are text. Duplicate keys are
errors. Anchors and merge keys (`<<`) are supported.

For every input the result is a tree, problems, or both; never an exception.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, point
from noetl.core.language.source.nodes import data_of as data_of

try:
    from yaml import CSafeLoader as Parser
except ImportError:  # PyYAML without libyaml: slower, same events
    from yaml import SafeLoader as Parser  # type: ignore[assignment]

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_NODES", "Parser", "Problem", "Source", "data_of", "read_source"]

MAX_BYTES = 8 * 1024 * 1024
MAX_NODES = 200_000
MAX_DEPTH = 100


class Problem(NamedTuple):
    """A problem of the text itself; `diagnostics` adds the file and the severity."""

    code: str
    node: Node
    message: str
    hint: str = ""


class Source(NamedTuple):
    """A text and its tree; `root` is None if it cannot be read."""

    text: str
    root: Node | None
    problems: list[Problem]


def read_source(content: str | bytes) -> Source:
    """Read the text of a playbook into nodes, and collect its problems."""
    size = len(content)
    if size > MAX_BYTES:
        found = f"the file has {size / 1048576:.1f} MB; the limit is {MAX_BYTES // 1048576} MB"
        return Source(
            "", None, [Problem("yaml-limit", point(1, 1), found, "store the data in files and read them with tools")]
        )
    text, problem = _decode(content)
    if problem is None:
        problem = _find_unprintable(text)
    if problem is not None:
        return Source(text, None, [problem])
    builder = _Builder(text)
    return Source(text, builder.build(), builder.problems)


def within_limits(data: object) -> bool:
    """Whether data without text respects the limits of text."""
    level, depth, count = [data], 0, 0
    while level:
        depth += 1
        count += len(level)
        if depth > MAX_DEPTH or count > MAX_NODES:
            return False
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
        level = below
    return True


# --- the text before it is YAML -----------------------------------------------------------------


def _decode(content: str | bytes) -> tuple[str, Problem | None]:
    if isinstance(content, bytes):
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return "", Problem("yaml-encoding", point(1, 1), "the file is UTF-16", "save it as UTF-8")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            before = content[: error.start].decode("utf-8", "replace")
            byte = content[error.start]
            message = f"byte 0x{byte:02x} is not valid UTF-8"
            return before, Problem("yaml-encoding", _point_at(before, len(before)), message, "save the file as UTF-8")
    else:
        text = content
    return text.removeprefix("\ufeff"), None


_UNPRINTABLE = re.compile(
    # The class of allowed characters would take 5 ms to compile at every start.
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]",
)


def _find_unprintable(text: str) -> Problem | None:
    found = _UNPRINTABLE.search(text)
    if not found:
        return None
    code = ord(found.group())
    name = "a NUL byte" if code == 0 else f"the control character U+{code:04X}"
    hint = f'in a double-quoted string it can be written as "\\x{code:02x}"' if code < 256 else "remove it"
    return Problem("yaml-encoding", _point_at(text, found.start()), f"{name} is not allowed in a playbook", hint)


LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def _point_at(text: str, offset: int) -> Node:
    line, begin = 1, 0
    for found in LINE_BREAK.finditer(text, 0, offset):
        line, begin = line + 1, found.end()
    return point(line, offset - begin + 1, offset)


# --- events to nodes ----------------------------------------------------------------------------


class _Stop(Exception):
    """Reading cannot continue; the problem is already recorded."""


class _OpenCollection:
    """A collection that is being read."""

    __slots__ = ("anchor", "height", "key", "node", "size")

    def __init__(self, node: Mapping | Sequence, anchor: str | None) -> None:
        self.node = node
        self.anchor = anchor
        self.key: Node | None = None
        self.size = 1
        self.height = 1


class _Anchor(NamedTuple):
    node: Node
    size: int
    height: int


class _Builder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []
        self.stack: list[_OpenCollection] = []
        self.anchors: dict[str, _Anchor | None] = {}
        self.nodes = 0
        self.root: Node | None = None

    def build(self) -> Node | None:
        try:
            self._read(Parser(self.text))
        except _Stop:
            return None
        except yaml.YAMLError as error:
            self.problems.append(_syntax_problem(error, self.text))
            return None
        if self.root is None or (isinstance(self.root, Scalar) and self.root.value is None):
            self._report(
                "yaml-empty",
                point(1, 1),
                "the file has no content",
                "a playbook starts with `apiVersion: noetl.io/v2`",
            )
            return None
        return self.root

    def _read(self, parser: Any) -> None:
        documents = 0
        next_event = parser.get_event
        while (event := next_event()) is not None:
            kind = type(event)
            if kind is ScalarEvent:
                node = Scalar()
                node.first, node.last = event.start_mark, event.end_mark
                node.text = text = event.value
                node.style = style = event.style or ""
                if event.tag is not None:
                    self._tagged(node, event.tag)
                elif style or text[:1] not in _MAY_BE_SPECIAL:
                    node.value = text
                else:
                    self._plain(node, text)
                self._add(node, event.anchor, 1, 1)
            elif kind is MappingStartEvent:
                mapping = Mapping()
                mapping.entries, mapping.merges, mapping.flow = {}, [], bool(event.flow_style)
                mapping.broken = False
                self._open(mapping, event, "tag:yaml.org,2002:map")
            elif kind is SequenceStartEvent:
                sequence = Sequence()
                sequence.items, sequence.flow = [], bool(event.flow_style)
                self._open(sequence, event, "tag:yaml.org,2002:seq")
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                done = self.stack.pop()
                done.node.last = event.end_mark
                if type(done.node) is Mapping and done.node.merges:
                    self._merge(done.node)
                self._add(done.node, done.anchor, done.size, done.height)
            elif kind is AliasEvent:
                self._alias(event)
            elif kind is DocumentStartEvent:
                documents += 1
                if documents > 1:
                    mark = event.start_mark
                    where = point(mark.line + 1, mark.column + 1, mark.index)
                    self._report(
                        "yaml-documents", where, "a second document starts here", "put each playbook into its own file"
                    )
                    return
            elif kind is StreamEndEvent:
                return

    def _report(self, code: str, node: Node, message: str, hint: str = "") -> None:
        self.problems.append(Problem(code, node, message, hint))

    def _stop(self, code: str, node: Node, message: str, hint: str = "") -> None:
        self._report(code, node, message, hint)
        raise _Stop

    def _plain(self, node: Scalar, text: str) -> None:
        node.value, problem = resolve_plain(text)
        if problem:
            self._report("yaml-number", node, problem, "quote it to make it text")

    def _tagged(self, node: Scalar, tag: str) -> None:
        name = tag.removeprefix("tag:yaml.org,2002:")
        node.value = node.text
        if name in ("str", "!"):
            return
        if name in ("int", "float", "bool", "null"):
            value, problem = resolve_plain(node.text)
            if not problem and type(value).__name__ == {"null": "NoneType"}.get(name, name):
                node.value = value
            elif name == "float" and isinstance(value, int) and not isinstance(value, bool):
                node.value = float(value)
            else:
                self._report("yaml-tag", node, f'"{node.text}" is not a {name}', "remove the tag")
            return
        self._report(
            "yaml-tag", node, f'the tag "{_short_tag(tag)}" is not supported', "remove the tag, write plain YAML"
        )

    def _open(self, node: Mapping | Sequence, event: Any, default_tag: str) -> None:
        node.first, node.last = event.start_mark, event.end_mark
        if event.tag not in (None, "!", default_tag):
            self._report(
                "yaml-tag",
                node,
                f'the tag "{_short_tag(event.tag)}" is not supported',
                "remove the tag, write plain YAML",
            )
        if len(self.stack) >= MAX_DEPTH:
            self._stop("yaml-limit", node, f"nested deeper than {MAX_DEPTH} levels", "flatten the structure")
        if event.anchor:
            self.anchors[event.anchor] = None
        self.stack.append(_OpenCollection(node, event.anchor))

    def _alias(self, event: Any) -> None:
        where = Node()
        where.first, where.last = event.start_mark, event.end_mark
        if event.anchor not in self.anchors:
            self._stop(
                "yaml-alias",
                where,
                f'the anchor "&{event.anchor}" is not defined before this alias',
                "define the anchor first",
            )
        known = self.anchors[event.anchor]
        if known is None:
            self._stop(
                "yaml-alias",
                where,
                f'the alias "*{event.anchor}" is inside its own anchor',
                "an alias cannot contain itself",
            )
            return
        if len(self.stack) + known.height > MAX_DEPTH:
            self._stop(
                "yaml-limit",
                where,
                f"nested deeper than {MAX_DEPTH} levels through this alias",
                "flatten the structure",
            )
        if self.stack and self.stack[-1].size + known.size > MAX_NODES:
            self._too_many(where)
        self._add(known.node, None, known.size, known.height)

    def _too_many(self, node: Node) -> None:
        hint = "store the data in files and read them with tools"
        self._stop("yaml-limit", node, f"more than {MAX_NODES:,} values, aliases expanded", hint)

    def _add(self, node: Node, anchor: str | None, size: int, height: int) -> None:
        """Add a finished node to its parent; `size` counts it with everything below it, aliases expanded."""
        if anchor:
            self.anchors[anchor] = _Anchor(node, size, height)
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        top.size += size
        if height >= top.height:
            top.height = height + 1
        self.nodes += 1
        if top.size > MAX_NODES or self.nodes > MAX_NODES:
            self._too_many(node)
        parent = top.node
        if type(parent) is Sequence:
            parent.items.append(node)
            return
        key = top.key
        if key is None:
            top.key = node
            return
        top.key = None
        entries: dict[str, tuple[Scalar, Node]] = parent.entries  # type: ignore[union-attr]
        if type(key) is Scalar and key.text and key.text != "<<" and key.text not in entries:
            entries[key.text] = (key, node)
        else:
            self._add_special_entry(parent, key, node)  # type: ignore[arg-type]

    def _add_special_entry(self, parent: Mapping, key: Node, value: Node) -> None:
        """Handle a key that is not text, is empty, merges, or is a duplicate."""
        if not isinstance(key, Scalar):
            parent.broken = True
            hint = (
                'quote the template: "{{ ... }}"' if isinstance(key, Mapping) and key.flow else "use plain text as key"
            )
            self._report("yaml-key", key, "a mapping or a list cannot be a key", hint)
        elif key.value is None and not key.style:
            self._report("yaml-key", key, "a key is missing here", "write a name before the colon")
        elif key.text == "<<" and not key.style:
            parent.merges.append(value)
        elif key.text in parent.entries:
            first = parent.entries[key.text][0]
            self._report(
                "yaml-duplicate-key",
                key,
                f'duplicate key "{key.text}"',
                f"the first one is on line {first.line}",
            )
        else:
            parent.entries[key.text] = (key, value)

    def _merge(self, parent: Mapping) -> None:
        """Add the entries of merged mappings to the parent; its own keys take precedence, then earlier mappings."""
        for value in parent.merges:
            for mapping in value.items if isinstance(value, Sequence) else [value]:
                if not isinstance(mapping, Mapping):
                    self._report(
                        "yaml-merge",
                        mapping,
                        "`<<` requires a mapping or a list of mappings",
                        "point it at an anchored mapping",
                    )
                    continue
                for name, entry in mapping.entries.items():
                    if name not in parent.entries:
                        parent.entries[name] = entry
                        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._too_many(parent)


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


# --- YAML 1.2 core schema -----------------------------------------------------------------------

_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_MAY_BE_SPECIAL = frozenset(["", *"~nNtTfF+-.0123456789"])
_INTEGER = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")


def resolve_plain(text: str) -> tuple[Any, str]:
    """The value of an unquoted scalar, and the problem if it is a number that cannot be represented."""
    if text in _CONSTANTS:
        return _CONSTANTS[text], ""
    if _INTEGER.match(text):
        if len(text) > 70:
            return text, "this number is too large to be stored exactly"
        value = int(text, 8) if text[:2] == "0o" else int(text, 16) if text[:2] == "0x" else int(text)
        if not -(2**63) <= value < 2**63:
            return text, "this number is too large: the largest whole number is 2^63-1"
        return value, ""
    if _FLOAT.match(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            return text, "this number is too large"
        return number, ""
    if _NOT_FINITE.match(text):
        return text, f"{text} is not a finite number"
    return text, ""


# --- messages for parser errors -----------------------------------------------------------------


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", "") or error)
    context = str(getattr(error, "context", "") or "")
    if mark is None:
        return Problem("yaml-syntax", _point_at(text, int(getattr(error, "position", 0) or 0)), problem)
    where = point(mark.line + 1, mark.column + 1, mark.index)
    begin = getattr(error, "context_mark", None)
    since = f" (it starts on line {begin.line + 1})" if begin is not None and begin.line != mark.line else ""
    character = text[mark.index : mark.index + 1]
    if character == "\t":
        return Problem("yaml-syntax", where, "a tab is used for indentation", "indent with spaces")
    if "cannot start any token" in problem:
        return Problem("yaml-syntax", where, f'a value cannot start with "{character}"', "put the value in quotes")
    if "mapping values are not allowed" in problem:
        hint = "put a value that contains `: ` in quotes, or check the indentation of this line"
        return Problem("yaml-syntax", where, "a second `:` in this value, or a key that is indented too far", hint)
    if "end of stream" in problem and "quoted" in context:
        opened = point(begin.line + 1, begin.column + 1, begin.index) if begin is not None else where
        return Problem("yaml-syntax", opened, "this quote is not closed", "add the closing quote")
    line = text[text.rfind("\n", 0, mark.index) + 1 : (text.find("\n", mark.index) + 1 or len(text) + 1) - 1]
    if any(quote in line for quote in "“”„’‘"):
        message = "typographic quotes are not quotes in YAML"
        return Problem("yaml-syntax", where, message, "write \" or ' around the value")
    if "flow sequence" in context:
        return Problem(
            "yaml-syntax",
            where,
            f"a list in brackets is not closed, or a comma is missing{since}",
            "check for `,` and `]`",
        )
    if "flow mapping" in context:
        return Problem(
            "yaml-syntax",
            where,
            f"a mapping in braces is not closed, or a comma is missing{since}",
            "check for `,` and `}`",
        )
    if "block mapping" in context or "block collection" in context or "simple key" in context:
        what = "list" if "collection" in context else "mapping"
        message = f"this line does not fit into the surrounding {what}{since}"
        return Problem("yaml-syntax", where, message, "check its indentation, and that a colon follows the key")
    return Problem("yaml-syntax", where, f"{problem}{since}")
