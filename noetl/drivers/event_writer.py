"""Group commit on Postgres: all appends that wait become one transaction, and each fails alone.

Rows are locked in the order of their ids, so writers of several servers wait for each other and
do not meet in a deadlock; where keys cross all the same, the transaction is simply made again. When
the connection breaks, what became of the transaction is found out before anybody is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

from noetl.drivers import metrics
from noetl.drivers.event_holds import check, locked_in_postgres
from noetl.drivers.event_rows import Encoded
from noetl.drivers.postgres_database import AWAY, PostgresDatabase, unavailable
from noetl.errors import Conflict, LimitReached, StoreUnavailable, VersionConflict
from noetl.ports import Append

MOST_APPENDS = 1_000
MOST_BYTES = 8 << 20
PATIENCE = 10.0  # seconds a broken connection is mended before the appends fail
PAUSES = (0.05, 0.1, 0.25, 0.5)


class Waiting:
    """An append that waits for its commit."""

    __slots__ = ("append", "done", "row")

    def __init__(self, append: Append, row: Encoded, done: asyncio.Future[None]) -> None:
        self.append = append
        self.row = row
        self.done = done


class Group:
    """What one transaction does: who wins, who loses and why, and the rows that follow."""

    def __init__(self, batch: Sequence[Waiting], lengths: dict[int, int], held: dict[str, int]) -> None:
        self.refused: dict[Waiting, Exception] = {}
        self.begun: dict[int, list[Waiting]] = {}
        self.grown: dict[int, list[Waiting]] = {}
        seqs = dict(lengths)
        for waiting in batch:
            row, expected = waiting.row, waiting.append.expected_seq
            found = seqs.get(row.number)
            if (found or 0) != expected or (expected == 0 and found is not None):
                self.refused[waiting] = VersionConflict(waiting.append.execution_id, expected, found)
                continue
            if waiting.append.takes and not self._fits(waiting, held):
                continue
            seqs[row.number] = row.last
            into = self.grown if row.number in lengths else self.begun
            into.setdefault(row.number, []).append(waiting)

    def _fits(self, waiting: Waiting, held: dict[str, int]) -> bool:
        """Whether there is enough left of what it takes, after those before it."""
        try:
            check(waiting.append, held)
        except LimitReached as full:
            self.refused[waiting] = full
            return False
        for take in waiting.append.takes:
            held[take.key] += take.count
        return True

    def lose(self, number: int, actual: int | None) -> None:
        """Somebody else began this execution, or has its key."""
        for waiting in self.begun.pop(number):
            if actual is not None:
                problem: Exception = VersionConflict(waiting.append.execution_id, waiting.append.expected_seq, actual)
            else:
                problem = Conflict(f"an execution was already started under the key {waiting.row.summary.key!r}")
            self.refused[waiting] = problem

    def winners(self) -> list[Waiting]:
        """Appends whose events are in the log."""
        return [waiting for chain in (*self.begun.values(), *self.grown.values()) for waiting in chain]


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
        size = number = 0
        while number < len(self._waiting) and number < MOST_APPENDS and size < MOST_BYTES:
            size += len(self._waiting[number].row.data)
            number += 1
        batch, self._waiting = self._waiting[:number], self._waiting[number:]
        return batch

    async def _write(self, batch: list[Waiting]) -> dict[Waiting, Exception]:
        """Commit the batch; who lost and why. StoreUnavailable when nothing was written, or nobody can tell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        number = 0
        while True:
            attempt = _Attempt()
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._database.connect()
                began = loop.time()
                refused = await attempt.commit(self._connection, batch)
                metrics.FLUSH.observe(loop.time() - began)
                metrics.BATCH.observe(len(batch))
                return refused
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                pass
            except (*AWAY, StoreUnavailable) as problem:
                broken = not isinstance(problem, asyncpg.PostgresError) or isinstance(
                    problem, asyncpg.PostgresConnectionError | asyncpg.OperatorInterventionError
                )
                self._drop()
                metrics.STORE_FAILURES.add()
                if not broken:
                    raise unavailable(problem) from None
                if attempt.group is not None and await self._landed(attempt, deadline):
                    return attempt.group.refused
                if loop.time() >= deadline or self._database.closed:
                    raise problem if isinstance(problem, StoreUnavailable) else unavailable(problem) from None
            await asyncio.sleep(PAUSES[min(number, len(PAUSES) - 1)])
            number += 1

    async def _landed(self, attempt: _Attempt, deadline: float) -> bool:
        """Whether a transaction whose answer was lost has been committed."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                # The rows themselves tell (a number may be used again after a crash); as long as the
                # transaction is still at work on the server, they may yet appear.
                status = await self._status(attempt.transaction)
                if await self._written(attempt.winners()):
                    return True
                if status != "in progress":
                    return False
            except StoreUnavailable:
                if self._database.closed:
                    raise
            if loop.time() >= deadline:
                raise StoreUnavailable("Postgres went away during a commit; what became of it is in the log")
            await asyncio.sleep(0.1)

    async def _status(self, transaction: int | None) -> str:
        if transaction is None:
            return "unknown"
        try:
            row = await self._database.row("SELECT pg_xact_status($1::text::xid8)", str(transaction))
        except StoreUnavailable as problem:
            if "in the future" in str(problem):
                return "never written"
            raise
        return row[0] or "unknown"

    async def _written(self, winners: Sequence[Waiting]) -> bool:
        rows = [waiting.row for waiting in winners if waiting.append.events]
        if not rows:
            return False
        found = await self._database.row(
            "SELECT count(*) FROM noetl_log l JOIN unnest($1::int8[], $2::int8[], $3::int8[], $4::bytea[]) "
            "AS w(execution, first, crc, data) ON l.execution = w.execution AND l.first = w.first "
            "AND l.crc = w.crc AND l.data = w.data",
            [row.number for row in rows],
            [row.first for row in rows],
            [row.crc for row in rows],
            [row.data for row in rows],
        )
        return bool(found[0] == len(rows))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


class _Attempt:
    """One transaction over one batch."""

    def __init__(self) -> None:
        self.group: Group | None = None  # set once its rows have been sent
        self.transaction: int | None = None

    def winners(self) -> list[Waiting]:
        return self.group.winners() if self.group else []

    async def commit(self, connection: Any, batch: list[Waiting]) -> dict[Waiting, Exception]:
        transaction = connection.transaction()
        await transaction.start()
        try:
            held = await locked_in_postgres(connection, [each.append for each in batch if each.append.takes])
            numbers = sorted({waiting.row.number for waiting in batch})
            rows = await connection.fetch(
                "SELECT id, seq FROM noetl_executions WHERE id = ANY($1::int8[]) ORDER BY id FOR UPDATE", numbers
            )
            group = Group(batch, {row["id"]: row["seq"] for row in rows}, held)
            if group.begun:
                await self._begin(connection, group)
            if group.grown:
                await self._grow(connection, group)
            winners = group.winners()
            if winners:
                self.transaction = await self._log(connection, winners)
                self.group = group
        except (asyncpg.PostgresError, asyncio.CancelledError):
            if not connection.is_closed():
                await transaction.rollback()
            raise
        await transaction.commit()
        return group.refused

    async def _begin(self, connection: Any, group: Group) -> None:
        lasts = [group.begun[number][-1].row for number in sorted(group.begun)]
        begun = await connection.fetch(
            "INSERT INTO noetl_executions(id, seq, status, ended, path, parent, key, data, crc) "
            "SELECT * FROM unnest($1::int8[], $2::int8[], $3::text[], $4::bool[], $5::text[], $6::int8[], "
            "$7::text[], $8::bytea[], $9::int8[]) ON CONFLICT DO NOTHING RETURNING id",
            *_columns(lasts),
            [row.summary.path for row in lasts],
            [int(row.summary.parent) if row.summary.parent else None for row in lasts],
            [row.summary.key for row in lasts],
            [row.summary_data for row in lasts],
            [row.summary_crc for row in lasts],
        )
        lost = group.begun.keys() - {row["id"] for row in begun}
        if lost:
            taken = await connection.fetch(
                "SELECT id, seq FROM noetl_executions WHERE id = ANY($1::int8[])", list(lost)
            )
            actual = {row["id"]: row["seq"] for row in taken}
            for number in lost:
                group.lose(number, actual.get(number))

    async def _grow(self, connection: Any, group: Group) -> None:
        lasts = [group.grown[number][-1].row for number in sorted(group.grown)]
        await connection.execute(
            "UPDATE noetl_executions e SET seq = w.seq, status = w.status, ended = w.ended, data = w.data, crc = w.crc "
            "FROM unnest($1::int8[], $2::int8[], $3::text[], $4::bool[], $5::bytea[], $6::int8[]) "
            "AS w(id, seq, status, ended, data, crc) WHERE e.id = w.id",
            *_columns(lasts),
            [row.summary_data for row in lasts],
            [row.summary_crc for row in lasts],
        )

    async def _log(self, connection: Any, winners: Iterable[Waiting]) -> int:
        rows = [(waiting.row, len(waiting.append.events)) for waiting in winners if waiting.append.events]
        number = await connection.fetchval(
            "WITH added AS (INSERT INTO noetl_log(execution, first, count, data, crc) "
            "SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::bytea[], $5::int8[])) "
            "SELECT pg_current_xact_id()::text",
            [row.number for row, _ in rows],
            [row.first for row, _ in rows],
            [count for _, count in rows],
            [row.data for row, _ in rows],
            [row.crc for row, _ in rows],
        )
        return int(number)


def _columns(rows: Sequence[Encoded]) -> tuple[list[int], list[int], list[str], list[bool]]:
    return (
        [row.number for row in rows],
        [row.last for row in rows],
        [row.summary.status for row in rows],
        [row.ended for row in rows],
    )
