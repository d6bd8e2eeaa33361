"""Portable types of table columns, and which of two holds the values of the other.

A target with a schema contract compares the values of a chunk with the types of its existing columns: `needed_type`
returns None if all values fit, otherwise the narrowest type that holds the old and the new values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from noetl.data.arrow_tables import MAX_DIGITS, Digits, digits_of, is_mixed, meaning_of, plain_column, text_values
from noetl.data.types.column_types import WrongValue, declared_type

# The integers of each type, from and up to (exclusive); the first ones are those that a column is widened to.
_WIDER = {"smallint": (-(2**15), 2**15), "integer": (-(2**31), 2**31), "bigint": (-(2**63), 2**63)}
_INTEGERS = {
    **_WIDER, "tinyint(1)": (-(2**7), 2**7), "tinyint": (-(2**7), 2**7), "utinyint": (0, 2**8), "usmallint": (0, 2**16),
    "mediumint": (-(2**23), 2**23), "umediumint": (0, 2**24), "uinteger": (0, 2**32), "ubigint": (0, 2**64),
    "hugeint": (-(2**127), 2**127), "uhugeint": (0, 2**128),
}  # fmt: skip
_JSON_VALUES = ("json", "boolean", "integer", "double", "numeric")
_EXACT_FLOATS = {"real": 2**24, "double": 2**53}
_DATABASE_NAMES = {
    **{name: name for name in _INTEGERS}, "boolean": "boolean", "bool": "boolean", "int2": "smallint",
    "int4": "integer", "int8": "bigint", "real": "real", "float": "real", "float4": "real", "double": "double",
    "double precision": "double", "float8": "double", "date": "date", "time": "time", "time without time zone": "time",
    "timestamp": "timestamp", "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    "timestamptz": "timestamptz", "interval": "interval", "uuid": "uuid", "json": "json", "jsonb": "json",
    "bytea": "bytes", "blob": "bytes", "text": "text", "varchar": "text", "character varying": "text",
    "datetime": "timestamp", "timestamp_ns": "timestamp",
}  # fmt: skip
_FRACTIONS = {"timestamp_s": "timestamp(0)", "timestamp_ms": "timestamp(3)"}
_WITH_NUMBERS = re.compile(
    r"(numeric|decimal|character varying|varchar|char|character|text|blob|time|timestamp|timestamptz|interval)"
    r"\((\d+)(?:,\s*(-?\d+))?\)( with(?:out)? time zone)?"
)
_ARRAY = re.compile(r"(?:numeric|decimal)\((\d+)(?:,\s*(-?\d+))?\)(?:\[\d*\])+")
_DIGITS = 6  # of the fraction of a second in a column that says nothing else


class ColumnKind(NamedTuple):
    """A portable type. `precision` and `scale` are those of a numeric, `precision` the limit of a text; 0: no limit.

    An `array` is one of numerics, which databases round, as they round `money`; other arrays are of kind `other`.

    The limit of bytes, and of a text if `in_bytes`, counts bytes. `fraction`: the digits of a second that it keeps."""

    name: str
    precision: int = 0
    scale: int = 0
    fraction: int = _DIGITS
    in_bytes: bool = False

    def __str__(self) -> str:
        if self.fraction < _DIGITS:
            return f"{self.name}({self.fraction})"
        if self.name == "array":
            return f"{ColumnKind('numeric', self.precision, self.scale)}[]"
        if self.precision and (self.in_bytes or self.name == "bytes"):
            return f"{self.name} of {self.precision} bytes".replace("bytes of", "binary of")
        if self.name == "numeric" and self.precision:
            return f"numeric({self.precision}, {self.scale})"
        return f"text of {self.precision} characters" if self.name == "text" and self.precision else self.name


TEXT, NUMERIC = ColumnKind("text"), ColumnKind("numeric")
# Columns of SQLite, which hold all values, but change texts that are numbers, and numbers that are no double.
SQLITE_REAL, SQLITE_NUMBER = ColumnKind("a REAL column"), ColumnKind("a numeric column")
UNTYPED = ColumnKind("null")  # of a column without a value
# The comment of such a column in a database, where it is text until it has a value.
UNTYPED_COMMENT = "no value yet: a load gives this column the type of its first value"


def kind_in_database(text: str) -> ColumnKind:
    """The portable type of a database's type, as its catalog spells it; `other` for types that are not portable."""
    spelled = _FRACTIONS.get(text.lower(), text.lower())
    found = _WITH_NUMBERS.fullmatch(spelled)
    if found:
        return _with_numbers(found[1], int(found[2]), int(found[3] or 0), zone=found[4] == " with time zone")
    if array := _ARRAY.fullmatch(spelled):
        return ColumnKind("array", int(array[1]), int(array[2] or 0))
    if spelled == "money":
        return ColumnKind("money", 19, 2)
    if spelled in ("numeric", "decimal"):
        return NUMERIC
    return ColumnKind(_DATABASE_NAMES.get(spelled, "other"))


