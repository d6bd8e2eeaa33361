"""`kind: credential`: a stored credential. Also the credential stores in SQLite and in memory.

Stored credentials are encrypted (`credentials/credential_rows.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noetl.errors import SecretUnavailable
from noetl.secrets.credentials.credential_rows import Keys, Row, opened_row, rewrapped, sealed_row
from noetl.secrets.master_key import KeyRing
from noetl.secrets.source import SecretRequest
from noetl.storage.sqlite.database_file import SqliteFile

SCHEMA = (
    """
    CREATE TABLE credentials(
      name TEXT PRIMARY KEY,
      type TEXT NOT NULL,
      key_id TEXT NOT NULL,
      wrapped BLOB NOT NULL,
      sealed BLOB NOT NULL
    ) WITHOUT ROWID
    """,
)


async def resolve(request: SecretRequest) -> Any:
    """The stored credential that the entry names (default: the name of the entry)."""
    name = str(request.fields.get("credential") or request.fields.get("key") or request.name)
    try:
        return await request.stored(name)
    except SecretUnavailable as missing:
        if name in missing.reasons and name != request.name:
            raise request.unavailable(f'"{name}": {missing.reasons[name]}', missing.kind) from missing
        raise


class SqliteCredentialStore:
    """`ports.CredentialStore` in a SQLite file; the master key is read at first use."""

    def __init__(self, file: SqliteFile, ring: KeyRing | Callable[[], KeyRing]) -> None:
        self._file = file
        self._keys = Keys(ring)
        file.migrate("credentials", SCHEMA)

    @property
    def ring(self) -> KeyRing:
        """The master keys."""
        return self._keys.ring

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Encrypt and store a credential."""
        row = sealed_row(self._keys, name, type, data)
        await self._file.write(
            lambda db: db.execute("INSERT OR REPLACE INTO credentials VALUES (?, ?, ?, ?, ?)", row) and None,
            len(row.sealed),
        )

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """The decrypted fields of a credential; None if it does not exist."""
        row = await self._file.read(
            lambda db: db.execute(
                "SELECT name, type, key_id, wrapped, sealed FROM credentials WHERE name = ?", (name,)
            ).fetchone()
        )
        return None if row is None else opened_row(self._keys, Row(*row))

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return await self._file.read(
            lambda db: [(name, type) for name, type in db.execute("SELECT name, type FROM credentials ORDER BY name")]
        )

    async def delete(self, name: str) -> bool:
        """Delete it; False if it does not exist."""
        return await self._file.write(
            lambda db: db.execute("DELETE FROM credentials WHERE name = ?", (name,)).rowcount > 0
        )

    async def rewrap(self, ring: KeyRing) -> int:
        """Wrap every data key under the ring's current master key, in one transaction; return their number."""

        def job(db: sqlite3.Connection) -> int:
            rows = db.execute("SELECT name, type, key_id, wrapped FROM credentials WHERE key_id <> ?", (ring.current,))
            changed = rewrapped(ring, rows.fetchall())
            db.executemany("UPDATE credentials SET key_id = ?, wrapped = ? WHERE name = ?", changed)
            return len(changed)

        changed = await self._file.write(job)
        self._keys.use(ring)
        return changed

    async def rows(self) -> Sequence[Row]:
        """Every credential in its encrypted form, to be copied to another store."""
        return await self._file.read(
            lambda db: [Row(*row) for row in db.execute("SELECT name, type, key_id, wrapped, sealed FROM credentials")]
        )

    async def close(self) -> None:
        """Close the file."""
        await self._file.close()


class MemoryCredentialStore:
    """`ports.CredentialStore` in memory, for tests and simulation."""

    def __init__(self, credentials: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._credentials: dict[str, tuple[str, dict[str, Any]]] = {
            name: (str(data.get("type", "")), dict(data)) for name, data in (credentials or {}).items()
        }

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Store a credential."""
        self._credentials[name] = (type, dict(data))

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """The fields of a credential; None if it does not exist."""
        return self._credentials[name][1] if name in self._credentials else None

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return sorted((name, type) for name, (type, _) in self._credentials.items())

    async def delete(self, name: str) -> bool:
        """Delete it; False if it does not exist."""
        return self._credentials.pop(name, None) is not None
