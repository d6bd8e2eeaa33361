"""Encrypted database rows of credentials, independent of the database.

Each credential is JSON, encrypted with a data key of its own (AES-256-GCM); the data key is wrapped by the master
key (`secrets/master_key.py`). Name and type are authenticated in both, so that a row cannot be exchanged for
another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from noetl.errors import RequestRefused, SecretUnavailable
from noetl.secrets.master_key import BYTES, KeyRing, seal, unseal


class Row(NamedTuple):
    """One credential, encrypted."""

    name: str
    type: str
    key_id: str
    wrapped: bytes
    sealed: bytes


class Keys:
    """The master keys of an installation, read at first use and again when a key is missing."""

    def __init__(self, ring: KeyRing | Callable[[], KeyRing]) -> None:
        self._read = ring if callable(ring) else None
        self._ring = None if callable(ring) else ring

    @property
    def ring(self) -> KeyRing:
        """The current key ring."""
        if self._ring is None:
            assert self._read is not None
            self._ring = self._read()
        return self._ring

    def use(self, ring: KeyRing) -> None:
        """Replace the key ring."""
        self._ring = ring

    def with_key(self, key_id: str) -> KeyRing:
        """The key ring, read again if it lacks this key, because another process may have rotated it."""
        if key_id not in self.ring.keys and self._read is not None:
            self._ring = self._read()
        return self.ring


def sealed_row(keys: Keys, name: str, type: str, data: Mapping[str, Any]) -> Row:
    """Encrypt a credential with a new data key; RequestRefused if it is invalid."""
    if not name.strip() or len(name) > 200 or "\x00" in name + type:
        raise RequestRefused("a credential needs a name of at most 200 characters")
    if not isinstance(data, Mapping) or not data:
        raise RequestRefused(f'credential "{name}": the data must be a mapping with at least one field')
    about = _about(name, type)
    data_key = secrets.token_bytes(BYTES)
    sealed = seal(data_key, msgspec.json.encode(dict(data)), about)
    key_id, wrapped = keys.ring.wrap(data_key, about)
    return Row(name, type, key_id, wrapped, sealed)


def opened_row(keys: Keys, row: Row) -> dict[str, Any]:
    """Decrypt the fields of a credential; SecretUnavailable if that is not possible."""
    about = _about(row.name, row.type)
    try:
        data_key = keys.with_key(row.key_id).unwrap(row.key_id, row.wrapped, about)
        fields: dict[str, Any] = msgspec.json.decode(unseal(data_key, row.sealed, about))
    except KeyError:
        raise SecretUnavailable(
            {row.name: f"encrypted with the master key {row.key_id}, which this installation does not have"}
        ) from None
    except ValueError as wrong:
        raise SecretUnavailable({row.name: f"the stored credential is damaged: {wrong}"}) from None
    return fields


def rewrapped(ring: KeyRing, rows: Iterable[Row]) -> list[tuple[str, bytes, str, bytes]]:
    """Wrap the data keys of rows with the current key; return (key id, wrapped, name, wrapped before)."""
    changed = []
    for row in rows:
        about = _about(row.name, row.type)
        try:
            data_key = ring.unwrap(row.key_id, row.wrapped, about)
        except (KeyError, ValueError):
            raise RequestRefused(
                f'credential "{row.name}" cannot be decrypted with the old master key; nothing was changed. '
                "Restore the key, or delete the credential"
            ) from None
        changed.append((*ring.wrap(data_key, about), row.name, row.wrapped))
    return changed


def _about(name: str, type: str) -> bytes:
    return msgspec.msgpack.encode(("noetl credential", 1, name, type))
