"""Parameters of statements: `{name:Type}` as ClickHouse has them, and `:name`, which the cursor of a load has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_DIGITS = 76  # of the largest decimal


def typed(query: str, params: Mapping[str, Any]) -> str:
    """The query with `:name` as `{name:Type}`, for parameters that it does not contain in this form."""
    for name, value in params.items():
        if not re.search(rf"\{{\s*{re.escape(name)}\s*:", query):
            parts = re.split(rf"(?<![:\w]):{re.escape(name)}\b", query)
            query = f"{{{name}:{_type(value)}}}".join(parts)
    return query


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "Bool"
    if isinstance(value, int):
        return "Int64" if -(2**63) <= value < 2**63 else "Int256"
    if isinstance(value, float):
        return "Float64"
    if isinstance(value, Decimal):
        return f"Decimal({_DIGITS}, {max(-int(value.as_tuple().exponent), 0)})"
    if isinstance(value, datetime):
        return "DateTime64(6, 'UTC')" if value.tzinfo else "DateTime64(6)"
    return "Date32" if isinstance(value, date) else "String"


def parameter(value: Any) -> str:
    """A value as the text of a query parameter."""
    if isinstance(value, datetime):  # the type of the parameter has the zone
        value = str(value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value)
    return _escaped(value) if isinstance(value, str) else "\\N" if value is None else _literal(value)


def _literal(value: Any) -> str:
    """A value inside an array or map: text is quoted, so that it stays one value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{_escaped(value)}'"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_literal(name)}:{_literal(each)}' for name, each in value.items())}}}"
    return "NULL" if value is None else str(value)


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
