"""Events as comparable text, without volatile fields such as times, ids and workers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from noetl.core.model.events import Recorded, TaskProgress, TokenParked

VOLATILE_FIELDS = {
    "lineage",
    *("at", "ts", "duration_ms", "duration", "started_at", "ended_at", "elapsed", "elapsed_ms", "worker", "epoch"),
    *("draws", "playbook", "file", "requested_by", "token", "tokens", "locator", "key", "headers", "request_id"),
}


def normalize(events: Iterable[Recorded]) -> Counter[str]:
    """The events without their order, because parallel events have none, and without `token.parked` at joins."""
    return Counter(
        event_text(each) for each in events if not (isinstance(each.body, TokenParked) and each.body.reason == "join")
    )


def events_by_run(events: Iterable[Recorded], called: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """The events of each step and iteration in order; `called` replaces texts by common names."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in events:
        if isinstance(each.body, TaskProgress):  # depends on the clock
            continue
        step, path = getattr(each.body, "step", None), getattr(each.body, "path", None)
        where = f"{step} {path}" if step is not None else each.body.NAME
        text = event_text(each)
        for old, name in (called or {}).items():
            text = text.replace(old, name)
        found[where].append(text)
    return dict(found)


def event_text(event: Recorded) -> str:
    """One event without volatile fields."""
    fields = msgspec.to_builtins(event.body)
    fields.pop("input_ref", None)  # the digest of an input with addresses
    body = repr(_without_volatile_fields(fields)).replace(event.execution_id, "ID")
    body = re.sub(r"postgresql://postgres:\*\*\*@127\.0\.0\.1:\d+/t_[0-9a-f]+", "PG", body)  # masked
    return f"{event.body.NAME} " + re.sub(r"\d{17,}", "ID", body)


def _without_volatile_fields(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_volatile_fields(value[key]) for key in sorted(value) if key not in VOLATILE_FIELDS}
    if isinstance(value, list | tuple):
        return [_without_volatile_fields(each) for each in value]
    return value
