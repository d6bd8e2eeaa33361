"""Portable types of table columns, and which of two holds the values of the other.

A target with a schema contract compares the values of a chunk with the types of its existing columns: `needed_type`
returns None if all values fit, otherwise the narrowest type that holds the old and the new values.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from noetl.data.arrow_tables import MAX_DIGITS, Digits, digits_of, meaning_of
from noetl.data.column_types import WrongValue, declared_type

_INTEGERS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_JSON_VALUES = ("json", "boolean", "integer", "double", "numeric")
_EXACT_FLOATS = {"real": 2**24, "double": 2**53}
_DATABASE_NAMES = {
    "boolean": "boolean", "bool": "boolean", "tinyint": "smallint", "smallint": "smallint", "int2": "smallint",
    "utinyint": "smallint", "integer": "integer", "int4": "integer", "usmallint": "integer", "bigint": "bigint",
    "int8": "bigint", "uinteger": "bigint", "real": "real", "float": "real", "float4": "real", "double": "double",
    "double precision": "double", "float8": "double", "date": "date", "time": "time", "time without time zone": "time",
    "timestamp": "timestamp", "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    "timestamptz": "timestamptz", "interval": "interval", "uuid": "uuid", "json": "json", "jsonb": "json",
    "bytea": "bytes", "blob": "bytes", "text": "text", "varchar": "text", "character varying": "text",
    "datetime": "timestamp",
}  # fmt: skip
_WITH_NUMBERS = re.compile(r"(numeric|decimal|character varying|varchar|char|character)\((\d+)(?:,\s*(\d+))?\)")


class ColumnKind(NamedTuple):
    """A portable type. `precision` and `scale` are those of a numeric, `precision` the limit of a text; 0: no limit."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        if self.name == "numeric" and self.precision:
            return f"numeric({self.precision}, {self.scale})"
        return f"text of {self.precision} characters" if self.name == "text" and self.precision else self.name


TEXT, NUMERIC = ColumnKind("text"), ColumnKind("numeric")


def kind_in_database(text: str) -> ColumnKind:
    """The portable type of a database's type, as its catalog spells it; `other` for types that are not portable."""
    spelled = text.lower()
    found = _WITH_NUMBERS.fullmatch(spelled)
    if found:
        name = "numeric" if found[1] in ("numeric", "decimal") else "text"
        return ColumnKind(name, int(found[2]), int(found[3] or 0))
    if spelled in ("numeric", "decimal"):
        return NUMERIC
    return ColumnKind(_DATABASE_NAMES.get(spelled, "other"))


