"""The event log in a SQLite file, for the embedded engine and for a single server.

A row of `log` is one append (`event_rows.py` defines its encoding). Rows are in commit order,
so a group of appends to many executions changes few pages (the WAL gets a quarter less
data than with rows clustered by execution).

`executions` is the projection for lists and counts. Invariant: it changes in the transaction of the append, and an
append succeeds only if the `seq` there is the expected one. Of two conflicting appends the first commit wins.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from noetl.core.model.events import Recorded
from noetl.errors import Conflict, CorruptLog, VersionConflict
from noetl.storage.events.event_rows import (
    Encoded,
    check_complete,
    decode_log,
    encode_append,
    encode_json,
    listed_summary,
    number_of,
    one_summary,
)
from noetl.storage.events.execution_queries import columns_of, day_changes, encode_day, extended_day
from noetl.storage.events.slot_counts import check_capacity, counted, json_key_pattern
from noetl.storage.events.sql import SqlEventStore
from noetl.storage.events.state_commits import SQLITE, check_in_sqlite, write_in_sqlite
from noetl.storage.ports.events import Append, ExecutionSummary, LogPage
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
    # Waiting executions are found by their timer or in the inbox, and are not loaded when a server starts.
    """
    ALTER TABLE executions ADD COLUMN due REAL;
    ALTER TABLE executions ADD COLUMN inbox INTEGER NOT NULL DEFAULT 0;
    DROP INDEX executions_unfinished;
    CREATE INDEX executions_active ON executions(id) WHERE ended = 0 AND status <> 'waiting';
    CREATE INDEX executions_due ON executions(due) WHERE due IS NOT NULL;
    CREATE INDEX executions_inbox ON executions(id) WHERE inbox > 0
    """,
    """
    ALTER TABLE executions ADD COLUMN news INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX executions_news ON executions(id) WHERE news = 1
    """,
    # An execution whose results another one refers to is not deleted before that one.
    """
    ALTER TABLE executions ADD COLUMN reuses INTEGER;
    CREATE INDEX executions_reuses ON executions(reuses) WHERE reuses IS NOT NULL
    """,
    SQLITE,
    # What lists filter and sort by, and statistics count; the history of deleted executions.
    """
    ALTER TABLE executions ADD COLUMN version TEXT;
    ALTER TABLE executions ADD COLUMN started_by TEXT;
    ALTER TABLE executions ADD COLUMN labels TEXT;
    ALTER TABLE executions ADD COLUMN took REAL;
    ALTER TABLE executions ADD COLUMN error TEXT;
    DROP INDEX executions_path;
    CREATE INDEX executions_path ON executions(path, id, status, took);
    CREATE TABLE days(
      path TEXT NOT NULL,
      day INTEGER NOT NULL,
      data BLOB NOT NULL,
      PRIMARY KEY(path, day)
    ) WITHOUT ROWID;
    CREATE INDEX days_day ON days(day)
    """,
)

DROP_BATCH = 100  # executions per transaction, so that appends do not wait long


class SqliteEventStore(SqlEventStore):
    """`ports.EventStore` in a SQLite file that other stores share."""

    ACTIVE = "ended = 0 AND status <> 'waiting'"
    CONTAINS = "instr(data, $1) > 0"
    PLAYBOOKS = "SELECT DISTINCT json_extract(CAST(data AS TEXT), '$.playbook') FROM executions"
    NEWS = "news = 1"
    READ = "news = 0"

    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file, SCHEMA)
        self._file = file
        self._data_version = -1

    async def append(self, append: Append) -> None:
        """Append events at the expected seq; returns after the commit."""
        encoded = encode_append(append)
        await self._file.submit(_append_job(append, encoded), len(encoded.data))
        self._tails.deliver(append, len(encoded.data))

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> LogPage:
        """Events with seq > after, in order, verified; with a limit fewer, but at least one, if they are large."""
        number = number_of(execution_id)
        if number is None:
            return LogPage()
        return await self._file.read(lambda db: _read(db, execution_id, number, after, limit))

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The summaries and complete logs of several executions."""
        return await self._file.read(lambda db: _logs(db, self._select, executions, most))

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """The number of slots of each key that are in use."""
        return await self._file.read(lambda db: _held(db, keys))

    async def drop(self, executions: Sequence[str]) -> None:
        """Delete these executions in small transactions, so that appends can run between them."""
        numbers = [number for each in executions if (number := number_of(each)) is not None]
        for start in range(0, len(numbers), DROP_BATCH):
            await self._file.write(partial(_drop, numbers[start : start + DROP_BATCH]))
        self._tails.forget(executions)

    async def tidy(self, now: float) -> int:
        """Return the space of deleted executions to the file system."""
        await self._file.release_space()
        return 0

    async def touched(self) -> bool:
        """Whether another process has written since the last call (SQLite's `data_version` of the writer)."""
        version = await self._file.write(lambda db: int(db.execute("PRAGMA data_version").fetchone()[0]))
        touched, self._data_version = version != self._data_version, version
        return touched

    async def lengths(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """The current lengths of the logs that exist."""
        query = "SELECT id, seq FROM executions WHERE id IN (SELECT value FROM json_each($1))"
        numbers = encode_json([int(each) for each in ids]).decode()
        return [(str(number), seq) for number, seq in await self._file.fetch(query, numbers)]

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
                "INSERT INTO executions(id, seq, status, ended, path, parent, key, data, crc, due, inbox, news, "
                "reuses, took, error, version, started_by, labels) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
                    summary.due,
                    summary.inbox,
                    append.news,
                    int(summary.reuses) if summary.reuses else None,
                    summary.took,
                    summary.error,
                    *columns_of(summary),
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
        if append.was == summary.status and not append.rewaits and not append.news:
            changed = db.execute(
                "UPDATE executions SET seq = ?, data = ?, crc = ? WHERE id = ? AND seq = ?", changes + row_key
            )
        else:  # rare, and changes indexes
            changed = db.execute(
                "UPDATE executions SET seq = ?, data = ?, crc = ?, status = ?, ended = ?, due = ?, inbox = ?, "
                "news = max(news, ?), took = ?, error = ? WHERE id = ? AND seq = ?",
                (
                    *changes,
                    summary.status,
                    row.ended,
                    summary.due,
                    summary.inbox,
                    append.news,
                    summary.took,
                    summary.error,
                    *row_key,
                ),
            )
        if changed.rowcount == 0:
            found = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
            raise VersionConflict(append.execution_id, append.expected_seq, found[0] if found else None)

    def job(db: sqlite3.Connection) -> None:
        if append.takes:
            check_capacity(append, _held(db, [take.key for take in append.takes]))
        if append.state is not None:
            check_in_sqlite(db, append.state)
        if append.expected_seq == 0:
            begin(db)
        else:
            extend(db)
        if append.events:
            db.execute(
                "INSERT INTO log(execution, first, count, data, crc) VALUES (?, ?, ?, ?, ?)",
                (number, row.first, len(append.events), row.data, row.crc),
            )
        if append.state is not None:
            write_in_sqlite(db, append.state)

    return job


def _drop(numbers: Sequence[int], db: sqlite3.Connection) -> None:
    rows = [(number,) for number in numbers]
    places = ", ".join("?" * len(numbers))
    found = db.execute(f"SELECT id, seq, status, path, data, crc FROM executions WHERE id IN ({places})", numbers)
    for (path, day), change in day_changes(map(listed_summary, found.fetchall())).items():
        known = db.execute("SELECT data FROM days WHERE path = ? AND day = ?", (path, day)).fetchone()
        data = extended_day(known[0], change) if known else encode_day(change)
        db.execute("INSERT OR REPLACE INTO days(path, day, data) VALUES (?, ?, ?)", (path, day, data))
    db.executemany("DELETE FROM executions WHERE id = ?", rows)
    db.executemany("DELETE FROM log WHERE execution = ?", rows)
    db.executemany("DELETE FROM snapshots WHERE execution = ?", rows)


# ── reading ─────────────────────────────────────────────────────────────────────────────


def _read(db: sqlite3.Connection, execution_id: str, number: int, after: int, limit: int | None) -> LogPage:
    found = db.execute("SELECT max(first) FROM log WHERE execution = ? AND first <= ?", (number, after + 1)).fetchone()
    begin = found[0] or 1
    rows = db.execute(
        "SELECT first, count, data, crc FROM log WHERE execution = ? AND first >= ? ORDER BY first", (number, begin)
    )
    events, end = decode_log(execution_id, number, rows, after, limit, begin)
    row = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
    acknowledged = row[0] if row else None
    if end is not None:
        check_complete(execution_id, acknowledged, end)
    return LogPage(events, more=bool(events) and events[-1].seq < (acknowledged or 0))


def _logs(
    db: sqlite3.Connection, select: str, executions: Sequence[str], most: int
) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
    found: dict[str, tuple[ExecutionSummary, list[Recorded]]] = {}
    for execution_id in executions:
        number = number_of(execution_id)
        row = db.execute(f"{select} WHERE id = ? AND seq <= ?", (number, most)).fetchone()
        try:
            summary = one_summary(row)
            if summary is not None and number is not None:
                events = _read(db, execution_id, number, 0, most)
                if not events.more:
                    found[execution_id] = (summary, events)
        except CorruptLog:
            continue  # reading this log alone reports the damage
    return found


def _held(db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, int]:
    found = " OR ".join(["instr(data, ?) > 0"] * len(keys))
    rows = db.execute(
        f"SELECT data FROM executions WHERE {SqliteEventStore.ACTIVE} AND ({found})",
        [json_key_pattern(key) for key in keys],
    )
    return counted(rows, keys)
