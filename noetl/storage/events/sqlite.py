"""The event log in a SQLite file, for the embedded engine and for a single server.

A row of `log` is one append (`event_rows.py` defines its encoding). Rows are in commit order,
so a group of appends to many executions changes few pages (the WAL gets a quarter less
data than with rows clustered by execution).

`executions` is the projection for lists and counts. Invariant: it changes in the transaction of the append, and an
append succeeds only if the `seq` there is the expected one. Of two conflicting appends the first commit wins.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence

from noetl.core.model.events import Recorded
from noetl.core.model.ids import number_at
from noetl.errors import Conflict, CorruptLog, VersionConflict
from noetl.storage.events.event_rows import (
    Encoded,
    check_complete,
    checksum,
    decode_log,
    decode_summary,
    encode_append,
    encode_json,
    has_expired,
    intact,
    listed_summary,
    number_of,
    one_summary,
)
from noetl.storage.events.log_tail import LogTails, follow
from noetl.storage.events.slot_counts import check_capacity, counted, json_key_pattern
from noetl.storage.ports.events import Append, ExecutionFilter, ExecutionSummary
from noetl.storage.sqlite.database_file import SqliteFile

SCHEMA = (
    """
    CREATE TABLE executions(
      id INTEGER PRIMARY KEY,
      seq INTEGER NOT NULL,
      status TEXT NOT NULL,
      ended INTEGER NOT NULL,
      path TEXT NOT NULL,
      parent INTEGER,
      key TEXT,
      data BLOB NOT NULL,
      crc INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX executions_key ON executions(key) WHERE key IS NOT NULL;
    CREATE INDEX executions_unfinished ON executions(id) WHERE ended = 0;
    CREATE INDEX executions_status ON executions(status, id);
    CREATE INDEX executions_path ON executions(path, id);
    CREATE INDEX executions_parent ON executions(parent, id) WHERE parent IS NOT NULL;
    CREATE TABLE log(
      place INTEGER PRIMARY KEY,
      execution INTEGER NOT NULL,
      first INTEGER NOT NULL,
      count INTEGER NOT NULL,
      data BLOB NOT NULL,
      crc INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX log_of_execution ON log(execution, first);
    CREATE TABLE snapshots(
      execution INTEGER PRIMARY KEY,
      seq INTEGER NOT NULL,
      data BLOB NOT NULL,
      crc INTEGER NOT NULL
    )
    """,
)

DROP_BATCH = 100  # executions per transaction, so that appends do not wait long


class SqliteEventStore:
    """`ports.EventStore` in a SQLite file that other stores share."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = self._file = file  # other stores have their tables in it, too
        self._tails = LogTails(self.lengths)
        self._data_version = -1
        file.migrate("events", SCHEMA)

    async def append(self, append: Append) -> None:
        """Append events at the expected seq; returns after the commit."""
        encoded = encode_append(append)
        await self._file.submit(_append_job(append, encoded), len(encoded.data))
        self._tails.deliver(append)

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """Events with seq > after, in order, verified."""
        number = number_of(execution_id)
        if number is None:
            return []
        return await self._file.read(lambda db: _read(db, execution_id, number, after, limit))

    def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Stream events as they are appended, until the last one; NotFound if the execution does not exist."""
        return follow(self, self._tails, execution_id, after)

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""
        number = number_of(execution_id)
        if number is None:
            return None
        return await self._file.read(
            lambda db: one_summary(db.execute(f"{_SELECT} WHERE id = ?", (number,)).fetchone())
        )

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution with this idempotency key."""
        return await self._file.read(lambda db: one_summary(db.execute(f"{_SELECT} WHERE key = ?", (key,)).fetchone()))

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """One page of executions, newest first; a damaged row is listed with its error."""
        clauses, values = _clauses(where)
        query = f"{'WHERE ' if clauses else ''}{' AND '.join(clauses)} ORDER BY id DESC LIMIT ?"
        return await self._file.read(lambda db: _listed(db, query, (*values, where.limit)))

    async def unfinished(self) -> list[str]:
        """Ids of unfinished executions, oldest first."""
        return await self._file.read(
            lambda db: [str(row[0]) for row in db.execute("SELECT id FROM executions WHERE ended = 0 ORDER BY id")]
        )

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The summaries and complete logs of several executions."""
        return await self._file.read(lambda db: _logs(db, executions, most))

    async def counts(self) -> dict[str, int]:
        """The number of executions by status."""
        return await self._file.read(
            lambda db: dict(db.execute("SELECT status, count(*) FROM executions GROUP BY status").fetchall())
        )

    async def holders(self, key: str) -> list[ExecutionSummary]:
        """The unfinished executions with slots of a key, oldest first."""
        query = f"{_SELECT} WHERE ended = 0 AND instr(data, ?) > 0 ORDER BY id"
        found = await self._file.read(
            lambda db: [listed_summary(row) for row in db.execute(query, (json_key_pattern(key),))]
        )
        return [summary for summary in found if key in (summary.held or ())]

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """The number of slots of each key that are in use."""
        return await self._file.read(lambda db: _held(db, keys))

    async def expired(self, before: float, most: int = 1000) -> list[str]:
        """Finished executions that can be deleted, oldest first: they ended before that time and have no parent."""
        return await self._file.read(lambda db: _expired(db, before, most))

    async def drop(self, executions: Sequence[str]) -> None:
        """Delete these executions in small transactions, so that appends can run between them."""
        numbers = [number for each in executions if (number := number_of(each)) is not None]
        for start in range(0, len(numbers), DROP_BATCH):
            await self._file.write(_drop_job(numbers[start : start + DROP_BATCH]))

    async def tidy(self, now: float) -> int:
        """Do nothing: SQLite reuses free pages."""
        return 0

    async def check(self) -> None:
        """Write and flush something."""
        await self._file.check()

    async def touched(self) -> bool:
        """Whether another process has written since the last call (SQLite's `data_version` of the writer)."""
        version = await self._file.write(lambda db: int(db.execute("PRAGMA data_version").fetchone()[0]))
        touched, self._data_version = version != self._data_version, version
        return touched

    async def lengths(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """The current lengths of these logs."""
        return await self._file.read(lambda db: _lengths(db, ids))

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Save a snapshot of the state; an older one never replaces a newer one."""
        number = int(execution_id)
        row = (number, seq, data, checksum(number, seq, data))

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO snapshots(execution, seq, data, crc) VALUES (?, ?, ?, ?) ON CONFLICT(execution) "
                "DO UPDATE SET seq = excluded.seq, data = excluded.data, crc = excluded.crc "
                "WHERE excluded.seq > snapshots.seq",
                row,
            )

        await self._file.write(job, len(data))

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest snapshot; None if there is none or it is damaged."""
        number = number_of(execution_id)
        if number is None:
            return None

        def query(db: sqlite3.Connection) -> tuple[int, bytes] | None:
            row = db.execute("SELECT seq, data, crc FROM snapshots WHERE execution = ?", (number,)).fetchone()
            if row is None or not intact(row[2], number, row[0], row[1]):
                return None
            return row[0], row[1]

        return await self._file.read(query)

    async def close(self) -> None:
        """Flush, close, and wake the remaining tails."""
        self._tails.close()
        await self._file.close()


# ── writing ─────────────────────────────────────────────────────────────────────────────


def _append_job(append: Append, row: Encoded) -> Callable[[sqlite3.Connection], None]:
    number, last, summary = row.number, row.last, row.summary

    def begin(db: sqlite3.Connection) -> None:
        try:
            db.execute(
                "INSERT INTO executions(id, seq, status, ended, path, parent, key, data, crc) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    number,
                    last,
                    summary.status,
                    row.ended,
                    summary.path,
                    int(summary.parent) if summary.parent else None,
                    summary.key,
                    row.summary_data,
                    row.summary_crc,
                ),
            )
        except sqlite3.IntegrityError:
            taken = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
            if taken:
                raise VersionConflict(append.execution_id, 0, taken[0]) from None
            raise Conflict(f"an execution with the key {summary.key!r} already exists") from None

    def extend(db: sqlite3.Connection) -> None:
        changes = (last, row.summary_data, row.summary_crc)
        row_key = (number, append.expected_seq)
        if append.was == summary.status:
            changed = db.execute(
                "UPDATE executions SET seq = ?, data = ?, crc = ? WHERE id = ? AND seq = ?", changes + row_key
            )
        else:  # rare, and changes indexes
            changed = db.execute(
                "UPDATE executions SET seq = ?, data = ?, crc = ?, status = ?, ended = ? WHERE id = ? AND seq = ?",
                (*changes, summary.status, row.ended, *row_key),
            )
        if changed.rowcount == 0:
            found = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
            raise VersionConflict(append.execution_id, append.expected_seq, found[0] if found else None)

    def job(db: sqlite3.Connection) -> None:
        if append.takes:
            check_capacity(append, _held(db, [take.key for take in append.takes]))
        if append.expected_seq == 0:
            begin(db)
        else:
            extend(db)
        if append.events:
            db.execute(
                "INSERT INTO log(execution, first, count, data, crc) VALUES (?, ?, ?, ?, ?)",
                (number, row.first, len(append.events), row.data, row.crc),
            )

    return job


def _drop_job(numbers: Sequence[int]) -> Callable[[sqlite3.Connection], None]:
    def job(db: sqlite3.Connection) -> None:
        rows = [(number,) for number in numbers]
        db.executemany("DELETE FROM executions WHERE id = ?", rows)
        db.executemany("DELETE FROM log WHERE execution = ?", rows)
        db.executemany("DELETE FROM snapshots WHERE execution = ?", rows)

    return job


# ── reading ─────────────────────────────────────────────────────────────────────────────


_SELECT = "SELECT id, seq, status, path, data, crc FROM executions"


def _listed(db: sqlite3.Connection, query: str, values: Sequence[object]) -> list[ExecutionSummary]:
    """Read many rows with only the columns that are needed; a damaged row is read again completely."""
    return [
        decode_summary(data)
        if intact(crc, number, seq, data)
        else listed_summary(db.execute(f"{_SELECT} WHERE id = ?", (number,)).fetchone())
        for number, seq, data, crc in db.execute(f"SELECT id, seq, data, crc FROM executions {query}", values)
    ]


def _read(db: sqlite3.Connection, execution_id: str, number: int, after: int, limit: int | None) -> list[Recorded]:
    found = db.execute("SELECT max(first) FROM log WHERE execution = ? AND first <= ?", (number, after + 1)).fetchone()
    begin = found[0] or 1
    rows = db.execute(
        "SELECT first, count, data, crc FROM log WHERE execution = ? AND first >= ? ORDER BY first", (number, begin)
    )
    events, end = decode_log(execution_id, number, rows, after, limit, begin)
    if end is not None:
        row = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
        check_complete(execution_id, row[0] if row else None, end)
    return events


def _logs(
    db: sqlite3.Connection, executions: Sequence[str], most: int
) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
    found = {}
    for execution_id in executions:
        number = number_of(execution_id)
        row = db.execute(f"{_SELECT} WHERE id = ? AND seq <= ?", (number, most)).fetchone()
        try:
            summary = one_summary(row)
            if summary is not None and number is not None:
                found[execution_id] = (summary, _read(db, execution_id, number, 0, None))
        except CorruptLog:
            continue  # reading this log alone reports the damage
    return found


def _held(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, int]:
    found = " OR ".join(["instr(data, ?) > 0"] * len(keys))
    rows = db.execute(
        f"SELECT data FROM executions WHERE ended = 0 AND ({found})", [json_key_pattern(key) for key in keys]
    )
    return counted(rows, keys)


def _expired(db: sqlite3.Connection, before: float, most: int) -> list[str]:
    rows = db.execute(
        f"{_SELECT} AS e WHERE id < ? AND ended = 1 AND "
        "NOT EXISTS (SELECT 1 FROM executions AS caller WHERE caller.id = e.parent) ORDER BY id",
        (number_at(before),),
    )
    found: list[str] = []
    for row in rows:
        if has_expired(row, before):
            found.append(str(row[0]))
            if len(found) >= most:
                break
    return found


def _clauses(where: ExecutionFilter) -> tuple[list[str], list[object]]:
    clauses: list[str] = []
    values: list[object] = []
    if where.status:
        clauses.append(f"status IN ({', '.join('?' * len(where.status))})")
        values += where.status
    if where.path is not None:
        clauses.append("path = ?")
        values.append(where.path)
    if where.parent is not None:
        clauses.append("parent = ?")
        values.append(number_of(where.parent))
    if where.search:
        clauses.append("(path LIKE ? ESCAPE '\\' OR CAST(id AS TEXT) LIKE ? ESCAPE '\\')")
        pattern = "%" + where.search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        values += [pattern, pattern]
    if where.before is not None:
        clauses.append("id < ?")
        values.append(number_of(where.before) or 0)
    return clauses, values


def _lengths(db: sqlite3.Connection, followed: Sequence[str]) -> list[tuple[str, int]]:
    rows = db.execute(
        "SELECT id, seq FROM executions WHERE id IN (SELECT value FROM json_each(?))",
        (encode_json([int(name) for name in followed]).decode(),),
    )
    return [(str(number), seq) for number, seq in rows]
