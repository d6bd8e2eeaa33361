"""Verbs for schedules: playbooks that start by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.target import Target, with_target

name_argument = click.argument("name", metavar="NAME")


@click.group()
def schedule() -> None:
    """Start playbooks by the clock.

    Schedules are kept beside the catalog; a server carries them out, each tick once, however many servers there are.
    """


@schedule.command()
@click.argument("path", metavar="PATH[@VERSION]")
@click.option("--cron", required=True, metavar="EXPR", help="minute hour day month weekday, or @daily, @hourly, ...")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="Time zone of the expression.")
@click.option("--name", metavar="NAME", help="Its name; without one it is called after its path.")
@click.option("--payload", metavar="JSON|@FILE", help="Laid over the workload; may read {{ tick }} and {{ schedule }}.")
@click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the payload, read as YAML.")
@click.option(
    "--catch-up",
    type=click.Choice(["none", "last", "all"]),
    default="last",
    show_default=True,
    help="Ticks that passed while no server ran.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue", "cancel"]),
    default="allow",
    show_default=True,
    help="A tick that comes while the execution before still runs.",
)
@click.option("--paused", is_flag=True, help="Keep it, and do not begin yet.")
@with_target
@as_json
@talk
def add(
    path: str,
    cron: str,
    tz: str,
    name: str | None,
    payload: str | None,
    sets: tuple[str, ...],
    catch_up: str,
    overlap: str,
    paused: bool,
    place: Target,
    as_json: bool,
) -> None:
    """Start a registered playbook whenever EXPR says so.

    Example: noetl schedule add reports/daily --cron "30 6 * * mon-fri" --tz Europe/Berlin
    """
    from noetl.cli.inputs import read_payload, split_version

    path, version = split_version(path)
    fields: dict[str, Any] = {
        "name": name,
        "tz": tz,
        "version": int(version) if version and version.isdecimal() else None,
        "payload": read_payload(payload, sets),
        "catch_up": catch_up,
        "overlap": overlap,
        "paused": paused,
    }
    _show(place.ask(lambda backend: backend.add_schedule(path, cron, **fields)), as_json)
    if not place.has_server():
        terminal.note("no server runs here yet; `noetl server start` carries schedules out")


@schedule.command("list")
@with_target
@as_json
@talk
def list_(place: Target, as_json: bool) -> None:
    """List all schedules."""
    found = place.ask(lambda backend: backend.schedules())
    if as_json:
        terminal.json(found)
    elif found:
        terminal.table(
            ("name", "path", "cron", "tz", "next", "last execution", "error"),
            [
                (
                    one["name"],
                    one["path"],
                    one["cron"],
                    one["tz"],
                    "paused" if one["paused"] else (one["upcoming"] or ["-"])[0],
                    one["last_execution"],
                    one["last_error"],
                )
                for one in found
            ],
            styles={"paused": "odd"},
        )
    else:
        terminal.note("no schedules; `noetl schedule add PATH --cron EXPR` makes one")


@schedule.command()
@name_argument
@with_target
@as_json
@talk
def show(name: str, place: Target, as_json: bool) -> None:
    """Show a schedule: when it ticks, how far it is, what came of the last tick."""
    _show(place.ask(lambda backend: backend.schedule(name)), as_json)


@schedule.command()
@name_argument
@click.option("--count", type=click.IntRange(1, 100), default=5, show_default=True, help="How many.")
@with_target
@as_json
@talk
def next(name: str, count: int, place: Target, as_json: bool) -> None:
    """Print the next ticks, on the clock of the schedule."""
    found = place.ask(lambda backend: backend.schedule(name, count))
    if as_json:
        terminal.json(found["upcoming"])
        return
    for tick in found["upcoming"]:
        terminal.data(tick)
    if found["paused"]:
        terminal.note(f"schedule {name} is paused; `noetl schedule resume {name}` lets it tick again")


@schedule.command()
@name_argument
@with_target
@as_json
@talk
def pause(name: str, place: Target, as_json: bool) -> None:
    """Tick no more; ticks that pass meanwhile are gone."""
    _show(place.ask(lambda backend: backend.pause_schedule(name)), as_json)


@schedule.command()
@name_argument
@with_target
@as_json
@talk
def resume(name: str, place: Target, as_json: bool) -> None:
    """Tick again, from now on."""
    _show(place.ask(lambda backend: backend.resume_schedule(name)), as_json)


@schedule.command()
@name_argument
@with_target
@talk
def remove(name: str, place: Target) -> None:
    """Forget a schedule; executions that it started go on."""
    place.ask(lambda backend: backend.remove_schedule(name))
    terminal.note(f"schedule {name} is forgotten")


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.json(document)
        return
    version = f" version {document['version']}" if document["version"] else ""
    rows = [
        ("schedule", document["name"]),
        ("playbook", document["path"] + version),
        ("cron", f"{document['cron']} ({document['description']}), {document['tz']}"),
        ("late", f"catch-up {document['catch_up']}, overlap {document['overlap']}"),
        ("next", "paused" if document["paused"] else ", ".join(document["upcoming"]) or "never"),
        ("so far", f"{document['fired']} started, {document['skipped']} skipped, {len(document['queued'])} queued"),
    ]
    if document["last_execution"]:
        rows.append(("last", f"execution {document['last_execution']}"))
    if document["last_error"]:
        rows.append(("error", document["last_error"]))
    for name, value in rows:
        terminal.data(f"{name:<10} {value}")
