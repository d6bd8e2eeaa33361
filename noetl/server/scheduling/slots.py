"""The slots of a time range: of a fixed length, or of calendar units in a time zone.

`6h` and `15m` are fixed. Months, quarters and years are calendar units, and so are days and weeks if a time zone is
given: a slot then begins at the same local time, whatever the change to summer time does to its length. Slots are
counted from the start of the range: from 31 January on, slots of a month begin on 31 January, 28 February and 31
March. A local time that does not exist (the hour that summer time leaves out) is moved forward; of one that exists
twice the first one counts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Callable
from datetime import MAXYEAR, UTC, date, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from noetl.core.model.durations import instant_of, seconds
from noetl.core.model.events import instant
from noetl.server.scheduling.cron import zone_of

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

DAY = 86_400.0
_LAST_DAY = date.max.toordinal() - 1
_STEP = re.compile(r"(?:(\d+)\s*([A-Za-z]+)|P(\d+)([YMWD]))")
_MONTHS = {"mo": 1, "month": 1, "quarter": 3, "y": 12, "year": 12, "M": 1, "Y": 12}
_DAYS = {"d": 1, "day": 1, "w": 7, "week": 7, "D": 1, "W": 7}
_FIXED = {"hour": "h", "minute": "m", "min": "m", "second": "s", "sec": "s"}


class Step(Struct, frozen=True, omit_defaults=True):
    """The length of a slot: seconds, or calendar units."""

    seconds: float = 0.0
    days: int = 0
    months: int = 0


def read_step(every: Any, *, zoned: bool) -> Step:
    """The step of `1d`, `6h`, `1 month`, `2 quarters`, `P1M`; ValueError if it is none."""
    found = _STEP.fullmatch(str(every).strip())
    if found:
        number, unit = int(found[1] or found[3]), found[2] or found[4]
        if found[2]:
            unit = unit.lower()
            unit = unit.removesuffix("s") if len(unit) > 3 or unit == "mos" else unit
        if unit in _MONTHS:
            return Step(months=number * _MONTHS[unit])
        if unit in _DAYS:
            days = number * _DAYS[unit]
            return Step(days=days) if zoned else Step(days * DAY)
        if unit in _FIXED:
            return Step(seconds(f"{number}{_FIXED[unit]}") or 0.0)
    try:
        return Step(seconds(every) or 0.0)
    except ValueError:
        raise ValueError(
            f"{every!r} is not the length of a slot: write 15m, 6h, 1d, 1 week, 1 month or 1 year"
        ) from None


def read_instant(value: Any, timezone: str) -> float:
    """An instant; text without an offset is local time of the zone (UTC without one)."""
    if timezone and isinstance(value, str):
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            return instant_of(value)
        if found.tzinfo is None:
            return _timestamp(found, zone_of(timezone))
    return instant_of(value)


def begin_of(start: float, step: Step, timezone: str, index: int) -> float:
    """The instant at which a slot begins."""
    if not step.days and not step.months:
        return start + index * step.seconds
    zone = zone_of(timezone) if timezone else UTC
    local = datetime.fromtimestamp(start, zone).replace(tzinfo=None)
    if step.days:
        days = local.toordinal() + index * step.days
        return _timestamp(local + timedelta(days=index * step.days), zone) if days < _LAST_DAY else inf
    year, month = divmod(local.year * 12 + local.month - 1 + index * step.months, 12)
    if year >= MAXYEAR:
        return inf
    day = min(local.day, monthrange(year, month + 1)[1])
    return _timestamp(local.replace(year=year, month=month + 1, day=day), zone)


def count_slots(start: float, end: float, begin: Callable[[int], float], most: int) -> int:
    """The number of slots that begin before the end, at most `most` + 1."""
    if end <= start:
        return 0
    return bisect_left(range(most + 1), end - 1e-6, key=begin)


def local_text(at: float, timezone: str) -> str:
    """An instant as text, to the second where it is whole: UTC, or with the offset of the zone."""
    if not timezone:
        return instant(at).replace(".000000Z", "Z")
    return datetime.fromtimestamp(at, zone_of(timezone)).isoformat()


def _timestamp(local: datetime, zone: ZoneInfo | Any) -> float:
    """The instant of a local time; of one that does not exist, the same distance after the change of the clock."""
    return local.replace(tzinfo=zone, fold=0).timestamp()
