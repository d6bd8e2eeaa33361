"""Group commit on Postgres: all pending appends are one statement, and a failing append does not affect the others.

One statement is one round trip and one transaction. The row of an execution changes only if it has the expected
length (or does not exist yet), and only the log rows of changed executions are written. The database compares the
row that it changes, so of two concurrent appends one fails. Rows are changed in the order of their ids, so writers
of several servers wait for each other without a deadlock; if keys still deadlock, the statement is repeated. It is
also repeated when the connection breaks before the result arrives: an append that the first attempt has committed
is then rejected, and recognized by its data. Only appends that need slots of a limit are checked before they are
sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
from msgspec import Struct

from noetl.errors import (
    Conflict,
    CorruptLog,
    LimitReached,
    RequestRefused,
    StateConflict,
    StoreUnavailable,
    VersionConflict,
)
from noetl.observability import metrics
from noetl.storage.events.event_rows import Encoded
from noetl.storage.events.execution_queries import columns_of
from noetl.storage.events.slot_counts import check_capacity, locked_in_postgres
from noetl.storage.events.state_commits import check_versions, lock_in_postgres, write_in_postgres
from noetl.storage.ports.events import Append
from noetl.storage.postgres.database import FAILURES, PostgresDatabase, unavailable

MAX_APPENDS = 1_000
MAX_BYTES = 8 << 20
RETRY_SECONDS = 10.0  # how long a broken connection is retried before the appends fail
RETRY_DELAYS = (0.05, 0.1, 0.25, 0.5)

# One generic plan regardless of table statistics: from the given rows to the index, in the given order.
PLAN = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}

_APPEND = """
    WITH given AS (
      SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::text[], $5::bool[], $6::text[], $7::int8[],
        $8::text[], $9::bytea[], $10::int8[], $11::int8[], $12::bytea[], $13::int8[], $14::float8[], $15::int4[],
        $16::bool[], $17::int8[], $18::float8[], $19::text[], $20::text[], $21::text[],
        $22::text[])
      AS w(id, expected, seq, status, ended, path, parent, key, data, crc, count, log, log_crc, due, inbox, news,
        reuses, took, error, version, started_by, labels)
    ), begun AS (
      INSERT INTO noetl_executions(id, seq, status, ended, path, parent, key, data, crc, due, inbox, news, reuses,
        took, error, version, started_by, labels)
      SELECT id, seq, status, ended, path, parent, key, data, crc, due, inbox, news, reuses, took, error, version,
        started_by, labels
      FROM given WHERE expected = 0
      ON CONFLICT DO NOTHING RETURNING id
    ), grown AS (
      UPDATE noetl_executions e
      SET seq = w.seq, status = w.status, ended = w.ended, data = w.data, crc = w.crc, due = w.due, inbox = w.inbox,
        news = e.news OR w.news, took = w.took, error = w.error
      FROM given w WHERE w.expected > 0 AND e.id = w.id AND e.seq = w.expected RETURNING e.id
    ), won AS (
      SELECT id FROM begun UNION ALL SELECT id FROM grown
    ), added AS (
      INSERT INTO noetl_log(execution, first, count, data, crc)
      SELECT id, expected + 1, count, log, log_crc FROM given
      WHERE count > 0 AND (id IN (SELECT id FROM won)) IS TRUE  -- a hashed set, not a nested loop
    )
    SELECT id FROM won
