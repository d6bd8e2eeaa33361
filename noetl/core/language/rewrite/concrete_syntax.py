"""The concrete syntax tree of a YAML text: keys and values as written, with comments, blank lines, anchors and aliases.

Rewriters change this tree and `concrete_writer` writes it again. A comment belongs to an entry or item: the lines above
it, or the end of its line. Comments after the last entry of a collection belong to the collection. Text between two
values has only white space, comments and punctuation, so every comment is found and none is mistaken for content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.events import AliasEvent, DocumentStartEvent, Event, MappingStartEvent, ScalarEvent, SequenceStartEvent

from noetl.core.language.source.yaml_source import Parser


class Unsupported(Exception):
    """The text has syntax that the tree does not represent (explicit keys), on this line."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


@dataclass(slots=True, eq=False)
class ConcreteNode:
    """A value. `start` and `end` are its range in the source (-1: it is new), `prefix` its anchor and tag, `indent` the
    column of the block collection that contained it."""

    start: int = -1
    end: int = -1
    prefix: str = ""
    indent: int = 0


@dataclass(slots=True, eq=False)
class ConcreteScalar(ConcreteNode):
    """A scalar: as written, and what it means; `body` is the offset of its text in the source."""

    text: str = ""
    value: str = ""
    style: str = ""
    body: int = -1

    @property
    def is_block(self) -> bool:
        """Whether it is a literal or folded block."""
        return self.style in ("|", ">")


@dataclass(slots=True, eq=False)
class ConcreteAlias(ConcreteNode):
    """`*name`."""

    text: str = ""


@dataclass(slots=True, eq=False)
class Element:
    """An entry of a mapping (with `key`) or an item of a list (without).

    `above` are the lines above it ("" is a blank line), `head` the comment beside a key or dash whose value is on the
    following lines, `comment` the one at the end of the value. Comments at line ends include the space before them.
    """

    value: ConcreteNode
    key: ConcreteScalar | None = None
    above: list[str] = field(default_factory=list)
    head: str = ""
    comment: str = ""
    gap: str = " "

    @property
    def name(self) -> str:
        """The key's text, unquoted."""
        return self.key.value if self.key is not None else ""

    @property
    def is_merge(self) -> bool:
        """Whether this is a merge key."""
        return self.key is not None and self.key.text == "<<"


@dataclass(slots=True, eq=False)
class ConcreteCollection(ConcreteNode):
    """A mapping or list. `source` is the text of an unchanged flow collection, `tail` the comments after its end."""

    elements: list[Element] = field(default_factory=list)
    is_mapping: bool = True
    flow: bool = False
    tail: list[str] = field(default_factory=list)
    source: str = ""
    changed: bool = False

    def get(self, name: str) -> Element | None:
        """The entry with this key."""
        return next((each for each in self.elements if each.key is not None and each.key.value == name), None)

    def value(self, name: str) -> ConcreteNode | None:
        """The value of a key."""
        found = self.get(name)
        return found.value if found is not None else None


@dataclass(slots=True)
class ConcreteDocument:
    """A document: the lines before its root, its root, the lines after it."""

    head: str
    root: ConcreteNode
    tail: list[str]
    end: str
    nodes: dict[int, ConcreteNode]  # by start; where a mapping and its first key start together, the mapping
    scalars: dict[int, ConcreteScalar]
    comments: list[str]

    def collection(self, start: int) -> ConcreteCollection | None:
        """The collection that starts at an offset of the source."""
        found = self.nodes.get(start)
        return found if isinstance(found, ConcreteCollection) else None


def owners(root: ConcreteNode) -> dict[int, Element]:
    """The entry or item of each value, by the value's identity."""
    return {
        id(element.value): element
        for node in walk(root)
        if isinstance(node, ConcreteCollection)
        for element in node.elements
    }


def parse(text: str) -> ConcreteDocument:
    """Read a text that is known to be valid YAML, with `\\n` as line end."""
    return _Parser(text).document()


