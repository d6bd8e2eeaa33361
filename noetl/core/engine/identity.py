"""Identity of reported events and of commands: the key, and the checksum of the content (GUARANTEES rule 3).

Checksums are computed on demand: the latest events are stored as they are, and most are never
compared, since their run ends first.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from noetl.core.engine.commands import CancelExecution, PauseExecution, ResumeExecution, SendSignal
from noetl.core.engine.state import MAX_SEEN, CommandContent, Run, StepRecord
from noetl.core.model.events import (
    ChildRequested,
    Event,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionResumed,
    SignalReceived,
    TaskDone,
    TaskProgress,
    TaskStarted,
    WaitStarted,
    encode_body,
)

_encode = msgspec.json.Encoder(order="deterministic").encode


def command_content(command: CancelExecution | PauseExecution | ResumeExecution | SendSignal) -> CommandContent:
    """What a command with an idempotency key asks for; the reason is a comment."""
    if isinstance(command, SendSignal):
        return _signal_content(command.payload, command.wait), "" if command.wait else command.name
    return _content(*_ACTIONS[type(command)], getattr(command, "compensate", False)), ""


def recorded_content(event: ExecutionCancelled | ExecutionPaused | ExecutionResumed | SignalReceived) -> CommandContent:
    """The same of the event that a command became."""
    if isinstance(event, SignalReceived):
        return _signal_content(event.payload, event.wait), event.name
    return _content(*_ACTIONS[type(event)], getattr(event, "compensate", False)), ""


def is_repeated(first: CommandContent | None, again: CommandContent) -> bool:
    """Whether a command repeats the one that used its key first; None: its content is not known."""
    if first is None:
        return True
    return first[0] == again[0] and (first[1] == again[1] or not again[1])  # a signal to a wait needs no name


_ACTIONS: dict[type, tuple[str]] = {
    CancelExecution: ("cancel",),
    ExecutionCancelled: ("cancel",),
    PauseExecution: ("pause",),
    ExecutionPaused: ("pause",),
    ResumeExecution: ("resume",),
    ExecutionResumed: ("resume",),
}


def _signal_content(payload: Any, wait: str) -> int:
    return _content("signal", payload, wait) if wait else _content("signal", payload)


def _content(*parts: Any) -> int:
    return crc32(_encode(parts))


def key_of(event: Event) -> str:
    """The key of a worker's event within its run: event type, task, visit and attempt."""
    if isinstance(event, WaitStarted) and event.quota is not None:  # one attempt may wait for several turns
        return f"{event.NAME}:{event.task}:{event.visit}:{event.attempt}:{event.until}"
    if isinstance(event, TaskDone | TaskStarted | ChildRequested | WaitStarted):
        return f"{event.NAME}:{event.task}:{event.visit}:{event.attempt}"
    return "" if isinstance(event, TaskProgress) else event.NAME


def checksum(event: Event) -> int:
    """The checksum of the body as it is encoded in the log."""
    return crc32(encode_body(event))


def checksums_seen(run: Run) -> dict[str, int]:
    """Key and checksum of every event reported for a run under its current lease."""
    return {**run.seen, **{key_of(event): checksum(event) for event in run.latest}} if run.latest else run.seen


def compact_reports(run: Run) -> None:
    """Replace the latest events of a run by their checksums."""
    seen = run.seen
    for event in run.latest:
        seen[key_of(event)] = checksum(event)
    while len(seen) > MAX_SEEN:
        del seen[next(iter(seen))]
    run.latest = ()


def checksum_of(record: StepRecord) -> int:
    """The checksum of the event that ended a step's last run."""
    return record.checksum if record.ended is None else checksum(record.ended)