def _with_numbers(name: str, first: int, second: int, *, zone: bool) -> ColumnKind:
    if name in ("numeric", "decimal"):
        return ColumnKind("numeric", first, second)
    if name in ("time", "timestamp", "timestamptz", "interval"):
        if zone and name == "time":
            return ColumnKind("other")
        return ColumnKind("timestamptz" if zone else name, fraction=min(first, _DIGITS))
    return ColumnKind("bytes" if name == "blob" else "text", first, in_bytes=name in ("text", "blob"))


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
    import pyarrow as pa

    if existing.name in ("array", "money"):
        return _needed_numbers(column, field, existing)
    given = kind_of_field(field)
    has_scalars = meaning_of(field) == "json" and existing.name != "text"  # numbers beside booleans, for example
    if (is_mixed(field) or has_scalars) and existing.name != "json":  # which is written as text
        column, given = pa.chunked_array([text_values(column, field)]), TEXT
    if given.name in ("null", "other") or existing.name == "other" or len(column) == column.null_count:
        return None
    if existing in (SQLITE_REAL, SQLITE_NUMBER):
        return TEXT if _is_changed(column, given, existing) else None
    if existing.name in ("text", "json"):
        return _needed_text(column, given, existing)
    compare = {"integer": _integers, "double": _floats, "numeric": _numbers, "text": _texts}.get(given.name)
    if compare is not None:
        return compare(column, existing)
    if given.name == "boolean" and existing.name == "tinyint(1)":
        return None
    if given.name == existing.name:
        return _with_limit(column, existing)
    return _calendar(column, given.name, existing)


def _needed_numbers(column: Any, field: Any, existing: ColumnKind) -> ColumnKind | None:
    """What the numbers of an array or of money need; values that are no numbers are left to the database."""
    import pyarrow as pa

    texts = [text for value in plain_column(column, field) for text in _numerals(value)]
    needed = _numbers(pa.array(texts, pa.string()), existing._replace(name="numeric")) if texts else None
    return needed if needed is None or existing.name == "money" else needed._replace(name="array")


