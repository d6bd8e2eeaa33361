"""Results as rows of a database: SQLite for one machine, Postgres for many.

A payload is a row of `noetl_results` and its blocks are rows of `noetl_result_parts`, a megabyte each
(less where they are compressed). The row is marked finished after the last block, so half a payload
cannot be read; what never finished is cleared away a day later.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import PayloadUnavailable, RequestRefused, StoreUnavailable
from noetl.storage.results.payload_store import BLOCK, Packing, PayloadStore, missing

ABANDONED = 24 * 3600

T = TypeVar("T")


class Database(Protocol):
    """The few things that differ between databases."""

    async def keep(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        """Keep a payload of one block, all at once."""

    async def begin(self, key: str, now: float, expires: float | None) -> None:
        """Note that a payload is being written."""

    async def add(self, key: str, part: int, block: bytes) -> None:
        """Keep one block."""

    async def finish(self, key: str) -> None:
        """From now on it can be read; returns when that is on disk."""

    async def is_there(self, key: str) -> bool:
        """Whether it is finished and not deleted."""

    async def part(self, key: str, part: int) -> bytes | None:
        """One block; None after the last."""

    async def delete(self, key: str) -> None:
        """Forget a payload and its blocks."""

    async def collect(self, now: float) -> int:
        """Delete what has expired (counted) and what was never finished."""

    async def forget(self, prefixes: Sequence[str]) -> int:
        """Delete what has no ttl and a key that begins so; how many."""

    async def close(self) -> None:
        """Let go."""


class RelationalResults(PayloadStore):
    """Result store in a database."""

    type: ClassVar[ReferenceType] = "relational"

    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(**options)
        self.database = database

    async def _keep(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        blocks = packing.blocks()
        first, second = await anext(blocks, b""), await anext(blocks, None)
        if second is None:
            await self.database.keep(key, now, expires, first)
        else:
            await self.database.begin(key, now, expires)
            try:
                await self.database.add(key, 0, first)
                await self.database.add(key, 1, second)
                part = 2
                async for block in blocks:
                    await self.database.add(key, part, block)
                    part += 1
                await self.database.finish(key)
            except BaseException:
                await self.database.delete(key)
                raise
        return {"table": "noetl_results", "key": key}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        if not await self.database.is_there(key):
            raise missing(key, reference)
        # Without compression every block but the last is BLOCK bytes, so we know where to begin.
        part, skip = divmod(start, BLOCK)
        left = count
        while left is None or left > 0:
            block = await self.database.part(key, part)
            if block is None:
                return
            piece = block[skip:] if left is None else block[skip : skip + left]
            if left is not None:
                left -= len(piece)
            yield piece
            part, skip = part + 1, 0

    async def delete(self, reference: Reference) -> None:
        """Forget it; one that is gone already is no error."""
        await self.database.delete(self._key(reference))

    async def collect(self, now: float) -> int:
        """Delete what has outlived its ttl; how many."""
        return await self.database.collect(now)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete what these executions stored without a ttl; how many."""
        return await self.database.forget([f"{each}/" for each in executions])

    async def close(self) -> None:
        """Let go of the database."""
        await self.database.close()

    def _key(self, reference: Reference) -> str:
        key = reference.locator.get("key")
        if reference.type != "relational" or not isinstance(key, str):
            raise PayloadUnavailable(f"this is not a reference to a stored row: {reference.type} {reference.locator}")
        return key


