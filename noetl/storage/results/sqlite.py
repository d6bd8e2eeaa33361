"""Results in a SQLite file, for the processes of one machine."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from noetl.errors import StoreUnavailable
from noetl.runtime.private_files import ensure_private, private_folder
from noetl.storage.results.relational import RelationalResults

T = TypeVar("T")


class SqliteResults(RelationalResults):
    """A result store in one file, accessed from one thread; several processes may share it."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path)
        self.address = {"scheme": "sqlite", "host": socket.gethostname(), "database": str(self.path.absolute())}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noetl-results")
        self._connection: sqlite3.Connection | None = None

    async def _insert(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO noetl_results VALUES (?, ?, ?, 1)", (key, now, expires))
            connection.execute("INSERT INTO noetl_result_parts VALUES (?, 0, ?)", (key, block))

        await self._in_transaction(insert)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""

        def delete(connection: sqlite3.Connection) -> int:
            return connection.executemany(
                "DELETE FROM noetl_results WHERE key >= ? AND key < ? AND expires_at IS NULL",
                [(f"{each}/", f"{each}/\U0010ffff") for each in executions],
            ).rowcount

        return await self._in_transaction(delete)

    async def close(self) -> None:
        """Close the file and stop the thread."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._run(connection.close)
        self._thread.shutdown()

    async def _execute(self, statement: str, *values: Any) -> tuple[int, list[tuple[Any, ...]]]:
        def execute() -> tuple[int, list[tuple[Any, ...]]]:
            cursor = self._connected().execute(statement, values)
            return cursor.rowcount, cursor.fetchall()

        return await self._run(execute)

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
            if "full" in str(problem):
                what = f"result store {self.path}: the disk is full; free disk space and retry"
                raise StoreUnavailable(what, kind="storage.quota") from problem
            raise StoreUnavailable(f"result store {self.path}: {problem}", kind="storage.access") from problem

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            private_folder(self.path.parent)
            ensure_private(str(self.path))
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