def _numerals(value: Any) -> Iterator[str]:
    """The numbers in a value, as text."""
    if isinstance(value, list):
        for item in value:
            yield from _numerals(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield repr(value)
    elif isinstance(value, str) and re.fullmatch(_NUMERALS["numeric"], value):
        yield value


def _with_limit(column: Any, existing: ColumnKind) -> ColumnKind | None:
    """The type without a limit if the values of the same type exceed it."""
    import pyarrow.compute as pc

    if existing.name == "bytes" and existing.precision:
        return ColumnKind("bytes") if pc.max(pc.binary_length(column)).as_py() > existing.precision else None
    return ColumnKind(existing.name) if _is_finer(column, existing.fraction) else None


def _is_finer(column: Any, fraction: int) -> bool:
    """Whether times or intervals have more digits of a second than a column keeps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if fraction >= _DIGITS:
        return False
    if pa.types.is_interval(column.type):
        return any(value.nanoseconds % 10 ** (9 - fraction) for value in column.to_pylist() if value is not None)
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[column.type.unit]
    ticks = column.cast(pa.int32() if pa.types.is_time32(column.type) else pa.int64()).cast(pa.int64())
    unit = 10 ** max(0, digits - fraction)
    return bool(pc.any(pc.not_equal(pc.multiply(pc.divide(ticks, unit), unit), ticks)).as_py())


def _needed_text(column: Any, given: ColumnKind, existing: ColumnKind) -> ColumnKind | None:
    if existing.name == "json":
        if given.name == "text":
            return None if all(map(_is_json, column.to_pylist())) else TEXT
        return None if given.name in _JSON_VALUES else TEXT
    return TEXT if existing.precision and _text_length(column, given, existing.in_bytes) > existing.precision else None


_PRINTED = ("text", "json", "uuid", "numeric", "boolean", "integer", "double", "date")


def _text_length(column: Any, given: ColumnKind, in_bytes: bool) -> int:
    """The length of the longest value as text; 0 for types that each database writes in its own way."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if given.name not in _PRINTED or pa.types.is_nested(column.type):
        return 0
    texts = column.cast(pa.string())
    return int(pc.max(pc.binary_length(texts) if in_bytes else pc.utf8_length(texts)).as_py())


def _is_json(value: str | None) -> bool:
    try:
        return value is None or isinstance(msgspec.json.decode(value, type=msgspec.Raw), msgspec.Raw)
    except msgspec.DecodeError:
        return False


def _integers(column: Any, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    low, high = (end.as_py() for end in pc.min_max(column).values())
    if existing.name in _INTEGERS:
        return _wider_integer(low, high, existing)
    if existing.name in _EXACT_FLOATS:
        return None if max(abs(low), abs(high)) <= _EXACT_FLOATS[existing.name] else NUMERIC
    if existing.name == "numeric":
        return _numbers(pa.array([low, high], pa.decimal128(MAX_DIGITS)), existing)
    return TEXT


def _wider_integer(low: int, high: int, existing: ColumnKind) -> ColumnKind | None:
    start, end = _INTEGERS[existing.name]
    if start <= low and high < end:
        return None
    low, high = min(low, start), max(high, end - 1)
    wide = next((name for name, (first, last) in _WIDER.items() if first <= low and high < last), "")
    digits = max(len(str(abs(low))), len(str(abs(high))))
    return ColumnKind(wide) if wide else ColumnKind("numeric", digits) if digits <= MAX_DIGITS else NUMERIC


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
        start, end = _INTEGERS[existing.name]
        if all(value.is_integer() and start <= value < end for value in values):
            return None
        texts = pa.array([repr(value) for value in values], pa.string())
        return ColumnKind("double") if end <= _EXACT_FLOATS["double"] else _numbers(texts, existing)
    if existing.name == "numeric":
        return _numbers(pa.array([repr(value) for value in values], pa.string()), existing)
    return TEXT


def _numbers(column: Any, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow as pa

    texts = significant(column.cast(pa.string()))
    digits = digits_of(texts)
    if existing.name == "numeric" and 0 <= existing.scale <= existing.precision:
        return _wider_numeric(digits, existing)
    numbers = [Decimal(text) for text in texts.to_pylist() if text is not None]
    if existing.name == "numeric":  # of tens or hundreds, or of small fractions only
        unit, limit = Decimal(1).scaleb(-existing.scale), Decimal(1).scaleb(existing.precision - existing.scale)
        fits = digits.finite and all(abs(number) < limit and not number % unit for number in numbers)
        return (
            None if fits else _numeric_with(digits, max(0, existing.precision - existing.scale), max(0, existing.scale))
        )
    if existing.name in _INTEGERS:
        start, end = _INTEGERS[existing.name]
        fits = digits.finite and not digits.scale and all(start <= int(number) < end for number in numbers)
        return None if fits else _numeric_with(digits, len(str(end)), 0)
    if existing.name == "double":
        exact = all(not number.is_finite() or Decimal(repr(float(number))) == number for number in numbers)
        return None if exact else NUMERIC
    if existing.name == "real":
        singles = pa.array([float(number) for number in numbers], pa.float32()).cast(pa.string()).to_pylist()
        exact = all(
            not number.is_finite() or Decimal(single) == number for number, single in zip(numbers, singles, strict=True)
        )
        return None if exact else NUMERIC
    return TEXT


def significant(texts: Any) -> Any:
    """Decimal numbers without zeros at the end of their fraction; those with an exponent as they are."""
    import pyarrow.compute as pc

    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")
    return pc.if_else(pc.match_substring_regex(texts, r"^[^eE]*\.[^eE]*$"), trimmed, texts)


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
    """None if the column has the values that these texts spell; 007 is not 7."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.unique(column).drop_null()
    numeral = _WHOLE if existing.name in _INTEGERS else _NUMERALS.get(existing.name)
    if numeral is not None:
        exact = pc.all(pc.match_substring_regex(texts, numeral)).as_py()
        return None if exact and _numbers(texts, existing) is None else TEXT
    declared = declared_type(existing.name)
    if declared is None or existing.name == "bytes":  # databases read different codes of bytes
        return TEXT
    try:
        values = pa.chunked_array([declared.column(texts.to_pylist())])
    except WrongValue:
        return TEXT
    return _with_limit(values, existing)


def _is_changed(column: Any, given: ColumnKind, existing: ColumnKind) -> bool:
    """Whether SQLite would store another value in a column of numbers: 007 would be 7."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if given.name not in ("text", "integer", "numeric"):
        return False
    texts = pc.unique(column.cast(pa.string())).drop_null()
    texts = texts.filter(pc.match_substring_regex(texts, _CONVERTED))
    whole = pc.match_substring_regex(texts, _WHOLE)
    for number in map(int, texts.filter(whole).to_pylist()):  # one that is no integer of SQLite becomes a double
        if not -(2**63) <= number < 2**63 or (existing == SQLITE_REAL and int(float(number)) != number):
            return True
    texts = texts.filter(pc.invert(whole))
    return bool(len(texts)) and _texts(texts, ColumnKind("double")) is not None


_CONVERTED = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"  # to a number, by a column of numbers
_WHOLE = r"^-?(0|[1-9][0-9]*)$"
_FLOAT = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$|^NaN$|^-?Infinity$"
_NUMERALS = {"numeric": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$", "real": _FLOAT, "double": _FLOAT}


def _calendar(column: Any, given: str, existing: ColumnKind) -> ColumnKind | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if given == "date" and existing.name in ("timestamp", "timestamptz"):
        return None
    if given in ("timestamp", "timestamptz") and existing.name == "date":
        days = pc.cast(column, pa.date32(), safe=False)
        return None if pc.all(pc.equal(days.cast(column.type), column)).as_py() else ColumnKind(given)
    if given == "timestamp" and existing.name == "timestamptz":
        return _with_limit(column, existing)
    if given == "timestamptz" and existing.name == "timestamp":
        return ColumnKind("timestamptz")
    return TEXT