def open_relational(url: str, **options: Any) -> RelationalResults:
    """The store of a `sqlite:` or `postgresql:` URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.netloc + parts.path)
        if not path.strip("/"):
            raise RequestRefused("a sqlite: URL names a file, as in sqlite:///var/lib/noetl/results.db")
        return RelationalResults(SqliteDatabase(path), **options)
    return RelationalResults(PostgresDatabase(url), **options)


class SqliteDatabase:
    """A file, reached from one thread; several processes may share it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noetl-results")
        self._connection: sqlite3.Connection | None = None

    async def keep(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        """Keep a payload of one block, all at once."""

        def keep() -> None:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute("INSERT INTO noetl_results VALUES (?, ?, ?, 1)", (key, now, expires))
                connection.execute("INSERT INTO noetl_result_parts VALUES (?, 0, ?)", (key, block))
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise

        await self._do(keep)

    async def begin(self, key: str, now: float, expires: float | None) -> None:
        """Note that a payload is being written."""
        await self._change("INSERT INTO noetl_results VALUES (?, ?, ?, 0)", (key, now, expires))

    async def add(self, key: str, part: int, block: bytes) -> None:
        """Keep one block."""
        await self._change("INSERT INTO noetl_result_parts VALUES (?, ?, ?)", (key, part, block))

    async def finish(self, key: str) -> None:
        """From now on it can be read."""
        await self._change("UPDATE noetl_results SET finished = 1 WHERE key = ?", (key,))

    async def is_there(self, key: str) -> bool:
        """Whether it is finished and not deleted."""
        return await self._one("SELECT 1 FROM noetl_results WHERE key = ? AND finished = 1", (key,)) is not None

    async def part(self, key: str, part: int) -> bytes | None:
        """One block; None after the last."""
        row = await self._one("SELECT data FROM noetl_result_parts WHERE key = ? AND part = ?", (key, part))
        return row[0] if row else None

    async def delete(self, key: str) -> None:
        """Forget a payload and its blocks."""
        await self._change("DELETE FROM noetl_results WHERE key = ?", (key,))

    async def collect(self, now: float) -> int:
        """Delete what has expired (counted) and what was never finished."""
        count = await self._change("DELETE FROM noetl_results WHERE finished = 1 AND expires_at <= ?", (now,))
        await self._change("DELETE FROM noetl_results WHERE finished = 0 AND created_at < ?", (now - ABANDONED,))
        return count

    async def forget(self, prefixes: Sequence[str]) -> int:
        """Delete what has no ttl and a key that begins so; how many."""

        def forget() -> int:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                changed = connection.executemany(
                    "DELETE FROM noetl_results WHERE key >= ? AND key < ? AND expires_at IS NULL",
                    [(prefix, prefix + "\U0010ffff") for prefix in prefixes],
                ).rowcount
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise
            return changed

        return await self._do(forget)

    async def close(self) -> None:
        """Let go of the file and of the thread."""
        await self._do(self._disconnect)
        self._thread.shutdown()

    async def _change(self, statement: str, values: tuple[Any, ...]) -> int:
        def change() -> int:
            return self._connected().execute(statement, values).rowcount

        return await self._do(change)

    async def _one(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        def one() -> tuple[Any, ...] | None:
            row: tuple[Any, ...] | None = self._connected().execute(statement, values).fetchone()
            return row

        return await self._do(one)

    async def _do(self, deed: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, deed)
        except (sqlite3.Error, OSError) as problem:
            full = "full" in str(problem)
            raise StoreUnavailable(
                f"the result store {self.path}: {problem}", kind="storage.quota" if full else "storage.access"
            ) from problem

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            # A rollback journal: releases of SQLite before 3.51.3 may damage a WAL that two processes write.
            for setting in ("journal_mode=TRUNCATE", "synchronous=FULL", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {setting}").fetchall()
            connection.execute(
                "CREATE TABLE IF NOT EXISTS noetl_results "
                "(key TEXT PRIMARY KEY, created_at REAL NOT NULL, expires_at REAL, finished INTEGER NOT NULL)"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS noetl_results_expire ON noetl_results (expires_at)")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS noetl_result_parts "
                "(key TEXT NOT NULL REFERENCES noetl_results ON DELETE CASCADE, part INTEGER NOT NULL, "
                "data BLOB NOT NULL, PRIMARY KEY (key, part))"
            )
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresDatabase:
    """Tables of a Postgres database, made at first use."""

    _SCHEMA = (
        "CREATE TABLE IF NOT EXISTS noetl_results (key text PRIMARY KEY, created_at double precision NOT NULL, "
        "expires_at double precision, finished boolean NOT NULL)",
        "CREATE INDEX IF NOT EXISTS noetl_results_expire ON noetl_results (expires_at)",
        "CREATE TABLE IF NOT EXISTS noetl_result_parts (key text NOT NULL REFERENCES noetl_results ON DELETE CASCADE, "
        "part integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (key, part))",
        # The blocks are compressed already where that pays.
        "ALTER TABLE noetl_result_parts ALTER COLUMN data SET STORAGE EXTERNAL",
    )

    def __init__(self, dsn: str, *, connections: int = 4) -> None:
        from noetl.connections.postgres import conninfo, own_pool

        self._info = conninfo({"dsn": dsn})
        self._pool = own_pool(self._info, size=connections)
        self._ready = False
        self._preparing = asyncio.Lock()

    async def keep(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        """Keep a payload of one block, all at once."""
        await self._do(
            "WITH kept AS (INSERT INTO noetl_results VALUES (%s, %s, %s, true) RETURNING key) "
            "INSERT INTO noetl_result_parts SELECT key, 0, %b FROM kept",
            (key, now, expires, block),
        )

    async def begin(self, key: str, now: float, expires: float | None) -> None:
        """Note that a payload is being written."""
        await self._do("INSERT INTO noetl_results VALUES (%s, %s, %s, false)", (key, now, expires))

    async def add(self, key: str, part: int, block: bytes) -> None:
        """Keep one block."""
        await self._do("INSERT INTO noetl_result_parts VALUES (%s, %s, %b)", (key, part, block))

    async def finish(self, key: str) -> None:
        """From now on it can be read."""
        await self._do("UPDATE noetl_results SET finished = true WHERE key = %s", (key,))

    async def is_there(self, key: str) -> bool:
        """Whether it is finished and not deleted."""
        return bool((await self._do("SELECT 1 FROM noetl_results WHERE key = %s AND finished", (key,)))[1])

    async def part(self, key: str, part: int) -> bytes | None:
        """One block; None after the last."""
        _, rows = await self._do("SELECT data FROM noetl_result_parts WHERE key = %s AND part = %s", (key, part))
        return rows[0][0] if rows else None

    async def delete(self, key: str) -> None:
        """Forget a payload and its blocks."""
        await self._do("DELETE FROM noetl_results WHERE key = %s", (key,))

    async def collect(self, now: float) -> int:
        """Delete what has expired (counted) and what was never finished."""
        count, _ = await self._do("DELETE FROM noetl_results WHERE finished AND expires_at <= %s", (now,))
        await self._do("DELETE FROM noetl_results WHERE NOT finished AND created_at < %s", (now - ABANDONED,))
        return count

    async def forget(self, prefixes: Sequence[str]) -> int:
        """Delete what has no ttl and a key that begins so; how many."""
        count, _ = await self._do(
            "DELETE FROM noetl_results WHERE split_part(key, '/', 1) || '/' = ANY(%s) AND expires_at IS NULL",
            (list(prefixes),),
        )
        return count

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()

    async def _prepare(self, connection: Any) -> None:
        """Make the tables, once: tables that are there are not touched, since others may be at work in them."""
        async with self._preparing:
            if self._ready:
                return
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(7355608001)")  # two processes may come first
                cursor = await connection.execute("SELECT to_regclass('noetl_result_parts') IS NULL")
                if (await cursor.fetchone())[0]:
                    for part in self._SCHEMA:
                        await connection.execute(part)
            self._ready = True

    async def _do(self, statement: str, values: tuple[Any, ...]) -> tuple[int, list[tuple[Any, ...]]]:
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
            raise StoreUnavailable(f"the result store in Postgres: {info.message}", kind=kind) from problem
