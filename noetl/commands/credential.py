"""The credentials of this installation: kept encrypted, never shown again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from noetl.commands.terminal import as_json, talk, terminal

if TYPE_CHECKING:
    from noetl.ports import CredentialStore

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
MAX_DATA = 1024 * 1024


@click.group()
def credential() -> None:
    """Keep credentials that playbooks ask for by name."""


@credential.command("set")
@click.argument("name")
@click.option("--type", "type_", default="generic", show_default=True, help="What it is for: postgres, http, s3, ...")
@click.option("--data", required=True, metavar="JSON|@FILE|-", help="Its fields; - reads them from stdin.")
@talk
def set_(name: str, type_: str, data: str) -> None:
    """Keep a credential under NAME, in place of one of the same name.

    Shells remember what was typed: give secrets by @FILE or through a pipe.
    """
    if not NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} is no name: letters, digits, _ . and -, not a digit first", param_hint="NAME"
        )
    fields = _fields(data)

    async def keep() -> None:
        async with _store() as store:
            await store.set(name, type_, fields)

    asyncio.run(keep())
    terminal.note(f"credential {name} ({type_}) is kept")


@credential.command("list")
@as_json
@talk
def list_(as_json: bool) -> None:
    """List names and types; values are never shown."""

    async def listed() -> list[tuple[str, str]]:
        async with _store() as store:
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
@talk
def delete(name: str) -> None:
    """Forget a credential."""
    from noetl.errors import NotFound

    async def forget() -> bool:
        async with _store() as store:
            return await store.delete(name)

    if not asyncio.run(forget()):
        raise NotFound(f"there is no credential {name}; `noetl credential list` shows what there is")
    terminal.note(f"credential {name} is forgotten")


def _fields(data: str) -> dict[str, Any]:
    """The fields as given; what is wrong is said without repeating any of it."""
    import msgspec

    from noetl.commands.files import read_bounded

    text = read_bounded(data.removeprefix("@"), MAX_DATA) if data == "-" or data.startswith("@") else data.encode()
    if len(text) > MAX_DATA:
        raise click.BadParameter("it has more than 1 MB", param_hint="--data")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        raise click.BadParameter('it must be a JSON mapping such as {"password": "..."}', param_hint="--data") from None


@asynccontextmanager
async def _store() -> AsyncIterator[CredentialStore]:
    from noetl.backends.keychain import open_keychain
    from noetl.settings import load

    keychain = open_keychain(load().settings.home)
    try:
        assert keychain.credentials is not None
        yield keychain.credentials
    finally:
        await keychain.close()
