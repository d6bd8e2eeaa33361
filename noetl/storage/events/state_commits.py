"""The state of playbooks as rows, changed in the transaction of an append or of a user's own commit.

All changes of one playbook are serialized: in SQLite by the writer, in Postgres by an advisory lock per path. A row
with the version of the change itself was written by an earlier attempt whose answer was lost.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from noetl.errors import StateConflict
from noetl.storage.document_checksums import with_checksum
from noetl.storage.ports.state import StateChange, StateCommit

LOCKS = 0x6E6F_7374  # class of the advisory locks, one lock per path

SQLITE = """
    CREATE TABLE state(
      path TEXT NOT NULL,
      key TEXT NOT NULL,
      version TEXT NOT NULL,
      data BLOB NOT NULL,
      updated_at REAL NOT NULL,
      execution TEXT,
      PRIMARY KEY(path, key)
    ) WITHOUT ROWID
"""
POSTGRES = """
    CREATE TABLE IF NOT EXISTS noetl_state(
      path text COLLATE "C" NOT NULL,
      key text COLLATE "C" NOT NULL,
      version text NOT NULL,
      data bytea NOT NULL,
      updated_at float8 NOT NULL,
      execution text,
      PRIMARY KEY(path, key)
    )
"""


def check_versions(commit: StateCommit, found: Mapping[str, str]) -> None:
    """Raise StateConflict unless every key has the version that the commit replaces; `found` has the stored ones."""
    for change in commit.changes:
        version = found.get(change.key)
        if version not in (change.expected, change.version):
            writer = f"by execution {version.rpartition('-')[0]}" if version and version[0].isdigit() else "by a user"
            what = f"state.{change.key} of {commit.path} was changed {writer}"
            if commit.execution_id is None:
                raise StateConflict(f"{what} in the meantime; nothing was set. Show it and try again")
            raise StateConflict(
                f"{what} after this execution had read it; nothing was committed. Run the playbook again"
            )


def _rows(commit: StateCommit) -> tuple[list[tuple[Any, ...]], list[tuple[str, str]]]:
    """The rows to write, and the keys to delete."""
    written = [
        (commit.path, change.key, change.version, _document(commit, change), commit.at, commit.execution_id)
        for change in commit.changes
        if change.data is not None
    ]
    return written, [(commit.path, change.key) for change in commit.changes if change.data is None]


def _document(commit: StateCommit, change: StateChange) -> bytes:
    assert change.data is not None
    return with_checksum(change.data, commit.path, change.key, change.version, commit.at, commit.execution_id)


# ── SQLite ──────────────────────────────────────────────────────────────────────────────


def check_in_sqlite(db: sqlite3.Connection, commit: StateCommit) -> None:
    """Compare the stored versions; nothing is changed."""
    found = dict(db.execute("SELECT key, version FROM state WHERE path = ?", (commit.path,)).fetchall())
    check_versions(commit, found)


def write_in_sqlite(db: sqlite3.Connection, commit: StateCommit) -> None:
    """Write a commit that was checked in the same transaction."""
    written, removed = _rows(commit)
    db.executemany(
        "INSERT INTO state(path, key, version, data, updated_at, execution) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (path, key) DO UPDATE SET version = excluded.version, data = excluded.data, "
        "updated_at = excluded.updated_at, execution = excluded.execution",
        written,
    )
    db.executemany("DELETE FROM state WHERE path = ? AND key = ?", removed)


# ── Postgres ────────────────────────────────────────────────────────────────────────────


async def lock_in_postgres(connection: Any, paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Lock the state of these playbooks until the end of the transaction; return the stored versions by path."""
    paths = sorted(set(paths))
    await connection.execute(
        "SELECT pg_advisory_xact_lock($1, k) FROM unnest($2::int4[]) AS k",
        LOCKS,
        sorted({zlib.crc32(path.encode()) - (1 << 31) for path in paths}),
    )
    found: dict[str, dict[str, str]] = {path: {} for path in paths}
    query = "SELECT path, key, version FROM noetl_state WHERE path = ANY($1::text[])"
    for path, key, version in await connection.fetch(query, paths):
        found[path][key] = version
    return found


async def write_in_postgres(connection: Any, commits: Sequence[StateCommit]) -> None:
    """Write commits that were checked in the same transaction."""
    for commit in commits:
        written, removed = _rows(commit)
        if written:
            await connection.executemany(
                "INSERT INTO noetl_state(path, key, version, data, updated_at, execution) "
                "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (path, key) DO UPDATE SET version = excluded.version, "
                "data = excluded.data, updated_at = excluded.updated_at, execution = excluded.execution",
                written,
            )
        if removed:
            await connection.executemany("DELETE FROM noetl_state WHERE path = $1 AND key = $2", removed)
