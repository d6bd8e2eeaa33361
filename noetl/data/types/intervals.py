"""Intervals of months, days and time, as Arrow has them, and as ISO 8601 durations.

The three parts are kept apart, each with its own sign: a month has no fixed number of days, a day no fixed number of
hours.
"""

from __future__ import annotations

import re

_NANOSECOND = 10**9
_SIGNED = r"([+-]?\d+(?:\.\d+)?)"
_ISO = re.compile(
    rf"(-)?P(?:{_SIGNED}Y)?(?:{_SIGNED}M)?(?:{_SIGNED}W)?(?:{_SIGNED}D)?"
    rf"(?:T(?:{_SIGNED}H)?(?:{_SIGNED}M)?(?:{_SIGNED}S)?)?"
)
_WORDS = re.compile(r"([+-]?\d+) (year|mon|month|week|day)s?\b")
_CLOCK = re.compile(r"([+-]?)(\d+):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?$")


def interval_text(months: int, days: int, nanoseconds: int) -> str:
    """An interval as an ISO 8601 duration."""
    years, months = _divided(months, 12)
    date = "".join(f"{count}{unit}" for count, unit in ((years, "Y"), (months, "M"), (days, "D")) if count)
    hours, rest = _divided(nanoseconds, 3600 * _NANOSECOND)
    minutes, rest = _divided(rest, 60 * _NANOSECOND)
    time = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M")) if count)
    if rest:
        seconds, fraction = divmod(abs(rest), _NANOSECOND)
        digits = f".{fraction:09d}".rstrip("0") if fraction else ""
        time += f"{'-' if rest < 0 else ''}{seconds}{digits}S"
    return f"P{date}{'T' + time if time else ''}" if date or time else "PT0S"


def parse_interval(value: object) -> tuple[int, int, int]:
    """Months, days and nanoseconds of an ISO 8601 duration, or of `1 year 2 mons 3 days 04:05:06`; else ValueError."""
    text = str(value).strip()
    found = _ISO.fullmatch(text)
    if found and len(text.lstrip("-")) > 1:
        years, months, weeks, days, hours, minutes, seconds = (_nanos(part) for part in found.groups()[1:])
        whole = (years * 12 + months, weeks * 7 + days)
        if any(part % _NANOSECOND for part in whole):
            raise ValueError(text)
        sign = -1 if found[1] else 1
        clock = hours * 3600 + minutes * 60 + seconds
        return sign * (whole[0] // _NANOSECOND), sign * (whole[1] // _NANOSECOND), sign * clock
    return _parse_words(text)


def _parse_words(text: str) -> tuple[int, int, int]:
    months = days = nanoseconds = 0
    for count, unit in _WORDS.findall(text):
        if unit in ("year", "mon", "month"):
            months += int(count) * (12 if unit == "year" else 1)
        else:
            days += int(count) * (7 if unit == "week" else 1)
    rest = _WORDS.sub("", text).strip()
    clock = _CLOCK.fullmatch(rest) if rest else None
    if (rest and clock is None) or not text:
        raise ValueError(text)
    if clock is not None:
        seconds = int(clock[2]) * 3600 + int(clock[3]) * 60 + int(clock[4] or 0)
        nanoseconds = seconds * _NANOSECOND + int((clock[5] or "").ljust(9, "0"))
        nanoseconds = -nanoseconds if clock[1] == "-" else nanoseconds
    return months, days, nanoseconds


def _nanos(text: str | None) -> int:
    """A decimal number as billionths."""
    if not text:
        return 0
    whole, _, fraction = text.lstrip("+-").partition(".")
    if len(fraction.rstrip("0")) > 9:
        raise ValueError(text)
    number = int(whole) * _NANOSECOND + int(fraction[:9].ljust(9, "0"))
    return -number if text.startswith("-") else number


def _divided(number: int, unit: int) -> tuple[int, int]:
    """Quotient and remainder with the sign of the number."""
    quotient, rest = divmod(abs(number), unit)
    return (quotient, rest) if number >= 0 else (-quotient, -rest)
