"""Credentials of this installation or of a server: kept encrypted, never shown again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.target import Target, server_option, token_option

if TYPE_CHECKING:
    from noetl.client import Client
    from noetl.storage.ports.secrets import CredentialStore

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
MAX_DATA = 1024 * 1024


@click.group()
def credential() -> None:
    """Keep credentials that playbooks ask for by name."""


@credential.command("set")
@click.argument("name")
@click.option("--type", "type_", default="generic", show_default=True, help="What it is for: postgres, http, s3, ...")
@click.option("--data", required=True, metavar="JSON|@FILE|-", help="Its fields; - reads them from stdin.")
@server_option
@token_option
@talk
def set_(name: str, type_: str, data: str, server: str | None, token: str | None) -> None:
    """Keep a credential under NAME, in place of one of the same name.

    Shells remember what was typed: give secrets by @FILE or through a pipe.
    """
    if not NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} is no name: letters, digits, _ . and -, not a digit first", param_hint="NAME"
        )
    fields = _fields(data)

    async def keep() -> None:
        async with _store(Target(server=server, token=token)) as store:
            await store.set(name, type_, fields)

    asyncio.run(keep())
    terminal.note(f"credential {name} ({type_}) is kept")


@credential.command("list")
@server_option
@token_option
@as_json
@talk
def list_(server: str | None, token: str | None, as_json: bool) -> None:
    """List names and types; values are never shown."""

    async def listed() -> list[tuple[str, str]]:
        async with _store(Target(server=server, token=token)) as store:
            return await store.list()

    found = asyncio.run(listed())
    if as_json:
        terminal.json([{"name": name, "type": kind} for name, kind in found])
    elif found:
        terminal.table(("name", "type"), found)
    else:
        terminal.note("no credentials")


@credential.command()
@click.argument("name")
@server_option
@token_option
@talk
def delete(name: str, server: str | None, token: str | None) -> None:
    """Forget a credential."""
    from noetl.errors import NotFound

    async def forget() -> bool:
        async with _store(Target(server=server, token=token)) as store:
            return await store.delete(name)

    if not asyncio.run(forget()):
        raise NotFound(f"there is no credential {name}; `noetl credential list` shows what there is")
    terminal.note(f"credential {name} is forgotten")


@credential.command()
@talk
def rotate() -> None:
    """Replace the master key of this installation.

    With the key in a file, a new one is made and the old one forgotten. With keys in NOETL_SECRET_KEY, put the new
    one in front (new,old) for every server, rotate, and take the old one out.
    """
    from noetl.secrets.keychain import open_credentials
    from noetl.settings import load

    settings = load().settings

    async def replace() -> int:
        async with open_credentials(settings.home, settings.store) as credentials:
            return await credentials.rotate()

    changed = asyncio.run(replace())
    terminal.note(f"{changed} credentials are under a new master key")


def _fields(data: str) -> dict[str, Any]:
    """The fields as given; what is wrong is said without repeating any of it."""
    import msgspec

    from noetl.cli.playbook_files import read_bounded

    text = read_bounded(data.removeprefix("@"), MAX_DATA) if data == "-" or data.startswith("@") else data.encode()
    if len(text) > MAX_DATA:
        raise click.BadParameter("it has more than 1 MB", param_hint="--data")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        raise click.BadParameter('it must be a JSON mapping such as {"password": "..."}', param_hint="--data") from None


class _ServerCredentials:
    """A server's credentials, as a store that can be written and listed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Keep."""
        await asyncio.to_thread(self._client.set_credential, name, type, data)

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return await asyncio.to_thread(self._client.credentials)

    async def delete(self, name: str) -> bool:
        """Forget it."""
        from noetl.errors import NotFound

        try:
            await asyncio.to_thread(self._client.delete_credential, name)
        except NotFound:
            return False
        return True


@asynccontextmanager
async def _store(place: Target) -> AsyncIterator[CredentialStore | _ServerCredentials]:
    from noetl.secrets.keychain import open_credentials

    settings = place.settings()
    if place.means_server(settings):
        with place.client(settings) as client:
            yield _ServerCredentials(client)
        return
    async with open_credentials(settings.home, settings.store) as credentials:
        yield credentials
