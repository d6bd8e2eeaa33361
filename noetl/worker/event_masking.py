"""Masking of secrets in events, the last step before they are sent.

Everything in an event is masked but its numbers and what identifies it (`_IDENTITY`), which comes from the engine.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from noetl.core.model.events import Event
from noetl.core.model.outcome import MAX_MESSAGE, ErrorInfo, Outcome
from noetl.core.model.position import CallFrame, LoopFrame, Position
from noetl.runtime.masking import Masker

# What identifies an event: names of the playbook, and ids. All other texts and data of it may contain values.
_IDENTITY = frozenset({"step", "step_run_id", "task", "kind", "run_id", "child", "worker", "cause", "do", "to"})

MAX_DETAIL = 4 * 1024  # bytes of one field of details that are too large together

_encode = msgspec.json.Encoder().encode


def mask_event(masker: Masker, event: Event) -> Event:
    """The event with secrets masked; the same object if it has none."""
    whole: object = masker.mask_data(event)
    if whole is event:
        return event
    changes = {name: _masked(masker, getattr(event, name)) for name in event.__struct_fields__ if name not in _IDENTITY}
    masked: Event = replace(event, **changes)
    return masked


def mask_outcome(masker: Masker, outcome: Outcome) -> Outcome:
    """The outcome with secrets masked."""
    masked: Outcome = _masked(masker, outcome)
    return masked


def bounded_error(info: ErrorInfo) -> ErrorInfo:
    """A masked error with a message and details that an event can hold."""
    message, details = info.message, info.details
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}... ({len(message):,} characters)"
    if details and len(_encode(details)) > MAX_MESSAGE:
        details = {name: each for name, each in details.items() if len(_encode(each)) <= MAX_DETAIL}
    if message is info.message and details is info.details:
        return info
    return replace(info, message=message, details=details)


def _masked(masker: Masker, value: Any) -> Any:
    if isinstance(value, Outcome):
        return replace(
            value,
            data=masker.mask_data(value.data),
            error=_masked(masker, value.error),
            meta=masker.mask_data(value.meta),
            helpers=masker.mask_data(value.helpers),
            extracts=masker.mask_data(value.extracts),
        )
    if isinstance(value, ErrorInfo):
        return replace(
            value,
            message=masker.mask(value.message),
            details=masker.mask_data(value.details),
            secondary=_masked(masker, value.secondary),
        )
    if isinstance(value, Position):
        return replace(
            value,
            input=masker.mask_data(value.input),
            iter=masker.mask_data(value.iter),
            step=masker.mask_data(value.step),
            ctx=masker.mask_data(value.ctx),
            results=_masked(masker, value.results),
            calls=tuple(_masked(masker, call) for call in value.calls),
        )
    if isinstance(value, CallFrame):
        return replace(
            value,
            position=_masked(masker, value.position),
            input=masker.mask_data(value.input),
            loops=tuple(_masked(masker, loop) for loop in value.loops),
        )
    if isinstance(value, LoopFrame):
        return replace(
            value,
            items=tuple(masker.mask_data(list(value.items))),
            outputs=tuple(_masked(masker, output) for output in value.outputs),
        )
    if isinstance(value, dict):
        if any(isinstance(each, Outcome) for each in value.values()):
            return {key: _masked(masker, each) for key, each in value.items()}
        return masker.mask_data(value)
    if isinstance(value, tuple):
        return tuple(_masked(masker, each) for each in value)
    return masker.mask(value) if isinstance(value, str) else value
