"""The master keys of an installation, and their rotation.

A key ring has the current key first, followed by older keys. It is read from `NOETL_SECRET_KEY` (several keys
separated by commas) or from a file that only its owner can read. A key is
32 bytes as base64 or hex; any other text of 16 characters or more is a passphrase, derived with scrypt.

Every credential has a data key of its own, and the master key only wraps data keys. So a rotation
rewraps a few bytes per credential and decrypts no credential.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from noetl.errors import RequestRefused

VARIABLE = "NOETL_SECRET_KEY"
FILE = "master.key"
BYTES = 32
NONCE = 12
ID = 16  # characters of the id of a key


class KeyRing:
    """Master keys by id, the current one first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys = {key_id(key): key for key in keys}
        self.current = key_id(keys[0])

    def wrap(self, data_key: bytes, about: bytes) -> tuple[str, bytes]:
        """Wrap a data key with the current master key; return the id of that key and the result."""
        return self.current, seal(self.keys[self.current], data_key, about)

    def seal(self, data: bytes, about: bytes) -> bytes:
        """Encrypt data with the current master key, whose id comes first."""
        return self.current.encode() + seal(self.keys[self.current], data, about)

    def unseal(self, sealed: bytes, about: bytes) -> bytes:
        """Decrypt data of `seal`; ValueError if it was changed, or its master key is unknown."""
        key = self.keys.get(sealed[:ID].decode("latin-1"))
        if key is None:
            raise ValueError("decryption failed: the master key is unknown")
        return unseal(key, sealed[ID:], about)

    def unwrap(self, id: str, wrapped: bytes, about: bytes) -> bytes:
        """Unwrap a data key; KeyError if the master key is unknown, ValueError if it does not match."""
        return unseal(self.keys[id], wrapped, about)


def key_id(key: bytes) -> str:
    """An id that does not reveal the key."""
    return hashlib.sha256(b"noetl master key" + key).hexdigest()[:ID]


def seal(key: bytes, data: bytes, about: bytes) -> bytes:
    """Encrypt with AES-256-GCM, prefixed by the nonce; `about` is the associated data."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, data, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Decrypt sealed data; ValueError if it or its associated data was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
    except InvalidTag:
        raise ValueError("decryption failed: the data was changed or belongs to another entry") from None


def open_ring(home: Path, environment: Mapping[str, str]) -> KeyRing:
    """Read the master keys of an installation; create the key file at the first call."""
    given = environment.get(VARIABLE, "").strip()
    if given:
        return KeyRing([_read_key(text, VARIABLE) for text in given.split(",") if text.strip()])
    path = home / FILE
    try:
        return KeyRing(_read_file(path))
    except FileNotFoundError:
        return KeyRing(_create_file(path))


def add_key(home: Path, environment: Mapping[str, str]) -> KeyRing:
    """Add a new current key; RequestRefused if the keys are set in the environment."""
    if environment.get(VARIABLE, "").strip():
        raise RequestRefused(
            f"the master key is set in {VARIABLE}: put the new key before the old one (new,old), "
            "rotate, and then remove the old key"
        )
    path = home / FILE
    old = _read_file(path) if path.exists() else []
    keys = [secrets.token_bytes(BYTES), *old]
    _write_file(path, keys)
    return KeyRing(keys)


def remove_old_keys(home: Path, environment: Mapping[str, str]) -> None:
    """Remove the old keys, when no data key is wrapped with them any more."""
    if environment.get(VARIABLE, "").strip():
        return
    path = home / FILE
    _write_file(path, _read_file(path)[:1])


def _read_key(text: str, where: str) -> bytes:
    text = text.strip()
    with contextlib.suppress(ValueError):
        if len(text) == 2 * BYTES:
            return bytes.fromhex(text)
    with contextlib.suppress(binascii.Error, ValueError):
        decoded = base64.b64decode(
            text + "=" * (-len(text) % 4), altchars=b"-_" if set(text) & set("-_") else None, validate=True
        )
        if len(decoded) == BYTES:
            return decoded
    if len(text) < 16:
        raise RequestRefused(
            f"{where}: a key is 32 bytes as base64 or hex, or a passphrase of 16 characters or more; "
            'create one with: python -c "import secrets; print(secrets.token_hex(32))"'
        )
    return hashlib.scrypt(text.encode(), salt=b"noetl master key", n=2**15, r=8, p=1, maxmem=64 << 20, dklen=BYTES)


def _read_file(path: Path) -> list[bytes]:
    try:
        mode = path.stat().st_mode & 0o077
        lines = path.read_text().split()
    except PermissionError as failure:
        raise RequestRefused(f"cannot read the master key {path}: {failure.strerror}") from failure
    if mode:
        raise RequestRefused(f"the master key {path} is readable by other users; run: chmod 600 {path}")
    if not lines:
        raise RequestRefused(f"the master key {path} is empty; restore it from a backup")
    return [_read_key(line, str(path)) for line in lines]


def _create_file(path: Path) -> list[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    key = secrets.token_bytes(BYTES)
    temporary = path.with_name(f".{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    _write_file(temporary, [key])
    try:
        os.link(temporary, path)  # atomic: the first process wins, an existing file is not replaced
    except FileExistsError:
        return _read_file(path)
    finally:
        temporary.unlink()
    return [key]


def _write_file(path: Path, keys: Sequence[bytes]) -> None:
    """Replace the file atomically, readable by its owner only, and flushed to disk."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write("".join(f"{base64.b64encode(key).decode()}\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
