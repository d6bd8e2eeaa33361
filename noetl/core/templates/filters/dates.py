"""Date filters: ISO 8601 text in, text or numbers out; they read no clock."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

from noetl.core.model.excerpt import excerpt
from noetl.core.templates.budget import EvaluationBudget, limit_exceeded
from noetl.core.templates.lookup import kind_of
from noetl.errors import TemplateError

_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(w|d|h|m|s|ms)\s*", re.IGNORECASE)
_UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


MAX_LENGTH = 200  # characters of a date, a duration or a date format
_COMPILE = 2000  # operations to compile a date format
_FORMATS = 4  # formats that Python keeps compiled


def moment(budget: EvaluationBudget, value: Any, format: str | None = None) -> datetime:
    """Parse ISO text, text of a given format, or seconds since the epoch; UTC unless the text has an offset."""
    if isinstance(value, str) and len(value) > MAX_LENGTH:
        raise TemplateError(f"a text of {len(value):,} characters is not a date")
    budget.charge(4)
    if format is not None:
        if len(format) > MAX_LENGTH:
            limit_exceeded("a date format that is too long")
        budget.charge(40)
        budget.charge_compiled(format, _COMPILE, _FORMATS)
    try:
        if isinstance(value, datetime):
            read = value
        elif isinstance(value, date):
            read = datetime(value.year, value.month, value.day, tzinfo=UTC)
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise TemplateError(f"a date is text or seconds since 1970, not {kind_of(value)}")
        elif isinstance(value, (int, float)):
            read = datetime.fromtimestamp(value, UTC)
        elif format is not None:
            read = datetime.strptime(value, format)  # noqa: DTZ007 - the zone is added below
        else:
            read = datetime.fromisoformat(value.strip())
    except (ValueError, OverflowError, OSError):
        expected = f'the format "{format}"' if format else "ISO 8601, like 2026-03-01T12:00:00Z"
        raise TemplateError(f"{excerpt(value)} is not a date ({expected})") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def iso(value: datetime) -> str:
    """ISO text, UTC written as `Z`."""
    text = value.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def strftime(budget: EvaluationBudget, value: Any, format: str = "%Y-%m-%dT%H:%M:%S%z") -> str:
    """Format a date."""
    if len(format) > MAX_LENGTH or re.search(r"%[-_^#0]*\d", format):
        limit_exceeded("a date format that is too long or has widths")
    budget.charge(8 + len(format))
    budget.charge_text(len(format) * 20)
    return moment(budget, value).strftime(format)


def to_datetime(budget: EvaluationBudget, value: Any, format: str | None = None) -> str:
    """Any readable date as ISO 8601 text."""
    return iso(moment(budget, value, format))


def timestamp(budget: EvaluationBudget, value: Any) -> float:
    """Seconds since 1970."""
    seconds = moment(budget, value).timestamp()
    return int(seconds) if seconds == int(seconds) else seconds


def date_add(budget: EvaluationBudget, value: Any, amount: Any = None, **parts: float) -> str:
    """Add seconds, `"1d 2h"`, or `days=`, `hours=`, ... to a date."""
    try:
        budget.charge(len(amount) if isinstance(amount, str) else 2)
        return iso(moment(budget, value) + timedelta(seconds=seconds(amount), **parts))
    except (OverflowError, TypeError):
        raise TemplateError("the resulting date is out of range") from None


def date_diff(budget: EvaluationBudget, value: Any, other: Any) -> float:
    """Seconds from `other` to the date."""
    between = (moment(budget, value) - moment(budget, other)).total_seconds()
    return int(between) if between == int(between) else between


def seconds(amount: Any) -> float:
    """A duration as seconds: a number, or text like `1d 2h 30m`."""
    if amount is None:
        return 0.0
    if isinstance(amount, (int, float)):
        return float(amount)
    total, at = 0.0, 0
    text = amount if isinstance(amount, str) else ""
    if len(text) > MAX_LENGTH:
        raise TemplateError(f"a text of {len(text):,} characters is not a duration")
    for found in _DURATION.finditer(text):
        if found.start() != at:
            break
        total += float(found[1]) * _UNITS[found[2].lower()]
        at = found.end()
    if at != len(text) or not text:
        raise TemplateError(f'{excerpt(text)} is not a duration; write seconds, or like "1d 2h 30m"')
    return total
