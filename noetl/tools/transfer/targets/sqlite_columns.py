"""Columns of SQLite: their types, and values that keep every digit.

SQLite has no types for decimals, dates and structures. What a double represents exactly is a number, everything else is
text. A column converts what is written to it by its declared type; numbers that this would round are errors.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from noetl.connections import sqlite as lite
from noetl.data.arrow_tables import is_mixed, meaning_of, plain_column, text_of, text_values
from noetl.data.types.type_lattice import SQLITE_NUMBER, SQLITE_REAL, ColumnKind
from noetl.tools.transfer.quarantine.bad_rows import RowError

DOUBLE_DIGITS = 15  # decimals of up to this many digits are exact as a double
_AFFINITIES = {
    "INT": "number", "CHAR": "text", "CLOB": "text", "TEXT": "text", "BLOB": "none", "REAL": "real", "FLOA": "real",
    "DOUB": "real",
}  # fmt: skip


def sqlite_type(field: Any) -> str:
    """The type of a column for an Arrow field."""
    import pyarrow as pa

    kind = field.type
    if is_mixed(field) or _has_more_digits(field) or pa.types.is_null(kind):
        return ""  # no type: values are stored unchanged
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _has_more_digits(field: Any) -> bool:
    """Whether there can be numbers that are neither a double nor an integer of SQLite."""
    import pyarrow as pa

    kind = field.type
    is_long = pa.types.is_decimal(kind) and kind.precision > DOUBLE_DIGITS
    return bool(meaning_of(field) == "number" or is_long or kind == pa.uint64())


def sqlite_values(column: Any, field: Any) -> list[Any]:
    """The values as the driver can bind them."""
    import pyarrow as pa

    if (meaning_of(field) == "json" and not is_mixed(field)) or pa.types.is_binary(field.type):
        values: list[Any] = column.to_pylist()
        return values
    return [lite.adapted(value) for value in plain_column(column, field)]


def stored_values(column: Any, field: Any, declared: str, label: str) -> list[Any]:
    """The values for a column of a declared type, which keeps them as they are; RowError if it would round one."""
    import pyarrow as pa

    affinity = _affinity(declared)
    if affinity == "text" and is_mixed(field):  # true and 0.1 as in a chunk without texts, not 1 and 15 digits
        texts: list[Any] = text_values(column, field).to_pylist()
        return texts
    values = sqlite_values(column, field)
    if affinity == "text" and pa.types.is_floating(field.type):
        return [repr(value) if isinstance(value, float) else value for value in values]  # SQLite writes 15 digits
    if affinity == "text" and pa.types.is_boolean(field.type):
        return [None if value is None else text_of(bool(value)) for value in values]  # not the text 1
    digits = _has_more_digits(field) and affinity in ("number", "real")
    if digits or (affinity == "real" and pa.types.is_integer(field.type)):
        for value in values:
            if _is_rounded(value, affinity):
                raise RowError(
                    f"{label}: the column {field.name!r} is {declared}, which would round {value}; make it TEXT"
                )
    return values


_KINDS = {"real": SQLITE_REAL, "number": SQLITE_NUMBER}


def kind_in_sqlite(declared: str) -> ColumnKind:
    """What a column of a declared type changes; `other` if it stores all values unchanged."""
    return _KINDS.get(_affinity(declared), ColumnKind("other"))


def _affinity(declared: str) -> str:
    """What a column does with its values (https://www.sqlite.org/datatype3.html)."""
    spelled = declared.upper()
    return next((name for part, name in _AFFINITIES.items() if part in spelled), "number" if spelled else "none")


def _is_rounded(value: Any, affinity: str) -> bool:
    if isinstance(value, str):  # a number that has no other exact form, or NaN
        return Decimal(value).is_finite()
    return affinity == "real" and isinstance(value, int) and int(float(value)) != value
