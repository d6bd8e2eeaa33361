"""`noetl limit`: concurrency limits and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, with_target

subject_argument = click.argument("subject", metavar="pool|credential|playbook")
name_argument = click.argument("name", metavar="NAME")


@click.group(cls=AliasedGroup)
def limit() -> None:
    """Limit concurrent runs of a pool, runs with a credential, or executions of a playbook.

    Limits apply across all servers and workers of an installation. Further runs wait; `noetl why ID` shows for what.
    """


@limit.command("set")
@subject_argument
@name_argument
@click.argument("most", type=click.IntRange(0, 1_000_000), metavar="[MOST]", required=False)
@click.option(
    "--weight",
    type=click.IntRange(1, 60),
    metavar="N",
    help="Share of the workers' slots relative to other playbooks (1), while runs wait.",
)
@key_option
@with_target
@json_options
def set_(subject: str, name: str, most: int | None, weight: int | None, target: Target, as_json: bool) -> None:
    """Set or change a limit or a weight.

    Runs that exceed a lowered limit finish; with 0 nothing starts.

    Example: noetl limit set credential pg_main 5
    """
    _show(target.call(lambda backend: backend.set_limit(subject, name, most, weight=weight)), as_json)


@limit.command("list")
@with_target
@json_options
def list_(target: Target, as_json: bool) -> None:
    """List all limits, how many slots are in use, and how many runs wait."""
    found = target.call(lambda backend: backend.limits())
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
@json_options
def show(subject: str, name: str, target: Target, as_json: bool) -> None:
    """Show a limit, the executions that use its slots, and how many runs wait."""
    _show(target.call(lambda backend: backend.limit(subject, name)), as_json)


@limit.command()
@subject_argument
@name_argument
@key_option
@with_target
@output_options
def remove(subject: str, name: str, target: Target) -> None:
    """Delete a limit; waiting runs start."""
    target.call(lambda backend: backend.remove_limit(subject, name))
    terminal.note(f"the limit of {subject} {name} is deleted")


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
