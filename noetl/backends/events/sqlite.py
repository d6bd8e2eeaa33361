"""The event log in one SQLite file: the truth of the embedded engine and of a small server.

A row of `log` is one append: its events lie in it as one JSON list `[[at, name, version, parent_seq,
body], ...]`, encoded once; their `seq` is `first`, `first + 1`, ... so a gap cannot be written.
Each row has a checksum over its place and its data, and an execution's row knows how many
events it has: a flipped bit, a lost or a moved row is a `CorruptLog` for that execution, and
the others go on.

`executions` is the projection for lists and counts, changed in the same transaction. Its `seq` is
what an append is checked against: the one of two conflicting appends that commits first wins.
"""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec

from noetl.drivers.sqlite_file import SqliteFile
from noetl.errors import Conflict, CorruptLog, NoetlError, NotFound, VersionConflict
from noetl.model.events import PlaybookProcessed, Recorded, decode_body
from noetl.ports import Append, ExecutionFilter, ExecutionSummary

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
      execution INTEGER NOT NULL,
      first INTEGER NOT NULL,
      count INTEGER NOT NULL,
      data BLOB NOT NULL,
      crc INTEGER NOT NULL,
      PRIMARY KEY(execution, first)
    ) WITHOUT ROWID;
    CREATE TABLE snapshots(
      execution INTEGER PRIMARY KEY,
      seq INTEGER NOT NULL,
      data BLOB NOT NULL,
      crc INTEGER NOT NULL
    )
    """,
)

FINAL = frozenset({"success", "failed", "cancelled"})
POLL_SECONDS = 0.2  # how soon a tail notices what another process wrote
PAGE = 2_000  # events a tail reads at once

_encode = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[tuple[float, str, int, int | None, msgspec.Raw]]).decode
_decode_summary = msgspec.json.Decoder(ExecutionSummary).decode


class SqliteEventStore:
    """`ports.EventStore` on a shared SQLite file."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._tails = _Tails(file)
        file.migrate("events", SCHEMA)

    async def append(self, append: Append) -> None:
        """Add events at the expected seq; on disk when it returns."""
        number = int(append.execution_id)
        first = append.expected_seq + 1
        data = _encode([(e.at, e.body.NAME, e.body.VERSION, e.parent_seq, e.body) for e in append.events])
        last = append.expected_seq + len(append.events)
        summary = msgspec.structs.replace(append.summary, seq=last)
        job = _append_job(append, number, first, last, data, summary)
        future = self._file.submit(job, len(data))
        future.add_done_callback(lambda done: self._tails.written(append.execution_id, done))
        await future

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """Events with seq > after, in order, verified."""
        number = _number(execution_id)
        if number is None:
            return []
        return await self._file.read(lambda db: _read(db, execution_id, number, after, limit))

    async def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Events as they come, until the execution's last one; NotFound when there is no such execution."""
        if await self.summary(execution_id) is None:
            raise NotFound(f"there is no execution {execution_id}")
        with self._tails.watch(execution_id, after) as watch:
            while True:
                events = await self.read(execution_id, watch.seen, PAGE)
                for recorded in events:
                    yield recorded
                    watch.seen = recorded.seq
                    if isinstance(recorded.body, PlaybookProcessed):
                        return
                if len(events) < PAGE:
                    await watch.wait()

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""
        number = _number(execution_id)
        if number is None:
            return None
        return await self._file.read(
            lambda db: _one_summary(db.execute(f"{_SELECT} WHERE id = ?", (number,)).fetchone())
        )

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution that was started under this idempotency key."""
        return await self._file.read(lambda db: _one_summary(db.execute(f"{_SELECT} WHERE key = ?", (key,)).fetchone()))

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """Newest first, one page. A damaged row is shown as such, so that the others are."""
        clauses, values = _clauses(where)
        query = f"{_SELECT} {'WHERE ' if clauses else ''}{' AND '.join(clauses)} ORDER BY id DESC LIMIT ?"
        return await self._file.read(lambda db: [_listed(row) for row in db.execute(query, (*values, where.limit))])

    async def unfinished(self) -> list[str]:
        """Ids of executions that have not reached playbook.processed, oldest first."""
        return await self._file.read(
            lambda db: [str(row[0]) for row in db.execute("SELECT id FROM executions WHERE ended = 0 ORDER BY id")]
        )

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Keep a folded state; an older one never replaces a newer one."""
        number = int(execution_id)
        row = (number, seq, data, _checksum(number, seq, data))

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO snapshots(execution, seq, data, crc) VALUES (?, ?, ?, ?) ON CONFLICT(execution) "
                "DO UPDATE SET seq = excluded.seq, data = excluded.data, crc = excluded.crc "
                "WHERE excluded.seq > snapshots.seq",
                row,
            )

        await self._file.write(job, len(data))

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest folded state; a damaged one is as good as none."""
        number = _number(execution_id)
        if number is None:
            return None

        def query(db: sqlite3.Connection) -> tuple[int, bytes] | None:
            row = db.execute("SELECT seq, data, crc FROM snapshots WHERE execution = ?", (number,)).fetchone()
            if row is None or not _intact(row[2], number, row[0], row[1]):
                return None
            return row[0], row[1]

        return await self._file.read(query)

    async def close(self) -> None:
        """Wake who still follows a log, flush, let go."""
        self._tails.close()
        await self._file.close()


# ── writing ─────────────────────────────────────────────────────────────────────────────


def _append_job(
    append: Append, number: int, first: int, last: int, data: bytes, summary: ExecutionSummary
) -> Callable[[sqlite3.Connection], None]:
    encoded = _encode(summary)
    ended = summary.status in FINAL
    row_crc = _checksum(number, first, data, len(append.events))
    summary_crc = _checksum(number, last, encoded)

    def begin(db: sqlite3.Connection) -> None:
        try:
            db.execute(
                "INSERT INTO executions(id, seq, status, ended, path, parent, key, data, crc) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    number,
                    last,
                    summary.status,
                    ended,
                    summary.path,
                    int(summary.parent) if summary.parent else None,
                    summary.key,
                    encoded,
                    summary_crc,
                ),
            )
        except sqlite3.IntegrityError:
            taken = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
            if taken:
                raise VersionConflict(append.execution_id, 0, taken[0]) from None
            raise Conflict(f"an execution was already started under the key {summary.key!r}") from None

    def go_on(db: sqlite3.Connection) -> None:
        changed = db.execute(
            "UPDATE executions SET seq = ?, data = ?, crc = ? WHERE id = ? AND seq = ?",
            (last, encoded, summary_crc, number, append.expected_seq),
        )
        if changed.rowcount == 0:
            found = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
            raise VersionConflict(append.execution_id, append.expected_seq, found[0] if found else None)
        # Apart from the rest, since it changes indexes and is needed seldom.
        db.execute(
            "UPDATE executions SET status = ?, ended = ? WHERE id = ? AND status <> ?",
            (summary.status, ended, number, summary.status),
        )

    def job(db: sqlite3.Connection) -> None:
        if append.expected_seq == 0:
            begin(db)
        else:
            go_on(db)
        if append.events:
            db.execute(
                "INSERT INTO log(execution, first, count, data, crc) VALUES (?, ?, ?, ?, ?)",
                (number, first, len(append.events), data, row_crc),
            )

    return job


def _checksum(execution: int, place: int, data: bytes, count: int = 0) -> int:
    """Over the data and where it belongs, so that a moved row shows too."""
    return zlib.crc32(data, zlib.crc32(b"%d:%d:%d" % (execution, place, count)))


def _intact(crc: object, execution: int, place: object, data: object, count: object = 0) -> bool:
    """Whether a row is as it was written (a damaged one may not even have the right types)."""
    return (
        isinstance(place, int)
        and isinstance(count, int)
        and isinstance(data, bytes)
        and _checksum(execution, place, data, count) == crc
    )


def _number(execution_id: str) -> int | None:
    """Ids are decimal text that fits 64 bits; anything else names nothing here."""
    return int(execution_id) if execution_id.isdecimal() and len(execution_id) < 19 else None


# ── reading ─────────────────────────────────────────────────────────────────────────────


_SELECT = "SELECT id, seq, status, path, data, crc FROM executions"


def _read(db: sqlite3.Connection, execution_id: str, number: int, after: int, limit: int | None) -> list[Recorded]:
    begin = db.execute("SELECT max(first) FROM log WHERE execution = ? AND first <= ?", (number, after + 1)).fetchone()[
        0
    ]
    events: list[Recorded] = []
    expected = begin or 1
    rows = db.execute(
        "SELECT first, count, data, crc FROM log WHERE execution = ? AND first >= ? ORDER BY first", (number, expected)
    )
    for first, count, data, crc in rows:
        if first != expected or not _intact(crc, number, first, data, count):
            raise CorruptLog(
                f"execution {execution_id}: the log is damaged at seq {expected}; restore it from a backup"
            )
        expected = first + count
        if expected <= after + 1:
            continue
        events += _decode(execution_id, first, count, data)
        if limit is not None and expected > after + limit:
            break
    else:
        _check_complete(db, execution_id, number, expected - 1)
    skip = max(0, after + 1 - events[0].seq) if events else 0
    return events[skip : None if limit is None else skip + limit]


def _check_complete(db: sqlite3.Connection, execution_id: str, number: int, last: int) -> None:
    row = db.execute("SELECT seq FROM executions WHERE id = ?", (number,)).fetchone()
    if (row[0] if row else 0) != last:
        raise CorruptLog(
            f"execution {execution_id}: the log ends at seq {last}, but {row[0] if row else 'no'} events were "
            "acknowledged; restore it from a backup"
        )


def _decode(execution_id: str, first: int, count: int, data: bytes) -> list[Recorded]:
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


def _one_summary(row: tuple[int, int, str, str, bytes, int] | None) -> ExecutionSummary | None:
    if row is None:
        return None
    number, seq, _, _, data, crc = row
    if not _intact(crc, number, seq, data):
        raise CorruptLog(f"execution {number}: its summary is damaged; restore it from a backup")
    return _decode_summary(data)


def _listed(row: tuple[int, int, str, str, bytes, int]) -> ExecutionSummary:
    try:
        found = _one_summary(row)
        assert found is not None
        return found
    except CorruptLog as problem:
        return ExecutionSummary(
            execution_id=str(row[0]), path=row[3], status=row[2], started_at=0.0, seq=row[1], error=str(problem)
        )


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
        values.append(_number(where.parent))
    if where.search:
        clauses.append("(path LIKE ? ESCAPE '\\' OR CAST(id AS TEXT) LIKE ? ESCAPE '\\')")
        pattern = "%" + where.search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        values += [pattern, pattern]
    if where.before is not None:
        clauses.append("id < ?")
        values.append(_number(where.before) or 0)
    return clauses, values


# ── following a log ─────────────────────────────────────────────────────────────────────


class _Watch:
    """One follower of one log: what it has seen, and a bell."""

    def __init__(self, tails: _Tails, execution_id: str, seen: int) -> None:
        self._tails = tails
        self.execution_id = execution_id
        self.seen = seen
        self.bell = asyncio.Event()

    def __enter__(self) -> _Watch:
        self._tails.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._tails.remove(self)

    async def wait(self) -> None:
        """Until there may be more to read."""
        await self.bell.wait()
        self.bell.clear()


class _Tails:
    """All followers: rung by appends of this process at once, by those of others after one shared poll."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._watches: dict[str, set[_Watch]] = {}
        self._poller: asyncio.Task[None] | None = None

    def watch(self, execution_id: str, after: int) -> _Watch:
        return _Watch(self, execution_id, after)

    def add(self, watch: _Watch) -> None:
        self._watches.setdefault(watch.execution_id, set()).add(watch)
        if self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def remove(self, watch: _Watch) -> None:
        others = self._watches[watch.execution_id]
        others.discard(watch)
        if not others:
            del self._watches[watch.execution_id]
        if not self._watches:
            self._stop()

    def written(self, execution_id: str, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            for watch in self._watches.get(execution_id, ()):
                watch.bell.set()

    def close(self) -> None:
        self._stop()
        self._ring_all()

    def _stop(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def _ring_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.bell.set()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                grown = await self._file.read(partial(_lengths, followed=list(self._watches)))
            except NoetlError:
                self._ring_all()  # each follower reads for itself, and meets the error there
                continue
            for name, seq in grown:
                for watch in self._watches.get(name, ()):
                    if seq > watch.seen:
                        watch.bell.set()


def _lengths(db: sqlite3.Connection, followed: list[str]) -> list[tuple[str, int]]:
    rows = db.execute(
        "SELECT id, seq FROM executions WHERE id IN (SELECT value FROM json_each(?))",
        (_encode([int(name) for name in followed]).decode(),),
    )
    return [(str(number), seq) for number, seq in rows]
