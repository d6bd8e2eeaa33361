"""The start of an incremental load: the stored cursor, moved back by `lag`, in the templates of the source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, localcontext
from typing import Any

from noetl.core.model.durations import seconds
from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate
from noetl.errors import TemplateError
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import TemplateRenderer, reads_name

NAME = "cursor"
NO_START = "There is no cursor before the first load: set `incremental.initial`, or write {{ cursor | default(...) }}"
_WHOLE = re.compile(r"\{\{-?\s*cursor\s*-?\}\}")

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


# ── templates that read `cursor` ────────────────────────────────────────────────────────


def render(call: ToolCall, fields: Any, **names: Any) -> Any:
    """The fields of a source with the templates that read `cursor`; those that read `page` stay."""
    if isinstance(fields, DeferredTemplate):
        return TemplateRenderer(call).render(fields, **names) if reads_name(fields, NAME) else fields
    if isinstance(fields, Mapping):
        return {key: render(call, each, **names) for key, each in fields.items()}
    return [render(call, each, **names) for each in fields] if isinstance(fields, list | tuple) else fields


def without_cursor(fields: Any) -> Any:
    """The fields with null where they are just `{{ cursor }}`."""
    if isinstance(fields, DeferredTemplate):
        return None if _WHOLE.fullmatch(fields.strip()) else fields
    if isinstance(fields, Mapping):
        return {key: without_cursor(each) for key, each in fields.items()}
    return [without_cursor(each) for each in fields] if isinstance(fields, list | tuple) else fields


def render_start(call: ToolCall, fields: Any, start: Any) -> Any:
    """The fields of an incremental source with the start of the load. If there is none, a field that is just
    `{{ cursor }}` is null, and another template that needs it is an error."""
    if start is not None:
        return render(call, fields, cursor=start)
    try:
        return render(call, without_cursor(fields))
    except TemplateError as problem:
        reason = "a text of the source contains {{ cursor }}" if f'"{NAME}"' in problem.message else problem.message
        raise BadInput(f"{reason}. {NO_START}") from None


def bare_cursor(call: ToolCall) -> Any:
    """What the name `cursor` means in a source that is not incremental: a value of the playbook, as elsewhere."""
    for scope in ("iter", "ctx", "workload"):
        values = call.scopes.get(scope)
        if isinstance(values, Mapping) and NAME in values:
            return values[NAME]
    raise BadInput("{{ cursor }} is not defined: declare `incremental: {cursor: <column>}` in the source")
