"""The event log in Postgres, for any number of servers.

The rows are those of `event_rows`; appends are written by `postgres.event_writer`. Tails are
notified of appends by other servers, and poll as well.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from noetl.core.model.events import Recorded
from noetl.core.model.ids import EPOCH_MS, number_at
from noetl.errors import CorruptLog, RequestRefused
from noetl.storage.events.event_rows import (
    PAGE_BYTES,
    check_complete,
    decode_log,
    encode_append,
    listed_summary,
    number_of,
    one_summary,
)
from noetl.storage.events.execution_queries import ID_BITS, day_changes, encode_day, extended_day
from noetl.storage.events.slot_counts import held_in_postgres
from noetl.storage.events.sql import SqlEventStore
from noetl.storage.events.state_commits import POSTGRES
from noetl.storage.ports.events import (
    Append,
    DayHistory,
    ExecutionFilter,
    ExecutionStatistics,
    ExecutionSummary,
    LogPage,
)
from noetl.storage.postgres.damage import readable_rows
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.postgres.event_writer import EventWriter
from noetl.storage.postgres.partitions import tidy
from noetl.storage.postgres.replica import ReplicaReads

log = logging.getLogger("noetl.store")

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
    # Waiting executions are found by their timer or in the inbox, and are not loaded when a server starts.
    """
    ALTER TABLE noetl_executions ADD COLUMN IF NOT EXISTS due float8,
      ADD COLUMN IF NOT EXISTS inbox int4 NOT NULL DEFAULT 0;
    DROP INDEX IF EXISTS noetl_executions_unfinished;
    CREATE INDEX IF NOT EXISTS noetl_executions_active ON noetl_executions(id) WHERE NOT ended AND status <> 'waiting';
    CREATE INDEX IF NOT EXISTS noetl_executions_due ON noetl_executions(due) WHERE due IS NOT NULL;
    CREATE INDEX IF NOT EXISTS noetl_executions_inbox ON noetl_executions(id) WHERE inbox > 0
    """,
    """
    ALTER TABLE noetl_executions ADD COLUMN IF NOT EXISTS news bool NOT NULL DEFAULT false;
    CREATE INDEX IF NOT EXISTS noetl_executions_news ON noetl_executions(id) WHERE news
    """,
    # An execution whose results another one refers to is not deleted before that one.
    """
    ALTER TABLE noetl_executions ADD COLUMN IF NOT EXISTS reuses int8;
    CREATE INDEX IF NOT EXISTS noetl_executions_reuses ON noetl_executions(reuses) WHERE reuses IS NOT NULL
    """,
    POSTGRES,
    # What lists filter and sort by, and statistics count; the history of deleted executions.
    """
    ALTER TABLE noetl_executions ADD COLUMN IF NOT EXISTS version text, ADD COLUMN IF NOT EXISTS started_by text,
      ADD COLUMN IF NOT EXISTS labels text, ADD COLUMN IF NOT EXISTS took float8, ADD COLUMN IF NOT EXISTS error text;
    DROP INDEX IF EXISTS noetl_executions_path;
    CREATE INDEX noetl_executions_path ON noetl_executions(path, id) INCLUDE (status, took);
    CREATE TABLE IF NOT EXISTS noetl_days(
      path text NOT NULL,
      day int4 NOT NULL,
      data bytea NOT NULL,
      PRIMARY KEY(path, day)
    );
    CREATE INDEX IF NOT EXISTS noetl_days_day ON noetl_days(day)
    """,
)

CHANNEL = "noetl_log"
FIRST_ROWS, ROWS = 50, 500  # log rows of the first query of a read, and of the following ones if they are small
# Rows of a log from the row with an event on; each with the first row's seq and the acknowledged length.
_PAGE = """
    SELECT l.first, l.count, l.data, l.crc, b.first, b.seq
    FROM (
      SELECT coalesce((SELECT max(first) FROM noetl_log WHERE execution = $1 AND first <= $2), 1) AS first,
        (SELECT seq FROM noetl_executions WHERE id = $1) AS seq
    ) b LEFT JOIN noetl_log l ON l.execution = $1 AND l.first >= b.first
    ORDER BY l.first LIMIT $3
