"""Copies of SQLite files while other processes write them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from noetl.errors import CorruptLog, StoreUnavailable
from noetl.storage.backup.archive import PROBE

BUSY_SECONDS = 30.0


def copy_database(source: Path, target: Path) -> None:
    """Copy a database as of one moment; the copy is one file without a write-ahead log.

    SQLite's backup API reads all pages in one read transaction, which writers of a write-ahead log do not wait for."""
    try:
        with _reading(source) as reader, closing(sqlite3.connect(target, timeout=BUSY_SECONDS)) as writer:
            reader.backup(writer)
            writer.execute("PRAGMA journal_mode = DELETE")
            problems = [row[0] for row in writer.execute("PRAGMA integrity_check") if row[0] != "ok"]
    except sqlite3.Error as problem:
        raise StoreUnavailable(f"{source} cannot be copied: {problem}") from None
    if problems:
        raise CorruptLog(f"{source} is damaged: {problems[0]}; `noetl doctor --verify` lists the damaged executions")


def schema_versions(file: Path) -> dict[str, int]:
    """The schema version of each part; the file is not changed."""
    try:
        with _reading(file) as reader:
            rows = reader.execute("SELECT name, version FROM noetl_schema").fetchall()
    except sqlite3.Error as problem:
        raise StoreUnavailable(f"{file}: {problem}") from None
    return {str(name): int(version) for name, version in rows if name != PROBE}


def count_executions(file: Path) -> int:
    """The number of executions."""
    with _reading(file) as reader:
        return int(reader.execute("SELECT count(*) FROM executions").fetchone()[0])


def _reading(file: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS))
