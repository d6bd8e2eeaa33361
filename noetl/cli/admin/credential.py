"""`noetl credential`: credentials of this installation or of a server, stored encrypted and never shown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, with_server

if TYPE_CHECKING:
    from noetl.client import Client
    from noetl.storage.ports.secrets import CredentialStore

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
MAX_DATA = 1024 * 1024
TYPES = frozenset(
    {"generic", "basic", "bearer", "api_key", "oauth2", "oauth", "token", "jwt", "webhook", "aws", "s3", "gcp", "gcs"}
    | {"gcs_hmac", "azure", "smtp", "slack", "mysql", "mssql", "oracle", "snowflake", "bigquery", "redshift", "kafka"}
    | {"sftp", "ssh", "git", "vault", "redis", "mongodb", "elasticsearch", "ducklake", "iceberg"}
)
TYPE_SUFFIXES = ("_credential", "_oauth", "_service_account")


@click.group(cls=AliasedGroup)
def credential() -> None:
    """Store credentials that playbooks use by name."""


@credential.command("set")
@click.argument("name")
@click.option(
    "--type", "type_", default="generic", show_default=True, help="Type of the credential: postgres, http, s3, ..."
)
@click.option("--data", required=True, metavar="JSON|@FILE|-", help="The fields; - reads them from stdin.")
@key_option
@with_server
@output_options
def set_(name: str, type_: str, data: str, target: Target) -> None:
    """Store a credential under NAME; it replaces one of the same name.

    Shells record the command line in their history: pass secrets by @FILE or through a pipe.
    """
    if not NAME.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} is not a valid name: use letters, digits, _ . and -, and no digit first", param_hint="NAME"
        )
    _check_type(type_)
    fields = _fields(data)

    async def store_it() -> None:
        async with _store(target) as store:
            await store.set(name, type_, fields)

    asyncio.run(store_it())
    terminal.note(f"credential {name} ({type_}) is stored")


def _check_type(type_: str) -> None:
    """Reject a misspelled type; a type names the kind of task that uses the credential."""
    from noetl.settings import similar
    from noetl.tools.registry import kinds

    known = sorted({*TYPES, *kinds()})
    if type_ not in known and not type_.endswith(TYPE_SUFFIXES):
        advice = similar(type_, known, f"; the types are {', '.join(known)} (generic takes any fields)")
        raise click.BadParameter(f"unknown type {type_!r}{advice}", param_hint="--type")


@credential.command("list")
@with_server
@json_options
def list_(target: Target, as_json: bool) -> None:
    """List names and types; values are never shown."""

    async def listed() -> list[tuple[str, str]]:
        async with _store(target) as store:
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
@key_option
@with_server
@output_options
def delete(name: str, target: Target) -> None:
    """Delete a credential."""
    from noetl.errors import unknown

    async def remove() -> None:
        async with _store(target) as store:
            if not await store.delete(name):
                raise unknown("credential", name, dict(await store.list()), "`noetl credential list` lists them")

    asyncio.run(remove())
    terminal.note(f"credential {name} is deleted")


@credential.command()
@output_options
def rotate() -> None:
    """Replace the master key of this installation.

    If the key is in a file, a new one is generated and the old one deleted. If keys are in NOETL_SECRET_KEY, put the
    new one in front (new,old) for every server, rotate, and remove the old one.
    """
    from noetl.secrets.keychain import open_credentials
    from noetl.settings import load

    settings = load().settings

    async def replace() -> int:
        async with open_credentials(settings.home, settings.store) as credentials:
            return await credentials.rotate()

    changed = asyncio.run(replace())
    terminal.note(f"{changed} credentials are encrypted with the new master key")


def _fields(data: str) -> dict[str, Any]:
    """The fields; error messages do not quote the data."""
    import msgspec

    from noetl.cli.playbook_files import read_bounded

    text = read_bounded(data.removeprefix("@"), MAX_DATA) if data == "-" or data.startswith("@") else data.encode()
    if len(text) > MAX_DATA:
        raise click.BadParameter("the data has more than 1 MB", param_hint="--data")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        raise click.BadParameter(
            'the data must be a JSON mapping such as {"password": "..."}', param_hint="--data"
        ) from None


class _ServerCredentials:
    """The credentials of a server as a store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Store a credential."""
        await asyncio.to_thread(self._client.set_credential, name, type, data)

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""
        return await asyncio.to_thread(self._client.credentials)

    async def delete(self, name: str) -> bool:
        """Delete a credential."""
        from noetl.errors import NotFound

        try:
            await asyncio.to_thread(self._client.delete_credential, name)
        except NotFound:
            return False
        return True


@asynccontextmanager
async def _store(target: Target) -> AsyncIterator[CredentialStore | _ServerCredentials]:
    from noetl.secrets.keychain import open_credentials

    settings = target.settings()
    if target.is_remote(settings):
        with target.client(settings) as client:
            yield _ServerCredentials(client)
        return
    async with open_credentials(settings.home, settings.store) as credentials:
        yield credentials
