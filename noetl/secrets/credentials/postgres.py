"""Credentials that several servers share: encrypted rows (`drivers/credential_rows.py`) in their Postgres database.

The database never sees a master key. Every server has the same keys (`NOETL_SECRET_KEY`, or copies of one file),
and one that meets a row under a key it has not got reads its keys again.
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
    """`ports.CredentialStore` for any number of servers; the database is closed by whoever opened it."""

    def __init__(self, database: PostgresDatabase, ring: KeyRing | Callable[[], KeyRing]) -> None:
        self._database = database
        self._keys = Keys(ring)
        database.migrate("credentials", SCHEMA)

    @property
    def ring(self) -> KeyRing:
        """The installation's keys."""
        return self._keys.ring

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Keep (encrypted)."""
        await self._database.execute(
            "INSERT INTO noetl_credentials VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO UPDATE SET "
            "type = excluded.type, key_id = excluded.key_id, wrapped = excluded.wrapped, sealed = excluded.sealed",
            *sealed_row(self._keys, name, type, data),
        )

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """Fields of a credential, decrypted, for the worker that needs it."""
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
        """Forget it; False when there was none."""
        if "\x00" in name:
            return False
        row = await self._database.row("DELETE FROM noetl_credentials WHERE name = $1 RETURNING name", name)
        return row is not None

    async def rewrap(self, ring: KeyRing) -> int:
        """Wrap every data key under the ring's current master key, in one transaction; how many there were."""
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

    async def take_over(self, rows: Sequence[Row]) -> None:
        """Keep what another store had, unless there is one of the same name."""
        async with self._database.connection() as connection:
            await connection.executemany(
                "INSERT INTO noetl_credentials VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING", rows
            )

    async def servers(self) -> int:
        """How many servers work on this database just now."""
        row = await self._database.row("SELECT to_regclass('noetl_servers') IS NOT NULL")
        if not row[0]:
            return 0
        alive = await self._database.row(
            "SELECT count(*) FROM noetl_servers WHERE seen > now() - interval '30 seconds'"
        )
        return int(alive[0])

    async def close(self) -> None:
        """Nothing of its own is open."""