"""


class PendingAppend(Struct, eq=False):
    """An append that waits for its commit."""

    append: Append
    row: Encoded
    done: asyncio.Future[None]


class EventWriter:
    """The task of this process that writes appends."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._pending: list[PendingAppend] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: Any = None

    def submit(self, append: Append, row: Encoded) -> asyncio.Future[None]:
        """Add an append to the next transaction; the future is resolved after the commit."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if self._database.closed:
            done.set_exception(StoreUnavailable("the store is closed"))
            return done
        self._pending.append(PendingAppend(append, row, done))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return done

    async def close(self) -> None:
        """Write the pending appends, then close the connection."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=RETRY_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop()

    async def _run(self) -> None:
        batch: list[PendingAppend] = []
        try:
            while self._pending:
                batch = self._next_batch()
                try:
                    refused = await self._write(batch)
                except StoreUnavailable as problem:
                    refused = dict.fromkeys(batch, problem)
                except (RequestRefused, CorruptLog):
                    refused = await self._write_each(batch)
                for pending in batch:
                    if pending.done.done():
                        continue
                    if pending in refused:
                        pending.done.set_exception(refused[pending])
                    else:
                        pending.done.set_result(None)
                batch = []
        finally:
            self._task = None
            for pending in (*batch, *(self._pending if batch else ())):
                if not pending.done.done():
                    pending.done.set_exception(
                        StoreUnavailable("the writer was stopped; the log shows whether the append was committed")
                    )

    def _next_batch(self) -> list[PendingAppend]:
        """The oldest pending appends, at most one per execution: the next one follows after its commit."""
        batch: dict[int, PendingAppend] = {}
        left: list[PendingAppend] = []
        size = 0
        for pending in self._pending:
            number = pending.row.number
            if number in batch or len(batch) >= MAX_APPENDS or size >= MAX_BYTES:
                left.append(pending)
            else:
                batch[number] = pending
                size += len(pending.row.data)
        self._pending = left
        return [batch[number] for number in sorted(batch)]

    async def _write(self, batch: list[PendingAppend]) -> dict[PendingAppend, Exception]:
        """Commit the batch; return the failures. StoreUnavailable if nothing was written, or if it is unknown."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_SECONDS
        number = 0
        sent = False  # a result was lost: a rejected append may have been committed
        while True:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._database.connect(PLAN)
                began = loop.time()
                won, full = await self._commit(self._connection, batch)
                metrics.FLUSH.observe(loop.time() - began)
                metrics.BATCH.observe(len(batch))
                lost = [pending for pending in batch if pending.row.number not in won]
                return await self._refused(self._connection, lost, full, sent=sent) if lost else {}
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                pass
            except (*FAILURES, StoreUnavailable) as problem:
                broken = not isinstance(problem, asyncpg.PostgresError) or isinstance(
                    problem, asyncpg.PostgresConnectionError | asyncpg.OperatorInterventionError
                )
                sent = sent or self._connection is not None
                self._drop()
                metrics.STORE_FAILURES.add()
                if not broken:
                    raise unavailable(problem) from None
                if loop.time() >= deadline or self._database.closed:
                    if sent:
                        raise StoreUnavailable(
                            "the connection to Postgres was lost during a commit; the log shows its outcome"
                        ) from None
                    raise problem if isinstance(problem, StoreUnavailable) else unavailable(problem) from None
            await asyncio.sleep(RETRY_DELAYS[min(number, len(RETRY_DELAYS) - 1)])
            number += 1

    async def _write_each(self, batch: list[PendingAppend]) -> dict[PendingAppend, Exception]:
        """Commit the appends of a batch one by one, because Postgres rejects the data of one of them or cannot read its
        page."""
        refused: dict[PendingAppend, Exception] = {}
        for pending in batch:
            try:
                refused |= await self._write([pending])
            except (StoreUnavailable, RequestRefused, CorruptLog) as problem:
                refused[pending] = problem
        return refused

    async def _commit(
        self, connection: Any, batch: list[PendingAppend]
    ) -> tuple[set[int], dict[PendingAppend, LimitReached | StateConflict]]:
        """The executions with committed appends, and the appends that exceed a limit or commit to a changed state.

        Appends that need slots of a limit lock and count these slots first; those that commit state lock it."""
        takers = [pending.append for pending in batch if pending.append.takes]
        commits = [pending.append.state for pending in batch if pending.append.state is not None]
        if not takers and not commits:
            async with self._database.statement(connection):
                return {row[0] for row in await connection.fetch(_APPEND, *_columns(batch))}, {}
        full: dict[PendingAppend, LimitReached | StateConflict] = {}
        async with connection.transaction():
            held = await locked_in_postgres(connection, takers) if takers else {}
            versions = await lock_in_postgres(connection, [commit.path for commit in commits]) if commits else {}
            for pending in batch:
                state = pending.append.state
                try:
                    check_capacity(pending.append, held)
                    if state is not None:
                        check_versions(state, versions[state.path])
                except (LimitReached, StateConflict) as problem:
                    full[pending] = problem
                    continue
                for take in pending.append.takes:
                    held[take.key] += take.count
                if state is not None:
                    versions[state.path].update((change.key, change.version) for change in state.changes)
            fitting = [pending for pending in batch if pending not in full]
            won = {row[0] for row in await connection.fetch(_APPEND, *_columns(fitting))}
            written = [each.append.state for each in fitting if each.append.state and each.row.number in won]
            await write_in_postgres(connection, written)
            return won, full

    async def _refused(
        self,
        connection: Any,
        lost: Sequence[PendingAppend],
        full: Mapping[PendingAppend, LimitReached | StateConflict],
        *,
        sent: bool,
    ) -> dict[PendingAppend, Exception]:
        """The errors of these appends, except those that an earlier attempt has committed."""
        rows = [pending.row for pending in lost]
        async with self._database.statement(connection):
            found = await connection.fetch(
                "SELECT e.id, e.seq, l.data FROM unnest($1::int8[], $2::int8[], $3::int8[]) AS w(id, first, crc) "
                "JOIN noetl_executions e USING (id) "
                "LEFT JOIN noetl_log l ON l.execution = w.id AND l.first = w.first AND l.crc = w.crc",
                [row.number for row in rows],
                [row.first for row in rows],
                [row.crc for row in rows],
            )
        there = {row[0]: (row[1], row[2]) for row in found}
        refused: dict[PendingAppend, Exception] = {}
        for pending in lost:
            append, row = pending.append, pending.row
            seq, data = there.get(row.number, (None, None))
            if sent and data == row.data:
                continue
            if pending in full:
                refused[pending] = full[pending]
            elif seq is None and append.expected_seq == 0:
                refused[pending] = Conflict(f"an execution with the key {row.summary.key!r} already exists")
            else:
                refused[pending] = VersionConflict(append.execution_id, append.expected_seq, seq)
        return refused

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _columns(batch: Sequence[PendingAppend]) -> tuple[list[Any], ...]:
    rows = [pending.row for pending in batch]
    return (
        [row.number for row in rows],
        [row.first - 1 for row in rows],
        [row.last for row in rows],
        [row.summary.status for row in rows],
        [row.ended for row in rows],
        [row.summary.path for row in rows],
        [int(row.summary.parent) if row.summary.parent else None for row in rows],
        [row.summary.key for row in rows],
        [row.summary_data for row in rows],
        [row.summary_crc for row in rows],
        [row.last - row.first + 1 for row in rows],
        [row.data for row in rows],
        [row.crc for row in rows],
        [row.summary.due for row in rows],
        [row.summary.inbox for row in rows],
        [pending.append.news for pending in batch],
        [int(row.summary.reuses) if row.summary.reuses else None for row in rows],
        [row.summary.took for row in rows],
        [clean(row.summary.error) for row in rows],
        *([clean(columns_of(row.summary)[n]) for row in rows] for n in range(3)),
    )


def clean(text: str | None) -> str | None:
    """Text without NUL characters, which Postgres does not accept."""
    return text.replace("\x00", "") if text and "\x00" in text else text
