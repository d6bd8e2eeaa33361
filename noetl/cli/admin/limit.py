"""Verbs for limits: at most so many at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.target import Target, with_target

subject_argument = click.argument("subject", metavar="pool|credential|playbook")
name_argument = click.argument("name", metavar="NAME")


@click.group()
def limit() -> None:
    """Let at most so many runs of a pool, runs with a credential, or executions of a playbook go on at once.

    Limits hold over all servers and workers of an installation. The rest wait in line; `noetl why ID` says for what.
    """


@limit.command("set")
@subject_argument
@name_argument
@click.argument("most", type=click.IntRange(0, 1_000_000), metavar="[MOST]", required=False)
@click.option(
    "--weight",
    type=click.IntRange(1, 60),
    metavar="N",
    help="Turns that executions of the playbook get where others get one, while runs wait for workers.",
)
@with_target
@as_json
@talk
def set_(subject: str, name: str, most: int | None, weight: int | None, place: Target, as_json: bool) -> None:
    """Set a limit or a weight, or change it.

    Who holds more than a lower limit allows, finishes; 0 holds everything back.

    Example: noetl limit set credential pg_main 5
    """
    _show(place.ask(lambda backend: backend.set_limit(subject, name, most, weight=weight)), as_json)


@limit.command("list")
@with_target
@as_json
@talk
def list_(place: Target, as_json: bool) -> None:
    """List all limits: how much of each is held, and how many wait."""
    found = place.ask(lambda backend: backend.limits())
    if as_json:
        terminal.json(found)
    elif found:
        rows = [
            (one["subject"], one["name"], one["most"], one["weight"], one["held"], one["waiting"], one["waiting_since"])
            for one in found
        ]
        terminal.table(("limits", "name", "most", "weight", "held", "waiting", "since"), rows)
    else:
        terminal.note("no limits; `noetl limit set pool|credential|playbook NAME MOST` sets one")


@limit.command()
@subject_argument
@name_argument
@with_target
@as_json
@talk
def show(subject: str, name: str, place: Target, as_json: bool) -> None:
    """Show a limit: who holds what it limits, and how many wait."""
    _show(place.ask(lambda backend: backend.limit(subject, name)), as_json)


@limit.command()
@subject_argument
@name_argument
@with_target
@talk
def remove(subject: str, name: str, place: Target) -> None:
    """Remove a limit; who waits for it goes on."""
    place.ask(lambda backend: backend.remove_limit(subject, name))
    terminal.note(f"{subject} {name} is limited no more")


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.json(document)
        return
    since = f", since {document['waiting_since']}" if document["waiting_since"] else ""
    what = "execution" if document["subject"] == "playbook" else "run"
    what += "" if document["most"] == 1 else "s"
    most = "any number of" if document["most"] is None else f"at most {document['most']}"
    terminal.data(f"{'limit':<10} {document['subject']} {document['name']}: {most} {what} at once")
    if document["weight"] != 1:
        terminal.data(f"{'weight':<10} {document['weight']}")
    terminal.data(f"{'held':<10} {document['held']}")
    terminal.data(f"{'waiting':<10} {document['waiting']} runs{since}")
    for holder in document["holders"]:
        terminal.data(f"{'holder':<10} execution {holder['execution_id']} ({holder['path']}): {holder['held']}")
