"""Task logs in SQLite or Postgres, in the database of the event log.

A row is a chunk of lines. `first` is the number of its first line, `total` the bytes of the execution up to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import msgspec

from noetl.core.model.task_log import MAX_LINES, LogChunk, LogFilter, LogPage, StoredLine
from noetl.errors import CorruptLog, StoreUnavailable
from noetl.storage.ports.sql import Schemas, SqlDatabase
from noetl.storage.ports.task_logs import MAX_BYTES
from noetl.storage.task_logs.chunks import check_chunk, over_limit, page_of, size_of

SCHEMAS: Schemas = {
    "sqlite": (
        """
        CREATE TABLE task_logs(
          execution INTEGER NOT NULL,
          first INTEGER NOT NULL,
          count INTEGER NOT NULL,
          total INTEGER NOT NULL,
          data BLOB NOT NULL,
          PRIMARY KEY(execution, first)
        )
        """,
    ),
    "postgres": (
        """
        CREATE TABLE noetl_task_logs(
          execution int8 NOT NULL,
          first int8 NOT NULL,
          count int8 NOT NULL,
          total int8 NOT NULL,
          data bytea NOT NULL,
          PRIMARY KEY(execution, first)
        )
        """,
    ),
}

ATTEMPTS = 20  # of an append that conflicts with those of other servers
ROWS = 64  # chunks of one query
_ADVICE = "`noetl doctor --verify` finds the row"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LogChunk).decode


class SqlTaskLogStore:
    """`ports.TaskLogStore` in a database that other stores share."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._table = f"{database.prefix}task_logs"
        database.migrate("task_logs", SCHEMAS[database.dialect])

    async def append(self, chunk: LogChunk) -> int:
        """Add lines; return the number of the last one."""
        check_chunk(chunk)
        execution, size = int(chunk.execution_id), size_of(chunk)
        for _ in range(ATTEMPTS):
            last, total = await self._end(execution)
            if total > MAX_BYTES:
                return last
            written = chunk if total + size <= MAX_BYTES else over_limit(chunk)
            added = await self._database.execute(
                f"INSERT INTO {self._table}(execution, first, count, total, data) VALUES ($1, $2, $3, $4, $5) "
                "ON CONFLICT (execution, first) DO NOTHING",
                execution,
                last + 1,
                len(written.lines),
                total + size,
                zlib.compress(_encode(written), 1),
            )
            if added:
                return last + len(written.lines)
        raise StoreUnavailable("the task log is written by too many servers at once")

    async def read(
        self, execution_id: str, after: int = 0, limit: int = 1000, where: LogFilter | None = None
    ) -> LogPage:
        """Lines with a number > after, in order."""
        if not execution_id.isdecimal() or len(execution_id) > 19:
            return LogPage()
        found: list[StoredLine] = []
        begin = after
        while True:
            rows = await self._database.fetch(
                f"SELECT first, count, data FROM {self._table} WHERE execution = $1 AND first > $2 "
                f"AND first + count > $3 ORDER BY first LIMIT {ROWS}",
                int(execution_id),
                begin - MAX_LINES,
                begin + 1,
            )
            page, full = page_of(_chunks(rows), begin, limit - len(found), where)
            found += page.lines
            if full:
                return LogPage(found, found[-1].seq if found else begin)
            if len(rows) < ROWS:
                return LogPage(found)
            begin = _number(rows[-1][0]) + _number(rows[-1][1]) - 1

    async def last(self, execution_id: str) -> int:
        """The number of the last line; 0 without any."""
        return (await self._end(int(execution_id)))[0] if execution_id.isdecimal() and len(execution_id) <= 19 else 0

    async def forget(self, executions: Sequence[str]) -> None:
        """Delete the lines of these executions."""
        rows = [(int(each),) for each in executions if each.isdecimal()]
        if rows:
            await self._database.execute_many(f"DELETE FROM {self._table} WHERE execution = $1", rows)

    async def _end(self, execution: int) -> tuple[int, int]:
        """The number of the last line and the bytes so far."""
        row = await self._database.row(
            f"SELECT first, count, total FROM {self._table} WHERE execution = $1 ORDER BY first DESC LIMIT 1", execution
        )
        first, count, total = map(_number, row or (1, 0, 0))
        return first + count - 1, total


def _chunks(rows: Sequence[Sequence[object]]) -> Iterator[tuple[int, LogChunk]]:
    for first, _, data in rows:
        yield _number(first), decode_chunk(data)


def _number(value: object) -> int:
    """A position; CorruptLog if it is damaged: a column of SQLite can have values of any type."""
    if not isinstance(value, int):
        raise CorruptLog(f"the task log is damaged: {value!r} is not a position; {_ADVICE}")
    return value


def decode_chunk(data: object) -> LogChunk:
    """The lines of a row; CorruptLog if they are damaged."""
    try:
        return _decode(zlib.decompress(data))  # type: ignore[arg-type]
    except (TypeError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise CorruptLog(f"the task log is damaged: {problem}; {_ADVICE}") from None
