"""Write a concrete syntax tree as text in the canonical layout: two columns of indentation, no trailing white space.

Values keep their text. A flow collection that has changed is written on one line, or as a block if it has comments.
"""

from __future__ import annotations

from noetl.core.language.rewrite.concrete_syntax import (
    ConcreteAlias,
    ConcreteCollection,
    ConcreteDocument,
    ConcreteNode,
    ConcreteScalar,
    Element,
)


def write(document: ConcreteDocument) -> str:
    """The text of a document."""
    root = document.root
    lines: list[str] = []
    if isinstance(root, ConcreteCollection) and _as_block(root):
        if root.prefix:
            lines.append(root.prefix)
        _block(root, 0, lines)
    else:
        lines += _value_lines(root, 0)
    tail = document.tail
    while tail and not tail[-1]:
        tail = tail[:-1]
    lines += tail
    return document.head + "\n".join(lines) + "\n" + document.end.rstrip("\n") + ("\n" if document.end.strip() else "")


def _block(node: ConcreteCollection, column: int, lines: list[str]) -> None:
    for element in node.elements:
        _element(element, column, lines)
    _comments(node.tail, column, lines)


def _comments(above: list[str], column: int, lines: list[str]) -> None:
    lines += [" " * column + line if line else "" for line in above]


def _element(element: Element, column: int, lines: list[str]) -> None:
    _comments(element.above, column, lines)
    value = element.value
    lead = " " * column + "-" if element.key is None else " " * column + _key(element.key) + ":"
    if isinstance(value, ConcreteCollection) and _as_block(value):
        head = element.head or element.comment
        if element.head and element.comment:
            _comments([element.comment.strip()], column, lines)
        inner: list[str] = []
        _block(value, column + 2, inner)
        compact = element.key is None and not head and not value.prefix and not _starts_with_comment(value)
        if compact:
            lines.append(f"{lead} {inner[0][column + 2 :]}")
            lines += inner[1:]
        else:
            lines.append(f"{lead}{' ' if value.prefix else ''}{value.prefix}{_spaced(head)}")
            lines += inner
        return
    if element.head:
        _comments([element.head.strip()], column, lines)
    first, *rest = _value_lines(value, column)
    gap = (element.gap if element.key is not None and "\n" not in element.gap else " ") if first else ""
    lines.append(f"{lead}{gap}{first}")
    lines += rest
    lines[-1] += _spaced(element.comment)


def _spaced(comment: str) -> str:
    return comment if not comment or comment[0].isspace() else f"  {comment}"


def _starts_with_comment(node: ConcreteCollection) -> bool:
    return bool(node.elements and node.elements[0].above)


def _key(key: ConcreteScalar) -> str:
    return f"{key.prefix} {key.text}" if key.prefix else key.text


def _as_block(node: ConcreteCollection) -> bool:
    return bool(node.elements) and (not node.flow or _needs_block(node))


def _needs_block(node: ConcreteNode) -> bool:
    """Whether a flow collection cannot be written as one: it has changed and has comments, or contains a block."""
    if isinstance(node, ConcreteScalar):
        return node.is_block
    if not isinstance(node, ConcreteCollection):
        return False
    if not node.flow:
        return bool(node.elements)
    commented = bool(node.tail) or any(each.above or each.comment or each.head for each in node.elements)
    return (node.changed and commented) or any(_needs_block(each.value) for each in node.elements)


def _value_lines(node: ConcreteNode, column: int) -> list[str]:
    """The lines of a value after a key or dash in a collection at this column."""
    text = _inline(node)
    first, *rest = text.split("\n")
    shift = column - node.indent
    if isinstance(node, ConcreteScalar) and node.is_block:
        return [first.rstrip(), *(_shifted(line, shift) if line.strip(" ") or shift > 0 else line for line in rest)]
    lines = [first.rstrip()]
    for line in rest:
        bare = line.strip(" \t\r")
        if bare.endswith("\\") and bare != line.lstrip(" \t"):
            bare = line.lstrip(" \t")  # an escaped space at the end of a line in quotes
        indent = max(len(line) - len(line.lstrip(" \t")) + shift, column + 1) if bare else 0
        lines.append(" " * indent + bare)
    return lines


def _shifted(line: str, columns: int) -> str:
    if not line:
        return line
    if columns >= 0:
        return " " * columns + line
    return line[min(-columns, len(line) - len(line.lstrip(" "))) :]


def _inline(node: ConcreteNode) -> str:
    """The text of a value with its anchor."""
    if isinstance(node, ConcreteCollection):
        text = _flow(node)
    else:
        text = node.text if isinstance(node, ConcreteScalar | ConcreteAlias) else ""
    return f"{node.prefix} {text}".rstrip(" ") if node.prefix else text


def _flow(node: ConcreteCollection) -> str:
    opening, closing = ("{", "}") if node.is_mapping else ("[", "]")
    if not node.source or node.changed:
        pad = " " if node.source[1:2] == " " and node.elements else ""
        parts = [
            (f"{_key(each.key)}: " if each.key is not None else "") + (_inline(each.value) or "null")
            for each in node.elements
        ]
        return f"{opening}{pad}{', '.join(parts)}{pad}{closing}"
    body = node.end - len(node.source)
    pieces: list[str] = []
    at = 0
    for each in node.elements:
        for part in (each.key, each.value):
            if part is not None and part.start >= 0:
                pieces += [node.source[at : part.start - body], _inline(part)]
                at = part.end - body
    return "".join([*pieces, node.source[at:]])
