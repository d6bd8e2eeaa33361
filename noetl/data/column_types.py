"""The types that a source may declare for its columns (`types: {price: numeric}`), and values and text as these types.

A declared type is an Arrow type and, where Arrow has none, a meaning of text (`arrow_tables`). Conversion never
loses anything silently: a value that the type cannot represent is a `WrongValue`.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from noetl.core.model.excerpt import excerpt
from noetl.data import extended_dates as far_dates
from noetl.data.arrow_tables import text_of
from noetl.data.intervals import parse_interval
from noetl.data.type_names import type_name

# The type with which DuckDB reads a column of a text file; the others are read as text and converted here.
_DUCKDB = {
    "text": "VARCHAR", "boolean": "BOOLEAN", "smallint": "SMALLINT", "bigint": "BIGINT", "double": "DOUBLE",
    "date": "DATE", "time": "TIME", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ", "json": "JSON",
}  # fmt: skip


class WrongValue(ValueError):
    """A value that does not have the declared type of its column."""


class DeclaredType(NamedTuple):
    """A type of `types`."""

    name: str
    precision: int = 0
    scale: int = 0
    is_array: bool = False

    @property
    def duckdb(self) -> str:
        """The type with which DuckDB reads the column from CSV or JSON."""
        if self.is_array:
            return "JSON"
        return _DUCKDB.get(self.name, "VARCHAR")

    @property
    def read_as_text(self) -> bool:
        """Whether DuckDB does not convert the column."""
        return self.is_array or self.name not in _DUCKDB

    def field(self, name: str) -> Any:
        """The Arrow field of a column with this type."""
        import pyarrow as pa

        if self.is_array:
            element = self._replace(is_array=False).field("item")
            meaning = (element.metadata or {}).get(b"noetl")
            metadata = {"postgres": {b"uuid": "uuid[]", b"number": "numeric[]"}[meaning]} if meaning else None
            return pa.field(name, pa.list_(element.type), metadata=metadata)
        if self.precision:
            return pa.field(name, pa.decimal128(self.precision, self.scale))
        kinds = {
            "text": pa.string(), "boolean": pa.bool_(), "smallint": pa.int16(), "bigint": pa.int64(),
            "double": pa.float64(), "date": pa.date32(), "time": pa.time64("us"), "timestamp": pa.timestamp("us"),
            "timestamptz": pa.timestamp("us", "UTC"), "interval": pa.month_day_nano_interval(), "bytes": pa.binary(),
        }  # fmt: skip
        if self.name in kinds:
            return pa.field(name, kinds[self.name])
        return pa.field(name, pa.string(), metadata={"noetl": {"numeric": "number"}.get(self.name, self.name)})

    def value(self, value: Any) -> Any:
        """A plain value as `pyarrow.array` takes it; WrongValue if it does not have this type."""
        if value is None:
            return None
        if self.is_array:
            return self._items(value)
        if self.precision:
            return _fixed(value, self)
        try:
            return _CONVERT[self.name](value)
        except (ValueError, TypeError, OverflowError, InvalidOperation, binascii.Error):
            raise WrongValue(f"{excerpt(value)} is not a value of type {self.name}") from None

    def _items(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except msgspec.DecodeError:
                raise WrongValue(f"{excerpt(value)} is not a JSON list") from None
        if not isinstance(value, list | tuple):
            raise WrongValue(f"{excerpt(value)} is not a list")
        element = self._replace(is_array=False)
        return [element.value(item) for item in value]

    def column(self, values: Sequence[Any]) -> Any:
        """Plain values as an Arrow array."""
        import pyarrow as pa

        field = self.field("column")
        try:
            return pa.array([self.value(value) for value in values], type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as wrong:
            raise WrongValue(str(wrong)) from None


def declared_type(name: str) -> DeclaredType | None:
    """The type of this name; None if there is none."""
    found = type_name(name)
    return None if found is None else DeclaredType(*found)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false", "t", "f", "1", "0"):
        raise ValueError
    return text in ("true", "t", "1")


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError
    return number


def _double(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise ValueError
    return Decimal(repr(value) if isinstance(value, float) else str(value))


def _number(value: Any) -> str:
    return str(_decimal(value))


def _fixed(value: Any, declared: DeclaredType) -> Decimal:
    try:
        number = _decimal(value)
        if not number.is_finite():
            raise ValueError
    except (ValueError, InvalidOperation):
        raise WrongValue(f"{excerpt(value)} is not a decimal number") from None
    digits, exponent = number.as_tuple().digits, int(number.as_tuple().exponent)
    significant = "".join(map(str, digits)).rstrip("0") or "0"
    scale = max(0, -(exponent + len(digits) - len(significant)))
    if number and (scale > declared.scale or number.adjusted() + 1 > declared.precision - declared.scale):
        raise WrongValue(f"{excerpt(value)} does not fit decimal({declared.precision}, {declared.scale})")
    return number


def _date(value: Any) -> Any:
    return far_dates.parse_date(str(value))


def _timestamp(value: Any) -> Any:
    return far_dates.parse_timestamp(str(value), zone=False)


def _timestamptz(value: Any) -> Any:
    return far_dates.parse_timestamp(str(value), zone=True)


def _time(value: Any) -> Any:
    if isinstance(value, datetime.time):
        return value
    if str(value).startswith("24:00:00") and not str(value)[8:].strip(".0"):
        return far_dates.DAY
    parsed = datetime.time.fromisoformat(str(value))
    if parsed.tzinfo is not None:
        raise ValueError
    return parsed


def _uuid(value: Any) -> str:
    return str(uuid.UUID(str(value)))


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return base64.b64decode(str(value), validate=True)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "text": text_of, "boolean": _boolean, "smallint": _integer, "bigint": _integer, "double": _double,
    "numeric": _number, "date": _date, "time": _time, "timestamp": _timestamp, "timestamptz": _timestamptz,
    "interval": parse_interval, "uuid": _uuid, "bytes": _bytes,
    "json": lambda value: msgspec.json.encode(value).decode(),
}  # fmt: skip
