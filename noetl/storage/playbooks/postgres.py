"""The catalog in Postgres, in the database of the event log that refers to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl.errors import RequestRefused
from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.storage.postgres.database import PostgresDatabase

SCHEMA = (
    """
    CREATE TABLE noetl_playbook_texts(digest text PRIMARY KEY, text text NOT NULL, file text NOT NULL);
    CREATE TABLE noetl_catalogue(
      path text COLLATE "C" NOT NULL,
      version int8 NOT NULL,
      digest text NOT NULL,
      registered_at float8 NOT NULL,
      PRIMARY KEY(path, version)
    )
    """,
)

_SELECT = (
    "SELECT c.path, c.version, c.digest, t.text, c.registered_at, t.file FROM noetl_catalogue c "
    "JOIN noetl_playbook_texts t ON t.digest = c.digest"
)
_NEWEST = "c.version = (SELECT max(version) FROM noetl_catalogue n WHERE n.path = c.path)"
_INSERT_TEXT = (
    "INSERT INTO noetl_playbook_texts(digest, text, file) VALUES ($1, $2, $3) ON CONFLICT (digest) DO NOTHING"
)


class PostgresPlaybookStore:
    """`ports.PlaybookStore` in a Postgres database that other stores share."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._stored: set[str] = set()  # digests
        database.migrate("playbooks", SCHEMA)

    async def save_text(self, digest: str, text: str, file: str) -> None:
        """Store the text of an execution's playbook, once per digest."""
        if digest not in self._stored:
            await self._database.execute(_INSERT_TEXT, digest, _storable(text), file)
            self._stored.add(digest)

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""
        row = await self._database.row("SELECT text, file FROM noetl_playbook_texts WHERE digest = $1", digest)
        return (row[0], row[1]) if row else None

    async def register(self, path: str, digest: str, text: str, at: float) -> StoredPlaybook:
        """Add a version of a path; an unchanged text is not a new version."""
        async with self._database.connection() as connection, connection.transaction():
            # Concurrent registrations of a path wait here, so that version numbers have no gaps.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 7))", path)
            await connection.execute(_INSERT_TEXT, digest, _storable(text), "")
            newest = await connection.fetchrow(f"{_SELECT} WHERE c.path = $1 AND {_NEWEST}", path)
            if newest and newest["digest"] == digest:
                return _stored(newest)
            version = newest["version"] + 1 if newest else 1
            await connection.execute(
                "INSERT INTO noetl_catalogue(path, version, digest, registered_at) VALUES ($1, $2, $3, $4)",
                path,
                version,
                digest,
                float(at),
            )
        return StoredPlaybook(path=path, version=version, digest=digest, text=text, registered_at=at)

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """One version of a path; None is the newest."""
        if version is None:
            row = await self._database.row(f"{_SELECT} WHERE c.path = $1 AND {_NEWEST}", path)
        else:
            row = await self._database.row(f"{_SELECT} WHERE c.path = $1 AND c.version = $2", path, version)
        return _stored(row) if row else None

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path before `before`, newest first."""
        rows = await self._database.fetch(
            f"{_SELECT} WHERE c.path = $1 AND c.version < $2 ORDER BY c.version DESC LIMIT $3",
            path,
            before or 2**62,
            limit,
        )
        return [_stored(row) for row in rows]

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path, by path."""
        pattern = "%" + (search or "").replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = await self._database.fetch(
            f"{_SELECT} WHERE {_NEWEST} AND c.path > $1 AND c.path ILIKE $2 ORDER BY c.path LIMIT $3",
            after or "",
            pattern,
            limit,
        )
        return [_stored(row) for row in rows]


def _stored(row: Any) -> StoredPlaybook:
    return StoredPlaybook(*tuple(row))


def _storable(text: str) -> str:
    if "\x00" in text:
        raise RequestRefused("a playbook must not contain a NUL character")
    return text
