"""Changes of a concrete syntax tree: new nodes, comments that move with their entries, aliases expanded."""

from __future__ import annotations

import json
import re
from typing import Any

from noetl.core.language.rewrite.concrete_syntax import (
    ConcreteAlias,
    ConcreteCollection,
    ConcreteDocument,
    ConcreteNode,
    ConcreteScalar,
    Element,
    walk,
)
from noetl.core.language.source.yaml_source import resolve_plain


class NeedsExpansion(Exception):
    """The change is possible only without anchors, aliases and merge keys."""


# --- new nodes --------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[^\W\d][\w./-]*\Z")
_PLAIN_KEY = re.compile(r"[\w.-]*[\w-]\Z")
# Words that other readers of YAML (1.1) take for booleans.
_KEYWORDS = frozenset(["yes", "no", "on", "off", "y", "n"])


def scalar_text(value: Any, *, style: str = '"') -> str:
    """A value of one line as YAML text; `style` is the preferred quote."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return json.dumps(value) if isinstance(value, int | float) else str(value)
    if _PLAIN.match(value) and _is_text(value):
        return value
    return quoted(value, style)


def quoted(value: str, style: str = '"') -> str:
    """A text in quotes: the preferred ones, or those that need no escapes."""
    if not value.isprintable():
        return json.dumps(value, ensure_ascii=any(not each.isprintable() and each != "\n" for each in value))
    for quote in (style, '"', "'"):
        if quote == '"' and '"' not in value and "\\" not in value:
            return f'"{value}"'
        if quote == "'" and "'" not in value:
            return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)


def key_text(name: str) -> str:
    """A key as YAML text."""
    return name if _PLAIN_KEY.match(name) and name[0] != "-" and _is_text(name) else quoted(name)


def _is_text(value: str) -> bool:
    return resolve_plain(value)[0] == value and value.lower() not in _KEYWORDS


def new_scalar(value: Any, *, style: str = '"') -> ConcreteScalar:
    """A scalar without a source; text of several lines becomes a literal block."""
    if isinstance(value, str) and "\n" in value and _fits_literal(value):
        content = value.rstrip("\n")
        tail = len(value) - len(content)
        chomp = "-" if tail == 0 else "" if tail == 1 and content else "+"
        hint = "2" if content[:1] in (" ", "\n", "") else ""
        body = content + "\n" * max(tail - 1, 0)
        text = "\n".join([f"|{hint}{chomp}", *(f"  {line}" if line else "" for line in body.split("\n"))])
        return ConcreteScalar(text=text, value=value, style="|")
    text = scalar_text(value, style=style)
    return ConcreteScalar(text=text, value=str(value), style=text[0] if text[:1] in ("'", '"') else "")


def _fits_literal(value: str) -> bool:
    return value.strip("\n") != "" and all(each.isprintable() or each in "\n\t" for each in value)


def new_key(name: str) -> ConcreteScalar:
    """A key without a source."""
    return ConcreteScalar(text=key_text(name), value=name)


def new_entry(name: str, value: ConcreteNode) -> Element:
    """An entry without a source."""
    return Element(value, new_key(name))


def rename(key: ConcreteScalar | None, name: str) -> None:
    """Change a key."""
    if key is not None:
        key.text, key.value = key_text(name), name


# --- comments ---------------------------------------------------------------------------------------


def comments_of(element: Element) -> list[str]:
    """The comments of an entry itself, as lines."""
    ends = [each.strip() for each in (element.head, element.comment) if each]
    return [*element.above, *ends]


def put_above(element: Element, lines: list[str]) -> None:
    """Add lines above an entry; blank lines only at its top."""
    element.above = [*lines, *element.above]


def remove(collection: ConcreteCollection, element: Element) -> None:
    """Remove an entry; its comments move to the next entry, or after the last one."""
    at = collection.elements.index(element)
    del collection.elements[at]
    collection.changed = True
    lines = [line for line in comments_below(element) if line]
    if at < len(collection.elements):
        put_above(collection.elements[at], lines)
    else:
        collection.tail = [*lines, *collection.tail]


def joined(blocks: list[tuple[Element, ConcreteCollection]]) -> tuple[list[Element], list[str]]:
    """The entries of several blocks in one list, and the comments after the last one.

    The comments of an entry that contained a block move to the block's first entry.
    """
    elements: list[Element] = []
    pending: list[str] = []
    for holder, block in blocks:
        pending += comments_of(holder)
        if block.elements:
            put_above(block.elements[0], pending)
            pending = []
        elements += block.elements
        pending += block.tail
    return elements, pending


def comments_below(element: Element) -> list[str]:
    """The comments of an entry and of everything below it."""
    found = comments_of(element)
    if isinstance(element.value, ConcreteCollection):
        for inner in element.value.elements:
            found += comments_below(inner)
        found += element.value.tail
    return found


# --- anchors and aliases ----------------------------------------------------------------------------


def uses_aliases(document: ConcreteDocument) -> bool:
    """Whether a document has anchors or aliases."""
    return any(isinstance(node, ConcreteAlias) or "&" in node.prefix for node in walk(document.root))


def expand_aliases(document: ConcreteDocument) -> None:
    """Replace every alias and merge key with a copy of its anchor's value; comments stay at the anchor."""
    anchors: dict[str, ConcreteNode] = {}
    _expand(document.root, anchors)
    for node in walk(document.root):
        node.prefix = " ".join(each for each in node.prefix.split() if not each.startswith("&"))


