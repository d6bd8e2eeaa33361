"""The rows of appends in a database: encoding, checksums, detection of damage.

A row of `log` is one append: its events are one JSON list `[[at, name, version, parent_seq,
body], ...]`; their `seq` is `first`, `first + 1`, ..., so a gap cannot be written. Each row has a
checksum over its position and its data, and the row of an execution has the number of its events. Invariant: a
flipped bit, a lost or a moved row raises `CorruptLog` for that execution; other executions stay readable.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from noetl.core.model.events import Recorded, create_decoders, decode_body
from noetl.core.model.excerpt import NOT_ENCODABLE, unencodable
from noetl.errors import CorruptLog, NotEncodable
from noetl.storage.ports.events import Append, ExecutionSummary

PAGE_BYTES = 8 << 20  # of rows, after which a page ends
FINAL = frozenset({"success", "failed", "cancelled"})

encode_json = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[tuple[float, str, int, int | None, msgspec.Raw]]).decode
decode_summary = msgspec.json.Decoder(ExecutionSummary).decode


_preparing = threading.Lock()
_prepared = threading.Event()


def prepare() -> None:
    """Create the event decoders once; they are used in several threads."""
    if not _prepared.is_set():
        with _preparing:
            create_decoders()
            _prepared.set()


class Encoded(Struct, frozen=True, gc=False):
    """The encoded rows of an append."""

    number: int
    first: int
    last: int
    data: bytes
    crc: int
    summary: ExecutionSummary
    summary_data: bytes
    summary_crc: int
    ended: bool


def encode_append(append: Append) -> Encoded:
    """Encode an append."""
    number = int(append.execution_id)
    first, last = append.expected_seq + 1, append.expected_seq + len(append.events)
    try:
        data = encode_json([(e.at, e.body.NAME, e.body.VERSION, e.parent_seq, e.body) for e in append.events])
    except NOT_ENCODABLE:
        problems = (unencodable(each.body, each.body.NAME) for each in append.events)
        raise NotEncodable(next((problem for problem in problems if problem), "the events cannot be encoded")) from None
    summary = append.summary
    if summary.seq != last:
        summary = msgspec.structs.replace(summary, seq=last)
    summary_data = encode_json(summary)
    return Encoded(
        number=number,
        first=first,
        last=last,
        data=data,
        crc=checksum(number, first, data, len(append.events)),
        summary=summary,
        summary_data=summary_data,
        summary_crc=checksum(number, last, summary_data),
        ended=summary.status in FINAL,
    )


def checksum(execution: int, position: int, data: bytes, count: int = 0) -> int:
    """Checksum over the data and its position, which also detects a moved row."""
    return zlib.crc32(data, zlib.crc32(b"%d:%d:%d" % (execution, position, count)))


def intact(crc: object, execution: int, position: object, data: object, count: object = 0) -> bool:
    """Whether a row matches its checksum (a damaged row may have wrong types)."""
    return (
        isinstance(position, int)
        and isinstance(count, int)
        and isinstance(data, bytes)
        and checksum(execution, position, data, count) == crc
    )


def number_of(execution_id: str) -> int | None:
    """The number of an id, which is decimal text of 64 bits; None for any other text."""
    if not execution_id.isdecimal() or len(execution_id) > 19:
        return None
    number = int(execution_id)
    return number if number < 1 << 63 else None


def decode_log(
    execution_id: str,
    number: int,
    rows: Iterable[tuple[int, int, bytes, int]],
    after: int,
    limit: int | None,
    begin: int,
) -> tuple[list[Recorded], int | None]:
    """Decode the events after `after` of rows (first, count, data, crc) that begin at `begin`, with a limit as long as
    they are not large. Return them and the last seq of the log if all rows were read (to be compared with the
    acknowledged length)."""
    events: list[Recorded] = []
    expected = begin
    end: int | None = None
    size = 0
    for first, count, data, crc in rows:
        if first != expected or not intact(crc, number, first, data, count):
            raise CorruptLog(
                f"execution {execution_id}: the log is damaged at seq {expected}; restore it from a backup"
            )
        expected = first + count
        if expected <= after + 1:
            continue
        events += decode_row(execution_id, first, count, data)
        size += len(data)
        if limit is not None and (expected > after + limit or size > PAGE_BYTES):
            break
    else:
        end = expected - 1
    skip = max(0, after + 1 - events[0].seq) if events else 0
    return events[skip : None if limit is None else skip + limit], end


def check_complete(execution_id: str, acknowledged: int | None, last: int) -> None:
    """Raise CorruptLog if the length of the log differs from the row of the execution."""
    if (acknowledged or 0) != last:
        raise CorruptLog(
            f"execution {execution_id}: the log ends at seq {last}, but {acknowledged or 'no'} events were "
            "acknowledged; restore it from a backup"
        )


def decode_row(execution_id: str, first: int, count: int, data: bytes) -> list[Recorded]:
    """Decode the events of one row; CorruptLog if that fails."""
    prepare()
    try:
        rows = _decode_rows(data)
        if len(rows) != count:
            raise CorruptLog(
                f"execution {execution_id}: the log is damaged at seq {first}: {len(rows)} events instead of {count}"
            )
        return [
            Recorded(execution_id, seq, at, decode_body(name, version, body), parent)
            for seq, (at, name, version, parent, body) in enumerate(rows, first)
        ]
    except KeyError as unknown:
        name, version = unknown.args[0]
        raise CorruptLog(
            f"execution {execution_id}: unknown event {name!r} version {version} after seq {first}; "
            "use the version of NoETL that wrote it"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise CorruptLog(f"execution {execution_id}: cannot decode an event after seq {first}: {problem}") from None


def one_summary(row: tuple[int, int, str, str, bytes, int] | None) -> ExecutionSummary | None:
    """The summary in a row (id, seq, status, path, data, crc); CorruptLog if it is damaged."""
    if row is None:
        return None
    number, seq, _, _, data, crc = row
    if not intact(crc, number, seq, data):
        raise CorruptLog(
            f"execution {number}: the summary is damaged; `noetl doctor --repair` writes it again from the log"
        )
    return decode_summary(data)


def listed_summary(row: tuple[int, int, str, str, bytes, int]) -> ExecutionSummary:
    """The summary in a row of a list; a damaged row becomes a summary with the error."""
    try:
        found = one_summary(row)
        assert found is not None
        return found
    except CorruptLog as problem:
        return ExecutionSummary(
            execution_id=str(row[0]), path=row[3], status=row[2], started_at=0.0, seq=row[1], error=str(problem)
        )


def has_expired(row: tuple[int, int, str, str, bytes, int], before: float) -> bool:
    """Whether an execution ended before that time; a damaged row is kept for a repair."""
    try:
        found = one_summary(row)
    except CorruptLog:
        return False
    return found is not None and found.ended_at is not None and found.ended_at < before
