"""The catalog in SQLite, in the file of the event log that refers to it."""

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
    """`ports.PlaybookStore` in a SQLite file that other stores share."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._stored: set[str] = set()  # digests
        file.migrate("playbooks", SCHEMA)

    async def save_text(self, digest: str, text: str, file: str) -> None:
        """Store the text of an execution's playbook, once per digest."""
        if digest in self._stored:
            return
        await self._file.write(lambda db: _insert_text(db, digest, text, file), len(text))
        self._stored.add(digest)

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""
        return await self._file.read(
            lambda db: db.execute("SELECT text, file FROM playbook_texts WHERE digest = ?", (digest,)).fetchone()
        )

    async def register(self, path: str, digest: str, text: str, at: float) -> StoredPlaybook:
        """Add a version of a path; an unchanged text is not a new version."""

        def job(db: sqlite3.Connection) -> StoredPlaybook:
            _insert_text(db, digest, text, "")
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
        """One version of a path; None is the newest."""

        def query(db: sqlite3.Connection) -> StoredPlaybook | None:
            if version is None:
                row = db.execute(f"{_SELECT} WHERE c.path = ? AND {_NEWEST}", (path,)).fetchone()
            else:
                row = db.execute(f"{_SELECT} WHERE c.path = ? AND c.version = ?", (path, version)).fetchone()
            return StoredPlaybook(*row) if row else None

        return await self._file.read(query)

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path before `before`, newest first."""

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


def _insert_text(db: sqlite3.Connection, digest: str, text: str, file: str) -> None:
    db.execute(
        "INSERT INTO playbook_texts(digest, text, file) VALUES (?, ?, ?) ON CONFLICT(digest) DO NOTHING",
        (digest, text, file),
    )
