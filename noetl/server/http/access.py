"""Access control: tokens and roles.

A token is random text; only its SHA-256 is stored. The first start of a server writes an admin token to
`NOETL_HOME/admin.token` (mode 0600), which the command line on the same machine reads.

    viewer    reads everything except secrets
    operator  starts, cancels, pauses, signals and reruns executions
    author    registers playbooks
    admin     manages credentials and tokens
    worker    uses the worker protocol only (an admin may use it too)
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, structs

from noetl.core.model.roles import ROLES, Role
from noetl.errors import Conflict, RequestRefused
from noetl.runtime.private_files import private_folder
from noetl.server.dispatch.lease_proofs import LeaseProofs
from noetl.transport.signing import key_of, name_of

_INCLUDES: dict[Role, frozenset[Role]] = {
    "viewer": frozenset({"viewer"}),
    "operator": frozenset({"viewer", "operator"}),
    "author": frozenset({"viewer", "operator", "author"}),
    "admin": frozenset({"viewer", "operator", "author", "admin", "worker"}),
    "worker": frozenset({"worker"}),
}

TOKEN_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}"
ADMIN_FILE = "admin.token"
RESTORED_ADMIN = "admin-restored"  # the token that a restore creates
TOKENS_FILE = "tokens.json"
LEASE_KEY_FILE = "lease.key"
WORKER_FILE = "worker.token"
LOCAL_WORKERS = "local-workers"


class Token(Struct, frozen=True):
    """A token: name, role and digest."""

    name: str
    role: Role
    sha256: str
    pools: tuple[str, ...] = ()  # of a worker: the pools whose runs it may claim; none: all


class Caller(Struct, frozen=True):
    """The owner of the token of a request."""

    name: str
    role: Role
    pools: tuple[str, ...] = ()
    key: str = ""  # SHA-256 of the token

    def may(self, role: Role) -> bool:
        """Whether the caller's role includes this role."""
        return role in _INCLUDES[self.role]

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles that the caller's role includes."""
        return tuple(sorted(_INCLUDES[self.role]))


def caller_of(token: Token) -> Caller:
    """The owner of a token."""
    return Caller(token.name, token.role, token.pools, token.sha256)


