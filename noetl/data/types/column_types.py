"""The types that a source may declare for its columns (`types: {price: numeric}`), and values and text as these types.

A declared type is an Arrow type and, where Arrow has none, a meaning of text (`arrow_tables`). Conversion never
loses anything silently: a value that the type cannot represent is a `WrongValue`.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from noetl.core.model.excerpt import excerpt
from noetl.data.arrow_tables import text_of
from noetl.data.types import extended_dates as far_dates
from noetl.data.types.intervals import parse_interval
from noetl.data.types.type_names import type_name


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
        """The type with which DuckDB reads the column from CSV or JSON: text, since it rounds 1.5 and drops zones."""
        return "JSON" if self.is_array or self.name == "json" else "VARCHAR"

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

    def wrong(self, values: Sequence[Any]) -> Iterator[tuple[int, WrongValue]]:
        """The numbers of the values that do not have this type, with the reasons."""
        for number, value in enumerate(values):
            try:
                self.value(value)
            except WrongValue as wrong:
                yield number, wrong

    def parsed(self, texts: Any) -> Any:
        """An Arrow array of texts as this type, if all have its plain form; None if their values must be looked at."""
        import pyarrow as pa
        import pyarrow.compute as pc

        pattern = None if self.is_array else _PLAIN.get(self.name)
        if pattern is None or not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
            return None
        try:
            return texts.cast(self.field("column").type)
        except pa.ArrowInvalid:  # a 30th of February
            return None


def declared_type(name: str) -> DeclaredType | None:
    """The type of this name; None if there is none."""
    found = type_name(name)
    return None if found is None else DeclaredType(*found)


_TRUE, _FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
# Texts of which Arrow makes the same values as `_CONVERT`, much faster.
_PLAIN = {
    "boolean": "^(true|false)$", "smallint": "^-?[0-9]{1,4}$", "bigint": "^-?[0-9]{1,18}$",
    "double": r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$", "date": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "timestamp": f"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_TIME}$",
    "timestamptz": f"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_TIME}(Z|[-+][0-9]{{2}}:[0-9]{{2}})$",
}  # fmt: skip


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in _TRUE and text not in _FALSE:
        raise ValueError
    return text in _TRUE


def _integer(value: Any) -> int:
    number = int(_numeral(value)) if isinstance(value, int) else _whole(Decimal(_numeral(value)))
    if not -(2**63) <= number < 2**63:
        raise ValueError
    return number


def _small(value: Any) -> int:
    number = _integer(value)
    if not -(2**15) <= number < 2**15:
        raise ValueError
    return number


def _whole(number: Decimal) -> int:
    """A number without a fraction: 1.0 and 1e3 are whole numbers too."""
    if not number.is_finite() or number.adjusted() > 20 or number != number.to_integral_value():
        raise ValueError
    return int(number)


def _double(value: Any) -> float:
    number = float(_numeral(value))
    if math.isinf(number) and Decimal(value).is_finite():
        raise ValueError  # larger than every double
    return number


def _decimal(value: Any) -> Decimal:
    number = Decimal(repr(value) if isinstance(value, float) else str(_numeral(value)))
    if number.is_snan():
        raise ValueError
    return number


def _numeral(value: Any) -> Any:
    """A number, or text of one; ValueError for booleans and for what only Python reads as a number (1_000, ٣)."""
    if isinstance(value, bool) or (isinstance(value, str) and ("_" in value or not value.isascii())):
        raise ValueError
    return value


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
    digits = str(value).partition(".")[2]
    if parsed.tzinfo is not None or len(digits.rstrip("0")) > 6:
        raise ValueError  # a zone, or more digits than a time has
    return parsed


def _uuid(value: Any) -> str:
    return str(uuid.UUID(str(value)))


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return base64.b64decode(str(value), validate=True)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "text": text_of, "boolean": _boolean, "smallint": _small, "bigint": _integer, "double": _double,
    "numeric": _number, "date": _date, "time": _time, "timestamp": _timestamp, "timestamptz": _timestamptz,
    "interval": parse_interval, "uuid": _uuid, "bytes": _bytes,
    "json": lambda value: msgspec.json.encode(value).decode(),
}  # fmt: skip
