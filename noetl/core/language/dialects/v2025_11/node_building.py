"""Create nodes that have no text of their own; each gets the position of the text that it replaces."""

from __future__ import annotations

from typing import Any, NamedTuple

from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, mapping_node, scalar_node, sequence_node

Entries = dict[str, tuple[Scalar, Node]]


class TranslationNote(NamedTuple):
    """What the translation removed, and where."""

    node: Node
    message: str


def to_node(value: Any, at: Node) -> Node:
    """Nodes for data that may contain nodes; new nodes get the position of `at`."""
    if isinstance(value, Node):
        return value
    if isinstance(value, dict):
        return mapping_node({key: entry(key, inner, at) for key, inner in value.items()}, at)
    if isinstance(value, list):
        return sequence_node([to_node(item, at) for item in value], at)
    return scalar_node(value, at)


def entry(key: str, value: Any, at: Node) -> tuple[Scalar, Node]:
    """A key and its value."""
    return scalar_node(key, at), to_node(value, at)


def put_nested(entries: Entries, path: tuple[str, ...], value: Any, at: Node) -> None:
    """Set a nested value and create the mappings on its path; an existing value is not replaced."""
    head, *rest = path
    if not rest:
        entries.setdefault(head, entry(head, value, at))
        return
    known = entries.get(head)
    inner: Entries = dict(known[1].entries) if known is not None and isinstance(known[1], Mapping) else {}
    put_nested(inner, tuple(rest), value, at)
    key = known[0] if known is not None else scalar_node(head, at)
    entries[head] = (key, mapping_node(inner, known[1] if known is not None else at))


def items_of(node: Node | None) -> list[Node]:
    """The items of a list, or a single value as a list."""
    if isinstance(node, Sequence):
        return node.items
    return [] if node is None or (isinstance(node, Scalar) and node.value is None) else [node]
