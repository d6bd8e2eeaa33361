"""Identity of reported events: the key of a worker's event and the checksum of its body (GUARANTEES rule 3).

Checksums are computed on demand: the latest events are stored as they are, and most are never
compared, since their run ends first.
"""

from __future__ import annotations

from zlib import crc32

from noetl.core.engine.state import MAX_SEEN, Run, StepRecord
from noetl.core.model.events import (
    ChildRequested,
    Event,
    TaskDone,
    TaskProgress,
    TaskStarted,
    WaitStarted,
    encode_body,
)


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
