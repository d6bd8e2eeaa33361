"""Group commit on Postgres: all appends that wait become one statement, and each fails alone.

One statement is one round trip and one transaction. An execution's row is changed only where it has the expected
length (or is not there yet), and only the log rows of those that were changed are written: the comparison is made
by the database on the row it changes, so of two rivals one finds another length. Rows are changed in the order of
their ids, so writers of several servers wait for each other and do not meet in a deadlock; where keys cross all the
same, the statement is simply sent again. It is also sent again when the connection breaks before the answer: what
was written the first time is refused the second time, and found to be our own. Only appends that take something
limited need a look before they are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from noetl.errors import Conflict, LimitReached, StoreUnavailable, VersionConflict
from noetl.observability import metrics
from noetl.storage.events.event_rows import Encoded
from noetl.storage.events.slot_counts import check_capacity, locked_in_postgres
from noetl.storage.ports.events import Append
from noetl.storage.postgres.database import FAILURES, PostgresDatabase, unavailable

MOST_APPENDS = 1_000
MOST_BYTES = 8 << 20
PATIENCE = 10.0  # seconds a broken connection is mended before the appends fail
PAUSES = (0.05, 0.1, 0.25, 0.5)

# One plan for ever, whatever the tables hold: from the given rows to the index, in the given order.
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
        $8::text[], $9::bytea[], $10::int8[], $11::int8[], $12::bytea[], $13::int8[])
      AS w(id, expected, seq, status, ended, path, parent, key, data, crc, count, log, log_crc)
    ), begun AS (
      INSERT INTO noetl_executions(id, seq, status, ended, path, parent, key, data, crc)
      SELECT id, seq, status, ended, path, parent, key, data, crc FROM given WHERE expected = 0
      ON CONFLICT DO NOTHING RETURNING id
    ), grown AS (
      UPDATE noetl_executions e
      SET seq = w.seq, status = w.status, ended = w.ended, data = w.data, crc = w.crc
      FROM given w WHERE w.expected > 0 AND e.id = w.id AND e.seq = w.expected RETURNING e.id
    ), won AS (
      SELECT id FROM begun UNION ALL SELECT id FROM grown
    ), added AS (
      INSERT INTO noetl_log(execution, first, count, data, crc)
      SELECT id, expected + 1, count, log, log_crc FROM given
      WHERE count > 0 AND (id IN (SELECT id FROM won)) IS TRUE  -- as a hashed set, not as a join of all with all
    )
    SELECT id FROM won
"""


class Waiting:
    """An append that waits for its commit."""

    __slots__ = ("append", "done", "row")

    def __init__(self, append: Append, row: Encoded, done: asyncio.Future[None]) -> None:
        self.append = append
        self.row = row
        self.done = done


class EventWriter:
    """The one task of this process that writes appends."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._waiting: list[Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: Any = None

    def submit(self, append: Append, row: Encoded) -> asyncio.Future[None]:
        """Let it wait for the next transaction; answered when that is on disk."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if self._database.closed:
            done.set_exception(StoreUnavailable("the store is closed"))
            return done
        self._waiting.append(Waiting(append, row, done))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return done

    async def close(self) -> None:
        """Write what waits, then let go."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=PATIENCE)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop()

    async def _run(self) -> None:
        batch: list[Waiting] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                try:
                    refused = await self._write(batch)
                except StoreUnavailable as problem:
                    refused = dict.fromkeys(batch, problem)
                for waiting in batch:
                    if waiting.done.done():
                        continue
                    if waiting in refused:
                        waiting.done.set_exception(refused[waiting])
                    else:
                        waiting.done.set_result(None)
                batch = []
        finally:
            self._task = None
            for waiting in (*batch, *(self._waiting if batch else ())):
                if not waiting.done.done():
                    waiting.done.set_exception(StoreUnavailable("the writer was stopped; the outcome is in the log"))

    def _next_batch(self) -> list[Waiting]:
        """The oldest that wait, one of an execution: the next one's turn comes when the first is on disk."""
        batch: dict[int, Waiting] = {}
        left: list[Waiting] = []
        size = 0
        for waiting in self._waiting:
            number = waiting.row.number
            if number in batch or len(batch) >= MOST_APPENDS or size >= MOST_BYTES:
                left.append(waiting)
            else:
                batch[number] = waiting
                size += len(waiting.row.data)
        self._waiting = left
        return [batch[number] for number in sorted(batch)]

    async def _write(self, batch: list[Waiting]) -> dict[Waiting, Exception]:
        """Commit the batch; who lost and why. StoreUnavailable when nothing was written, or nobody can tell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        number = 0
        sent = False  # an answer was lost: what the database refuses may be our own
        while True:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._database.connect(PLAN)
                began = loop.time()
                won, full = await self._commit(self._connection, batch)
                metrics.FLUSH.observe(loop.time() - began)
                metrics.BATCH.observe(len(batch))
                lost = [waiting for waiting in batch if waiting.row.number not in won]
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
                            "Postgres went away during a commit; what became of it is in the log"
                        ) from None
                    raise problem if isinstance(problem, StoreUnavailable) else unavailable(problem) from None
            await asyncio.sleep(PAUSES[min(number, len(PAUSES) - 1)])
            number += 1

    async def _commit(self, connection: Any, batch: list[Waiting]) -> tuple[set[int], dict[Waiting, LimitReached]]:
        """The executions whose appends are on disk, and the appends for which there was no room.

        What takes something limited must know first how much of it is left, and that nobody else takes it."""
        takers = [waiting.append for waiting in batch if waiting.append.takes]
        if not takers:
            return {row[0] for row in await connection.fetch(_APPEND, *_columns(batch))}, {}
        full: dict[Waiting, LimitReached] = {}
        async with connection.transaction():
            held = await locked_in_postgres(connection, takers)
            for waiting in batch:
                try:
                    check_capacity(waiting.append, held)
                except LimitReached as problem:
                    full[waiting] = problem
                    continue
                for take in waiting.append.takes:
                    held[take.key] += take.count
            fitting = [waiting for waiting in batch if waiting not in full]
            return {row[0] for row in await connection.fetch(_APPEND, *_columns(fitting))}, full

    async def _refused(
        self, connection: Any, lost: Sequence[Waiting], full: Mapping[Waiting, LimitReached], *, sent: bool
    ) -> dict[Waiting, Exception]:
        """Why each of these was not written; those that were, by an earlier attempt, are left out."""
        rows = [waiting.row for waiting in lost]
        found = await connection.fetch(
            "SELECT e.id, e.seq, l.data FROM unnest($1::int8[], $2::int8[], $3::int8[]) AS w(id, first, crc) "
            "JOIN noetl_executions e USING (id) "
            "LEFT JOIN noetl_log l ON l.execution = w.id AND l.first = w.first AND l.crc = w.crc",
            [row.number for row in rows],
            [row.first for row in rows],
            [row.crc for row in rows],
        )
        there = {row[0]: (row[1], row[2]) for row in found}
        refused: dict[Waiting, Exception] = {}
        for waiting in lost:
            append, row = waiting.append, waiting.row
            seq, data = there.get(row.number, (None, None))
            if sent and data == row.data:
                continue
            if waiting in full:
                refused[waiting] = full[waiting]
            elif seq is None and append.expected_seq == 0:
                refused[waiting] = Conflict(f"an execution was already started under the key {row.summary.key!r}")
            else:
                refused[waiting] = VersionConflict(append.execution_id, append.expected_seq, seq)
        return refused

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _columns(batch: Sequence[Waiting]) -> tuple[list[Any], ...]:
    rows = [waiting.row for waiting in batch]
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
    )
