"""`kind: playbook`: the request for a child execution, built from the task's rendered input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.core.model.durations import finite
from noetl.core.model.events import ChildRequested
from noetl.core.model.excerpt import written
from noetl.core.model.merge import deep_merge
from noetl.core.pipeline.frame import Frame, Level, position_of
from noetl.errors import TemplateError

MAX_NAME = 1_000  # characters
MAX_PAYLOAD = 16 * 1024 * 1024  # bytes, as of a request over HTTP

_encode = msgspec.json.Encoder().encode
_PARAMETERS = frozenset({"path", "version", "payload", "return_step", "entry_step", "wait"})
_FALSE = frozenset({"false", "no", "off", "0", ""})


def child_request(frame: Frame, level: Level, rendered: Mapping[str, Any], spec: Mapping[str, Any]) -> ChildRequested:
    """The event that requests the child execution; the worker releases the run after it."""
    path = rendered.get("path")
    if not isinstance(path, str) or not 0 < len(path) <= MAX_NAME:
        raise TemplateError(f"`path` must name a playbook, not {written(path)}", path="path", kind="schema")
    payload = rendered.get("payload") or {}
    if not isinstance(payload, Mapping):
        raise TemplateError(f"`payload` must be a mapping, not {written(payload)}", path="payload", kind="schema")
    # Every field of `input:` that is not a parameter of the kind belongs to the payload.
    others = {name: value for name, value in rendered.items() if name not in _PARAMETERS}
    payload = deep_merge(others, payload)
    if (size := len(_encode(payload))) > MAX_PAYLOAD:
        message = (
            f"the payload has {size:,} bytes (at most {MAX_PAYLOAD:,}): pass large data by reference (`output.ref`)"
        )
        raise TemplateError(message, path="payload", kind="limit")
    return ChildRequested(
        step=frame.order.context.step,
        step_run_id=frame.order.context.step_run_id,
        task=level.label(level.task),
        playbook=path,
        payload=payload,
        version=_text(rendered, "version"),
        return_step=_text(rendered, "return_step"),
        entry_step=_text(rendered, "entry_step"),
        wait=_boolean(rendered.get("wait", True)),
        visit=level.event_visit,
        attempt=level.attempt,
        path=frame.path,
        position=position_of(frame),
        timeout_s=_seconds(spec.get("timeout")),
    )


def _seconds(timeout: Any) -> float | None:
    value = timeout.get("total") if isinstance(timeout, Mapping) else timeout
    if value is None:
        return None
    try:
        seconds = finite(value)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise TemplateError(
            f"spec.timeout must be a positive number of seconds, not {written(value)}",
            path="spec/timeout",
            kind="schema",
        )
    return seconds


def _text(rendered: Mapping[str, Any], name: str) -> str | None:
    value = rendered.get(name)
    if isinstance(value, list | dict) or (isinstance(value, str) and len(value) > MAX_NAME):
        raise TemplateError(f"`{name}` must be a short text, not {written(value)}", path=name, kind="schema")
    return None if value is None else str(value)


def _boolean(value: Any) -> bool:
    return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)