def walk(node: ConcreteNode) -> Iterator[ConcreteNode]:
    """A node and everything below it, in order."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        if isinstance(each, ConcreteCollection):
            pending += [element.value for element in reversed(each.elements)]


# --- reading --------------------------------------------------------------------------------------

_PROPERTIES = re.compile(r"[&!][^\s,\[\]{}]*(?:[ \t]+[&!][^\s,\[\]{}]*)*")
_CHOMPING = re.compile(r"\A([|>])([1-9]?)[+-]?([1-9]?)")
_GAP = re.compile(r"(?P<line>\n)|(?P<space>[ \t\r]+)|(?P<comment>#[^\n]*)|(?P<mark>[^\s#]+)")


@dataclass(slots=True)
class _Line:
    """An own line of a gap: a comment with its column, or a blank line."""

    text: str
    column: int


def _comments(pattern: str, text: str) -> list[str]:
    return [each.rstrip() for each in re.findall(pattern, text)]


class _Parser:
    """Builds the tree from the parser's events; `at` is the offset after the last token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.events = iter(yaml.parse(text, Loader=Parser))
        self.event: Any = next(self.events)
        self.at = 0
        self.pending: list[_Line] = []  # own lines that are not assigned yet
        self.closed: list[tuple[int, ConcreteCollection]] = []  # block collections that ended, deepest first
        self.nodes: dict[int, ConcreteNode] = {}
        self.scalars: dict[int, ConcreteScalar] = {}
        self.comments: list[str] = []

    def _next(self) -> None:
        self.event = next(self.events)

    def _at(self, kind: type[Event]) -> bool:
        return isinstance(self.event, kind)

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(what, self.text.count("\n", 0, self.event.start_mark.index) + 1)

    def document(self) -> ConcreteDocument:
        while not self._at(DocumentStartEvent):
            self._next()
        head = ""
        if self.event.explicit:
            marked = self.event.end_mark.index
            rest = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)").match(self.text, marked)
            if rest is None:
                raise self._unsupported("a value on the line of the document start")
            head = self.text[: rest.end()]
        self.at = len(head)
        self._next()
        self._gap(self._first_character(self.at))
        root = self._node(0)
        end_at = self._document_end()
        self._gap(end_at)
        tail = self._assign(0)
        comments = [*_comments(r"(?m)(?:^|(?<=\s))#.*$", head), *self.comments]
        return ConcreteDocument(head, root, tail, self.text[end_at:], self.nodes, self.scalars, comments)

    def _document_end(self) -> int:
        found = re.compile(r"^\.\.\.", re.M).search(self.text, self.at)
        return found.start() if found else len(self.text)

    # --- nodes ---

    def _node(self, indent: int) -> ConcreteNode:
        event = self.event
        start, end = event.start_mark.index, event.end_mark.index
        if self._at(AliasEvent):
            self.at = end
            self._next()
            return ConcreteAlias(start, self.at, "", indent, self.text[start : self.at])
        if self._at(ScalarEvent):
            return self._scalar(indent)
        found = _PROPERTIES.match(self.text, start) if event.anchor or event.tag else None
        node = ConcreteCollection(
            start,
            -1,
            found.group() if found else "",
            indent,
            is_mapping=isinstance(event, MappingStartEvent),
            flow=bool(event.flow_style),
        )
        self.nodes[start] = node
        self._next()
        self.at = self._first_character(found.end()) if found else start
        if node.flow:
            self._flow(node, self.at)
        else:
            self._block(node)
        node.end = self.at
        return node

    def _first_character(self, offset: int) -> int:
        """The offset of the next character that is neither white space nor comment."""
        while (found := _GAP.match(self.text, offset)) is not None and found.lastgroup != "mark":
            offset = found.end()
        return offset

    def _scalar(self, indent: int) -> ConcreteScalar:
        event = self.event
        start, end = event.start_mark.index, event.end_mark.index
        found = _PROPERTIES.match(self.text, start) if event.anchor or event.tag else None
        prefix = found.group() if found else ""
        body = start + len(prefix)
        written = self.text[body:end].lstrip(" \t")
        body = end - len(written)
        if written[:1] == "\n":
            raise self._unsupported("a line end after an anchor or tag")
        style = event.style or ""
        if style in ("|", ">"):
            written = _without_blank_end(written)
            end = body + len(written)
            if end == len(self.text) and "\n" in written:
                written = _CHOMPING.sub(r"\1\2\3-", written, count=1)  # its last line has no line end
        node = ConcreteScalar(start, end, prefix, indent, written, event.value, style, body)
        self.scalars[start] = node
        self.nodes.setdefault(start, node)
        self.at = end
        self._next()
        return node

    # --- block collections ---

    def _block(self, node: ConcreteCollection) -> None:
        column = self._column(self.at)
        while not _is_end(self.event):
            if node.is_mapping:
                self._gap(self.event.start_mark.index)
                above = self._assign(column)
                if not self._at(ScalarEvent):
                    raise self._unsupported("a key that is not a scalar")
                key = self._scalar(column)
                node.elements.append(self._after_mark(key, column, above))
            else:
                self._gap(self._first_character(self.at))
                above = self._assign(column)
                self.at += 1
                node.elements.append(self._after_mark(None, column, above))
        self._next()
        self.closed.append((column, node))

    def _after_mark(self, key: ConcreteScalar | None, column: int, above: list[str]) -> Element:
        """The value after a colon or dash, with the comment beside it."""
        begin = self.at
        value_start = self.event.start_mark.index
        head, own = self._split(begin, max(value_start, begin), ":" if key is not None else "")
        inner_block = isinstance(self.event, MappingStartEvent | SequenceStartEvent) and not self.event.flow_style
        element = Element(ConcreteNode(), key, above)
        if inner_block:
            element.head, self.pending = head, own
            if self.event.anchor or self.event.tag:
                found = _PROPERTIES.match(self.text, value_start)
                if own or head or found is None:
                    raise self._unsupported("a comment between a key and its anchor")
                element.head, self.pending = self._split(found.end(), self._first_character(found.end()), "")
            element.value = self._node(column)
            return element
        if "\n" in self.text[begin:value_start]:  # the value is on a line of its own
            element.above += [*([head.strip()] if head else []), *(line.text for line in own if line.text)]
        else:
            element.gap = self.text[begin:value_start].partition(":")[2] or " " if key else " "
        element.value = self._node(column)
        if isinstance(element.value, ConcreteScalar) and element.value.is_block:
            self.comments += _comments(r"\s(#.*)", element.value.text.split("\n", 1)[0])
            return element
        stop = self.text.find("\n", self.at)
        rest = self.text[self.at : stop if stop >= 0 else len(self.text)]
        if rest.lstrip().startswith("#"):
            element.comment = rest.rstrip()
            self.comments.append(element.comment.lstrip())
            self.at += len(rest)
        return element

    def _column(self, offset: int) -> int:
        return offset - (self.text.rfind("\n", 0, offset) + 1)

    # --- gaps ---

    def _split(self, begin: int, end: int, marks: str) -> tuple[str, list[_Line]]:
        """The comment at the end of the first line of a gap, and the lines below it."""
        head, own, line_start, first = "", [], begin, True
        blank = False
        space = ""
        for found in _GAP.finditer(self.text, begin, end):
            what = found.lastgroup
            if what == "line":
                if blank and not first:
                    own.append(_Line("", 0))
                first, blank, line_start, space = False, True, found.end(), ""
            elif what == "space":
                space = found.group()
            elif what == "comment":
                blank = False
                self.comments.append(found.group().rstrip())
                if first:
                    head = space + found.group().rstrip()
                else:
                    own.append(_Line(found.group().rstrip(), found.start() - line_start))
            elif found.group() not in marks:
                raise self._unsupported("an explicit key (`?`)" if found.group() == "?" else repr(found.group()[:20]))
        return head, own

    def _gap(self, end: int) -> None:
        """Read the gap before a token: all its comments are pending."""
        head, own = self._split(self.at, max(end, self.at), "")
        if head:
            own.insert(0, _Line(head.strip(), self._column(self.at)))
        self.pending += own
        self.at = max(end, self.at)

    def _assign(self, column: int) -> list[str]:
        """Give the pending lines to the collections that ended before, and return those of the next element."""
        lines, self.pending = self.pending, []
        closed, self.closed = self.closed, []
        waiting: list[str] = []
        rest: list[_Line] = []
        level = 0
        for number, line in enumerate(lines):
            if not line.text:
                waiting.append("")
                continue
            while level < len(closed) and closed[level][0] > line.column:
                level += 1
            if level == len(closed) or line.column <= column:
                rest = lines[number - len(waiting) :]
                waiting = []
                break
            closed[level][1].tail += [*waiting, line.text]
            waiting = []
        return [line.text for line in rest] if rest else waiting

    # --- flow collections ---

    def _flow(self, node: ConcreteCollection, body: int) -> None:
        is_pair = self.text[body] not in "{["  # `[a: 1]`: a mapping without braces
        self.at = body + (0 if is_pair else 1)
        while not _is_end(self.event):
            above = self._flow_comments(node, self.event.start_mark.index)
            if node.is_mapping:
                if not self._at(ScalarEvent):
                    raise self._unsupported("a key that is not a scalar")
                key = self._scalar(0)
                value_start = self.event.start_mark.index
                head, own = self._split(self.at, max(value_start, self.at), ":")
                above += [*([head.strip()] if head else []), *(line.text for line in own if line.text)]
                element = Element(ConcreteNode(), key, above)
            else:
                element = Element(ConcreteNode(), None, above)
            node.elements.append(element)
            element.value = self._node(0)
        if not is_pair:
            node.tail = self._flow_comments(node, self.event.start_mark.index)
            self.at = self.event.end_mark.index
        node.source = self.text[body : self.at]
        self._next()

    def _flow_comments(self, node: ConcreteCollection, end: int) -> list[str]:
        """The comments before an element; one at the end of the previous element's line belongs to that."""
        head, own = self._split(self.at, max(end, self.at), ",")
        self.at = max(end, self.at)
        if head and node.elements:
            node.elements[-1].comment = head
            head = ""
        return [*([head.strip()] if head else []), *(line.text for line in own if line.text)]


def _without_blank_end(written: str) -> str:
    """A block scalar without the empty lines after it, unless it keeps them (`|+`)."""
    header, *lines = written.split("\n")
    if "+" in header.split("#")[0]:
        return written.removesuffix("\n")
    first = next((line for line in lines if line.strip()), None)
    explicit = re.search(r"[1-9]", header.split("#")[0])
    if first is None or explicit:
        while lines and not lines[-1]:
            lines.pop()
        return "\n".join([header, *lines])
    indent = len(first) - len(first.lstrip(" "))
    while lines and not lines[-1].strip(" ") and len(lines[-1]) <= indent:
        lines.pop()
    return "\n".join([header, *lines])


def _is_end(event: object) -> bool:
    return isinstance(event, yaml.events.CollectionEndEvent)
