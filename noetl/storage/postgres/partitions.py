"""The log's partitions on Postgres: one for each week's executions, dropped whole when nobody needs any of them.

A partition holds the logs of the executions that were *started* in its week (ids are minted in the order of time),
so an execution's log is never split. It goes when its week is past and no row of `noetl_executions` is
left in its range: an execution that runs for months keeps its week, and nothing else. Ids that fit no partition
(a clock far ahead, nobody made partitions for weeks) are kept in `noetl_log_other` and deleted there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime
from typing import Any

import asyncpg

from noetl.core.model.ids import COUNTER_BITS, EPOCH_MS, PROCESS_BITS
from noetl.storage.postgres.database import PostgresDatabase

log = logging.getLogger("noetl.store")

AHEAD = 4  # partitions that are there before they are needed
LOCK_SECONDS = 5  # appends wait for no longer than this; what could not be had is tried again the next time
_BOUNDS = re.compile(r"FROM \((?:MINVALUE|'(\d+)')\) TO \('(\d+)'\)")


async def tidy(database: PostgresDatabase, now: int, week: int) -> int:
    """Drop what is past and empty, make what comes; how many partitions went. `now` is an id of this moment."""
    async with database.connection() as connection:
        partitions = await _partitions(connection)
        gone = 0
        for name, (low, high) in partitions.items():
            if high <= now and await _drop(connection, name, low, high):
                gone += 1
        begin = max(now // week * week, *(high for _, high in partitions.values()))
        for low in range(begin, (now // week + 1 + AHEAD) * week, week):
            await _make(connection, low, low + week)
        return gone


async def _partitions(connection: Any) -> dict[str, tuple[int, int]]:
    rows = await connection.fetch(
        "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = 'noetl_log'::regclass ORDER BY c.relname"
    )
    found = {}
    for name, words in rows:
        bounds = _BOUNDS.search(words)
        if bounds is not None:
            found[name] = (int(bounds[1] or 0), int(bounds[2]))
    return found


async def _drop(connection: Any, name: str, low: int, high: int) -> bool:
    left = await connection.fetchval(
        "SELECT EXISTS (SELECT 1 FROM noetl_executions WHERE id >= $1 AND id < $2)", low, high
    )
    if left:
        return False
    return await _changed(connection, f'DROP TABLE "{name}"', f"the partition {name} is dropped")


async def _make(connection: Any, low: int, high: int) -> None:
    stray = await connection.fetchval(
        "SELECT EXISTS (SELECT 1 FROM noetl_log_other WHERE execution >= $1 AND execution < $2)", low, high
    )
    if stray:
        return  # its logs began to lie among the others, and stay there
    day = datetime.fromtimestamp(((low >> (PROCESS_BITS + COUNTER_BITS)) + EPOCH_MS) / 1000, UTC)
    name = f"noetl_log_{day:%Y%m%d}"
    await _changed(
        connection,
        f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF noetl_log FOR VALUES FROM ({low}) TO ({high})",
        f"the partition {name} is made",
    )


async def _changed(connection: Any, statement: str, words: str) -> bool:
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            await connection.execute(statement)
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.UndefinedTableError) as busy:
        log.info("%s another time: %s", words, busy)
        await asyncio.sleep(0)
        return False
    log.info("%s", words)
    return True
