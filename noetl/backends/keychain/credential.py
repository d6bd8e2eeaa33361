"""`kind: credential`: this installation's own store, encrypted, in its SQLite file.

Each credential is JSON under a data key of its own (AES-256-GCM); the data key is wrapped by the master
key (`drivers/master_key.py`). Name and type are bound into both, so that a row cannot be passed off as
another one.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from noetl.drivers.master_key import BYTES, KeyRing, seal, unseal
from noetl.drivers.secret_source import Asked
from noetl.drivers.sqlite_file import SqliteFile
from noetl.errors import RequestRefused, SecretUnavailable

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


async def resolve(asked: Asked) -> Any:
    """The stored credential that the entry names (its own name, if it names none)."""
    name = str(asked.fields.get("credential") or asked.fields.get("key") or asked.name)
    try:
        return await asked.stored(name)
    except SecretUnavailable as missing:
        if name in missing.reasons and name != asked.name:
            raise asked.missing(f'"{name}": {missing.reasons[name]}', missing.kind) from missing
        raise


class SqliteCredentialStore:
    """`ports.CredentialStore` on a shared SQLite file; the master key is read when it is first needed."""

    def __init__(self, file: SqliteFile, ring: KeyRing | Callable[[], KeyRing]) -> None:
        self._file = file
        self._ring = ring
        file.migrate("credentials", SCHEMA)

    @property
    def ring(self) -> KeyRing:
        """The installation's keys."""
        if not isinstance(self._ring, KeyRing):
            self._ring = self._ring()
        return self._ring

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Keep (encrypted)."""
        if not name.strip() or len(name) > 200:
            raise RequestRefused("a credential needs a name of at most 200 characters")
        if not isinstance(data, Mapping) or not data:
            raise RequestRefused(f'credential "{name}": its data is a mapping of fields, and there are none')
        about = _about(name, type)
        data_key = secrets.token_bytes(BYTES)
        sealed = seal(data_key, msgspec.json.encode(dict(data)), about)
        key_id, wrapped = self.ring.wrap(data_key, about)
        row = (name, type, key_id, wrapped, sealed)
        await self._file.write(
            lambda db: db.execute("INSERT OR REPLACE INTO credentials VALUES (?, ?, ?, ?, ?)", row) and None,
            len(sealed),
        )

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """Fields of a credential, decrypted, for the worker that needs it."""
        row = await self._file.read(
            lambda db: db.execute(
                "SELECT type, key_id, wrapped, sealed FROM credentials WHERE name = ?", (name,)
            ).fetchone()
        )
        if row is None:
            return None
        type, key_id, wrapped, sealed = row
        about = _about(name, type)
        try:
            data_key = self.ring.unwrap(key_id, wrapped, about)
            fields: dict[str, Any] = msgspec.json.decode(unseal(data_key, sealed, about))
        except KeyError:
            raise SecretUnavailable(
                {name: f"it is encrypted under the master key {key_id}, which this installation does not have"}
            ) from None
        except ValueError as wrong:
            raise SecretUnavailable({name: f"the stored credential is damaged: {wrong}"}) from None
        return fields

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return await self._file.read(
            lambda db: [(name, type) for name, type in db.execute("SELECT name, type FROM credentials ORDER BY name")]
        )

    async def delete(self, name: str) -> bool:
        """Forget it; False when there was none."""
        return await self._file.write(
            lambda db: db.execute("DELETE FROM credentials WHERE name = ?", (name,)).rowcount > 0
        )

    async def rewrap(self, ring: KeyRing) -> int:
        """Wrap every data key under the ring's current master key, in one transaction; how many there were."""

        def job(db: sqlite3.Connection) -> int:
            rows = db.execute(
                "SELECT name, type, key_id, wrapped FROM credentials WHERE key_id <> ?", (ring.current,)
            ).fetchall()
            for name, type, key_id, wrapped in rows:
                about = _about(name, type)
                try:
                    data_key = ring.unwrap(key_id, wrapped, about)
                except (KeyError, ValueError):
                    raise RequestRefused(
                        f'credential "{name}" cannot be opened with the old master key; nothing was changed. '
                        "Bring the key back, or delete the credential"
                    ) from None
                new_id, again = ring.wrap(data_key, about)
                db.execute("UPDATE credentials SET key_id = ?, wrapped = ? WHERE name = ?", (new_id, again, name))
            return len(rows)

        changed = await self._file.write(job)
        self._ring = ring
        return changed

    async def close(self) -> None:
        """Let go of the file."""
        await self._file.close()


def _about(name: str, type: str) -> bytes:
    return msgspec.msgpack.encode(("noetl credential", 1, name, type))


class MemoryCredentialStore:
    """`ports.CredentialStore` that forgets everything with its process, for tests and simulation."""

    def __init__(self, credentials: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._kept: dict[str, tuple[str, dict[str, Any]]] = {
            name: (str(data.get("type", "")), dict(data)) for name, data in (credentials or {}).items()
        }

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Keep."""
        self._kept[name] = (type, dict(data))

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """Fields of a credential."""
        return self._kept[name][1] if name in self._kept else None

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return sorted((name, type) for name, (type, _) in self._kept.items())

    async def delete(self, name: str) -> bool:
        """Forget it; False when there was none."""
        return self._kept.pop(name, None) is not None