def _expand(node: ConcreteNode, anchors: dict[str, ConcreteNode]) -> None:
    if isinstance(node, ConcreteCollection):
        for element in list(node.elements):
            if element.key is not None and element.key.prefix:
                name = _anchor_name(element.key.prefix)
                if name:
                    anchors[name] = element.key
                element.key.prefix = ""
                node.changed = True
            if isinstance(element.value, ConcreteAlias):
                element.value = copy_of(anchors[element.value.text[1:]])
                node.changed = True
            _expand(element.value, anchors)
        for element in [each for each in node.elements if each.is_merge]:
            _merge(node, element)
    name = _anchor_name(node.prefix)
    if name:
        anchors[name] = node


def _anchor_name(prefix: str) -> str:
    return next((each[1:] for each in prefix.split() if each.startswith("&")), "")


def copy_of(node: ConcreteNode) -> ConcreteNode:
    """A copy without anchors and comments."""
    prefix = " ".join(part for part in node.prefix.split() if not part.startswith("&"))
    if isinstance(node, ConcreteScalar):
        return ConcreteScalar(prefix=prefix, indent=node.indent, text=node.text, value=node.value, style=node.style)
    if isinstance(node, ConcreteCollection):
        elements = [
            Element(copy_of(each.value), _copy_key(each.key) if each.key is not None else None)
            for each in node.elements
        ]
        return ConcreteCollection(
            prefix=prefix, elements=elements, is_mapping=node.is_mapping, flow=node.flow, changed=True
        )
    assert isinstance(node, ConcreteAlias)
    return ConcreteAlias(text=node.text)


def _copy_key(key: ConcreteScalar) -> ConcreteScalar:
    return ConcreteScalar(text=key.text, value=key.value, style=key.style)


def _merge(node: ConcreteCollection, merge: Element) -> None:
    """Replace a merge key with the entries that it adds; the order is that of the parser: own entries come first."""
    value = merge.value
    sources = [value]
    if isinstance(value, ConcreteCollection) and not value.is_mapping:
        sources = [each.value for each in value.elements]
    known = {each.name for each in node.elements}
    for source in sources:
        for element in list(source.elements) if isinstance(source, ConcreteCollection) else []:
            if element.name not in known:
                known.add(element.name)
                node.elements.append(element)
                assert isinstance(source, ConcreteCollection)
                source.elements.remove(element)
    remove(node, merge)
