"""Credentials that several servers share, as encrypted rows in their Postgres database.

The database never receives a master key. Every server has the same keys (`NOETL_SECRET_KEY`, or copies of one file)
and reads them again when a row needs a key that it does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noetl.secrets.credentials.credential_rows import Keys, Row, opened_row, rewrapped, sealed_row
from noetl.secrets.master_key import KeyRing
from noetl.storage.postgres.database import PostgresDatabase

SCHEMA = (
    """
    CREATE TABLE noetl_credentials(
      name text PRIMARY KEY,
      type text NOT NULL,
      key_id text NOT NULL,
      wrapped bytea NOT NULL,
      sealed bytea NOT NULL
    )
    """,
)


class PostgresCredentialStore:
    """`ports.CredentialStore` for any number of servers; the caller closes the database."""

    def __init__(self, database: PostgresDatabase, ring: KeyRing | Callable[[], KeyRing]) -> None:
        self._database = database
        self._keys = Keys(ring)
        database.migrate("credentials", SCHEMA)

    @property
    def ring(self) -> KeyRing:
        """The master keys."""
        return self._keys.ring

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Encrypt and store a credential."""
        await self._database.execute(
            "INSERT INTO noetl_credentials VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO UPDATE SET "
            "type = excluded.type, key_id = excluded.key_id, wrapped = excluded.wrapped, sealed = excluded.sealed",
            *sealed_row(self._keys, name, type, data),
        )

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """The decrypted fields of a credential; None if it does not exist."""
        if "\x00" in name:
            return None
        row = await self._database.row(
            "SELECT name, type, key_id, wrapped, sealed FROM noetl_credentials WHERE name = $1", name
        )
        return None if row is None else opened_row(self._keys, Row(*row))

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        rows = await self._database.fetch('SELECT name, type FROM noetl_credentials ORDER BY name COLLATE "C"')
        return [(name, type) for name, type in rows]

    async def delete(self, name: str) -> bool:
        """Delete it; False if it does not exist."""
        if "\x00" in name:
            return False
        row = await self._database.row("DELETE FROM noetl_credentials WHERE name = $1 RETURNING name", name)
        return row is not None

    async def rewrap(self, ring: KeyRing) -> int:
        """Wrap every data key under the ring's current master key, in one transaction; return their number."""
        async with self._database.connection() as connection, connection.transaction():
            rows = await connection.fetch(
                "SELECT name, type, key_id, wrapped FROM noetl_credentials WHERE key_id <> $1 ORDER BY name FOR UPDATE",
                ring.current,
            )
            changed = rewrapped(ring, map(tuple, rows))
            await connection.executemany(
                "UPDATE noetl_credentials SET key_id = $1, wrapped = $2 WHERE name = $3", changed
            )
        self._keys.use(ring)
        return len(changed)

    async def import_rows(self, rows: Sequence[Row]) -> None:
        """Copy the rows of another store, except names that already exist."""
        async with self._database.connection() as connection:
            await connection.executemany(
                "INSERT INTO noetl_credentials VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING", rows
            )

    async def servers(self) -> int:
        """The number of servers with a recent heartbeat in this database."""
        row = await self._database.row("SELECT to_regclass('noetl_servers') IS NOT NULL")
        if not row[0]:
            return 0
        alive = await self._database.row(
            "SELECT count(*) FROM noetl_servers WHERE seen > now() - interval '30 seconds'"
        )
        return int(alive[0])

    async def close(self) -> None:
        """Do nothing: the store has no resources of its own."""
