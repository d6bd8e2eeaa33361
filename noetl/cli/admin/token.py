"""`noetl token`: the tokens of this installation's server and their roles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal

if TYPE_CHECKING:
    from noetl.server.http.access import Tokens

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}")
ROLES = ("viewer", "operator", "author", "admin", "worker")


@click.group(cls=AliasedGroup)
def token() -> None:
    """Create and revoke tokens, with which the web page and programs sign in."""


@token.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="Role of the token.")
@click.option("--pool", "pools", multiple=True, help="Of a worker's token: a pool whose runs it may claim; repeatable.")
@json_options
def create(name: str, role: str, pools: tuple[str, ...], as_json: bool) -> None:
    """Create a token called NAME and print it; it is not shown again.

    viewer: read only; operator: also start, cancel, pause, signal and rerun; author: also register playbooks; admin:
    also manage credentials; worker: only take work. A running server accepts the token at once.
    """
    if not NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not a valid name: use letters, digits, _ . @ and -", param_hint="NAME")
    text = _tokens().add(name, role, pools)  # type: ignore[arg-type]
    if as_json:
        terminal.json({"name": name, "role": role, "token": text})
    else:
        terminal.data(text)
        terminal.note(f"token {name} ({role}) is created; it is not shown again")


@token.command("list")
@json_options
def list_(as_json: bool) -> None:
    """List names and roles."""
    known = _tokens().all()
    if as_json:
        terminal.json([{"name": each.name, "role": each.role} for each in known])
        return
    if known:
        terminal.table(("name", "role"), [(each.name, each.role) for each in known])
    else:
        terminal.note("there are no tokens yet; the first start of a server creates the admin token")


@token.command("revoke")
@click.argument("name")
@output_options
def revoke(name: str) -> None:
    """Revoke a token; its users are signed out."""
    from noetl.errors import unknown

    tokens = _tokens()
    if not tokens.remove(name):
        raise unknown("token", name, [each.name for each in tokens.all()], "`noetl token list` lists them")
    terminal.note(f"token {name} is revoked")


def _tokens() -> Tokens:
    from noetl.server.http.access import Tokens
    from noetl.settings import load

    return Tokens(load().settings.home)
