"""What the back ends of task logs share: limits, and reading pages from chunks."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from noetl.core.model.task_log import MAX_LINES, LogChunk, LogFilter, LogLine, LogPage, StoredLine
from noetl.errors import RequestRefused
from noetl.storage.ports.task_logs import MAX_BYTES

OVER = f"lines dropped: the execution has printed more than {MAX_BYTES >> 20} MiB"
_EVERY_LINE = LogFilter()


def check_chunk(chunk: LogChunk) -> None:
    """Refuse a chunk that a worker of this version does not send."""
    if not 0 < len(chunk.lines) <= MAX_LINES:
        raise RequestRefused(f"a chunk of a task log has 1 to {MAX_LINES} lines, not {len(chunk.lines)}")
    if not chunk.execution_id.isdecimal() or len(chunk.execution_id) > 19:
        raise RequestRefused(f"invalid execution id {chunk.execution_id!r}")
    if any(not 0 <= line.source < len(chunk.sources) for line in chunk.lines):
        raise RequestRefused("a line of a task log names a source that its chunk does not have")


def size_of(chunk: LogChunk) -> int:
    """The bytes of a chunk's lines, about."""
    return sum(len(line.text) + 32 for line in chunk.lines)


def over_limit(chunk: LogChunk) -> LogChunk:
    """The chunk that replaces the first one above the limit: one line that counts."""
    last = chunk.lines[-1]
    dropped = sum(max(1, line.dropped) for line in chunk.lines)
    return replace(chunk, lines=[LogLine(last.source, last.at, "stderr", OVER, dropped)])


def page_of(
    chunks: Iterable[tuple[int, LogChunk]], after: int, limit: int, where: LogFilter | None
) -> tuple[LogPage, bool]:
    """A page from chunks with the number of their first line; and whether it is full."""
    where = where or _EVERY_LINE
    found: list[StoredLine] = []
    for first, chunk in chunks:
        for seq, line in enumerate(chunk.lines, first):
            if seq <= after:
                continue
            source = chunk.sources[line.source]
            if where.matches(source, line):
                if len(found) == limit:
                    return LogPage(found, found[-1].seq), True
                found.append(StoredLine(seq, source, line))
    return LogPage(found), False
