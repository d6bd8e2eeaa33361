"""Results in a Postgres database, for many machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from noetl.errors import StoreUnavailable
from noetl.storage.postgres.database import pooled_url
from noetl.storage.results.payload_store import SETTING
from noetl.storage.results.relational import RelationalResults

CONNECTIONS = 4


class PostgresResults(RelationalResults):
    """A result store in a Postgres database; its tables are created at first use."""

    SCHEMA = (
        "CREATE TABLE IF NOT EXISTS noetl_results (key text PRIMARY KEY, created_at double precision NOT NULL, "
        "expires_at double precision, finished boolean NOT NULL)",
        "CREATE INDEX IF NOT EXISTS noetl_results_expire ON noetl_results (expires_at)",
        "CREATE INDEX IF NOT EXISTS noetl_results_execution ON noetl_results (split_part(key, '/', 1))",
        "CREATE TABLE IF NOT EXISTS noetl_result_parts (key text NOT NULL REFERENCES noetl_results ON DELETE CASCADE, "
        "part integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (key, part))",
        # Blocks are compressed by the payload store.
        "ALTER TABLE noetl_result_parts ALTER COLUMN data SET STORAGE EXTERNAL",
    )  # each may be executed again

    def __init__(self, dsn: str, **options: Any) -> None:
        from noetl.connections.postgres import conninfo, own_pool

        super().__init__(**options)
        dsn, pooled = pooled_url(dsn)
        parts = urlsplit(dsn)
        host = parts.hostname or ""
        self.address = {"scheme": "postgresql", "host": f"{host}:{parts.port}" if parts.port else host}
        self.address["database"] = parts.path.strip("/")
        if parts.password:
            self.auth_reference = self.auth_reference or SETTING
        self._pool = own_pool(conninfo({"dsn": dsn}), size=CONNECTIONS, prepare=not pooled)
        self._ready = False
        self._preparing = asyncio.Lock()

    async def _insert(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        await self._execute(
            "WITH added AS (INSERT INTO noetl_results VALUES (?, ?, ?, true) RETURNING key) "
            "INSERT INTO noetl_result_parts SELECT key, 0, ? FROM added",
            key,
            now,
            expires,
            block,
        )

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""
        statement = "DELETE FROM noetl_results WHERE split_part(key, '/', 1) = ANY(?) AND expires_at IS NULL"
        count, _ = await self._execute(statement, list(executions))
        return count

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()

    async def _prepare(self, connection: Any) -> None:
        """Create missing tables and indexes once; otherwise nothing is changed, because other processes use them."""
        async with self._preparing:
            if self._ready:
                return
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(7355608001)")  # two processes may start at once
                cursor = await connection.execute("SELECT to_regclass('noetl_results_execution') IS NULL")
                if (await cursor.fetchone())[0]:
                    for part in self.SCHEMA:
                        await connection.execute(part)
            self._ready = True

    async def _execute(self, statement: str, *values: Any) -> tuple[int, list[tuple[Any, ...]]]:
        import psycopg

        from noetl.connections.connection_pool import PoolExhausted
        from noetl.connections.postgres import to_error_info

        try:
            async with self._pool.connection(wait=60) as connection:
                if not self._ready:
                    await self._prepare(connection)
                cursor = connection.cursor(binary=True)
                await cursor.execute(statement.replace("?", "%s"), values)
                return cursor.rowcount, await cursor.fetchall() if cursor.description else []
        except (psycopg.Error, PoolExhausted) as problem:
            info, _ = to_error_info(problem)
            kind = info.kind if info.kind in ("auth", "storage.quota") else "connection"
            raise StoreUnavailable(f"result store in Postgres: {info.message}", kind=kind) from problem