def kind_of_field(field: Any) -> ColumnKind:
    """The portable type of an Arrow column."""
    import pyarrow as pa

    kind = field.type
    meaning = meaning_of(field)
    if meaning:
        return ColumnKind({"number": "numeric"}.get(meaning, meaning))
    if pa.types.is_decimal(kind):
        return ColumnKind("numeric", kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return ColumnKind("timestamptz" if kind.tz else "timestamp")
    tests = {
        "boolean": pa.types.is_boolean, "integer": pa.types.is_integer, "double": pa.types.is_floating,
        "date": pa.types.is_date, "time": pa.types.is_time, "interval": pa.types.is_interval, "null": pa.types.is_null,
        "text": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
        "bytes": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
        "json": pa.types.is_nested,
    }  # fmt: skip
    return ColumnKind(next((name for name, test in tests.items() if test(kind)), "other"))


_WIDTHS = {
    "int8": "smallint", "int16": "smallint", "uint8": "smallint", "int32": "integer", "uint16": "integer",
    "int64": "bigint", "uint32": "bigint", "float": "real", "halffloat": "real",
}  # fmt: skip


def kind_of_stored(field: Any) -> ColumnKind:
    """The portable type of a column of a file, with the width of its numbers."""
    return ColumnKind(_WIDTHS[str(field.type)]) if str(field.type) in _WIDTHS else kind_of_field(field)


def needed_type(column: Any, field: Any, existing: ColumnKind) -> ColumnKind | None:
    """The type that a column of a table needs for these values; None if they fit."""
    given = kind_of_field(field)
    if given.name in ("null", "other") or existing.name == "other" or len(column) == column.null_count:
        return None
    if existing.name in ("text", "json"):
        return _needed_text(column, given, existing)
    if given.name == existing.name and given.name not in ("numeric", "integer", "double"):
        return None
    compare = {"integer": _integers, "double": _floats, "numeric": _numbers, "text": _texts}.get(given.name)
    if compare is not None:
        return compare(column, existing)
    return _calendar(column, given.name, existing.name)


def _needed_text(column: Any, given: ColumnKind, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow.compute as pc

    if existing.name == "json":
        if given.name == "text":
            return None if all(map(_is_json, column.to_pylist())) else TEXT
        return None if given.name in _JSON_VALUES else TEXT
    if existing.precision and given.name == "text":
        return TEXT if pc.max(pc.utf8_length(column)).as_py() > existing.precision else None
    return None


def _is_json(value: str | None) -> bool:
    try:
        return value is None or isinstance(msgspec.json.decode(value, type=msgspec.Raw), msgspec.Raw)
    except msgspec.DecodeError:
        return False


def _integers(column: Any, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow.compute as pc

    low, high = (end.as_py() for end in pc.min_max(column).values())
    if existing.name in _INTEGERS:
        wide = next((name for name, limit in _INTEGERS.items() if -limit <= low and high < limit), "")
        if not wide:
            return ColumnKind("numeric", max(len(str(abs(low))), len(str(abs(high)))))
        return ColumnKind(wide) if _INTEGERS[wide] > _INTEGERS[existing.name] else None
    if existing.name in _EXACT_FLOATS:
        return None if max(abs(low), abs(high)) <= _EXACT_FLOATS[existing.name] else NUMERIC
    if existing.name == "numeric":
        return _wider_numeric(Digits(max(len(str(abs(low))), len(str(abs(high))))), existing)
    return TEXT


def _floats(column: Any, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if existing.name == "double" or (existing.name == "real" and column.type == pa.float32()):
        return None
    values = [value for value in column.to_pylist() if value is not None]
    if existing.name == "real":
        narrow = pc.cast(column, pa.float32()).cast(pa.float64())
        return None if pc.all(pc.or_(pc.equal(narrow, column), pc.is_nan(column))).as_py() else ColumnKind("double")
    if existing.name in _INTEGERS:
        limit = _INTEGERS[existing.name]
        if all(value.is_integer() and -limit <= value < limit for value in values):
            return None
        texts = pa.array([repr(value) for value in values], pa.string())
        return _numbers(texts, existing) if existing.name == "bigint" else ColumnKind("double")
    if existing.name == "numeric":
        return _numbers(pa.array([repr(value) for value in values], pa.string()), existing)
    return TEXT


def _numbers(column: Any, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow as pa

    texts = significant(column.cast(pa.string()))
    digits = digits_of(texts)
    if existing.name == "numeric":
        return _wider_numeric(digits, existing)
    if existing.name in _INTEGERS:
        limit = _INTEGERS[existing.name]
        fits = digits.finite and not digits.scale
        fits = fits and all(-limit <= int(Decimal(text)) < limit for text in texts.to_pylist() if text is not None)
        return None if fits else _numeric_with(digits, len(str(limit)), 0)
    if existing.name == "double":
        numbers = [Decimal(text) for text in texts.to_pylist() if text is not None]
        exact = all(not number.is_finite() or Decimal(repr(float(number))) == number for number in numbers)
        return None if exact else NUMERIC
    return NUMERIC if existing.name == "real" else TEXT


def significant(texts: Any) -> Any:
    """Decimal numbers without zeros at the end of their fraction."""
    import pyarrow.compute as pc

    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")
    return pc.if_else(pc.match_substring(texts, "."), trimmed, texts)


def _wider_numeric(digits: Digits, existing: ColumnKind) -> ColumnKind | None:
    whole, scale = existing.precision - existing.scale, existing.scale
    if not existing.precision or (digits.finite and digits.whole <= whole and digits.scale <= scale):
        return None
    return _numeric_with(digits, whole, scale)


def _numeric_with(digits: Digits, whole: int, scale: int) -> ColumnKind:
    """The numeric type that holds these digits and numbers of `whole` and `scale` digits."""
    if not digits.finite:
        return NUMERIC
    whole, scale = max(whole, digits.whole), max(scale, digits.scale)
    return ColumnKind("numeric", whole + scale, scale) if whole + scale <= MAX_DIGITS else NUMERIC


def _texts(column: Any, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow.compute as pc

    name = f"decimal({existing.precision}, {existing.scale})" if existing.precision else existing.name
    declared = declared_type(name)
    if declared is None:
        return None
    try:
        for value in pc.unique(column).to_pylist():
            declared.value(value)
    except WrongValue:
        return TEXT
    return None


def _calendar(column: Any, given: str, existing: str) -> ColumnKind | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if given == "date" and existing in ("timestamp", "timestamptz"):
        return None
    if given in ("timestamp", "timestamptz") and existing == "date":
        days = pc.cast(column, pa.date32(), safe=False)
        return None if pc.all(pc.equal(days.cast(column.type), column)).as_py() else ColumnKind(given)
    if given == "timestamp" and existing == "timestamptz":
        return None
    if given == "timestamptz" and existing == "timestamp":
        return ColumnKind("timestamptz")
    return TEXT
