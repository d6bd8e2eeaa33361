"""The keychain: resolves declared entries and stored credentials to values.

A kind is a module in `kinds/` with `async def resolve(request) -> text or mapping`. Entries may refer to each other in
fields and in templates (`{{ keychain.other }}`); a cycle is an error that shows its path. Values
exist in memory only. Values of secret managers are cached for a minute, so that a loop of a thousand tasks
does not send a thousand requests.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.core.model.bundle import split_bundle_file
from noetl.core.model.playbook import KeychainEntry
from noetl.core.templates.budget import Meter
from noetl.core.templates.paths import with_checked_paths
from noetl.core.templates.template import compile_value
from noetl.errors import NoetlError, RequestRefused, SecretUnavailable, TemplateError
from noetl.runtime.masking import Masker
from noetl.secrets.source import SecretRequest, one_or_all
from noetl.storage.factory import POSTGRES, open_stores
from noetl.storage.ports.secrets import CredentialStore

if TYPE_CHECKING:
    from noetl.secrets.credentials.store import SqlCredentialStore
    from noetl.secrets.master_key import KeyRing
    from noetl.storage.ports.sql import SqlDatabase
    from noetl.storage.postgres.database import PostgresDatabase
    from noetl.storage.sqlite.database_file import SqliteFile

KINDS = ("credential", "env", "file", "static", "secret_manager", "oauth2", "bearer")
ALIASES = {"secrets": "secret_manager", "secret": "secret_manager", "oauth": "oauth2"}
CREDENTIALS_FILE = "credentials.db"
CACHE_SECONDS = 60.0
_SECRET_FIELD = re.compile(r"_secret$|password|token$|(?<!secret_)key$|^data$|^auth$|^value$|assertion")


def kind_of(written: str) -> str | None:
    """The kind for a name or an alias; typed credentials (`postgres_credential`) are credentials."""
    if written.endswith(("_credential", "_oauth", "_service_account")):
        return "credential"
    written = ALIASES.get(written, written)
    return written if written in KINDS else None


def own_variables_are_private(name: str) -> bool:
    """The default policy for `env` entries: every variable except the settings of NoETL."""
    return not name.upper().startswith("NOETL_")


_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")


def no_kernel_files(path: str) -> bool:
    """The policy of an embedded engine for `file` entries: no file of the kernel, such as `/proc/self/environ`."""
    return not _is_inside(path, _KERNEL_FOLDERS)


def only_inside(folders: Sequence[str], home: Path) -> Callable[[str], bool]:
    """The policy of a shared server for `file` entries: files in these folders, but not in its home folder."""
    allowed = tuple(os.path.realpath(folder) for folder in folders)
    own = (os.path.realpath(home),)
    return lambda path: no_kernel_files(path) and _is_inside(path, allowed) and not _is_inside(path, own)


def _is_inside(path: str, folders: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in folders)


class InstallationKeychain:
    """`ports.Keychain`: declared entries by kind, other names as stored credentials."""

    def __init__(
        self,
        credentials: CredentialStore | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        allows_address: Callable[[str], bool] | None = None,
        allows_variable: Callable[[str], bool] = own_variables_are_private,
        allows_file: Callable[[str], bool] = no_kernel_files,
    ) -> None:
        self.credentials = credentials
        self._environment = os.environ if environment is None else environment
        self._allows_address = allows_address
        self._allows_variable = allows_variable
        self._allows_file = allows_file
        self._cache: dict[bytes, tuple[float, Any]] = {}
        self._expires = 0.0  # when expired values are looked for

    async def resolve(
        self,
        entries: Sequence[KeychainEntry],
        names: Sequence[str],
        *,
        workload: Mapping[str, Any] | None = None,
        file: str = "",
    ) -> dict[str, Any]:
        """The values of these names; SecretUnavailable lists every name without a value."""
        resolution = _Resolution(self, {entry.name: entry for entry in entries}, workload or {}, file)
        values: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        kind = "auth"
        for name in dict.fromkeys(names):
            try:
                values[name] = await resolution.value(name)
            except SecretUnavailable as missing:
                reasons |= missing.reasons
                kind = missing.kind
        if reasons:
            raise SecretUnavailable(reasons, kind=kind if len(reasons) == 1 else "auth")
        return values

    def keep(self, key: bytes, value: Any, now: float) -> None:
        """Cache a value of a secret manager, and forget those that have expired: fields may depend on the workload."""
        if now >= self._expires:
            self._expires = now + CACHE_SECONDS
            self._cache = {each: known for each, known in self._cache.items() if known[0] > now}
        self._cache[key] = (now + CACHE_SECONDS, value)

    async def close(self) -> None:
        """Clear the cache and close the credential store."""
        self._cache.clear()
        close = getattr(self.credentials, "close", None)
        if close is not None:
            await close()


class InstalledCredentials:
    """The encrypted credential store of an installation: in its Postgres database if it has one, else in a file in its
    home folder, which is opened at first use and created by the first write."""

    def __init__(
        self, home: Path, environment: Mapping[str, str] | None = None, database: PostgresDatabase | None = None
    ) -> None:
        self.home = home
        self.path = home / CREDENTIALS_FILE
        self._environment = os.environ if environment is None else environment
        self._database = database
        self._file: SqliteFile | None = None
        self._store: SqlCredentialStore | None = None if database is None else self._store_in(database)
        self._migrating = asyncio.Lock()

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Encrypt and store a credential."""
        await (await self._opened()).set(name, type, data)

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """The decrypted fields of a credential; None if it does not exist."""
        return await (await self._opened()).get(name) if self._exists() else None

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return await (await self._opened()).list() if self._exists() else []

    async def delete(self, name: str) -> bool:
        """Delete it; False if it does not exist."""
        return await (await self._opened()).delete(name) if self._exists() else False

    async def rotate(self) -> int:
        """Replace the master key; return the number of rewrapped credentials."""
        from noetl.secrets.master_key import FILE, VARIABLE, add_key, remove_old_keys

        store = await self._opened()
        if self._environment.get(VARIABLE, "").strip():
            ring = self._ring()  # new,old: the variable already has the new key first
        else:
            if await self._live_servers() > 1:
                raise RequestRefused(
                    f"several servers share these credentials, but the master key is in {self.home / FILE} on this "
                    f"machine only. Set {VARIABLE}=new,old on every server, restart them, rotate, then remove the "
                    "old key"
                )
            ring = add_key(self.home, self._environment)
        changed = await store.rewrap(ring)
        remove_old_keys(self.home, self._environment)
        return changed

    async def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            await self._file.close()

    def _exists(self) -> bool:
        return self._store is not None or self.path.exists()

    def _ring(self) -> KeyRing:
        from noetl.secrets.master_key import open_ring

        return open_ring(self.home, self._environment)

    async def _opened(self) -> SqlCredentialStore:
        if self._store is None:
            self._file = self._open_file()
            self._store = self._store_in(self._file)
        elif self._database is not None and self.path.exists():
            await self._migrate(self._store)
        return self._store

    def _store_in(self, database: SqlDatabase) -> SqlCredentialStore:
        from noetl.secrets.credentials.store import SqlCredentialStore

        return SqlCredentialStore(database, self._ring)

    def _open_file(self) -> SqliteFile:
        from noetl.storage.sqlite.database_file import SqliteFile

        return SqliteFile(str(self.path), readers=1)

    async def _migrate(self, store: SqlCredentialStore) -> None:
        """Copy the credentials of the file to the database, once, in their encrypted form."""
        async with self._migrating:
            if self.path.exists():
                file = self._open_file()
                try:
                    await store.import_rows(await self._store_in(file).rows())
                finally:
                    await file.close()
                self.path.rename(self.path.with_name(f"{CREDENTIALS_FILE}.moved"))

    async def _live_servers(self) -> int:
        """The number of servers with a recent heartbeat in the database."""
        if (
            self._database is None
            or not (await self._database.row("SELECT to_regclass('noetl_servers') IS NOT NULL"))[0]
        ):
            return 0
        query = "SELECT count(*) FROM noetl_servers WHERE seen > now() - interval '30 seconds'"
        return int((await self._database.row(query))[0])


