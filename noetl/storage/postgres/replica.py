"""Reads from a streaming replica that are as current as reads from the primary.

A read that a replica may answer (`ports.reads`) first asks the primary how far its log is flushed. Every commit that
was acknowledged before is in this part, whichever server made it. The replica answers once it has replayed it. A
replica that is behind for longer than `LAG_SECONDS`, does not respond, or is no replica of the primary is not used for
`PAUSE_SECONDS`: the primary answers.

Only `fetch` is routed. `row` looks up single rows by key, which costs the primary as little as asking for its position.
Tables that are not in the log (the queue, heartbeats) are read through `PostgresDatabase` itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from noetl.errors import StoreUnavailable
from noetl.observability import metrics
from noetl.storage.ports.reads import may_use_replica
from noetl.storage.ports.sql import Dialect
from noetl.storage.postgres.connection_pool import BROKEN
from noetl.storage.postgres.database import FAILURES, PostgresDatabase, unavailable

log = logging.getLogger("noetl.store")

LAG_SECONDS = 1.0  # maximum time until the replica has replayed the primary's position
PAUSE_SECONDS = 5.0  # without attempts after that time, or after a failure
POLL_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02)

_FLUSHED = "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::int8"
_REPLAYED = "SELECT pg_is_in_recovery(), pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::int8"
_IDENTITY = "SELECT system_identifier, current_database() FROM pg_control_system()"


class NotUsable(Exception):
    """The replica cannot answer; the argument is the reason."""


class Standby(PostgresDatabase):
    """The connections to a replica; instead of migrating it, it is compared with the primary."""

    def __init__(self, url: str, primary: PostgresDatabase) -> None:
        super().__init__(url)
        self._primary = primary

    def compare_again(self) -> None:
        """Compare it with the primary before the next use."""
        self._migrated = False

    async def _migrate(self, schemas: Mapping[str, Sequence[str]]) -> None:
        connection = await self._connect()
        try:
            found = tuple(await connection.fetchrow(_IDENTITY))
        finally:
            await connection.close()
        expected = tuple(await self._primary.row(_IDENTITY))
        if found != expected:
            raise NotUsable(f"it is not a replica of the store: database {found[1]!r} of another Postgres system")


class ReplicaReads:
    """`ports.SqlDatabase` over a primary and a replica, which answers `fetch` where the request permits it."""

    dialect: Dialect = PostgresDatabase.dialect
    prefix = PostgresDatabase.prefix
    like = PostgresDatabase.like

    def __init__(self, primary: PostgresDatabase, replica: str) -> None:
        self._primary = primary
        self._standby = Standby(replica, primary)
        self._asking = asyncio.Lock()
        self._next_position: asyncio.Task[int] | None = None
        self._paused_until = 0.0
        self._problem = ""  # why the replica is not used
        self.migrate, self.check, self.connection = primary.migrate, primary.check, primary.connection
        self.row, self.execute, self.execute_many = primary.row, primary.execute, primary.execute_many

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        """All rows."""
        if may_use_replica():
            rows = await self._from_replica(query, values)
            if rows is not None:
                return rows
        return await self._primary.fetch(query, *values)

    async def behind(self) -> int:
        """How many bytes of the log the replica has not replayed; NotUsable with the reason if it cannot be used."""
        position = await self._position()
        try:
            async with asyncio.timeout(LAG_SECONDS), self._standby.connection() as connection:
                return max(0, position - await _replayed(connection))
        except TimeoutError:
            raise NotUsable(f"it did not respond within {LAG_SECONDS:g} s") from None
        except StoreUnavailable as problem:
            raise NotUsable(str(problem)) from None

    async def close(self) -> None:
        """Close the connections to the replica."""
        await self._standby.close()

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def _from_replica(self, query: str, values: Sequence[Any]) -> list[Any] | None:
        """The rows, or None if the primary has to read them."""
        now = asyncio.get_running_loop().time()
        if now < self._paused_until:
            metrics.REPLICA_READS.add(1, "paused")
            return None
        if self._problem:
            self._paused_until = now + LAG_SECONDS  # one read tries whether it can be used again
        position = await self._position()
        try:
            pool, connection = await self._ready(position)
        except NotUsable as problem:
            self._pause(str(problem))
            return None
        failure: BaseException | None = None
        try:
            async with self._standby.statement(connection):
                rows: list[Any] = await connection.fetch(query, *values)
        except FAILURES as problem:
            failure = problem
            if isinstance(problem, BROKEN):
                self._pause(str(unavailable(problem)))
            else:  # most often a conflict between the query and the replay
                metrics.REPLICA_READS.add(1, "cancelled")
                log.info("a read is repeated on the primary: %s", problem)
            return None
        except BaseException as problem:
            failure = problem
            raise
        finally:
            pool.release(connection, failure)
        metrics.REPLICA_READS.add(1, "replica")
        if self._problem:
            log.info("lists are read from the replica again")
            self._problem, self._paused_until = "", 0.0
        return rows

    async def _ready(self, position: int) -> tuple[Any, Any]:
        """A connection to the replica that has replayed the primary's log up to a position, and its pool."""
        began = asyncio.get_running_loop().time()
        behind: int | None = None
        taken: tuple[Any, Any] | None = None
        try:
            async with asyncio.timeout(LAG_SECONDS):
                taken = await self._standby.acquire()
                number = 0
                while (behind := position - await _replayed(taken[1])) > 0:
                    await asyncio.sleep(POLL_SECONDS[min(number, len(POLL_SECONDS) - 1)])
                    number += 1
        except BaseException as problem:
            if taken is not None:
                taken[0].release(taken[1], problem)
            if isinstance(problem, TimeoutError):
                reason = "it did not respond" if behind is None else f"it is {behind} bytes of the log behind"
                raise NotUsable(f"{reason} after {LAG_SECONDS:g} s") from None
            if isinstance(problem, FAILURES):
                raise NotUsable(str(unavailable(problem))) from None
            raise
        metrics.REPLICA_WAIT.observe(asyncio.get_running_loop().time() - began)
        return taken

    def _pause(self, reason: str) -> None:
        """Use the primary for a while."""
        metrics.REPLICA_READS.add(1, "not usable")
        if self._problem != reason:
            log.warning("the replica is not used, lists are read from the primary: %s", reason)
        self._problem = reason
        self._standby.compare_again()
        self._paused_until = asyncio.get_running_loop().time() + PAUSE_SECONDS

    async def _position(self) -> int:
        """Up to where the primary has flushed its log, asked after this call began; concurrent calls share a query."""
        if self._next_position is None:
            self._next_position = asyncio.get_running_loop().create_task(self._ask_position())
        return await asyncio.shield(self._next_position)

    async def _ask_position(self) -> int:
        async with self._asking:
            self._next_position = None  # later calls need a later position
            position: int = (await self.row(_FLUSHED))[0]
            return position


async def _replayed(connection: Any) -> int:
    """Up to where a replica has replayed the log."""
    in_recovery, position = await connection.fetchrow(_REPLAYED)
    if not in_recovery or position is None:
        raise NotUsable("it is not a streaming replica: it is not in recovery")
    return int(position)
