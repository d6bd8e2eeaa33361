"""Durations in playbooks and settings (`30s`, `15m`, `24h`, `7d`, `2w`, `1h30m`), and instants."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from math import inf, isfinite
from typing import Any

from noetl.core.model.excerpt import written

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_TTL = re.compile(rf"\s*(?:(?P<number>\d+(?:\.\d+)?)\s*|(?:{_PART.pattern})+)")
DURATION = r"\d+(\.\d+)?|(\d+(\.\d+)? ?(ms|s|m|h|d|w) ?)+"  # of a text with single blanks
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def finite(value: Any) -> float:
    """A finite number, or text that is one, as a float; ValueError for all else, also for numbers beyond its range."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError(f"{written(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise ValueError("the number is too large")
    return number


def seconds(ttl: str | int | float | None) -> float | None:
    """A ttl (`30s`, `15m`, `24h`, `7d`, `2w`, `1h30m`, or a number of seconds) as seconds; None: no expiry."""
    if ttl is None:
        return None
    match = _TTL.fullmatch(str(ttl))
    if not match:
        raise ValueError(f"ttl {written(ttl)} is not a duration: write 30s, 15m, 24h or 7d")
    if match["number"]:
        return finite(match["number"])
    return finite(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(str(ttl))))


def instant_of(value: Any) -> float:
    """An instant as seconds since the epoch: ISO 8601 text (UTC without an offset), or a number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        at = finite(value)
    else:
        try:
            found = datetime.fromisoformat(value.strip())
        except (AttributeError, ValueError):
            raise ValueError(f"{written(value)} is not an instant: write 2026-03-31T18:00:00Z or a date") from None
        at = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    if not abs(at) < 1e11:  # also for nan
        raise ValueError(f"{written(value)} is out of range")
    return at