class _Resolution:
    """One resolution of several names: the values found so far and the path of names in progress."""

    def __init__(
        self, keychain: InstallationKeychain, entries: dict[str, KeychainEntry], workload: Mapping[str, Any], file: str
    ) -> None:
        self.keychain = keychain
        self.entries = entries
        self.workload = workload
        # A bundle has no secrets: its playbooks read files of the machine of the server.
        self.folder = str(Path(file).parent) if file and split_bundle_file(file) is None else "."
        self.found: dict[str, Any] = {}
        self.meter = Meter()  # of the templates of all entries
        self.path: list[str] = []

    async def value(self, name: str) -> Any:
        if name in self.found:
            return self.found[name]
        if name in self.path:
            cycle = " -> ".join([*self.path[self.path.index(name) :], name])
            raise SecretUnavailable({name: f"circular reference: {cycle}"}, kind="schema")
        self.path.append(name)
        try:
            entry = self.entries.get(name)
            value = await (self.stored(name) if entry is None else self.declared(entry))
        except SecretUnavailable as missing:
            if name in missing.reasons:
                raise
            # Another entry caused the failure: name both.
            because = "; ".join(f'"{other}": {reason}' for other, reason in missing.reasons.items())
            raise SecretUnavailable({name: f"depends on {because}"}, kind=missing.kind) from missing
        finally:
            self.path.pop()
        self.found[name] = value
        return value

    async def stored(self, name: str) -> Any:
        store = self.keychain.credentials
        found = await store.get(name) if store is not None else None
        if found is None:
            raise SecretUnavailable(
                {name: f"no such keychain entry or stored credential; create one with: noetl credential set {name} ..."}
            )
        return one_or_all(found)

    async def declared(self, entry: KeychainEntry) -> Any:
        kind = kind_of(entry.kind)
        if kind is None:
            known = ", ".join(KINDS)
            raise SecretUnavailable(
                {entry.name: f'unknown keychain kind "{entry.kind}"; the kinds are {known}'}, kind="schema"
            )
        fields = {name: await self.rendered(entry, name, value) for name, value in entry.fields.items()}
        keychain = self.keychain
        request = SecretRequest(
            name=entry.name,
            fields=fields,
            environment=keychain._environment,
            folder=self.folder,
            other=self.value,
            is_entry=lambda text: text in self.entries and text != entry.name,
            stored=self.stored,
            allows_address=keychain._allows_address,
            allows_variable=keychain._allows_variable,
            allows_file=keychain._allows_file,
        )
        if kind != "secret_manager":
            return await self.resolve(kind, request)
        key = msgspec.msgpack.encode((entry.name, fields, self.folder))
        clock = asyncio.get_running_loop().time
        until, value = keychain._cache.get(key, (0.0, None))
        if clock() >= until:
            value = await self.resolve(kind, request)
            keychain.keep(key, value, clock())
        return value

    async def resolve(self, kind: str, request: SecretRequest) -> Any:
        try:
            return await import_module(f"noetl.secrets.kinds.{kind}").resolve(request)
        except SecretUnavailable as missing:
            raise self.masked(missing, request) from None
        except NoetlError as failure:
            unavailable = request.unavailable(str(failure), getattr(failure, "kind", "auth"))
            raise self.masked(unavailable, request) from None

    def masked(self, missing: SecretUnavailable, request: SecretRequest) -> SecretUnavailable:
        """The error without the values of the keychain: a server may repeat what it was sent."""
        secret = {name: value for name, value in request.fields.items() if _SECRET_FIELD.search(name)}
        masker = Masker([secret, *self.found.values()])
        return SecretUnavailable({name: masker.mask(why) for name, why in missing.reasons.items()}, kind=missing.kind)

    async def rendered(self, entry: KeychainEntry, field: str, value: Any) -> Any:
        """A field with its templates evaluated over the workload and other entries."""
        compiled = compile_value(value)
        if compiled.static:
            return value
        wanted = {
            parts[1]
            for parts in (name.split(".") for name in compiled.names)
            if parts[0] == "keychain" and len(parts) > 1
        }
        values = {name: await self.value(name) for name in sorted(wanted)}
        if field in ("path", "file"):
            compiled = compile_value(with_checked_paths(value))
        try:
            names = {**self.workload, "workload": self.workload, "keychain": values}
            return compiled.evaluate(names, meter=self.meter)
        except TemplateError as problem:
            raise SecretUnavailable(
                {entry.name: f"cannot render `{field}`: {problem.message}"}, kind="template"
            ) from problem


@asynccontextmanager
async def open_credentials(home: Path, url: str) -> AsyncIterator[InstalledCredentials]:
    """Open the credentials of an installation for the duration of the block."""
    events = open_stores(url)[0] if url.partition(":")[0] in POSTGRES else None
    credentials = InstalledCredentials(home, database=getattr(events, "database", None))
    try:
        yield credentials
    finally:
        await credentials.close()
        if events is not None:
            await events.close()
