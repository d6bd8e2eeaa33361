"""Templates in string literals of SQL: a value with a quote ends the literal, and what follows it is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence

_KINDS = ("postgres", "duckdb", "sqlite", "mysql")
_PARAMETERS = ("command", "commands", "query", "queries", "sql", "statement", "statements")
_SIDES = ("source", "target", "targets")
TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_MARK = "\x01"
_LITERAL = re.compile(r"--[^\n]*|/\*.*?\*/|\"[^\"]*\"|(?P<text>'(?:[^']|'')*')|(?P<end>;)", re.DOTALL)
_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*([a-z]+)", re.DOTALL | re.IGNORECASE)
# Statements in which a parameter can be bound.
_BINDING = {"select", "with", "insert", "update", "delete", "merge", "values", "from", "call", "replace"}
# Filters after which a value has no quotes, or only doubled ones.
_SAFE = re.compile(r"\|\s*(?:int|float|length|count|abs|b64encode)\s*(?:\([^|]*\))?\s*-?\}\}$|replace\(\s*\"'\"")
# Values without quotes: ids and indexes.
_PLAIN = re.compile(
    r"\{\{-?\s*(?:execution_id|job\.(?:uuid|execution_id|id)|loop_index|iter\.(?:index|count)|uuid\(\)|now\(\))\s*-?\}\}"
)


def check(context: AnalysisContext) -> None:
    """Report each literal with a template in the SQL of tasks, sources and targets."""
    for body in context.document.bodies():
        for task in body.tasks():
            for kind, fields in owners(task.kind, {name: field.value for name, field in task.parameters.items()}):
                for node, _ in statements(fields):
                    _check(context, kind, node)


def owners(kind: str | None, fields: dict[str, Node | None]) -> Iterator[tuple[str, dict[str, Node | None]]]:
    """The kinds of databases and the fields of what has SQL in a task: itself, or its source and targets."""
    if kind in _KINDS:
        yield kind, fields
    elif kind == "transfer":
        for name in _SIDES:
            sides = fields.get(name)
            for side in sides.items if isinstance(sides, Sequence) else [sides]:
                inner = side.get("kind") if isinstance(side, Mapping) else None
                if isinstance(side, Mapping) and isinstance(inner, Scalar) and str(inner.value) in _KINDS:
                    yield str(inner.value), {key: side.get(key) for key in side.entries}


def statements(fields: dict[str, Node | None]) -> Iterator[tuple[Scalar, Node | None]]:
    """The texts of SQL, each with `params` of its own if it has them."""
    for name in _PARAMETERS:
        node = fields.get(name)
        for item in node.items if isinstance(node, Sequence) else [node]:
            if isinstance(item, Mapping):
                yield from (
                    (text, item.get("params")) for text, _ in statements({k: item.get(k) for k in item.entries})
                )
            elif isinstance(item, Scalar) and isinstance(item.value, str):
                yield item, None


def _check(context: AnalysisContext, kind: str, node: Scalar) -> None:
    text = str(node.value)
    if "{{" not in text:
        return
    plain = TEMPLATE.sub(lambda found: (_MARK if found[0].startswith("{{") else " ") * len(found[0]), text)
    start = 0
    for found in _LITERAL.finditer(plain):
        if found["end"]:
            start = found.end()
        elif found["text"] and _MARK in found["text"] and _can_bind(kind, plain[start:]):
            for template in TEMPLATE.finditer(text, found.start(), found.end()):
                if template[0].startswith("{{") and not _SAFE.search(template[0]) and not _PLAIN.match(template[0]):
                    message = "a value with a quote ends this SQL literal, and the rest of the value is executed as SQL"
                    hint = "write a parameter without quotes (`:name`) and give its value under `params`"
                    context.reader.findings.add_inside(
                        "sql-quoted-template", node, template.start(), len(template[0]), message, hint
                    )


def _can_bind(kind: str, statement: str) -> bool:
    first = _WORD.match(statement)
    word = first[1].lower() if first else ""
    selects = (
        word == "create" and kind == "duckdb" and re.search(r"\bas\s+(?:select|from|with)\b", statement, re.IGNORECASE)
    )
    return word in _BINDING or bool(selects)
