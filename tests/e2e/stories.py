"""What events tell, without what depends on the place and the moment: times, ids, who did it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from noetl.core.model.events import Recorded, TaskProgress, TokenParked

PLACE = {
    *("at", "ts", "duration_ms", "duration", "started_at", "ended_at", "elapsed", "elapsed_ms", "worker", "epoch"),
    *("draws", "playbook", "file", "requested_by", "token", "tokens", "locator", "key", "headers", "request_id"),
}


def story(events: Iterable[Recorded]) -> Counter[str]:
    """The events; their order aside, since what is parallel has none, and with it
    whether the first of two that meet had to wait (`token.parked`)."""
    return Counter(
        told(each) for each in events if not (isinstance(each.body, TokenParked) and each.body.reason == "join")
    )


def strands(events: Iterable[Recorded], called: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """The events of each step and each iteration in their order; `called` gives texts a common name."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in events:
        if isinstance(each.body, TaskProgress):  # said by the clock
            continue
        step, path = getattr(each.body, "step", None), getattr(each.body, "path", None)
        where = f"{step} {path}" if step is not None else each.body.NAME
        text = told(each)
        for place, name in (called or {}).items():
            text = text.replace(place, name)
        found[where].append(text)
    return dict(found)


def told(event: Recorded) -> str:
    """One event."""
    body = repr(_without_place(msgspec.to_builtins(event.body))).replace(event.execution_id, "ID")
    return f"{event.body.NAME} " + re.sub(r"\d{17,}", "ID", body)


def _without_place(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_place(value[key]) for key in sorted(value) if key not in PLACE}
    if isinstance(value, list | tuple):
        return [_without_place(each) for each in value]
    return value
