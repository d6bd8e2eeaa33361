"""`noetl schedule`: playbooks that start at the times of a cron expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, with_target

name_argument = click.argument("name", metavar="NAME")


def _rules(function: Any) -> Any:
    """The options of `add` and `edit` that say how ticks start executions; what is not given is None."""
    options = (
        click.option("--tz", metavar="ZONE", help="Time zone of the expression; default: UTC."),
        click.option(
            "--payload",
            metavar="JSON|@FILE",
            help="Merged into the workload; may use {{ tick }}, {{ tick.start }}, {{ tick.end }} and {{ schedule }}.",
        ),
        click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the payload, as YAML."),
        click.option(
            "--catch-up",
            type=click.Choice(["none", "last", "all"]),
            help="Ticks that were missed while no server was running; default: last.",
        ),
        click.option(
            "--overlap",
            type=click.Choice(["allow", "skip", "queue", "cancel"]),
            help="A tick while earlier executions are still running; default: allow.",
        ),
        click.option(
            "--concurrency",
            type=click.IntRange(1, 10_000),
            help="Running executions before --overlap applies; default: 1.",
        ),
        click.option("--jitter", metavar="DURATION", help="Start each tick up to this much later (90s, 10m)."),
        click.option(
            "--deadline", metavar="DURATION", help="Time after a tick until its execution must have succeeded (2h)."
        ),
        click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label, for notification rules."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _given(payload: str | None, sets: tuple[str, ...], labels: tuple[str, ...], **fields: Any) -> dict[str, Any]:
    from noetl.cli.inputs import read_labels, read_payload

    given = {name: value for name, value in fields.items() if value is not None}
    if payload is not None or sets:
        given["payload"] = read_payload(payload, sets)
    if labels:
        given["labels"] = read_labels(labels)
    return given


@click.group(cls=AliasedGroup)
def schedule() -> None:
    """Start playbooks at scheduled times.

    Schedules are stored with the catalog. A server starts the playbooks; each tick starts one execution, also with
    several servers.
    """


@schedule.command()
@click.argument("path", metavar="PATH[@VERSION]")
@click.option("--cron", required=True, metavar="EXPR", help="minute hour day month weekday, or @daily, @hourly, ...")
@click.option("--name", metavar="NAME", help="Name of the schedule; default: the path with - for /.")
@_rules
@click.option("--paused", is_flag=True, help="Add the schedule paused.")
@key_option
@with_target
@json_options
def add(path: str, cron: str, name: str | None, paused: bool, target: Target, as_json: bool, **rules: Any) -> None:
    """Start a registered playbook at the times of EXPR.

    Example: noetl schedule add reports/daily --cron "30 6 * * mon-fri" --tz Europe/Berlin
    """
    from noetl.cli.inputs import split_version

    path, version = split_version(path)
    fields: dict[str, Any] = {
        **_given(**rules),
        "name": name,
        "version": int(version) if version and version.isdecimal() else None,
        "paused": paused,
    }
    _show(target.call(lambda backend: backend.add_schedule(path, cron, **fields)), as_json)
    _warn_without_server(target)


@schedule.command()
@name_argument
@click.option("--path", metavar="PATH[@VERSION]", help="Another playbook.")
@click.option("--cron", metavar="EXPR", help="Another expression; its next tick is the first one after now.")
@_rules
@key_option
@with_target
@json_options
def edit(name: str, path: str | None, cron: str | None, target: Target, as_json: bool, **rules: Any) -> None:
    """Change a schedule; what is not given stays as it is."""
    from noetl.cli.inputs import split_version

    fields = _given(**rules, cron=cron)
    if path is not None:
        fields["path"], version = split_version(path)
        fields["version"] = int(version) if version and version.isdecimal() else None
    if not fields:
        raise click.UsageError("give at least one option to change")
    _show(target.call(lambda backend: backend.edit_schedule(name, fields)), as_json)


@schedule.command()
@name_argument
@key_option
@with_target
@json_options
def run(name: str, target: Target, as_json: bool) -> None:
    """Start the playbook of a schedule now, with the payload of a tick at this time."""
    started = target.call(lambda backend: backend.run_schedule(name))
    if as_json:
        terminal.json(started)
    elif started["execution_id"]:
        terminal.data(started["execution_id"])
    else:
        terminal.note(f"schedule {name} is due now; its server starts it")
        _warn_without_server(target)


@schedule.command("list")
@with_target
@json_options
def list_(target: Target, as_json: bool) -> None:
    """List all schedules."""
    found = target.call(lambda backend: backend.schedules())
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
            styles={"paused": "yellow"},
        )
    else:
        terminal.note("no schedules; `noetl schedule add PATH --cron EXPR` adds one")


@schedule.command()
@name_argument
@with_target
@json_options
def show(name: str, target: Target, as_json: bool) -> None:
    """Show a schedule, its next ticks and its last execution."""
    _show(target.call(lambda backend: backend.schedule(name)), as_json)


@schedule.command()
@name_argument
@click.option("--count", type=click.IntRange(1, 100), default=5, show_default=True, help="Number of ticks.")
@with_target
@json_options
def next(name: str, count: int, target: Target, as_json: bool) -> None:
    """Print the next ticks in the time zone of the schedule."""
    found = target.call(lambda backend: backend.schedule(name, count))
    if as_json:
        terminal.json(found["upcoming"])
        return
    for tick in found["upcoming"]:
        terminal.data(tick)
    if found["paused"]:
        terminal.note(f"schedule {name} is paused; `noetl schedule resume {name}` continues it")


@schedule.command()
@name_argument
@key_option
@with_target
@json_options
def pause(name: str, target: Target, as_json: bool) -> None:
    """Pause a schedule; ticks that pass meanwhile are dropped."""
    _show(target.call(lambda backend: backend.pause_schedule(name)), as_json)


@schedule.command()
@name_argument
@key_option
@with_target
@json_options
def resume(name: str, target: Target, as_json: bool) -> None:
    """Continue a paused schedule with its next tick."""
    _show(target.call(lambda backend: backend.resume_schedule(name)), as_json)


@schedule.command()
@name_argument
@key_option
@with_target
@output_options
def remove(name: str, target: Target) -> None:
    """Delete a schedule; executions that it started continue."""
    target.call(lambda backend: backend.remove_schedule(name))
    terminal.note(f"schedule {name} is deleted")


def _warn_without_server(target: Target) -> None:
    if not target.has_server():
        terminal.note("no server is running; schedules need one: `noetl server start`")


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
        *[(name, f"{document[name]:g} s") for name in ("jitter", "deadline") if document[name]],
        ("next", "paused" if document["paused"] else ", ".join(document["upcoming"]) or "never"),
        ("so far", f"{document['fired']} started, {document['skipped']} skipped, {len(document['queued'])} queued"),
    ]
    if document["last_execution"]:
        rows.append(("last", f"execution {document['last_execution']}"))
    if document["last_error"]:
        rows.append(("error", document["last_error"]))
    for name, value in rows:
        terminal.data(f"{name:<10} {value}")
