"""The target of a command: the store of this machine, or a server.

The target is a server if `--server` or a setting (`NOETL_SERVER_URL`) names one, or while a cluster of this
NOETL_HOME is running (`make cluster`), which has its own store; with `--store` it is always this machine.
Commands use a `Backend` and work the same way on both.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from noetl.cli.output.terminal import terminal

if TYPE_CHECKING:
    from noetl.cli.backend.base import Backend
    from noetl.client import Client
    from noetl.settings import Loaded, Settings

T = TypeVar("T")

store_option = click.option("--store", metavar="URL", help="Event store: sqlite:///FILE, a file's path, or memory:.")
server_option = click.option("--server", metavar="URL", help="Server to use instead of the store of this machine.")
token_option = click.option(
    "--token", metavar="TOKEN", help="Token for the server; prefer NOETL_TOKEN, which other users cannot see."
)


class Target(NamedTuple):
    """The options `--store`, `--server` and `--token` of a command."""

    store: str | None = None
    server: str | None = None
    token: str | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Backend]:
        """Open the back end; the embedded engine is opened without workers."""
        settings = self.settings()
        if self.is_remote(settings):
            from noetl.cli.backend.remote import RemoteBackend

            with self.client(settings) as client:
                yield RemoteBackend(client)
            return
        from noetl.cli.backend.local import LocalBackend
        from noetl.embedded import open_local

        terminal.detail(f"store {settings.store}")
        engine = await open_local(settings, work=False)
        try:
            yield LocalBackend(engine)
        finally:
            await engine.close()

    def call(self, operation: Callable[[Backend], Awaitable[T]]) -> T:
        """Open the back end, run one operation on it and return its result."""
        import asyncio

        async def run() -> T:
            async with self.open() as backend:
                return await operation(backend)

        return asyncio.run(run())

    def settings(self) -> Settings:
        """The settings, overridden by the options of the command."""
        return load_settings(store=self.store, server_url=self.server, token=self.token).settings

    def is_process_alive(self, execution_id: str) -> bool:
        """Whether the process that runs an execution of this machine is alive; True where that is not known."""
        from noetl.core.model.ids import process_of
        from noetl.storage.factory import open_process_locks

        owners = open_process_locks(self.settings().store)
        if owners is None:
            return True
        try:
            return not owners.acquire(process_of(execution_id))
        finally:
            owners.close()

    def has_server(self) -> bool:
        """Whether the target is a server, or one is running on this machine."""
        from noetl.runtime.process_table import ProcessTable

        settings = self.settings()
        return self.is_remote(settings) or bool(ProcessTable(settings.home).members("server"))

    def at_server(self) -> Target:
        """This target, or the server that is running on this machine instead of its store."""
        settings = self.settings()
        running = () if self.store is not None or self.is_remote(settings) else _running_servers(settings, "server")
        return self._replace(server=",".join(running)) if running else self

    def warn_if_orphaned(self, execution_id: str, status: str) -> None:
        """Warn that an unfinished execution has no process and has to be resumed."""
        settings = self.settings()
        if (
            status in ("pending", "running", "waiting", "paused")
            and not self.is_remote(settings)
            and not self.is_process_alive(execution_id)
        ):
            terminal.warn(f"the process that ran it has ended; `noetl resume {execution_id}` continues the execution")

    def is_remote(self, settings: Settings) -> bool:
        """Whether the target is a server."""
        if self.store is not None and self.server is not None:
            raise click.UsageError("--store and --server exclude each other: --store is a store of this machine")
        if self.store is not None:
            return False
        return settings.server_url is not None or bool(_running_servers(settings, "cluster-server"))

    def client(self, settings: Settings) -> Client:
        """A client of the server: the one that was given, else the one that is running on this machine."""
        from noetl.client import Client, server_settings

        running = _running_servers(settings, "cluster-server") or _running_servers(settings, "server")
        url, token = server_settings(settings.server_url or ",".join(running) or None, settings.token)
        terminal.detail(f"server {url}")
        return Client(url, token or "")


def load_settings(**options: Any) -> Loaded:
    """The settings, overridden by the options of a command; warnings about them are printed."""
    from noetl.settings import load

    loaded = load(options)
    for warning in loaded.warnings:
        terminal.warn(warning)
    return loaded


def _running_servers(settings: Settings, prefix: str) -> list[str]:
    """The addresses of servers that are running in this NOETL_HOME."""
    from noetl.runtime.process_table import ProcessTable

    return [member.url for member in ProcessTable(settings.home).members(prefix) if member.url]


def with_server(function: Any) -> Any:
    """Add `--server` and `--token` to a command, passed as one `target`."""

    @functools.wraps(function)
    def command(*, server: str | None, token: str | None, store: str | None = None, **others: Any) -> Any:
        return function(target=Target(store, server, token), **others)

    return server_option(token_option(command))


def with_target(function: Any) -> Any:
    """Add `--server`, `--token` and `--store` to a command, passed as one `target`."""
    return with_server(store_option(function))


def key_option(function: Any) -> Any:
    """Add `--key` to a command that changes something; it applies to the requests of this call only."""

    @functools.wraps(function)
    def command(*, key: str | None, **others: Any) -> Any:
        from noetl.transport.api_connection import COMMAND_KEY, CommandKey

        before = COMMAND_KEY.set(CommandKey(key) if key else None)
        try:
            return function(**others)
        finally:
            COMMAND_KEY.reset(before)

    return _key(command)


_key = click.option(
    "--key",
    metavar="TEXT",
    help="Idempotency key: a command that is repeated with the same key has its effect once.",
)
