"""Verbs for webhooks: signed requests from outside that start playbooks on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.target import Target, server_option, token_option

if TYPE_CHECKING:
    from noetl.client import Client

MAX_SECRET = 4096
MAX_BODY = 16 * 1024 * 1024


@click.group()
def webhook() -> None:
    """Let signed requests start playbooks on a server."""


@webhook.command()
@click.argument("path", metavar="PATH[@VERSION]")
@click.option("--name", metavar="NAME", help="Its name, and the end of its address; else it is called after its path.")
@click.option("--credential", metavar="NAME", help="Credential whose field `secret` signs; else a secret is made.")
@click.option("--payload", metavar="JSON|@FILE", help="What a request's body is laid over.")
@click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of that payload, read as YAML.")
@click.option(
    "--window",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=300.0,
    show_default=True,
    metavar="S",
    help="How old a signature may be, in seconds.",
)
@server_option
@token_option
@as_json
@talk
def add(
    path: str,
    name: str | None,
    credential: str | None,
    payload: str | None,
    sets: tuple[str, ...],
    window: float,
    server: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Let signed requests start a registered playbook.

    The secret that is made is printed this once; senders sign with it.
    """
    from noetl.cli.inputs import read_payload, split_version

    path, version = split_version(path)
    with _client(server, token) as client:
        added = client.add_webhook(
            path,
            name=name,
            credential=credential,
            version=int(version) if version and version.isdecimal() else None,
            payload=read_payload(payload, sets),
            window=window,
        )
        added["url"] = client.url + added["url"]
    if as_json:
        terminal.json(added)
        return
    terminal.data(f"{'webhook':<10} {added['name']}")
    terminal.data(f"{'playbook':<10} {added['path']}")
    terminal.data(f"{'address':<10} {added['url']}")
    if "secret" in added:
        terminal.data(f"{'secret':<10} {added['secret']}")
        terminal.note("the secret is shown this once; it is kept as credential " + added["credential"])


@webhook.command("list")
@server_option
@token_option
@as_json
@talk
def list_(server: str | None, token: str | None, as_json: bool) -> None:
    """List all webhooks."""
    with _client(server, token) as client:
        found = [{**one, "url": client.url + one["url"]} for one in client.webhooks()]
    if as_json:
        terminal.json(found)
    elif found:
        rows = [(one["name"], one["path"], one["credential"], one["url"]) for one in found]
        terminal.table(("name", "path", "credential", "address"), rows)
    else:
        terminal.note("no webhooks; `noetl webhook add PATH` makes one")


@webhook.command()
@click.argument("name")
@server_option
@token_option
@talk
def remove(name: str, server: str | None, token: str | None) -> None:
    """Forget a webhook, and the secret that was made for it."""
    with _client(server, token) as client:
        client.remove_webhook(name)
    terminal.note(f"webhook {name} is forgotten")


@webhook.command()
@click.argument("name")
@click.option("--secret", required=True, metavar="TEXT|@FILE", help="What it is signed with; @- is stdin.")
@click.option("--body", default="{}", metavar="TEXT|@FILE", help="What is sent.")
@server_option
@as_json
@talk
def call(name: str, secret: str, body: str, server: str | None, as_json: bool) -> None:
    """Sign a request and send it, as a sender would."""
    with _client(server, None) as client:
        execution_id = client.deliver(name, _read(body, MAX_BODY), _read(secret, MAX_SECRET).decode().strip())
    if as_json:
        terminal.json({"execution_id": execution_id})
    else:
        terminal.data(execution_id)


def _read(words: str, limit: int) -> bytes:
    from noetl.cli.playbook_files import read_bounded

    return read_bounded(words[1:], limit) if words.startswith("@") else words.encode()


def _client(server: str | None, token: str | None) -> Client:
    place = Target(server=server, token=token)
    return place.client(place.settings())
