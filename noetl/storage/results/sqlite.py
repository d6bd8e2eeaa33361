"""The result database in a SQLite file, for the processes of one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from noetl.errors import StoreUnavailable
from noetl.storage.results.relational import ABANDONED

T = TypeVar("T")


class SqliteResultDatabase:
    """One file, accessed from one thread; several processes may share it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noetl-results")
        self._connection: sqlite3.Connection | None = None

    async def insert(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        """Store a payload of one block in one transaction."""

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO noetl_results VALUES (?, ?, ?, 1)", (key, now, expires))
            connection.execute("INSERT INTO noetl_result_parts VALUES (?, 0, ?)", (key, block))

        await self._in_transaction(insert)

    async def begin(self, key: str, now: float, expires: float | None) -> None:
        """Begin an unfinished payload."""
        await self._change("INSERT INTO noetl_results VALUES (?, ?, ?, 0)", (key, now, expires))

    async def add(self, key: str, part: int, block: bytes) -> None:
        """Store one block."""
        await self._change("INSERT INTO noetl_result_parts VALUES (?, ?, ?)", (key, part, block))

    async def finish(self, key: str) -> None:
        """Mark a payload as finished."""
        await self._change("UPDATE noetl_results SET finished = 1 WHERE key = ?", (key,))

    async def exists(self, key: str) -> bool:
        """Whether a finished payload has this key."""
        return await self._one("SELECT 1 FROM noetl_results WHERE key = ? AND finished = 1", (key,)) is not None

    async def part(self, key: str, part: int) -> bytes | None:
        """One block; None after the last."""
        row = await self._one("SELECT data FROM noetl_result_parts WHERE key = ? AND part = ?", (key, part))
        return row[0] if row else None

    async def delete(self, key: str) -> None:
        """Delete a payload and its blocks."""
        await self._change("DELETE FROM noetl_results WHERE key = ?", (key,))

    async def collect(self, now: float) -> int:
        """Delete expired and abandoned payloads; return the number of expired ones."""
        count = await self._change("DELETE FROM noetl_results WHERE finished = 1 AND expires_at <= ?", (now,))
        await self._change("DELETE FROM noetl_results WHERE finished = 0 AND created_at < ?", (now - ABANDONED,))
        return count

    async def delete_prefixes(self, prefixes: Sequence[str]) -> int:
        """Delete payloads without a ttl whose key begins with a prefix; return their number."""

        def delete(connection: sqlite3.Connection) -> int:
            return connection.executemany(
                "DELETE FROM noetl_results WHERE key >= ? AND key < ? AND expires_at IS NULL",
                [(prefix, prefix + "\U0010ffff") for prefix in prefixes],
            ).rowcount

        return await self._in_transaction(delete)

    async def close(self) -> None:
        """Close the file and stop the thread."""
        await self._run(self._disconnect)
        self._thread.shutdown()

    async def _change(self, statement: str, values: tuple[Any, ...]) -> int:
        return await self._run(lambda: self._connected().execute(statement, values).rowcount)

    async def _one(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = await self._run(lambda: self._connected().execute(statement, values).fetchone())
        return row

    async def _in_transaction(self, job: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = job(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise
            return result

        return await self._run(run)

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except (sqlite3.Error, OSError) as problem:
            full = "full" in str(problem)
            raise StoreUnavailable(
                f"result store {self.path}: {problem}", kind="storage.quota" if full else "storage.access"
            ) from problem

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            # A rollback journal: SQLite before 3.51.3 can corrupt a WAL that two processes write.
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
