"""The start of a load with `lag`: the stored cursor, moved back."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal, localcontext
from typing import Any

from noetl.core.model.durations import seconds
from noetl.tools._common.sql_task import BadInput

# A date, or a time with hours, minutes, seconds or fractions of them, with an offset or without.
_TIME = re.compile(
    r"(?P<date>\d{4}(?P<dash>-?)\d\d(?P=dash)\d\d)"
    r"(?:(?P<sep>[Tt ])(?P<hour>\d\d)(?:(?P<colon>:?)(?P<minute>\d\d)(?:(?P=colon)(?P<second>\d\d)"
    r"(?:(?P<point>[.,])(?P<fraction>\d+))?)?)?)?"
    r"(?P<zone> ?(?:[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d)?))?"
)
MICROSECONDS = 1_000_000
DIGITS = 100  # of differences; a cursor has at most 76


def earlier(value: Any, lag: Any) -> Any:
    """A cursor moved back by `lag`: a duration for times, a number for numbers."""
    try:
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            with localcontext(prec=DIGITS):
                return value - _number(lag, type(value))
        shift = timedelta(seconds=seconds(lag) or 0.0)
        if isinstance(value, datetime):
            return value - shift
        if isinstance(value, date):
            return value - timedelta(days=-(-shift // timedelta(days=1)))
        return _earlier_text(str(value), shift)
    except (TypeError, ValueError, ArithmeticError):
        shown = value.isoformat() if isinstance(value, date) else str(value)
        raise BadInput(
            f"`lag: {lag}` does not fit the cursor {shown!r}: write a duration for times, a number for numbers"
        ) from None


def _number(lag: Any, kind: type[Any]) -> Any:
    amount = Decimal(str(lag))
    if amount < 0:
        raise ValueError("a negative lag leaves out rows")
    return kind(amount)


def _earlier_text(text: str, shift: timedelta) -> str:
    """A time in the same form, because texts are compared by their characters; rounded down to what the form has."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time")
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    begin = datetime.combine(date.fromisoformat(found["date"]), time(hour, minute, second))
    fraction = found["fraction"] or ""
    units = 10 ** len(fraction)
    ticks = int(fraction or 0) + -(shift // timedelta(microseconds=1)) * units // MICROSECONDS
    moved = begin + timedelta(seconds=ticks // units)
    year = f"{moved.year:04}"  # strftime does not fill it with zeros everywhere
    form = found["dash"].join((year, "%m", "%d"))
    if found["hour"]:
        clock = [each for each, name in (("%H", "hour"), ("%M", "minute"), ("%S", "second")) if found[name]]
        form += found["sep"] + (found["colon"] or "").join(clock)
    if fraction:
        form += f"{found['point']}{ticks % units:0{len(fraction)}}"
    return moved.strftime(form) + (found["zone"] or "")
