"""The event log in Postgres, for any number of servers.

The rows are those of `event_rows`; appends are written by `postgres.event_writer`. Tails are
notified of appends by other servers, and poll as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from noetl.core.model.events import Recorded
from noetl.core.model.ids import COUNTER_BITS, EPOCH_MS, PROCESS_BITS, number_at
from noetl.errors import CorruptLog, RequestRefused
from noetl.storage.events.event_rows import (
    check_complete,
    checksum,
    decode_log,
    encode_append,
    has_expired,
    intact,
    listed_summary,
    number_of,
    one_summary,
)
from noetl.storage.events.log_tail import LogTails, follow
from noetl.storage.events.slot_counts import held_in_postgres, json_key_pattern
from noetl.storage.ports.events import Append, ExecutionFilter, ExecutionSummary
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.postgres.event_writer import EventWriter
from noetl.storage.postgres.partitions import tidy

ID_BITS = PROCESS_BITS + COUNTER_BITS  # bits of an id below its milliseconds
WEEK = 7 * 24 * 3600 * 1000 << ID_BITS  # range of ids in a week and in a partition

SCHEMA = (
    """
    CREATE TABLE noetl_executions(
      id int8 PRIMARY KEY,
      seq int8 NOT NULL,
      status text NOT NULL,
      ended bool NOT NULL,
      path text NOT NULL,
      parent int8,
      key text,
      data bytea NOT NULL,
      crc int8 NOT NULL
    ) WITH (fillfactor = 70);
    CREATE UNIQUE INDEX noetl_executions_key ON noetl_executions(key) WHERE key IS NOT NULL;
    CREATE INDEX noetl_executions_unfinished ON noetl_executions(id) WHERE NOT ended;
    CREATE INDEX noetl_executions_status ON noetl_executions(status, id);
    CREATE INDEX noetl_executions_path ON noetl_executions(path, id);
    CREATE INDEX noetl_executions_parent ON noetl_executions(parent, id) WHERE parent IS NOT NULL;
    CREATE TABLE noetl_log(
      execution int8 NOT NULL,
      first int8 NOT NULL,
      count int8 NOT NULL,
      data bytea NOT NULL,
      crc int8 NOT NULL,
      PRIMARY KEY(execution, first)
    );
    CREATE TABLE noetl_snapshots(
      execution int8 PRIMARY KEY,
      seq int8 NOT NULL,
      data bytea NOT NULL,
      crc int8 NOT NULL
    )
    """,
    # Partitions by week, because ids are in order of time. The existing table becomes the first partition, up to
    # the week after next; nothing is copied, and appends wait only for the check of the ids.
    f"""
    DO $$
    DECLARE bound int8 := (extract(epoch FROM now()) * 1000)::int8 - {EPOCH_MS};
    BEGIN
      SELECT greatest(bound << {ID_BITS}, max(execution)) INTO bound FROM noetl_log;
      bound := (bound / {WEEK} + 2) * {WEEK};
      ALTER TABLE noetl_log RENAME TO noetl_log_first;
      ALTER INDEX noetl_log_pkey RENAME TO noetl_log_first_pkey;
      EXECUTE format('ALTER TABLE noetl_log_first ADD CONSTRAINT noetl_log_first_ids CHECK (execution < %s)', bound);
      CREATE TABLE noetl_log(
        execution int8 NOT NULL,
        first int8 NOT NULL,
        count int8 NOT NULL,
        data bytea NOT NULL,
        crc int8 NOT NULL,
        PRIMARY KEY(execution, first)
      ) PARTITION BY RANGE (execution);
      EXECUTE format(
        'ALTER TABLE noetl_log ATTACH PARTITION noetl_log_first FOR VALUES FROM (MINVALUE) TO (%s)', bound
      );
      CREATE TABLE noetl_log_other PARTITION OF noetl_log DEFAULT;
    END $$
    """,
)

CHANNEL = "noetl_log"
ROWS = 500  # log rows per query
# Rows of a log from the row with an event on; each with the first row's seq and the acknowledged length.
_PAGE = """
    SELECT l.first, l.count, l.data, l.crc, b.first, b.seq
    FROM (
      SELECT coalesce((SELECT max(first) FROM noetl_log WHERE execution = $1 AND first <= $2), 1) AS first,
        (SELECT seq FROM noetl_executions WHERE id = $1) AS seq
    ) b LEFT JOIN noetl_log l ON l.execution = $1 AND l.first >= b.first
    ORDER BY l.first LIMIT $3
