"""Tokens of this installation's server: who may sign in, and as what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from noetl.cli.output.terminal import as_json, talk, terminal

if TYPE_CHECKING:
    from noetl.server.http.access import Tokens

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}")
ROLES = ("viewer", "operator", "author", "admin", "worker")


class _Verbs(click.Group):
    """`add` and `remove` are other words for `create` and `revoke`; they work and are not listed."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of a word."""
        return super().get_command(ctx, {"add": "create", "remove": "revoke"}.get(cmd_name, cmd_name))


@click.group(cls=_Verbs)
def token() -> None:
    """Make and forget tokens, which the web page and programs sign in with."""


@token.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What it may do.")
@as_json
@talk
def create(name: str, role: str, as_json: bool) -> None:
    """Make a token called NAME and print it: it is not shown again.

    viewer looks; operator starts, cancels, pauses, signals, reruns; author registers playbooks; admin keeps
    credentials; worker takes work and nothing else. A running server knows it at once.
    """
    if not NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is no name: letters, digits, _ . @ and -", param_hint="NAME")
    text = _tokens().add(name, role)  # type: ignore[arg-type]
    if as_json:
        terminal.json({"name": name, "role": role, "token": text})
    else:
        terminal.data(text)
        terminal.note(f"token {name} ({role}) is made; keep it, it is not shown again")


@token.command("list")
@as_json
@talk
def list_(as_json: bool) -> None:
    """List names and roles."""
    known = _tokens().all()
    if as_json:
        terminal.json([{"name": each.name, "role": each.role} for each in known])
        return
    if known:
        terminal.table(("name", "role"), [(each.name, each.role) for each in known])
    else:
        terminal.note("there are no tokens yet; the first start of a server makes the admin's")


@token.command("revoke")
@click.argument("name")
@talk
def revoke(name: str) -> None:
    """Forget a token: who signed in with it is signed out."""
    from noetl.errors import Conflict, NotFound

    tokens = _tokens()
    known = {each.name: each.role for each in tokens.all()}
    if name not in known:
        raise NotFound(f"there is no token {name!r}; `noetl token list` shows what there is")
    if known[name] == "admin" and list(known.values()).count("admin") == 1:
        raise Conflict(f"{name} is the only admin's token; `noetl token create NAME --role admin` makes another first")
    tokens.remove(name)
    terminal.note(f"token {name} is forgotten")


def _tokens() -> Tokens:
    from noetl.server.http.access import Tokens
    from noetl.settings import load

    return Tokens(load().settings.home)
