"""Partitions of the event log in Postgres: one per week, dropped when it has no executions left.

A partition has the logs of the executions that were *started* in its week (ids are in order of time),
so the log of an execution is never split. It is dropped when its week is over and `noetl_executions` has no row
in its range: an execution that runs for months keeps only its own week. The partition of the present week is
emptied then. Ids outside of all partitions
(after a clock error, or when no partitions were created for weeks) are in `noetl_log_other` and are deleted there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime

import asyncpg

from noetl.core.model.ids import COUNTER_BITS, EPOCH_MS, PROCESS_BITS
from noetl.storage.postgres.database import PostgresDatabase

log = logging.getLogger("noetl.store")

AHEAD = 4  # partitions that are created in advance
# A change of partitions locks the whole table, and appends wait behind it, also while it waits for a long reader.
LOCK_MS = 200  # maximum time that appends wait for one attempt
ATTEMPTS = 10  # then the change is postponed to the next call
PAUSE_SECONDS = 1.0  # between attempts
_USED = "SELECT 1 FROM noetl_executions WHERE id >= $1 AND id < $2 LIMIT 1"
# An append that begins an execution meanwhile waits for the lock, before its first row of the log.
_EMPTY = """
    DO $$ BEGIN
      LOCK TABLE "{name}" IN ACCESS EXCLUSIVE MODE;
      IF NOT EXISTS (SELECT 1 FROM noetl_executions WHERE id >= {low} AND id < {high}) THEN
        TRUNCATE "{name}";
      END IF;
    END $$
"""
_BOUNDS = re.compile(r"FROM \((?:MINVALUE|'(\d+)')\) TO \('(\d+)'\)")


async def tidy(database: PostgresDatabase, now: int, week: int) -> int:
    """Drop the partitions of the past without executions, empty that of the present, create those of the future; return
    the number dropped. `now` is an id."""
    partitions = await _partitions(database)
    dropped = 0
    for name, (low, high) in partitions.items():
        if low > now or await database.row(_USED, low, high) is not None:
            continue
        if high <= now:
            dropped += await _change(database, f'DROP TABLE "{name}"', f"drop of the partition {name}")
        elif await database.row(f'SELECT 1 FROM "{name}" LIMIT 1') is not None:
            await _change(database, _EMPTY.format(name=name, low=low, high=high), f"emptying of the partition {name}")
    begin = max(now // week * week, *(high for _, high in partitions.values()))
    for low in range(begin, (now // week + 1 + AHEAD) * week, week):
        await _create(database, low, low + week)
    return dropped


async def _partitions(database: PostgresDatabase) -> dict[str, tuple[int, int]]:
    rows = await database.fetch(
        "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = 'noetl_log'::regclass ORDER BY c.relname"
    )
    found = {}
    for name, expression in rows:
        bounds = _BOUNDS.search(expression)
        if bounds is not None:
            found[name] = (int(bounds[1] or 0), int(bounds[2]))
    return found


async def _create(database: PostgresDatabase, low: int, high: int) -> None:
    if await database.fetch(
        "SELECT 1 FROM noetl_log_other WHERE execution >= $1 AND execution < $2 LIMIT 1", low, high
    ):
        return  # logs of this week are in the default partition, and stay there
    day = datetime.fromtimestamp(((low >> (PROCESS_BITS + COUNTER_BITS)) + EPOCH_MS) / 1000, UTC)
    name = f"noetl_log_{day:%Y%m%d}"
    await _change(
        database,
        f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF noetl_log FOR VALUES FROM ({low}) TO ({high})",
        f"creation of the partition {name}",
    )


async def _change(database: PostgresDatabase, statement: str, what: str) -> bool:
    reason: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(PAUSE_SECONDS)
        async with database.connection() as connection:
            try:
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_MS}ms'")
                    await connection.execute(statement)
                log.info("%s completed", what)
                return True
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as busy:
                reason = busy
            except asyncpg.UndefinedTableError as gone:  # another server was faster
                reason = gone
                break
    log.info("%s postponed: %s", what, reason)
    return False
