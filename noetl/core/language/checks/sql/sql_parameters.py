"""Parameters in the SQL of tasks, sources and targets that `params` does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.checks.sql.sql_templates import TEMPLATE, owners, statements
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.source.node_reader import is_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.source.sql_tokens import Dialect, Token, tokens

_NAMES = ("params", "parameters")
_DIALECTS: dict[str, Dialect] = {"postgres": "postgres", "duckdb": "duckdb", "sqlite": "sqlite", "mysql": "mysql"}
_BEFORE = re.compile(r"[\s(,=<>+*/|!-]$")  # characters before `:name` where it can be nothing but a parameter


class Given(NamedTuple):
    """What `params` has: names, or a number of values."""

    names: frozenset[str] = frozenset()
    values: int | None = None


def check(context: AnalysisContext) -> None:
    """Report each parameter of a statement that has no value."""
    for body in context.document.bodies():
        for task in body.tasks():
            for kind, fields in owners(task.kind, {name: field.value for name, field in task.parameters.items()}):
                for node, own in statements(fields):
                    given = _given(own if own is not None else next((fields[n] for n in _NAMES if n in fields), None))
                    if given is not None:
                        _check(context, node, _DIALECTS[kind], given)


def _given(params: Node | None) -> Given | None:
    """The parameters; None if they are not known before the run."""
    if isinstance(params, Sequence) and params.items and isinstance(params.items[0], Mapping | Sequence):
        params = params.items[0]  # one execution per item
    if params is None or (isinstance(params, Scalar) and params.value is None):
        return Given()
    if isinstance(params, Mapping):
        return None if params.broken else Given(frozenset(params.entries))
    if isinstance(params, Sequence):
        return Given(values=len(params.items))
    assert is_template(params) or isinstance(params, Scalar)
    return None


def _check(context: AnalysisContext, node: Scalar, dialect: Dialect, given: Given) -> None:
    text = TEMPLATE.sub(lambda found: "\x01" * len(found[0]), str(node.value))
    for token, start, position in _parameters(text, dialect):
        if token.name:
            if token.name in given.names or (token.kind != "named" and not _BEFORE.search(text[:start])):
                continue
            if token.kind == "dollared" and dialect == "mysql":
                continue  # a name of the database
            hint = did_you_mean(token.name, given.names, f"add `{token.name}: ...` under `params`")
        elif given.names and token.kind != "numbered":
            hint = "`params` is a mapping: write `:name`"
        elif given.values is None or position < given.values:
            continue
        else:
            hint = f"`params` has {given.values} values"
        message = f"the statement has the parameter {token.text}, for which `params` has no value"
        context.reader.findings.add_inside("missing-parameter", node, start, len(token.text), message, hint)


def _parameters(text: str, dialect: Dialect) -> Iterator[tuple[Token, int, int]]:
    """The parameters of a text, where each starts, and the position of a positional one."""
    position = 0
    for token in tokens(text, dialect):
        start = token.end - len(token.text)
        if token.kind in ("named", "colon", "dollared"):
            yield token, start, 0
        elif token.kind in ("positional", "question"):
            yield token, start, position
            position += 1
        elif token.kind == "numbered":
            yield token, start, int(token.text[1:]) - 1
