"""Values of databases and files as plain JSON data, by the same rules for every tool.

| value | becomes |
|---|---|
| date, time, timestamp | ISO 8601 text |
| interval | ISO 8601 duration (`P1DT2H`) |
| decimal | a number if that is exact, else text |
| NaN and the infinities | text: `NaN`, `Infinity`, `-Infinity` |
| bytes | base64 text |
| uuid, network address, range, anything else | its usual text |
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

_PLAIN = (str, int, bool, type(None), msgspec.Raw)  # Raw: JSON that is encoded already


def jsonable(value: Any) -> Any:
    """The value as plain JSON data."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    convert = _CONVERT.get(kind)
    if convert is not None:
        return convert(value)
    return _uncommon(value)


def duration(value: datetime.timedelta) -> str:
    """An interval as an ISO 8601 duration."""
    sign = "-" if value < datetime.timedelta(0) else ""
    value = abs(value)
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    clock += f"{seconds}{fraction}S" if seconds or fraction else ""
    days = f"{value.days}D" if value.days else ""
    return f"{sign}P{days}{'T' + clock if clock else ''}" if days or clock else "PT0S"


def number(value: decimal.Decimal) -> int | float | str:
    """A decimal as a number if that loses nothing, else as text."""
    if not value.is_finite():
        return _not_finite(float(value)) if not value.is_snan() else "NaN"
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= 0:
        return int(value)
    approximate = float(value)
    return approximate if decimal.Decimal(repr(approximate)) == value else str(value)


def unique_names(names: Iterable[str]) -> list[str]:
    """The names of columns, with a number where one comes twice; names that come once are not changed."""
    given = list(names)
    taken = set(given)
    seen: dict[str, int] = {}
    unique = []
    for name in given:
        count = seen[name] = seen.get(name, 0) + 1
        if count > 1:
            while f"{name}_{count}" in taken:
                count += 1
            seen[name] = count
            name = f"{name}_{count}"
            taken.add(name)
        unique.append(name)
    return unique


def _float(value: float) -> Any:
    return value if math.isfinite(value) else _not_finite(value)


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode()


def _list(value: Any) -> list[Any]:
    return [jsonable(item) for item in value]


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {key if isinstance(key, str) else str(jsonable(key)): jsonable(item) for key, item in value.items()}


def _iso(value: Any) -> str:
    text: str = value.isoformat()
    return text


_CONVERT: dict[type, Any] = {
    float: _float,
    decimal.Decimal: number,
    datetime.datetime: _iso,
    datetime.date: _iso,
    datetime.time: _iso,
    datetime.timedelta: duration,
    bytes: _base64,
    bytearray: _base64,
    memoryview: _base64,
    list: _list,
    tuple: _list,
    set: _list,
    frozenset: _list,
    dict: _mapping,
}


def _uncommon(value: Any) -> Any:
    for kind, convert in _CONVERT.items():
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return str(value)
