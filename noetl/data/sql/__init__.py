"""SQL text: the positions of parameters, and names.

Strings, quoted names, dollar quotes and comments are recognised as by the database, so a colon inside one is just text.

Parameters may be written `%(name)s`, `:name`, `%s`, `$1`, and for the embedded databases `$name` and
`?`; all are turned into the database's own numbered ones and bound by it, never pasted into text.
`:name` is a parameter only where `params` has that name. A lone `%` is just a percent sign; where
`%`-style parameters are used, `%%` is one too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.core.language.source.sql_tokens import Dialect as Dialect
from noetl.core.language.source.sql_tokens import Token as Token
from noetl.core.language.source.sql_tokens import tokens as tokens

_MARK = "\ue000"  # stands for a placeholder while percent signs are doubled; a character for private use
_ONE_PLACEHOLDER = {"mysql": "%s", "ansi": "?"}  # dialects without numbered placeholders
_JSON_CAST = re.compile(r"\s*(?:::|\bAS\b)\s*jsonb?\b", re.IGNORECASE)
_TRANSACTION_WORDS = {"begin", "start", "commit", "end", "rollback", "abort"}
# Statements that do not change the session, so that the connection can be reused without a reset.
_PLAIN_WORDS = {"select", "insert", "update", "delete", "with", "merge", "values", "copy", "table", "truncate"}
_LASTING = re.compile(r"set_config|advisory|\btemp\b|\btemporary\b|\blisten\b", re.IGNORECASE)


class Bound(NamedTuple):
    """A statement with numbered parameters and their values, in order.

    `json` are the positions (from 0) that the statement itself casts to json or jsonb."""

    text: str
    values: list[Any]
    json: frozenset[int]


class ParameterError(ValueError):
    """The statement and `params` do not fit together."""


def bind(statement: str, params: Any, dialect: Dialect = "postgres", *, used: int = 0) -> Bound:
    """The statement with the database's own placeholders, and the values for them.

    `params` is a mapping, or a list for positional ones, of which `used` were taken by statements
    before this one. A driver that formats `%s` itself (mysql) receives other percent signs doubled."""
    pieces: list[str] = []
    values: list[Any] = []
    numbers: dict[str, int] = {}  # parameter -> its number from 1
    json: set[int] = set()
    found = list(tokens(statement, dialect))
    percent = any(token.kind in ("named", "positional") for token in found)
    placeholder = _ONE_PLACEHOLDER.get(dialect)
    for token in found:
        key = _parameter(token, params, used + len(values))
        if key is None:
            undoubled = percent and params and token.kind != "comment"
            pieces.append(token.text.replace("%%", "%") if undoubled else token.text)
            continue
        if placeholder is not None:
            values.append(params[key])
            pieces.append(_MARK)
            continue
        if str(key) not in numbers:
            values.append(params[key])
            numbers[str(key)] = len(values)
        number = numbers[str(key)]
        if _JSON_CAST.match(statement, token.end):
            json.add(number - 1)
        pieces.append(f"?{number}" if dialect == "sqlite" else f"${number}")
    text = "".join(pieces)
    if placeholder is not None:
        doubled = text.replace("%", "%%") if placeholder == "%s" and values else text
        text = doubled.replace(_MARK, placeholder)
    return Bound(text, values, frozenset(json))


def bind_sets(statement: str, sets: Sequence[Any], dialect: Dialect = "postgres") -> tuple[str, list[Bound]]:
    """The statement and its values for each of many parameter sets, which all have the same parameters."""
    bound = [bind(statement, params, dialect) for params in sets]
    for number, one in enumerate(bound):
        if one.text != bound[0].text:
            raise ParameterError(f"parameter set {number} of `params` has other names than the first one")
    return bound[0].text if bound else statement, bound


def takes_sets(statement: str, dialect: Dialect = "postgres") -> bool:
    """Whether a statement has parameters, so that an empty list of parameter sets runs it not at all."""
    return any(token.kind in ("named", "positional") for token in tokens(statement, dialect))


def _parameter(token: Token, params: Any, position: int) -> str | int | None:
    """The key in `params` that this piece of text stands for; None if it is just text."""
    if token.kind in ("colon", "dollared"):
        return token.name if isinstance(params, Mapping) and token.name in params else None
    if token.kind not in ("named", "positional", "question", "numbered"):
        return None
    if params is None or params == {} or params == []:
        if token.kind == "named":
            raise ParameterError(f"the statement has the parameter {token.text}, and there are no `params`")
        return None
    if isinstance(params, Mapping):
        if token.kind == "numbered":
            return None
        if token.kind != "named":
            raise ParameterError(f"the statement has the positional parameter {token.text}; `params` is a mapping")
        if token.name not in params:
            raise ParameterError(f"the statement has the parameter {token.text}; `params` has {', '.join(params)}")
        return token.name
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise ParameterError(f"`params` is a mapping or a list, not {type(params).__name__}")
    if token.kind == "named":
        raise ParameterError(f"the statement has the named parameter {token.text}; `params` is a list")
    if token.kind == "numbered":
        position = int(token.text[1:]) - 1
    if not 0 <= position < len(params):
        raise ParameterError(f"the statement has the parameter {token.text}; `params` has {len(params)} values")
    return position


def first_word(statement: str) -> str:
    """The statement's first word in lower case, comments and brackets aside."""
    return next((token.text.lower() for token in tokens(statement) if token.kind == "word"), "")


def steers_transaction(statement: str) -> bool:
    """Whether the author begins or ends a transaction by this statement."""
    return first_word(statement) in _TRANSACTION_WORDS


def leaves_traces(statement: str) -> bool:
    """Whether the statement may leave something in the session (settings, temporary tables, locks)."""
    return first_word(statement) not in _PLAIN_WORDS or _LASTING.search(statement) is not None


def quote_name(name: str) -> str:
    """A table's or column's name, quoted; dots separate schema and table."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in split_name(name))


def quote_column(name: str, quote: str = '"') -> str:
    """A column's name, quoted; a dot is just a character of it."""
    return quote + name.replace(quote, quote * 2) + quote


def column_list(names: Iterable[str]) -> str:
    """The names of columns, quoted, for a statement."""
    return ", ".join(quote_column(name) for name in names)


def split_name(name: str, quote: str = '"') -> list[str]:
    """The parts of `schema.table`; parts may already be quoted."""
    parts = re.findall(r'"((?:[^"]|"")*)"|([^."]+)'.replace('"', quote), name)
    return [quoted.replace(quote * 2, quote) if quoted else plain.strip() for quoted, plain in parts]


def sibling_name(table: str, name: str, quote: str = '"') -> str:
    """The name of another table in the schema of a table, which `split_name` reads as one part."""
    parts = [*split_name(table, quote)[:-1], name]
    return ".".join(part if re.fullmatch(rf"[^.{quote}\s]+", part) else quote_column(part, quote) for part in parts)
