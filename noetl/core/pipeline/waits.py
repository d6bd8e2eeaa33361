"""`kind: wait`: the event that suspends a run until a signal or an instant, built from the task's rendered input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.core.model.durations import instant_of, seconds
from noetl.core.model.events import WaitStarted
from noetl.core.model.excerpt import written
from noetl.core.model.roles import ROLES
from noetl.core.model.schemas.json_schema import schema_problem
from noetl.core.pipeline.frame import Frame, Level, position_of
from noetl.errors import TemplateError

MAX_NAME = 200  # characters of a signal's name
MAX_TITLE = 2_000
MAX_FORM = 256 * 1024  # bytes

_encode = msgspec.json.Encoder().encode


def wait_request(frame: Frame, level: Level, rendered: Mapping[str, Any]) -> WaitStarted:
    """The event that begins the wait; the worker releases the run after it."""
    until, for_s = _instant(rendered.get("until")), _seconds("for", rendered.get("for"))
    if until is not None and for_s is not None:
        raise _wrong("until", "a wait has either `until` or `for`")
    signal = rendered.get("signal")
    if signal is None and until is None and for_s is None:
        signal = level.task.name
    return WaitStarted(
        step=frame.order.context.step,
        step_run_id=frame.order.context.step_run_id,
        task=level.label(level.task),
        signal=None if signal is None else _name(signal),
        title=str(rendered.get("title") or "")[:MAX_TITLE],
        form=_form(rendered.get("form")),
        roles=_roles(rendered.get("roles")),
        until=until,
        for_s=for_s,
        timeout_s=_seconds("timeout", rendered.get("timeout")),
        visit=level.event_visit,
        attempt=level.attempt,
        path=frame.path,
        position=position_of(frame),
    )


def _wrong(field: str, message: str) -> TemplateError:
    return TemplateError(message, path=field, kind="schema")


def _name(signal: Any) -> str:
    name = str(signal).strip() if isinstance(signal, str | int | float) and not isinstance(signal, bool) else ""
    if not name or len(name) > MAX_NAME:
        raise _wrong("signal", f"`signal` must be a name of 1 to {MAX_NAME} characters, not {written(signal)}")
    return name


def _form(form: Any) -> Any:
    if form is None:
        return None
    problem = schema_problem(form) if isinstance(form, Mapping) else f"it is {written(form)}"
    if problem is not None:
        raise _wrong("form", f"`form` is not a JSON Schema: {problem}")
    if (size := len(_encode(form))) > MAX_FORM:
        raise TemplateError(f"`form` has {size:,} bytes (at most {MAX_FORM:,})", path="form", kind="limit")
    return form


def _roles(roles: Any) -> tuple[str, ...]:
    given = [roles] if isinstance(roles, str) else roles
    if given is None:
        return ("operator",)
    if not isinstance(given, list | tuple) or not given or not all(role in ROLES for role in given):
        raise _wrong("roles", f"`roles` must be a list of {', '.join(ROLES)}, not {written(roles)}")
    return tuple(given)


def _instant(value: Any) -> float | None:
    if value is None:
        return None
    try:
        return instant_of(value)
    except ValueError as problem:
        raise _wrong("until", f"`until`: {problem}") from None


def _seconds(field: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        return seconds(value)
    except ValueError:
        raise _wrong(field, f"`{field}` must be a duration such as 90s, 15m, 48h or 2d, not {written(value)}") from None
