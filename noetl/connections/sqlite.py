"""SQLite databases of users: connections, values, errors. (The installation's own database is `storage/sqlite`.)"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.data.values import jsonable, unique_names
from noetl.runtime.resources import per_loop

TURN_S = 600.0  # two tasks with the same two files could wait for each other


def connect(path: str, busy: float = 5.0) -> sqlite3.Connection:
    """A connection that commits each statement by itself, unless a transaction is begun; for any thread."""
    if path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=busy, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


async def take_turn(path: str) -> asyncio.Lock:
    """Acquire the lock of this process for writing to a file, which the caller releases. Those that wait for the lock
    of the file itself occupy threads, which the one that has it needs to go on."""
    turn = per_loop(("sqlite turn", path), asyncio.Lock)
    try:
        async with asyncio.timeout(TURN_S):
            await turn.acquire()
    except TimeoutError:
        raise sqlite3.OperationalError(f"database is locked by other tasks for {TURN_S:g} s") from None
    return turn


def adapted(value: Any) -> Any:
    """A parameter as SQLite can bind it: structures as JSON text, whole numbers that it cannot hold as text."""
    import msgspec

    if isinstance(value, Mapping | list | tuple):
        return msgspec.json.encode(jsonable(value)).decode()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value if isinstance(value, int | float | str | bytes | None) else jsonable(value)


def columns_of(cursor: sqlite3.Cursor) -> list[str]:
    """The names of a result's columns, with a number where one comes twice."""
    return unique_names(str(column[0]) for column in cursor.description)


class Rows:
    """A chunk of a result."""

    def __init__(self, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns = columns
        self._rows = rows

    def count(self) -> int:
        """How many rows."""
        return len(self._rows)

    def size(self) -> int:
        """About how many bytes."""
        sample = self._rows[:: max(1, len(self._rows) // 8)]
        size = sum(len(value) if isinstance(value, str | bytes) else 8 for row in sample for value in row)
        return size * len(self._rows) // len(sample) if sample else 0

    def rows(self) -> list[dict[str, Any]]:
        """As plain JSON data."""
        return [dict(zip(self.columns, map(jsonable, row), strict=True)) for row in self._rows]

    def batch(self) -> Any:
        """As an Arrow batch, its types taken from these rows."""
        from noetl.data.arrow_tables import batch_of_mappings, inferred_schema

        rows = [dict(zip(self.columns, row, strict=True)) for row in self._rows]
        return batch_of_mappings(rows, inferred_schema(rows, self.columns))


def to_error_info(failure: Exception) -> ErrorInfo:
    """Convert an exception of SQLite to one of the error kinds."""
    text = str(failure)
    code = getattr(failure, "sqlite_errorname", None)
    details = {"code": code} if code else {}
    name = code or ""
    if isinstance(failure, sqlite3.IntegrityError) or name.startswith("SQLITE_CONSTRAINT"):
        kind = "db.constraint"
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        kind = "db.deadlock"
    elif name == "SQLITE_INTERRUPT":
        kind = "db.timeout"
    elif name == "SQLITE_FULL":
        kind = "storage.quota"
    elif name.startswith(
        ("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_IOERR")
    ):
        kind = "storage.access"
    elif name.startswith(("SQLITE_TOOBIG", "SQLITE_NOMEM")):
        kind = "limit"
    elif name == "SQLITE_MISMATCH":
        kind, text = "schema", f"{text}: a column that is INTEGER PRIMARY KEY holds only integers"
    elif isinstance(failure, sqlite3.DataError | sqlite3.InterfaceError):
        kind = "schema"
    elif "Could not decode to UTF-8" in text:
        kind, text = "parse", f"{text}: it is not text; read it with CAST(... AS BLOB)"
    elif isinstance(failure, sqlite3.OperationalError | sqlite3.ProgrammingError):
        kind = "db.syntax"
    else:
        kind = "unknown"
    return error_info(kind, text, details=details)