"""
_SELECT = "SELECT id, seq, status, path, data, crc FROM noetl_executions"


class PostgresEventStore:
    """`ports.EventStore` in a Postgres database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database
        self._writer = EventWriter(database)
        self._tails = LogTails(self._lengths)
        self._listening = False
        database.migrate("events", SCHEMA)

    async def append(self, append: Append) -> None:
        """Append events at the expected seq; returns after the commit."""
        row = encode_append(append)
        if "\x00" in (row.summary.key or "") or "\x00" in row.summary.path:
            raise RequestRefused("a key or a path must not contain a NUL character")
        await self._writer.submit(append, row)
        self._tails.deliver(append)
        self.database.publish(CHANNEL, f"{append.execution_id}:{append.expected_seq + len(append.events)}")

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """Events with seq > after, in order, verified."""
        number = number_of(execution_id)
        if number is None:
            return []
        # One statement reads one snapshot, so the end of the log and its acknowledged length agree; earlier pages
        # need no common snapshot, because rows never change.
        events: list[Recorded] = []
        seen = after
        while True:
            rows = await self.database.fetch(_PAGE, number, seen + 1, ROWS)
            begin, acknowledged = rows[0][4:]
            found = [tuple(row)[:4] for row in rows if row[0] is not None]
            remaining = None if limit is None else limit - len(events)
            page, end = decode_log(execution_id, number, found, seen, remaining, begin)
            events += page
            if end is None or (limit is not None and len(events) >= limit):
                return events
            if len(found) < ROWS:
                check_complete(execution_id, acknowledged, end)
                return events
            seen = end

    def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Stream events as they are appended, until the last one; NotFound if the execution does not exist."""
        if not self._listening:
            self._listening = True
            self.database.subscribe(CHANNEL, self._on_message)
        return follow(self, self._tails, execution_id, after)

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""
        number = number_of(execution_id)
        if number is None:
            return None
        return one_summary(await self.database.row(f"{_SELECT} WHERE id = $1", number))

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution with this idempotency key."""
        if "\x00" in key:
            return None
        return one_summary(await self.database.row(f"{_SELECT} WHERE key = $1", key))

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """One page of executions, newest first; a damaged row is listed with its error."""
        clauses, values = _clauses(where)
        rows = await self.database.fetch(
            f"{_SELECT} {'WHERE ' if clauses else ''}{' AND '.join(clauses)} ORDER BY id DESC LIMIT {int(where.limit)}",
            *values,
        )
        return [listed_summary(tuple(row)) for row in rows]

    async def unfinished(self) -> list[str]:
        """Ids of unfinished executions, oldest first."""
        rows = await self.database.fetch("SELECT id FROM noetl_executions WHERE NOT ended ORDER BY id")
        return [str(row[0]) for row in rows]

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The summaries and complete logs of several executions."""
        numbers = [number for each in executions if (number := number_of(each)) is not None]
        rows = await self.database.fetch(f"{_SELECT} WHERE id = ANY($1::int8[]) AND seq <= $2", numbers, most)
        logs: dict[int, list[tuple[int, int, bytes, int]]] = {row[0]: [] for row in rows}
        for number, *row in await self.database.fetch(
            "SELECT execution, first, count, data, crc FROM noetl_log WHERE execution = ANY($1::int8[]) "
            "ORDER BY execution, first",
            list(logs),
        ):
            logs[number].append(tuple(row))
        found = {}
        for row in rows:
            try:
                summary = one_summary(tuple(row))
                assert summary is not None
                events, end = decode_log(summary.execution_id, row[0], logs[row[0]], 0, None, 1)
            except CorruptLog:
                continue  # reading this log alone reports the damage
            if end == summary.seq:
                found[summary.execution_id] = (summary, events)
        return found

    async def counts(self) -> dict[str, int]:
        """The number of executions by status."""
        rows = await self.database.fetch("SELECT status, count(*) FROM noetl_executions GROUP BY status")
        return {row[0]: row[1] for row in rows}

    async def holders(self, key: str) -> list[ExecutionSummary]:
        """The unfinished executions with slots of a key, oldest first."""
        rows = await self.database.fetch(
            f"{_SELECT} WHERE NOT ended AND position($1::bytea IN data) > 0 ORDER BY id", json_key_pattern(key)
        )
        found = [listed_summary(tuple(row)) for row in rows]
        return [summary for summary in found if key in (summary.held or ())]

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """The number of slots of each key that are in use."""
        return await held_in_postgres(self.database, keys)

    async def expired(self, before: float, most: int = 1000) -> list[str]:
        """Finished executions that can be deleted, oldest first: they ended before that time and have no parent."""
        found: list[str] = []
        last = -1
        while len(found) < most:
            rows = await self.database.fetch(
                f"{_SELECT} AS e WHERE id < $1 AND id > $2 AND ended AND "
                "NOT EXISTS (SELECT 1 FROM noetl_executions AS caller WHERE caller.id = e.parent) "
                "ORDER BY id LIMIT $3",
                number_at(before),
                last,
                most,
            )
            found += [str(row[0]) for row in rows if has_expired(tuple(row), before)]
            if len(rows) < most:
                break
            last = rows[-1][0]
        return found[:most]

    async def drop(self, executions: Sequence[str]) -> None:
        """Delete these executions; their logs are deleted with the partition, when it has no other execution."""
        numbers = [number for each in executions if (number := number_of(each)) is not None]
        async with self.database.connection() as connection, connection.transaction():
            await connection.execute("DELETE FROM noetl_executions WHERE id = ANY($1::int8[])", numbers)
            await connection.execute("DELETE FROM noetl_snapshots WHERE execution = ANY($1::int8[])", numbers)
            await connection.execute("DELETE FROM noetl_log_other WHERE execution = ANY($1::int8[])", numbers)

    async def tidy(self, now: float) -> int:
        """Drop partitions of past weeks without executions, and create those of the coming weeks."""
        return await tidy(self.database, number_at(now), WEEK)

    async def check(self) -> None:
        """Write and flush something."""
        await self.database.check()

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Save a snapshot of the state; an older one never replaces a newer one."""
        number = int(execution_id)
        await self.database.execute(
            "INSERT INTO noetl_snapshots AS s (execution, seq, data, crc) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (execution) DO UPDATE SET seq = excluded.seq, data = excluded.data, crc = excluded.crc "
            "WHERE excluded.seq > s.seq",
            number,
            seq,
            data,
            checksum(number, seq, data),
        )

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest snapshot; None if there is none or it is damaged."""
        number = number_of(execution_id)
        if number is None:
            return None
        row = await self.database.row("SELECT seq, data, crc FROM noetl_snapshots WHERE execution = $1", number)
        if row is None or not intact(row[2], number, row[0], row[1]):
            return None
        return row[0], row[1]

    async def close(self) -> None:
        """Flush, close, and wake the remaining tails."""
        await self._writer.close()
        await self.database.close()
        self._tails.close()

    def _on_message(self, message: str) -> None:
        execution_id, _, seq = message.partition(":")
        if seq.isdigit():  # the message after a reconnect is empty: the poll finds missed appends
            self._tails.notify(execution_id, int(seq))

    async def _lengths(self, followed: list[str]) -> list[tuple[str, int]]:
        rows = await self.database.fetch(
            "SELECT id, seq FROM noetl_executions WHERE id = ANY($1::int8[])", [int(name) for name in followed]
        )
        return [(str(row[0]), row[1]) for row in rows]


def _clauses(where: ExecutionFilter) -> tuple[list[str], list[object]]:
    clauses: list[str] = []
    values: list[object] = []

    def add(clause: str, value: object) -> None:
        values.append(value)
        clauses.append(clause.replace("?", f"${len(values)}"))

    if len(where.status) == 1:
        add("status = ?", where.status[0])  # can use the index (status, id)
    elif where.status:
        add("status = ANY(?::text[])", list(where.status))
    if where.path is not None:
        add("path = ?", where.path.replace("\x00", ""))
    if where.parent is not None:
        add("parent = ?", number_of(where.parent))
    if where.search:
        pattern = where.search.replace("\x00", "").replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        add("(path ILIKE ? OR id::text LIKE ?)", f"%{pattern}%")
    if where.before is not None:
        add("id < ?", number_of(where.before) or 0)
    return clauses, values