class Tokens:
    """The tokens of an installation, stored in one file with mode 0600."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / TOKENS_FILE
        self._path = os.fspath(self._file)  # used by every request
        self._known: dict[str, Token] = {}
        self._stamp: tuple[int, int] | None = None
        self._proofs: LeaseProofs | None = None
        self._keys: dict[str, Token] = {}
        self._keys_of: dict[str, Token] | None = None

    @classmethod
    def prepare(cls, folder: Path) -> Tokens:
        """Open the token file; create the admin token if there is none."""
        restrict_folder(folder)
        tokens = cls(folder)
        if any(token.role == "admin" for token in tokens.all()):
            return tokens
        with tokens._locked():
            if not any(token.role == "admin" for token in tokens.all()):
                text = tokens._add("admin", "admin")
                _write_private(folder / ADMIN_FILE, text + "\n")
        return tokens

    def ensure_admin_file(self) -> bool:
        """Create another admin token for `admin.token` if it has no valid one, as after a restore; whether it did."""
        text = admin_token(self._folder)
        caller = self.caller(text) if text else None
        if caller is not None and caller.role == "admin":
            return False
        _write_private(self._folder / ADMIN_FILE, self.replace(RESTORED_ADMIN, "admin") + "\n")
        return True

    def all(self) -> list[Token]:
        """All tokens."""
        self._refresh()
        return list(self._known.values())

    @property
    def proofs(self) -> LeaseProofs:
        """The proofs of leases, with a random key of this installation that all its servers read."""
        if self._proofs is None:
            file = self._folder / LEASE_KEY_FILE
            with self._locked():
                if not file.exists():
                    _write_private(file, secrets.token_hex(32) + "\n")
                self._proofs = LeaseProofs(bytes.fromhex(file.read_text(encoding="ascii").strip()))
        return self._proofs

    def add(self, name: str, role: Role, pools: Sequence[str] = ()) -> str:
        """Create a token; its text is returned only here."""
        if role not in ROLES:
            raise RequestRefused(f"unknown role {role!r}; roles are {', '.join(ROLES)}")
        if pools and role != "worker":
            raise RequestRefused("only a token with the role worker has pools")
        with self._locked():
            return self._add(name, role, pools)

    def replace(self, name: str, role: Role) -> str:
        """Create a token in place of one of the same name."""
        with self._locked():
            self._write([token for token in self.all() if token.name != name])
            return self._add(name, role)

    def _add(self, name: str, role: Role, pools: Sequence[str] = ()) -> str:
        if any(token.name == name for token in self.all()):
            raise RequestRefused(f"a token named {name!r} already exists; remove it first")
        text = "noetl_" + secrets.token_urlsafe(32)
        token = Token(name=name, role=role, sha256=key_of(text), pools=tuple(pools))
        self._write([*self._known.values(), token])
        return text

    def remove(self, name: str) -> bool:
        """Delete a token; False if there was none. Conflict if it is the only one of an admin."""
        with self._locked():
            removed = next((token for token in self.all() if token.name == name), None)
            if removed is None:
                return False
            remaining = [token for token in self._known.values() if token is not removed]
            if removed.role == "admin" and not any(token.role == "admin" for token in remaining):
                raise Conflict(
                    f"{name} is the only admin token; create another one first: `noetl token create NAME --role admin`"
                )
            self._write(remaining)
        text = admin_token(self._folder)
        if text is not None and key_of(text) not in {token.sha256 for token in remaining}:
            (self._folder / ADMIN_FILE).unlink(missing_ok=True)  # the token is no longer valid
        return True

    def caller(self, text: str) -> Caller | None:
        """The owner of a token; None if it is unknown."""
        self._refresh()
        digest = key_of(text)
        token = self._known.get(digest)
        if token is None or not hmac.compare_digest(token.sha256, digest):
            return None
        return caller_of(token)

    def is_valid(self, caller: Caller) -> bool:
        """Whether the token of a request that takes long is still valid."""
        self._refresh()
        return caller.key in self._known

    def keys(self) -> dict[str, Token]:
        """The tokens by key name (`transport.signing`), for transports that must not carry tokens."""
        self._refresh()
        if self._keys_of is not self._known:
            self._keys = {name_of(token.sha256): token for token in self._known.values()}
            self._keys_of = self._known
        return self._keys

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the token file against other processes, so that a read and the following write are atomic."""
        private_folder(self._folder)
        descriptor = os.open(self._folder / f".{TOKENS_FILE}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._stamp = None  # two changes may have the same modification time
            yield
        finally:
            os.close(descriptor)

    def _write(self, tokens: Iterable[Token]) -> None:
        rows = [structs.asdict(token) for token in tokens]
        _write_private(self._file, json.dumps({"tokens": rows}, indent=2) + "\n")
        self._stamp = None

    def _refresh(self) -> None:
        """Reload the file if it changed: the command line adds tokens while a server runs."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            self._known, self._stamp = {}, None
            return
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        try:
            rows = json.loads(self._file.read_text(encoding="utf-8"))["tokens"]
            self._known = {
                row["sha256"]: Token(row["name"], row["role"], row["sha256"], tuple(row.get("pools", ())))
                for row in rows
            }
        except (ValueError, KeyError, TypeError) as problem:
            raise RequestRefused(f"{self._file} is damaged ({problem}); repair or remove it") from None
        self._stamp = stamp


def admin_token(folder: Path) -> str | None:
    """The admin token, for commands on the same machine."""
    try:
        return (folder / ADMIN_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def local_worker_token(folder: Path) -> str:
    """The token of the workers on this machine (mode 0600), created at first use: a worker needs no other role."""
    file = folder / WORKER_FILE
    tokens = Tokens(folder)
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        text = ""
    if not text or tokens.caller(text) is None:
        text = tokens.replace(LOCAL_WORKERS, "worker")
        _write_private(file, text + "\n")
    return text


def restrict_folder(folder: Path) -> None:
    """Create a folder that only its owner can read, whatever the umask; an existing one is restricted too."""
    private_folder(folder)
    if folder.stat().st_mode & 0o077 and folder.stat().st_uid == os.geteuid():
        folder.chmod(0o700)


def _write_private(file: Path, text: str) -> None:
    """Replace a file atomically; only its owner can read it at any time."""
    private_folder(file.parent)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
