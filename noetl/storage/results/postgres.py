"""The result database in Postgres, for many machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from noetl.errors import StoreUnavailable
from noetl.storage.results.relational import ABANDONED


class PostgresResultDatabase:
    """Tables of a Postgres database, created at first use."""

    _SCHEMA = (
        "CREATE TABLE IF NOT EXISTS noetl_results (key text PRIMARY KEY, created_at double precision NOT NULL, "
        "expires_at double precision, finished boolean NOT NULL)",
        "CREATE INDEX IF NOT EXISTS noetl_results_expire ON noetl_results (expires_at)",
        "CREATE TABLE IF NOT EXISTS noetl_result_parts (key text NOT NULL REFERENCES noetl_results ON DELETE CASCADE, "
        "part integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (key, part))",
        # Blocks are compressed by the payload store.
        "ALTER TABLE noetl_result_parts ALTER COLUMN data SET STORAGE EXTERNAL",
    )

    def __init__(self, dsn: str, *, connections: int = 4) -> None:
        from noetl.connections.postgres import conninfo, own_pool

        self._info = conninfo({"dsn": dsn})
        self._pool = own_pool(self._info, size=connections)
        self._ready = False
        self._preparing = asyncio.Lock()

    async def insert(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        """Store a payload of one block in one transaction."""
        await self._execute(
            "WITH added AS (INSERT INTO noetl_results VALUES (%s, %s, %s, true) RETURNING key) "
            "INSERT INTO noetl_result_parts SELECT key, 0, %b FROM added",
            (key, now, expires, block),
        )

    async def begin(self, key: str, now: float, expires: float | None) -> None:
        """Begin an unfinished payload."""
        await self._execute("INSERT INTO noetl_results VALUES (%s, %s, %s, false)", (key, now, expires))

    async def add(self, key: str, part: int, block: bytes) -> None:
        """Store one block."""
        await self._execute("INSERT INTO noetl_result_parts VALUES (%s, %s, %b)", (key, part, block))

    async def finish(self, key: str) -> None:
        """Mark a payload as finished."""
        await self._execute("UPDATE noetl_results SET finished = true WHERE key = %s", (key,))

    async def exists(self, key: str) -> bool:
        """Whether a finished payload has this key."""
        return bool((await self._execute("SELECT 1 FROM noetl_results WHERE key = %s AND finished", (key,)))[1])

    async def part(self, key: str, part: int) -> bytes | None:
        """One block; None after the last."""
        _, rows = await self._execute("SELECT data FROM noetl_result_parts WHERE key = %s AND part = %s", (key, part))
        return rows[0][0] if rows else None

    async def delete(self, key: str) -> None:
        """Delete a payload and its blocks."""
        await self._execute("DELETE FROM noetl_results WHERE key = %s", (key,))

    async def collect(self, now: float) -> int:
        """Delete expired and abandoned payloads; return the number of expired ones."""
        count, _ = await self._execute("DELETE FROM noetl_results WHERE finished AND expires_at <= %s", (now,))
        await self._execute("DELETE FROM noetl_results WHERE NOT finished AND created_at < %s", (now - ABANDONED,))
        return count

    async def delete_prefixes(self, prefixes: Sequence[str]) -> int:
        """Delete payloads without a ttl whose key begins with a prefix; return their number."""
        count, _ = await self._execute(
            "DELETE FROM noetl_results WHERE split_part(key, '/', 1) || '/' = ANY(%s) AND expires_at IS NULL",
            (list(prefixes),),
        )
        return count

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()

    async def _prepare(self, connection: Any) -> None:
        """Create missing tables once; existing tables are not changed, because other processes may use them."""
        async with self._preparing:
            if self._ready:
                return
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(7355608001)")  # two processes may start at once
                cursor = await connection.execute("SELECT to_regclass('noetl_result_parts') IS NULL")
                if (await cursor.fetchone())[0]:
                    for part in self._SCHEMA:
                        await connection.execute(part)
            self._ready = True

    async def _execute(self, statement: str, values: tuple[Any, ...]) -> tuple[int, list[tuple[Any, ...]]]:
        import psycopg

        from noetl.connections.connection_pool import PoolExhausted
        from noetl.connections.postgres import to_error_info

        try:
            async with self._pool.connection(wait=60) as connection:
                if not self._ready:
                    await self._prepare(connection)
                cursor = connection.cursor(binary=True)
                await cursor.execute(statement, values)
                return cursor.rowcount, await cursor.fetchall() if cursor.description else []
        except (psycopg.Error, PoolExhausted) as problem:
            info, _ = to_error_info(problem)
            kind = info.kind if info.kind in ("auth", "storage.quota") else "connection"
            raise StoreUnavailable(f"result store in Postgres: {info.message}", kind=kind) from problem
