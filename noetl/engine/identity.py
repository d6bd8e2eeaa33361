"""Which report is which: the key of a worker's event and the checksum of its body (GUARANTEES rule 3)."""

from __future__ import annotations

from zlib import crc32

from noetl.model.events import ChildRequested, Event, TaskDone, TaskStarted, encode_body


def key_of(event: Event) -> str:
    """What names a worker's event within its run: the task, its visit and attempt, and what happened."""
    if isinstance(event, TaskDone | TaskStarted | ChildRequested):
        return f"{event.NAME}:{event.task}:{event.visit}:{event.attempt}"
    return event.NAME


def checksum(event: Event) -> int:
    """A checksum of the body as the log keeps it."""
    return crc32(encode_body(event))
