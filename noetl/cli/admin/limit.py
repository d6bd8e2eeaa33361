"""`noetl limit`: concurrency limits and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, with_target

SUBJECTS = ("pool", "credential", "playbook", "label")
subject_argument = click.argument("subject", metavar="|".join(SUBJECTS), type=click.Choice(SUBJECTS))
name_argument = click.argument("name", metavar="NAME")


@click.group(cls=AliasedGroup)
def limit() -> None:
    """Limit concurrent runs of a pool, runs with a credential, runs of executions with a label, or executions of a
    playbook.

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
    help="Share of the workers' slots of a playbook or tenant relative to others (1), while runs wait.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(0, 1_000_000),
    metavar="N",
    help="Number of waiting runs of a tenant at which its requests are refused (429).",
)
@key_option
@with_target
@json_options
def set_(
    subject: str,
    name: str,
    most: int | None,
    weight: int | None,
    max_waiting: int | None,
    target: Target,
    as_json: bool,
) -> None:
    """Set or change a limit or a weight.

    Runs that exceed a lowered limit finish; with 0 nothing starts.

    Examples: noetl limit set credential pg_main 5; noetl limit set label tenant=acme --weight 3
    """
    values = {"weight": weight, "max_waiting": max_waiting}
    _show(target.call(lambda backend: backend.set_limit(subject, name, most, **values)), as_json)


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
        terminal.note(f"no limits; `noetl limit set {'|'.join(SUBJECTS)} NAME MOST` sets one")


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
    if "queued" in document:
        bound = "" if document["max_waiting"] is None else f" (requests are refused at {document['max_waiting']})"
        terminal.data(f"{'queued':<10} {document['queued']} runs{bound}")
    for holder in document["holders"]:
        terminal.data(f"{'holder':<10} execution {holder['execution_id']} ({holder['path']}): {holder['held']}")
