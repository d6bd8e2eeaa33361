"""The catalog in SQLite or Postgres, in the database of the event log that refers to it."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.errors import RequestRefused
from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.storage.ports.sql import Schemas, SqlDatabase, like_pattern

SCHEMAS: Schemas = {
    "sqlite": (
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
    ),
    "postgres": (
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
    ),
}


class SqlPlaybookStore:
    """`ports.PlaybookStore` in a database that other stores share."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._texts, self._catalog = f"{database.prefix}playbook_texts", f"{database.prefix}catalogue"
        self._newest = f"c.version = (SELECT max(version) FROM {self._catalog} n WHERE n.path = c.path)"
        self._stored: set[str] = set()  # digests
        database.migrate("playbooks", SCHEMAS[database.dialect])

    async def save_text(self, digest: str, text: str, file: str) -> None:
        """Store the text of an execution's playbook, once per digest."""
        if digest in self._stored:
            return
        if "\x00" in text:
            raise RequestRefused("a playbook must not contain a NUL character")
        await self._database.execute(
            f"INSERT INTO {self._texts}(digest, text, file) VALUES ($1, $2, $3) ON CONFLICT (digest) DO NOTHING",
            digest,
            text,
            file,
        )
        self._stored.add(digest)

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""
        row = await self._database.row(f"SELECT text, file FROM {self._texts} WHERE digest = $1", digest)
        return (row[0], row[1]) if row else None

    async def register(self, path: str, digest: str, text: str, at: float) -> StoredPlaybook:
        """Add a version of a path; an unchanged text is not a new version."""
        await self.save_text(digest, text, "")
        while True:
            newest = await self.find(path)
            if newest is not None and newest.digest == digest:
                return newest
            version = newest.version + 1 if newest is not None else 1
            added = await self._database.execute(
                f"INSERT INTO {self._catalog}(path, version, digest, registered_at) VALUES ($1, $2, $3, $4) "
                "ON CONFLICT (path, version) DO NOTHING",
                path,
                version,
                digest,
                at,
            )
            if added:  # else another process has just added this version
                return StoredPlaybook(path=path, version=version, digest=digest, text=text, registered_at=at)

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """One version of a path; None is the newest."""
        if version is None:
            found = await self._select(f"c.path = $1 AND {self._newest}", path)
        else:
            found = await self._select("c.path = $1 AND c.version = $2", path, version)
        return found[0] if found else None

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path before `before`, newest first."""
        return await self._select(
            "c.path = $1 AND c.version < $2 ORDER BY c.version DESC LIMIT $3", path, before or 2**62, limit
        )

    async def _select(self, where: str, *values: object) -> list[StoredPlaybook]:
        rows = await self._database.fetch(
            f"SELECT c.path, c.version, c.digest, t.text, c.registered_at, t.file FROM {self._catalog} c "
            f"JOIN {self._texts} t ON t.digest = c.digest WHERE {where}",
            *values,
        )
        return [StoredPlaybook(*row) for row in rows]

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path, by path."""
        return await self._select(
            f"{self._newest} AND c.path > $1 AND c.path {self._database.like} $2 ESCAPE '\\' ORDER BY c.path LIMIT $3",
            after or "",
            like_pattern(search or ""),
            limit,
        )
