"""Credentials as encrypted rows in SQLite or Postgres.

The database never receives a master key. Servers that share a database have the same keys (`NOETL_SECRET_KEY`, or
copies of one file) and read them again when a row needs a key that they do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noetl.secrets.credentials.credential_rows import Keys, Row, opened_row, rewrapped, sealed_row
from noetl.secrets.master_key import KeyRing
from noetl.storage.ports.sql import Schemas, SqlDatabase

SCHEMAS: Schemas = {
    "sqlite": (
        """
        CREATE TABLE credentials(
          name TEXT PRIMARY KEY,
          type TEXT NOT NULL,
          key_id TEXT NOT NULL,
          wrapped BLOB NOT NULL,
          sealed BLOB NOT NULL
        ) WITHOUT ROWID
        """,
    ),
    "postgres": (
        """
        CREATE TABLE noetl_credentials(
          name text PRIMARY KEY,
          type text NOT NULL,
          key_id text NOT NULL,
          wrapped bytea NOT NULL,
          sealed bytea NOT NULL
        )
        """,
    ),
}


class SqlCredentialStore:
    """`ports.CredentialStore` in a database, which the caller closes; the master key is read at first use."""

    def __init__(self, database: SqlDatabase, ring: KeyRing | Callable[[], KeyRing]) -> None:
        self._database = database
        self._table = f"{database.prefix}credentials"
        self._keys = Keys(ring)
        database.migrate("credentials", SCHEMAS[database.dialect])

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Encrypt and store a credential."""
        await self._database.execute(
            f"INSERT INTO {self._table} VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO UPDATE SET "
            "type = excluded.type, key_id = excluded.key_id, wrapped = excluded.wrapped, sealed = excluded.sealed",
            *sealed_row(self._keys, name, type, data),
        )

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """The decrypted fields of a credential; None if it does not exist."""
        if "\x00" in name:
            return None
        found = await self._select("WHERE name = $1", name)
        return opened_row(self._keys, found[0]) if found else None

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return sorted(
            (name, type) for name, type in await self._database.fetch(f"SELECT name, type FROM {self._table}")
        )

    async def delete(self, name: str) -> bool:
        """Delete it; False if it does not exist."""
        if "\x00" in name:
            return False
        return await self._database.execute(f"DELETE FROM {self._table} WHERE name = $1", name) > 0

    async def rewrap(self, ring: KeyRing) -> int:
        """Wrap every data key under the ring's current master key, in one transaction; return their number."""
        changed = rewrapped(ring, await self._select("WHERE key_id <> $1 ORDER BY name", ring.current))
        await self._database.execute_many(
            f"UPDATE {self._table} SET key_id = $1, wrapped = $2 WHERE name = $3 AND wrapped = $4", changed
        )
        self._keys.use(ring)
        return len(changed)

    async def rows(self) -> Sequence[Row]:
        """Every credential in its encrypted form, to be copied to another store."""
        return await self._select("")

    async def import_rows(self, rows: Sequence[Row]) -> None:
        """Copy the rows of another store, except names that already exist."""
        await self._database.execute_many(
            f"INSERT INTO {self._table} VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING", rows
        )

    async def _select(self, where: str, *values: object) -> Sequence[Row]:
        query = f"SELECT name, type, key_id, wrapped, sealed FROM {self._table} {where}"
        return [Row(*row) for row in await self._database.fetch(query, *values)]
