"""Making nodes that have no text of their own, each standing where the author's words stood."""

from __future__ import annotations

from typing import Any, NamedTuple

from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, mapping_node, scalar_node, sequence_node

Entries = dict[str, tuple[Scalar, Node]]


class Remark(NamedTuple):
    """A word that canonical text does not have: what became of it."""

    node: Node
    message: str


def made(value: Any, at: Node) -> Node:
    """Nodes for data in which nodes may be mixed in; what has no place of its own stands at `at`."""
    if isinstance(value, Node):
        return value
    if isinstance(value, dict):
        return mapping_node({key: entry(key, inner, at) for key, inner in value.items()}, at)
    if isinstance(value, list):
        return sequence_node([made(item, at) for item in value], at)
    return scalar_node(value, at)


def entry(key: str, value: Any, at: Node) -> tuple[Scalar, Node]:
    """A key and its value."""
    return scalar_node(key, at), made(value, at)


def put(entries: Entries, path: tuple[str, ...], value: Any, at: Node) -> None:
    """Set a value deep inside, making the mappings on the way; what is there already stays."""
    head, *rest = path
    if not rest:
        entries.setdefault(head, entry(head, value, at))
        return
    known = entries.get(head)
    inner: Entries = dict(known[1].entries) if known is not None and isinstance(known[1], Mapping) else {}
    put(inner, tuple(rest), value, at)
    key = known[0] if known is not None else scalar_node(head, at)
    entries[head] = (key, mapping_node(inner, known[1] if known is not None else at))


def items_of(node: Node | None) -> list[Node]:
    """The items of a list, or the one thing that stands alone."""
    if isinstance(node, Sequence):
        return node.items
    return [] if node is None or (isinstance(node, Scalar) and node.value is None) else [node]
