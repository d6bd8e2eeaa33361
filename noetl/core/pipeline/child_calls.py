"""`kind: playbook`: the request for a child execution, built from the task's rendered input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.model.durations import finite
from noetl.core.model.events import ChildRequested
from noetl.core.model.merge import deep_merge
from noetl.core.pipeline.frame import Frame, Level, position_of
from noetl.errors import TemplateError

_PARAMETERS = frozenset({"path", "version", "payload", "return_step", "entry_step", "wait"})
_FALSE = frozenset({"false", "no", "off", "0", ""})


def child_request(frame: Frame, level: Level, rendered: Mapping[str, Any], spec: Mapping[str, Any]) -> ChildRequested:
    """The event that requests the child execution; the worker releases the run after it."""
    path = rendered.get("path")
    if not isinstance(path, str) or not path:
        raise TemplateError(f"`path` must name a playbook, not {path!r}", path="path", kind="schema")
    payload = rendered.get("payload") or {}
    if not isinstance(payload, Mapping):
        raise TemplateError(f"`payload` must be a mapping, not {payload!r}", path="payload", kind="schema")
    # Every field of `input:` that is not a parameter of the kind belongs to the payload.
    others = {name: value for name, value in rendered.items() if name not in _PARAMETERS}
    version = rendered.get("version")
    return ChildRequested(
        step=frame.order.context.step,
        step_run_id=frame.order.context.step_run_id,
        task=level.label(level.task),
        playbook=path,
        payload=deep_merge(others, payload),
        version=None if version is None else str(version),
        return_step=_text(rendered.get("return_step")),
        entry_step=_text(rendered.get("entry_step")),
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
            f"spec.timeout must be a positive number of seconds, not {value!r}", path="spec/timeout", kind="schema"
        )
    return seconds


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _boolean(value: Any) -> bool:
    return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)
