"""Where a verb looks and acts: this machine's own store, or a server. Every verb asks here, and nowhere else.

A server is meant when `--server` names one, or a setting does (`NOETL_SERVER_URL`), or while a cluster of this
home runs (`noetl cluster start`), which has a store of its own; `--store` always means this machine. The verbs then
speak to a `Backend` and cannot tell the two apart.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from noetl.cli.output.terminal import terminal

if TYPE_CHECKING:
    from noetl.cli.backend.executions import Backend
    from noetl.client import Client
    from noetl.settings import Settings

T = TypeVar("T")

store_option = click.option("--store", metavar="URL", help="Event store: sqlite:///FILE, a file's path, or memory:.")
server_option = click.option("--server", metavar="URL", help="Server to ask instead of this machine's store.")
token_option = click.option("--token", metavar="TOKEN", help="Token for the server; NOETL_TOKEN is less visible.")


class Target(NamedTuple):
    """What a command line says about where."""

    store: str | None = None
    server: str | None = None
    token: str | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Backend]:
        """The desk of this place; the embedded one looks and steers, and never works."""
        settings = self.settings()
        if self.means_server(settings):
            from noetl.cli.backend.executions import RemoteBackend

            with self.client(settings) as client:
                yield RemoteBackend(client)
            return
        from noetl.cli.backend.executions import LocalBackend
        from noetl.embedded import open_local

        terminal.detail(f"store {settings.store}")
        engine = await open_local(settings, work=False)
        try:
            yield LocalBackend(engine)
        finally:
            await engine.close()

    def ask(self, question: Callable[[Backend], Awaitable[T]]) -> T:
        """What the desk of this place answers."""
        import asyncio

        async def asked() -> T:
            async with self.opened() as desk:
                return await question(desk)

        return asyncio.run(asked())

    def settings(self) -> Settings:
        """The settings with this command's flags over them."""
        from noetl.settings import load

        loaded = load({"store": self.store, "server_url": self.server, "token": self.token})
        for warning in loaded.warnings:
            terminal.warn(warning)
        return loaded.settings

    def runs(self, execution_id: str) -> bool:
        """Whether the process that works on an execution of this machine lives, as far as that can be known."""
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
        """Whether a server is meant, or one runs on this machine."""
        from noetl.runtime.process_table import ProcessTable

        settings = self.settings()
        return self.means_server(settings) or bool(ProcessTable(settings.home).members("server"))

    def say_if_left(self, execution_id: str, status: str) -> None:
        """An execution whose process died goes on when somebody resumes it: say so to who looks at it."""
        settings = self.settings()
        if (
            status in ("pending", "running", "paused")
            and not self.means_server(settings)
            and not self.runs(execution_id)
        ):
            terminal.warn(f"the process that ran it is gone; `noetl resume {execution_id}` goes on where it stopped")

    def means_server(self, settings: Settings) -> bool:
        """Whether a server is asked."""
        if self.store is not None and self.server is not None:
            raise click.UsageError("--store names this machine's own store and --server a server: give one of them")
        if self.store is not None:
            return False
        return settings.server_url is not None or bool(_running(settings, "cluster-server"))

    def client(self, settings: Settings) -> Client:
        """The line to the server: the one that was named, else the one that runs on this machine."""
        from noetl.client import Client, found_server

        running = _running(settings, "cluster-server") or _running(settings, "server")
        url, token = found_server(settings.server_url or ",".join(running) or None, settings.token)
        terminal.detail(f"server {url}")
        return Client(url, token or "")


def _running(settings: Settings, prefix: str) -> list[str]:
    """Addresses of servers that run in this home."""
    from noetl.runtime.process_table import ProcessTable

    return [member.url for member in ProcessTable(settings.home).members(prefix) if member.url]


def with_target(function: Any) -> Any:
    """`--server`, `--token` and `--store`, given to the verb as one `place`."""

    @functools.wraps(function)
    def verb(*, store: str | None, server: str | None, token: str | None, **others: Any) -> Any:
        return function(place=Target(store, server, token), **others)

    return server_option(token_option(store_option(verb)))
