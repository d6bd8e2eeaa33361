"""How appends lie in a database's rows: encoding, checksums, and what is wrong with a damaged one.

A row of `log` is one append: its events lie in it as one JSON list `[[at, name, version, parent_seq,
body], ...]`; their `seq` is `first`, `first + 1`, ... so a gap cannot be written. Each row has a
checksum over its place and its data, and an execution's row knows how many events it has: a
flipped bit, a lost or a moved row is a `CorruptLog` for that execution, and the others go on.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from noetl.core.model.events import Recorded, create_decoders, decode_body
from noetl.errors import CorruptLog
from noetl.storage.ports.events import Append, ExecutionSummary

FINAL = frozenset({"success", "failed", "cancelled"})

encode_json = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[tuple[float, str, int, int | None, msgspec.Raw]]).decode
decode_summary = msgspec.json.Decoder(ExecutionSummary).decode


_preparing = threading.Lock()
_prepared = threading.Event()


def prepare() -> None:
    """Make ready to decode; stores read in several threads, and one of them alone may make the decoders."""
    if not _prepared.is_set():
        with _preparing:
            create_decoders()
            _prepared.set()


class Encoded(Struct, frozen=True, gc=False):
    """An append as its rows hold it."""

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
    """The rows of an append."""
    number = int(append.execution_id)
    first, last = append.expected_seq + 1, append.expected_seq + len(append.events)
    data = encode_json([(e.at, e.body.NAME, e.body.VERSION, e.parent_seq, e.body) for e in append.events])
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


def checksum(execution: int, place: int, data: bytes, count: int = 0) -> int:
    """Over the data and where it belongs, so that a moved row shows too."""
    return zlib.crc32(data, zlib.crc32(b"%d:%d:%d" % (execution, place, count)))


def intact(crc: object, execution: int, place: object, data: object, count: object = 0) -> bool:
    """Whether a row is as it was written (a damaged one may not even have the right types)."""
    return (
        isinstance(place, int)
        and isinstance(count, int)
        and isinstance(data, bytes)
        and checksum(execution, place, data, count) == crc
    )


def number_of(execution_id: str) -> int | None:
    """Ids are decimal text that fits 64 bits; anything else names nothing here."""
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
    """Events after `after` of rows (first, count, data, crc) that begin at `begin`; and where the log
    ended, when all rows were read (to be compared with what was acknowledged)."""
    events: list[Recorded] = []
    expected = begin
    end: int | None = None
    for first, count, data, crc in rows:
        if first != expected or not intact(crc, number, first, data, count):
            raise CorruptLog(
                f"execution {execution_id}: the log is damaged at seq {expected}; restore it from a backup"
            )
        expected = first + count
        if expected <= after + 1:
            continue
        events += decode_row(execution_id, first, count, data)
        if limit is not None and expected > after + limit:
            break
    else:
        end = expected - 1
    skip = max(0, after + 1 - events[0].seq) if events else 0
    return events[skip : None if limit is None else skip + limit], end


def check_complete(execution_id: str, acknowledged: int | None, last: int) -> None:
    """CorruptLog when the log is not as long as the execution's row says."""
    if (acknowledged or 0) != last:
        raise CorruptLog(
            f"execution {execution_id}: the log ends at seq {last}, but {acknowledged or 'no'} events were "
            "acknowledged; restore it from a backup"
        )


def decode_row(execution_id: str, first: int, count: int, data: bytes) -> list[Recorded]:
    """The events of one row; CorruptLog when they cannot be read."""
    prepare()
    try:
        rows = _decode_rows(data)
        if len(rows) != count:
            raise CorruptLog(f"execution {execution_id}: {len(rows)} events where {count} were written, at seq {first}")
        return [
            Recorded(execution_id, seq, at, decode_body(name, version, body), parent)
            for seq, (at, name, version, parent, body) in enumerate(rows, first)
        ]
    except KeyError as unknown:
        name, version = unknown.args[0]
        raise CorruptLog(
            f"execution {execution_id}: this version of NoETL does not know the event {name!r} version {version} "
            f"(after seq {first}); use the version that wrote it"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise CorruptLog(f"execution {execution_id}: an event after seq {first} cannot be read: {problem}") from None


def one_summary(row: tuple[int, int, str, str, bytes, int] | None) -> ExecutionSummary | None:
    """The projection in a row (id, seq, status, path, data, crc); CorruptLog when it is damaged."""
    if row is None:
        return None
    number, seq, _, _, data, crc = row
    if not intact(crc, number, seq, data):
        raise CorruptLog(f"execution {number}: its summary is damaged; restore it from a backup")
    return decode_summary(data)


def listed_summary(row: tuple[int, int, str, str, bytes, int]) -> ExecutionSummary:
    """The same for a list: a damaged row is shown as such."""
    try:
        found = one_summary(row)
        assert found is not None
        return found
    except CorruptLog as problem:
        return ExecutionSummary(
            execution_id=str(row[0]), path=row[3], status=row[2], started_at=0.0, seq=row[1], error=str(problem)
        )


def has_expired(row: tuple[int, int, str, str, bytes, int], before: float) -> bool:
    """Whether an execution's row says that it ended before that instant; a damaged one is kept for whoever mends it."""
    try:
        found = one_summary(row)
    except CorruptLog:
        return False
    return found is not None and found.ended_at is not None and found.ended_at < before
