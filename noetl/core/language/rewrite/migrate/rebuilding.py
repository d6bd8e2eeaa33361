"""Rebuild a concrete syntax tree from a translated tree: unchanged parts keep their text, comments keep their entries.

The nodes of a translated tree are nodes of the source, or new ones at the position of what they replace. A new entry
gets the comments of the entry at its position, unless that is still there; comments of entries that are gone move to
the next entry.
"""

from __future__ import annotations

from noetl.core.language.rewrite.concrete_edits import comments_of, copy_of, new_key, new_scalar, put_above
from noetl.core.language.rewrite.concrete_syntax import (
    ConcreteAlias,
    ConcreteCollection,
    ConcreteDocument,
    ConcreteNode,
    Element,
    walk,
)
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, data_of


class Rebuilder:
    """Changes a document so that it represents a translated tree; `root` is the tree of the source."""

    def __init__(self, document: ConcreteDocument, root: Node) -> None:
        self.document = document
        self.known: set[int] = set()
        self._collect(root)

    def _collect(self, node: Node) -> None:
        if id(node) in self.known:
            return
        self.known.add(id(node))
        if isinstance(node, Mapping):
            for key, value in node.entries.values():
                self._collect(key)
                self._collect(value)
        elif isinstance(node, Sequence):
            for item in node.items:
                self._collect(item)

    def update(self, written: ConcreteNode, old: Node, new: Node) -> ConcreteNode:
        """The text of a value after its translation from `old` to `new`."""
        if old is new or _same(old, new):
            return written
        if isinstance(written, ConcreteCollection):
            if isinstance(old, Mapping) and isinstance(new, Mapping) and _are_entries(written, old, new):
                for element in written.elements:
                    element.value = self.update(
                        element.value, old.entries[element.name][1], new.entries[element.name][1]
                    )
                return written
            if isinstance(old, Sequence) and isinstance(new, Sequence) and len(old.items) == len(new.items):
                for element, before, after in zip(written.elements, old.items, new.items, strict=True):
                    element.value = self.update(element.value, before, after)
                return written
        made = _Subtree(self, written).rebuilt(new)
        if made.start < 0:
            made.start, made.end = written.start, written.end  # it takes the place of the old text
        return made


class _Subtree:
    """One value that is rebuilt."""

    def __init__(self, rebuilder: Rebuilder, written: ConcreteNode) -> None:
        self.rebuilder = rebuilder
        self.document = rebuilder.document
        self.written = written
        self.elements = _elements(written)
        self.by_key = {each.key.start: each for each in self.elements if each.key is not None}
        self.by_item = {each.value.start: each for each in self.elements if each.key is None}
        self.used: set[int] = set()  # identities of concrete nodes that are part of the result
        self.claims: list[tuple[Element, Element, bool]] = []  # new, old, whether it is the same entry

    def rebuilt(self, new: Node) -> ConcreteNode:
        """The new value with all comments of the old one."""
        made = self._node(new)
        if not made.prefix and not isinstance(made, ConcreteAlias):
            made.prefix = self.written.prefix
        claimed: dict[int, Element] = {}
        for target, origin, same in sorted(self.claims, key=lambda each: not each[2]):
            if id(origin) not in claimed:
                claimed[id(origin)] = target
                target.above, target.head, target.comment = [*origin.above], origin.head, origin.comment
                if same and target.value is origin.value:
                    target.gap = origin.gap
        self._place_rest(made, claimed)
        return made

    def _node(self, node: Node) -> ConcreteNode:
        if isinstance(node, Scalar):
            return self._scalar(node)
        if id(node) in self.rebuilder.known:
            found = self.document.collection(node.start)
            if found is not None:
                return self._reused(found)
        made = ConcreteCollection(is_mapping=isinstance(node, Mapping), changed=True)
        made.flow = isinstance(node, Mapping | Sequence) and node.flow
        if isinstance(node, Mapping):
            for name, (key_node, value) in node.entries.items():
                made.elements.append(self._entry(name, key_node, value))
        elif isinstance(node, Sequence):
            for item in node.items:
                element = Element(self._node(item))
                origin = self.by_item.get(item.start)
                if origin is not None:
                    self.claims.append((element, origin, True))
                made.elements.append(element)
        return made

    def _entry(self, name: str, key_node: Scalar, value: Node) -> Element:
        origin = self.by_key.get(key_node.start)
        same = id(key_node) in self.rebuilder.known
        key = origin.key if origin is not None and same and origin.name == name else None
        if key is not None and id(key) in self.used:
            key = None
        if key is not None:
            self.used.add(id(key))
        written = origin.value if origin is not None and same else None
        if isinstance(written, ConcreteAlias) and id(value) in self.rebuilder.known and id(written) not in self.used:
            self.used.add(id(written))
            element = Element(written, key or new_key(name))
        else:
            element = Element(self._node(value), key or new_key(name))
        if origin is not None:
            self.claims.append((element, origin, same))
        return element

    def _scalar(self, node: Scalar) -> ConcreteNode:
        found = self.document.scalars.get(node.start)
        if id(node) in self.rebuilder.known and found is not None:
            return self._reused(found)
        style = found.style if found is not None and found.style in ("'", '"') else '"'
        return new_scalar(node.value, style=style)

    def _reused(self, found: ConcreteNode) -> ConcreteNode:
        if id(found) not in self.used:
            self.used.update(id(each) for each in walk(found))
            return found
        return copy_of(found)

    def _place_rest(self, made: ConcreteNode, claimed: dict[int, Element]) -> None:
        """Move the comments of entries that are gone to the next entry that is there."""
        targets = sorted(
            ((_place(origin), target) for target, origin, _ in self.claims if claimed.get(id(origin)) is target),
            key=lambda each: each[0],
        )
        kept = {id(element) for element in _elements(made)}
        here = {id(node) for node in walk(made)}
        left = [
            (_place(element), comments_of(element))
            for element in self.elements
            if id(element) not in claimed and id(element) not in kept
        ]
        left += [
            (node.end, node.tail)
            for node in walk(self.written)
            if isinstance(node, ConcreteCollection) and id(node) not in here
        ]
        for place, found in sorted(left, key=lambda each: each[0], reverse=True):
            lines = [line for line in found if line]
            if not lines:
                continue
            after = next((target for at, target in targets if at > place), None)
            if after is not None:
                put_above(after, lines)
            elif isinstance(made, ConcreteCollection):
                made.tail = [*lines, *made.tail]
            elif targets:
                targets[-1][1].above += lines
        for element in reversed(_elements(made)):
            _move_above_dash(element)


def _move_above_dash(element: Element) -> None:
    """Comments above the first entry of a list's item are written above the item."""
    value = element.value
    if element.key is None and value.start < 0 and isinstance(value, ConcreteCollection) and value.elements:
        first = value.elements[0]
        element.above += [*([element.head.strip()] if element.head else []), *first.above]
        element.head, first.above = "", []


def _place(element: Element) -> int:
    return element.key.start if element.key is not None else element.value.start


def _elements(node: ConcreteNode) -> list[Element]:
    return [element for each in walk(node) if isinstance(each, ConcreteCollection) for element in each.elements]


def _same(old: Node, new: Node) -> bool:
    return repr(data_of(old)) == repr(data_of(new))


def _are_entries(written: ConcreteCollection, old: Mapping, new: Mapping) -> bool:
    """Whether a mapping has the same keys as before, all written in it."""
    names = [each.name for each in written.elements]
    return names == list(old.entries) == list(new.entries)
