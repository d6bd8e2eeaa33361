"""`noetl webhook`: signed requests that start playbooks on a server."""

from __future__ import annotations

from typing import Any

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, server_option, with_server

MAX_SECRET = 4096
MAX_BODY = 16 * 1024 * 1024


@click.group(cls=AliasedGroup)
def webhook() -> None:
    """Let signed requests start playbooks on a server."""


@webhook.command()
@click.argument("path", metavar="PATH[@VERSION]")
@click.option("--name", metavar="NAME", help="Name, and last part of the address; default: the path.")
@click.option(
    "--credential", metavar="NAME", help="Credential with the field `secret`; default: a secret is generated."
)
@click.option("--payload", metavar="JSON|@FILE", help="The body of a request is merged into this payload.")
@click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the payload, read as YAML.")
@click.option(
    "--window",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=300.0,
    show_default=True,
    metavar="S",
    help="The greatest age of a signature, in seconds.",
)
@click.option(
    "--preset",
    type=click.Choice(["noetl", "github", "stripe", "slack", "meta", "websub", "hmac", "none"]),
    default="noetl",
    show_default=True,
    help="How the sender signs its requests.",
)
@click.option("--signature", metavar="JSON|@FILE", help="Format of preset hmac: header, algorithm, prefix, ...")
@click.option("--allow-unsigned", is_flag=True, help="Accept every request (with --preset none).")
@click.option("--topic", metavar="URL", help="The topic whose subscription it confirms (WebSub).")
@click.option("--header", "headers", multiple=True, metavar="NAME", help="A header that the playbook may read.")
@click.option("--raw-body", is_flag=True, help="Let the playbook read the body as it was sent.")
@click.option(
    "--respond",
    type=click.Choice(["accepted", "result"]),
    default="accepted",
    show_default=True,
    help="Respond at once, or with the output of the execution.",
)
@click.option("--wait", type=float, metavar="S", help="Seconds to wait for the output; default: 30.")
@key_option
@with_server
@json_options
def add(
    path: str,
    payload: str | None,
    sets: tuple[str, ...],
    signature: str | None,
    headers: tuple[str, ...],
    target: Target,
    as_json: bool,
    **options: Any,
) -> None:
    """Let requests of another service start a registered playbook.

    A generated secret is printed once; senders sign with it. Services that make the secret themselves: store it with
    `noetl credential set NAME --type webhook` and pass --credential.
    """
    from noetl.cli.inputs import read_payload, split_version

    path, version = split_version(path)
    with target.client(target.settings()) as client:
        added = client.add_webhook(
            path,
            version=int(version) if version and version.isdecimal() else None,
            payload=read_payload(payload, sets),
            signature=read_payload(signature, ()) if signature else None,
            headers=list(headers),
            **options,
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
        terminal.note("the secret is not shown again; it is stored as the credential " + added["credential"])


@webhook.command("list")
@with_server
@json_options
def list_(target: Target, as_json: bool) -> None:
    """List all webhooks."""
    with target.client(target.settings()) as client:
        found = [{**one, "url": client.url + one["url"]} for one in client.webhooks()]
    if as_json:
        terminal.json(found)
    elif found:
        rows = [(one["name"], one["path"], one["credential"], one["url"]) for one in found]
        terminal.table(("name", "path", "credential", "address"), rows)
    else:
        terminal.note("no webhooks; `noetl webhook add PATH` adds one")


@webhook.command()
@click.argument("name")
@key_option
@with_server
@output_options
def remove(name: str, target: Target) -> None:
    """Delete a webhook, and the secret that was generated for it."""
    with target.client(target.settings()) as client:
        client.remove_webhook(name)
    terminal.note(f"webhook {name} is deleted")


@webhook.command()
@click.argument("name")
@click.option("--secret", required=True, metavar="TEXT|@FILE", help="The secret to sign with; @- is stdin.")
@click.option("--body", default="{}", metavar="TEXT|@FILE", help="The body of the request.")
@server_option
@json_options
def call(name: str, secret: str, body: str, server: str | None, as_json: bool) -> None:
    """Sign a request and send it to a webhook."""
    target = Target(server=server)
    with target.client(target.settings()) as client:
        execution_id = client.deliver(name, _read(body, MAX_BODY), _read(secret, MAX_SECRET).decode().strip())
    if as_json:
        terminal.json({"execution_id": execution_id})
    else:
        terminal.data(execution_id)


def _read(text: str, limit: int) -> bytes:
    from noetl.cli.playbook_files import read_bounded

    return read_bounded(text[1:], limit) if text.startswith("@") else text.encode()
