"""Dates outside the range of Python's types: `infinity`, years before 1 and after 9999, nanoseconds.

Databases use them (a `valid_to` that never comes is `infinity`), and Arrow carries them as numbers. Infinity is
the largest number, as DuckDB has it; as text everything is what Postgres writes and reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

DAY = 86_400_000_000  # microseconds
_FOREVER_DAYS, _FOREVER = 2**31 - 1, 2**63 - 1
_FIRST, _LAST = -719_162, 2_932_896  # the days that Python can represent
_WRITTEN = re.compile(
    r"(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d+))?(?P<zone>[+-]\d\d(?::\d\d)*)?)?"
    r"(?P<bc> BC)?"
)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def is_calendar(kind: Any) -> bool:
    """Whether an Arrow type is a date or a timestamp."""
    import pyarrow as pa

    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def ticks_per_day(unit: str) -> int:
    """How many units of an Arrow time a day has."""
    return 86_400 * _PER_SECOND[unit]


def spelled(column: Any) -> list[Any]:
    """The values of a column of dates or timestamps: Python's types, or text where they cannot represent them."""
    return [_spelled(scalar) for chunk in getattr(column, "chunks", [column]) for scalar in chunk]


def _spelled(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _text(scalar.type, scalar.value)


def _text(kind: Any, value: int) -> str:
    import pyarrow as pa

    if pa.types.is_date32(kind):
        if abs(value) >= _FOREVER_DAYS:
            return "infinity" if value > 0 else "-infinity"
        return _dated(value, "")
    if abs(value) >= _FOREVER:
        return "infinity" if value > 0 else "-infinity"
    scale = 1000 if pa.types.is_date64(kind) else _PER_SECOND[kind.unit]
    days, rest = divmod(value, 86_400 * scale)
    seconds, rest = divmod(rest, scale)
    fraction = f".{rest:0{len(str(scale)) - 1}}".rstrip("0") if rest else ""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
    if pa.types.is_date64(kind):
        return _dated(days, "")
    if not _FIRST <= days <= _LAST:
        return _dated(days, f" {clock}{'+00' if kind.tz else ''}")
    return _dated(days, f"T{clock}{'+00:00' if kind.tz else ''}")  # the format of other dates, with more digits


def _dated(days: int, clock: str) -> str:
    """A day of the Gregorian calendar, counted from 1970, however far away."""
    from datetime import date, timedelta

    eras, rest = divmod(days + 719_162, 146_097)  # 400 years have the same days as any other 400
    near = date(1, 1, 1) + timedelta(days=rest)
    year = near.year + 400 * eras
    text = f"{year:04}" if year > 0 else f"{1 - year:04}"
    return f"{text}-{near.month:02}-{near.day:02}{clock}{'' if year > 0 else ' BC'}"


def with_infinity(array: Any) -> Any:
    """A date or time column of the bulk driver of Postgres, with infinite values restored, also in lists.

    OverflowError for a timestamp beyond the range of Arrow, which the driver returns as one in the past."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_list(kind) and is_calendar(kind.value_type):
        return pa.ListArray.from_arrays(array.offsets, with_infinity(array.values), kind, mask=array.is_null())
    if not len(array) or not (pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")):
        return array
    whole, shift, bits, last = (
        (pa.int32(), 10_957, 32, _FOREVER_DAYS)
        if pa.types.is_date32(kind)
        else (pa.int64(), 10_957 * DAY, 64, _FOREVER)
    )
    late, early = 2 ** (bits - 1) - 1 + shift - 2**bits, -(2 ** (bits - 1)) + shift
    numbers = array.cast(whole)
    lowest = pc.min(numbers).as_py()
    if lowest is None or lowest > early:
        return array
    numbers = pc.if_else(pc.equal(numbers, pa.scalar(late, whole)), pa.scalar(last, whole), numbers)
    numbers = pc.if_else(pc.equal(numbers, pa.scalar(early, whole)), pa.scalar(-last, whole), numbers)
    wrapped = pc.and_(pc.less(numbers, pa.scalar(early, whole)), pc.not_equal(numbers, pa.scalar(-last, whole)))
    if pc.any(wrapped).as_py():
        raise OverflowError("a timestamp after the year 294246")
    return numbers.cast(kind)


def numbered(values: Sequence[Any], kind: Any) -> Sequence[Any]:
    """Dates of which some are text, since Python has no form for them, as Arrow takes them (in microseconds)."""
    import pyarrow as pa

    days = pa.types.is_date32(kind)
    return [_number(value, days=days) if isinstance(value, str) else value for value in values]


def parse_date(text: str) -> Any:
    """A date, or its number if Python has no form for it; ValueError if the text is none."""
    from datetime import date

    written = _WRITTEN.fullmatch(text)
    if written is not None and written["hour"]:
        raise ValueError(text)  # a date has no time
    found = _number(text, days=True)
    return date.fromisoformat(text) if isinstance(found, str) else found


def parse_timestamp(text: str, *, zone: bool) -> Any:
    """A timestamp (in microseconds, or Python's type); a missing `zone` is UTC, one that is not wanted is an error."""
    from datetime import UTC, datetime

    written = _WRITTEN.fullmatch(text)
    if written is not None and written["zone"] and not zone:
        raise ValueError(text)
    if len((written["fraction"] or "").rstrip("0") if written else "") > 6:
        raise ValueError(text)  # more digits than a timestamp has
    found = _number(text, days=False) if written is None or written["hour"] else text
    if not isinstance(found, str):
        return found
    moment = datetime.fromisoformat(text)
    fraction = re.search(r"\.(\d+)", text)
    if (moment.tzinfo is not None and not zone) or (fraction and len(fraction[1].rstrip("0")) > 6):
        raise ValueError(text)
    return moment.replace(tzinfo=UTC) if zone and moment.tzinfo is None else moment


def _number(text: str, *, days: bool) -> int | str:
    from datetime import date

    if text.removeprefix("-") == "infinity":
        last = _FOREVER_DAYS if days else _FOREVER
        return -last if text.startswith("-") else last
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return text
    year = 1 - int(found["year"]) if found["bc"] else int(found["year"])
    eras, near = divmod(year - 1, 400)
    day = date(near + 1, int(found["month"]), int(found["day"])).toordinal() - 719_163 + eras * 146_097
    if days:
        return day
    zone = found["zone"] or "+00"
    east = _seconds(zone[1:].split(":"))
    seconds = _seconds([found["hour"], found["minute"], found["second"]])
    micros = int((found["fraction"] or "").ljust(6, "0")[:6])
    if seconds * 1_000_000 + micros > DAY or east >= 86_400:
        raise ValueError(text)
    return day * DAY + (seconds + (east if zone[0] == "-" else -east)) * 1_000_000 + micros


def _seconds(clock: Sequence[str]) -> int:
    """The seconds of hours, minutes and seconds; ValueError if an hour would have more than 60 minutes."""
    hours, minutes, seconds = (*map(int, clock), 0, 0)[:3]
    if minutes > 59 or seconds > 59:
        raise ValueError(":".join(clock))
    return hours * 3600 + minutes * 60 + seconds