"""


# Adds a day, or locks it; returns whether it was added, and its present data.
_DAY = """
    INSERT INTO noetl_days AS d (path, day, data) VALUES ($1, $2, $3)
    ON CONFLICT (path, day) DO UPDATE SET data = d.data
    RETURNING xmax = 0, data
"""


class PostgresEventStore(SqlEventStore):
    """`ports.EventStore` in a Postgres database."""

    ACTIVE = "NOT ended AND status <> 'waiting'"
    CONTAINS = "position($1::bytea IN data) > 0"
    PLAYBOOKS = (  # not as json, which cannot have the character NUL
        """SELECT DISTINCT found[1] FROM noetl_executions, """
        """regexp_matches(convert_from(data, 'UTF8'), '"playbook":"([^"]*)"', 'g') AS found"""
    )
    NEWS = "news"
    READ = "news = false"

    def __init__(self, database: PostgresDatabase, reads: ReplicaReads | None = None) -> None:
        super().__init__(reads or database, SCHEMA)
        self.database = database
        self._reads = reads
        self._writer = EventWriter(database)
        self._listening = False

    async def append(self, append: Append) -> None:
        """Append events at the expected seq; returns after the commit."""
        row = encode_append(append)
        if "\x00" in (row.summary.key or "") or "\x00" in row.summary.path:
            raise RequestRefused("a key or a path must not contain a NUL character")
        await self._writer.submit(append, row)
        self._tails.deliver(append, len(row.data))
        self.database.publish(CHANNEL, f"{append.execution_id}:{append.expected_seq + len(append.events)}")

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> LogPage:
        """Events with seq > after, in order, verified; with a limit fewer, but at least one, if they are large."""
        number = number_of(execution_id)
        if number is None:
            return LogPage()
        # One statement reads one snapshot, so the end of the log and its acknowledged length agree; earlier pages
        # need no common snapshot, because rows never change.
        events: list[Recorded] = []
        seen, most, size = after, FIRST_ROWS, 0
        while True:
            rows = await self.sql.fetch(_PAGE, number, seen + 1, most)
            begin, acknowledged = rows[0][4:]
            found = [tuple(row)[:4] for row in rows if row[0] is not None]
            remaining = None if limit is None else limit - len(events)
            page, end = decode_log(execution_id, number, found, seen, remaining, begin)
            events += page
            if end is not None and len(found) < most:
                check_complete(execution_id, acknowledged, end)
            read = sum(len(row[2]) for row in found)
            size += read
            if end is None or len(found) < most or (limit is not None and (len(events) >= limit or size > PAGE_BYTES)):
                return LogPage(events, more=bool(events) and events[-1].seq < (acknowledged or 0))
            seen, most = end, max(1, min(ROWS, PAGE_BYTES * len(found) // read))

    def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Stream events as they are appended, until the last one; NotFound if the execution does not exist."""
        if not self._listening:
            self._listening = True
            self.database.subscribe(CHANNEL, self._on_message)
        return super().tail(execution_id, after)

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution with this idempotency key."""
        return None if "\x00" in key else await super().by_key(key)

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """One page of executions, newest first; a damaged row is listed with its error."""
        return await super().executions(_without_nul(where))

    async def statistics(self, where: ExecutionFilter, now: float, bars: int) -> ExecutionStatistics:
        """Counts, durations and failures of all executions that match."""
        return await super().statistics(_without_nul(where), now, bars)

    async def days(self, path: str | None, since: float) -> list[DayHistory]:
        """What is known of deleted executions that began on or after the day of an instant."""
        return await super().days(path and path.replace("\x00", ""), since)

    async def unfinished(self, *, waiting: bool = True) -> list[str]:
        """Ids of unfinished executions, oldest first; those on pages that cannot be read are omitted."""
        try:
            return await super().unfinished(waiting=waiting)
        except CorruptLog as problem:
            log.error("unfinished executions on damaged pages are not continued: %s", problem)
            where = "NOT ended" if waiting else self.ACTIVE
            rows = await readable_rows(self.database, "noetl_executions", "id", where)
            return [str(number) for (number,) in sorted(rows)]

    async def lengths(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """The current lengths of the logs that exist."""
        query = "SELECT id, seq FROM noetl_executions WHERE id = ANY($1::int8[])"
        return [(str(number), seq) for number, seq in await self.database.fetch(query, [int(each) for each in ids])]

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The summaries and complete logs of several executions."""
        numbers = [number for each in executions if (number := number_of(each)) is not None]
        rows = await self.sql.fetch(f"{self._select} WHERE id = ANY($1::int8[]) AND seq <= $2", numbers, most)
        logs: dict[int, list[tuple[int, int, bytes, int]]] = {row[0]: [] for row in rows}
        for number, *row in await self.sql.fetch(
            "SELECT execution, first, count, data, crc FROM noetl_log WHERE execution IN ("
            "SELECT execution FROM noetl_log WHERE execution = ANY($1::int8[]) "
            "GROUP BY execution HAVING sum(octet_length(data)) <= $2) ORDER BY execution, first",
            list(logs),
            PAGE_BYTES,
        ):
            logs[number].append(tuple(row))
        found = {}
        for row in rows:
            try:
                summary = one_summary(row)
                assert summary is not None
                events, end = decode_log(summary.execution_id, row[0], logs[row[0]], 0, None, 1)
            except CorruptLog:
                continue  # reading this log alone reports the damage
            if end == summary.seq:
                found[summary.execution_id] = (summary, events)
        return found

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """The number of slots of each key that are in use."""
        return await held_in_postgres(self.database, keys)

    async def drop(self, executions: Sequence[str]) -> None:
        """Delete these executions; their logs are deleted with the partition, when it has no other execution."""
        numbers = [number for each in executions if (number := number_of(each)) is not None]
        async with self.database.connection() as connection, connection.transaction():
            rows = await connection.fetch(
                "DELETE FROM noetl_executions WHERE id = ANY($1::int8[]) RETURNING id, seq, status, path, data, crc",
                numbers,
            )
            # Sorted, so that two servers that delete at the same time do not deadlock.
            for (path, day), change in sorted(day_changes(listed_summary(tuple(row)) for row in rows).items()):
                known = await connection.fetchrow(_DAY, path, day, encode_day(change))
                if known is not None and not known[0]:  # the day existed: its row is locked by now
                    data = extended_day(known[1], change)
                    await connection.execute(
                        "UPDATE noetl_days SET data = $3 WHERE path = $1 AND day = $2", path, day, data
                    )
            await connection.execute("DELETE FROM noetl_snapshots WHERE execution = ANY($1::int8[])", numbers)
            await connection.execute("DELETE FROM noetl_log_other WHERE execution = ANY($1::int8[])", numbers)
        self._tails.forget(executions)

    async def tidy(self, now: float) -> int:
        """Drop partitions of past weeks without executions, and create those of the coming weeks."""
        return await tidy(self.database, number_at(now), WEEK)

    async def close(self) -> None:
        """Flush, close, and wake the remaining tails."""
        await self._writer.close()
        if self._reads is not None:
            await self._reads.close()
        await self.database.close()
        self._tails.close()

    def _on_message(self, message: str) -> None:
        execution_id, _, seq = message.partition(":")
        if seq.isdigit():  # the message after a reconnect is empty: the poll finds missed appends
            self._tails.notify(execution_id, int(seq))


def _without_nul(where: ExecutionFilter) -> ExecutionFilter:
    """The filter without NUL characters, which Postgres does not accept in text."""
    texts = {name: getattr(where, name) for name in ("path", "search", "version", "trigger", "error")}
    cleaned: dict[str, Any] = {name: text.replace("\x00", "") for name, text in texts.items() if text}
    labels = tuple(label.replace("\x00", "") for label in where.labels)
    return msgspec.structs.replace(where, **cleaned, labels=labels)
