"""The nodes of a YAML tree with their positions.

A node stores its start and end marks; lines and columns start at 1.
"""

from __future__ import annotations

from typing import Any, TypeVar


class Mark:
    """A position as the parser counts it: everything from 0."""

    __slots__ = ("column", "index", "line")

    def __init__(self, line: int, column: int, index: int) -> None:
        self.line = line
        self.column = column
        self.index = index


class Node:
    """A range of the text."""

    __slots__ = ("first", "last")

    first: Any  # a Mark, or the parser's own
    last: Any

    @property
    def line(self) -> int:
        """The first line."""
        return int(self.first.line) + 1

    @property
    def column(self) -> int:
        """The first column."""
        return int(self.first.column) + 1

    @property
    def end_line(self) -> int:
        """The last line."""
        return int(self.last.line) + 1

    @property
    def end_column(self) -> int:
        """The column after its last character."""
        return int(self.last.column) + 1

    @property
    def start(self) -> int:
        """The offset of its first character."""
        return int(self.first.index)

    @property
    def end(self) -> int:
        """The offset after its last character."""
        return int(self.last.index)


class Scalar(Node):
    """One value. `text` is what the author wrote (unquoted), `value` what it means."""

    __slots__ = ("style", "text", "value")

    text: str
    value: Any  # str, int, float, bool or None
    style: str  # "" plain, ' " quoted, | > block


class Mapping(Node):
    """Keys and values in the author's order, with merge keys applied."""

    __slots__ = ("broken", "entries", "flow", "merges")

    entries: dict[str, tuple[Scalar, Node]]
    merges: list[Node]
    flow: bool
    broken: bool  # a key could not be read and is already reported

    def get(self, key: str) -> Node | None:
        """The value of a key, or None."""
        entry = self.entries.get(key)
        return entry[1] if entry else None


class Sequence(Node):
    """Items in order."""

    __slots__ = ("flow", "items")

    items: list[Node]
    flow: bool


def data_of(node: Node | None) -> Any:
    """The plain data of a node."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Mapping):
        return {key: data_of(value) for key, (_, value) in node.entries.items()}
    if isinstance(node, Sequence):
        return [data_of(item) for item in node.items]
    return None


def node_from(data: Any, at: Node | None = None) -> Node:
    """Nodes for data without text (synthesized steps); all have the same position."""
    place = at or point(1, 1)
    node: Node
    if isinstance(data, dict):
        node = mapping_node(
            {str(key): (scalar_node(str(key), place), node_from(v, place)) for key, v in data.items()}, place
        )
    elif isinstance(data, list | tuple):
        node = sequence_node([node_from(item, place) for item in data], place)
    elif data is None or isinstance(data, bool | int | float | str):
        node = scalar_node(data, place)
    else:
        node = scalar_node(str(data), place)
    return node


def scalar_node(value: Any, at: Node) -> Scalar:
    """A scalar at the position of another node."""
    node = Scalar()
    node.value = value
    node.text = value if isinstance(value, str) else "" if value is None else str(value)
    node.style = "" if not isinstance(value, str) else '"'
    return _placed_at(node, at)


def mapping_node(entries: dict[str, tuple[Scalar, Node]], at: Node) -> Mapping:
    """A mapping at the position of another node."""
    node = Mapping()
    node.entries, node.merges, node.flow, node.broken = entries, [], False, False
    return _placed_at(node, at)


def sequence_node(items: list[Node], at: Node) -> Sequence:
    """A sequence at the position of another node."""
    node = Sequence()
    node.items, node.flow = items, False
    return _placed_at(node, at)


_NodeT = TypeVar("_NodeT", bound=Node)


def _placed_at(node: _NodeT, at: Node) -> _NodeT:
    node.first, node.last = at.first, at.last
    return node


def point(line: int, column: int, start: int = 0) -> Node:
    """A node of one character; line and column start at 1."""
    node = Node()
    node.first, node.last = Mark(line - 1, column - 1, start), Mark(line - 1, column, start + 1)
    return node
