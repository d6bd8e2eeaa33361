"""The catalogue in the installation's SQLite file, beside the log that refers to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.storage.sqlite.database_file import SqliteFile

SCHEMA = (
    """
    CREATE TABLE playbook_texts(
      digest TEXT PRIMARY KEY,
      text TEXT NOT NULL,
      file TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE catalogue(
      path TEXT NOT NULL,
      version INTEGER NOT NULL,
      digest TEXT NOT NULL,
      registered_at REAL NOT NULL,
      PRIMARY KEY(path, version)
    ) WITHOUT ROWID
    """,
)

_SELECT = (
    "SELECT c.path, c.version, c.digest, t.text, c.registered_at, t.file FROM catalogue c "
    "JOIN playbook_texts t ON t.digest = c.digest"
)
_NEWEST = "c.version = (SELECT max(version) FROM catalogue n WHERE n.path = c.path)"


class SqlitePlaybookStore:
    """`ports.PlaybookStore` on a shared SQLite file."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._kept: set[str] = set()
        file.migrate("playbooks", SCHEMA)

    async def keep(self, digest: str, text: str, file: str) -> None:
        """Remember the text an execution runs; the same digest is kept once."""
        if digest in self._kept:
            return
        await self._file.write(lambda db: _keep(db, digest, text, file), len(text))
        self._kept.add(digest)

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""
        return await self._file.read(
            lambda db: db.execute("SELECT text, file FROM playbook_texts WHERE digest = ?", (digest,)).fetchone()
        )

    async def register(self, path: str, digest: str, text: str, at: float) -> StoredPlaybook:
        """A new version of a path (the same text again is the same version)."""

        def job(db: sqlite3.Connection) -> StoredPlaybook:
            _keep(db, digest, text, "")
            newest = db.execute(f"{_SELECT} WHERE c.path = ? AND {_NEWEST}", (path,)).fetchone()
            if newest and newest[2] == digest:
                return StoredPlaybook(*newest)
            version = newest[1] + 1 if newest else 1
            db.execute(
                "INSERT INTO catalogue(path, version, digest, registered_at) VALUES (?, ?, ?, ?)",
                (path, version, digest, at),
            )
            return StoredPlaybook(path=path, version=version, digest=digest, text=text, registered_at=at)

        return await self._file.write(job, len(text))

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """A version, or the newest."""

        def query(db: sqlite3.Connection) -> StoredPlaybook | None:
            if version is None:
                row = db.execute(f"{_SELECT} WHERE c.path = ? AND {_NEWEST}", (path,)).fetchone()
            else:
                row = db.execute(f"{_SELECT} WHERE c.path = ? AND c.version = ?", (path, version)).fetchone()
            return StoredPlaybook(*row) if row else None

        return await self._file.read(query)

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path, newest first; those older than `before`."""

        def query(db: sqlite3.Connection) -> Sequence[StoredPlaybook]:
            rows = db.execute(
                f"{_SELECT} WHERE c.path = ? AND c.version < ? ORDER BY c.version DESC LIMIT ?",
                (path, before or 2**62, limit),
            )
            return [StoredPlaybook(*row) for row in rows]

        return await self._file.read(query)

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path, by path."""
        pattern = "%" + (search or "").replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"

        def query(db: sqlite3.Connection) -> list[StoredPlaybook]:
            rows = db.execute(
                f"{_SELECT} WHERE {_NEWEST} AND c.path > ? AND c.path LIKE ? ESCAPE '\\' ORDER BY c.path LIMIT ?",
                (after or "", pattern, limit),
            )
            return [StoredPlaybook(*row) for row in rows]

        return await self._file.read(query)


def _keep(db: sqlite3.Connection, digest: str, text: str, file: str) -> None:
    db.execute(
        "INSERT INTO playbook_texts(digest, text, file) VALUES (?, ?, ?) ON CONFLICT(digest) DO NOTHING",
        (digest, text, file),
    )
