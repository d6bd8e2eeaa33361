"""`noetl trigger`: what starts playbooks on a server, and the history of deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, with_server
from noetl.errors import Conflict, NotFound, unknown

if TYPE_CHECKING:
    from noetl.client import Client

name_argument = click.argument("name", metavar="[KIND/]NAME")
# The option of `add` that chooses the kind of a trigger, with the field that it sets.
KINDS = {"nats": "subject", "object": "url", "execution": "of", "event": "event"}
# Fields that every trigger has.
_COMMON = frozenset({
    "kind", "name", "path", "version", "payload", "overlap", "concurrency", "paused", "labels", "created_at",
    "created_by", "problem", "credential", "deliveries", "last_delivery",
})  # fmt: skip


@click.group(cls=AliasedGroup)
def trigger() -> None:
    """Start playbooks by NATS messages, new objects or files, custom events and ends of other executions.

    `list`, `show`, `pause`, `remove` and `deliveries` also work for schedules and webhooks.
    """


@trigger.command()
@click.argument("path", metavar="PATH[@VERSION]")
@click.option("--nats", metavar="SUBJECT", help="Start by messages of a subject; --stream for JetStream.")
@click.option("--object", metavar="URL", help="Start by new objects of s3://bucket/prefix, gs://, az:// or a folder.")
@click.option("--after", "execution", metavar="PATTERN", help="Start after executions of paths such as reports/*.")
@click.option("--event", metavar="PATTERN", help="Start by custom events (`emit.events`) of names such as order_*.")
@click.option("--of", metavar="PATTERN", help="Custom events: only of executions of these paths; default: all.")
@click.option("--kind", "plugin", metavar="KIND", help="Start by a kind of a plug-in, such as kafka; see --field.")
@click.option(
    "--field", "fields", multiple=True, metavar="NAME=VALUE", help="Plug-ins: a field of the trigger, as YAML."
)
@click.option("--name", metavar="NAME", help="Name of the trigger; default: the path.")
@click.option("--stream", metavar="NAME", help="NATS: stream of JetStream, whose messages are delivered at least once.")
@click.option("--consumer", metavar="NAME", help="NATS: an existing durable consumer; default: one of its own.")
@click.option("--url", metavar="URL", help="NATS: server, such as nats://host:4222.")
@click.option("--glob", metavar="PATTERN", help="Objects: pattern of names, such as *.csv.")
@click.option("--existing", is_flag=True, default=None, help="Objects: also those that exist already.")
@click.option("--new-only", is_flag=True, default=None, help="Objects: not when the content of one changes.")
@click.option("--poll", metavar="DURATION", help="Objects: time between two listings; default: 30s.")
@click.option("--settle", metavar="DURATION", help="Files: time that a file must stay unchanged; default: 1s.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(["success", "failed", "cancelled"]),
    help="Executions: statuses that start the playbook; default: success.",
)
@click.option("--credential", metavar="NAME", help="Credential of the connection.")
@click.option("--payload", metavar="JSON|@FILE", help="Payload; its templates read {{ event }}.")
@click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the payload, as YAML.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue", "cancel"]),
    help="A delivery while earlier executions are running; default: allow.",
)
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Running executions before --overlap applies.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label, for notification rules.")
@key_option
@with_server
@json_options
def add(
    path: str,
    name: str | None,
    payload: str | None,
    sets: tuple[str, ...],
    labels: tuple[str, ...],
    new_only: bool | None,
    plugin: str | None,
    fields: tuple[str, ...],
    target: Target,
    as_json: bool,
    **options: Any,
) -> None:
    """Start a registered playbook by messages, objects, custom events or ends of executions.

    Examples:

    \b
      noetl trigger add orders/import --nats orders.new --stream ORDERS --url nats://host:4222
      noetl trigger add files/load --object s3://bucket/in/ --glob '*.csv' --credential s3
      noetl trigger add files/load --object /var/in --set 'file={{ event.url }}'
      noetl trigger add reports/publish --after 'reports/*' --status success
      noetl trigger add mail/thanks --event order_paid --of 'shop/*' --set 'order={{ event.data.id }}'
      noetl trigger add orders/import --kind kafka --field topic=orders --credential events
    """
    from noetl.cli.inputs import read_labels, read_payload, split_version
    from noetl.server.scheduling.triggers import name_after

    chosen = [kind for kind in KINDS if options[kind] is not None]
    if len(chosen) + (plugin is not None) != 1:
        raise click.UsageError("give exactly one of --nats, --object, --after, --event and --kind")
    definition = {key: value for key, value in options.items() if key not in KINDS and value not in (None, ())}
    if plugin is not None:
        kind = plugin
        definition |= read_payload(None, fields)
    else:
        kind = chosen[0]
        definition[KINDS[kind]] = options[kind]
    definition["path"], version = split_version(path)
    if version and version.isdecimal():
        definition["version"] = int(version)
    if payload is not None or sets:
        definition["payload"] = read_payload(payload, sets)
    if labels:
        definition["labels"] = read_labels(labels)
    if new_only:
        definition["changed"] = False
    name = name or name_after(definition["path"])
    with target.client(target.settings()) as client:
        _refuse_known(client, kind, name)
        stored = client.put_trigger(kind, name, definition)
    _show(stored, as_json)
    for text in stored.get("warnings", ()):
        terminal.warn(text)


@trigger.command("list")
@click.option("--kind", metavar="KIND", help="Only triggers of this kind: schedule, webhook, nats, object, ...")
@with_server
@json_options
def list_(kind: str | None, target: Target, as_json: bool) -> None:
    """List all triggers with their last delivery."""
    with target.client(target.settings()) as client:
        found = list(client.triggers(kind))
    if as_json:
        terminal.json(found)
    elif found:
        rows = [(one["kind"], one["name"], one["path"], _source(one), _state(one), _last(one)) for one in found]
        terminal.table(("kind", "name", "path", "source", "state", "last delivery"), rows, styles={"paused": "yellow"})
    else:
        terminal.note("no triggers; `noetl trigger add`, `schedule add` and `webhook add` add one")


@trigger.command()
@name_argument
@with_server
@json_options
def show(name: str, target: Target, as_json: bool) -> None:
    """Show a trigger, its deliveries by status and the last one."""
    with target.client(target.settings()) as client:
        _show(_find(client, name), as_json)


@trigger.command()
@name_argument
@key_option
@with_server
@json_options
def pause(name: str, target: Target, as_json: bool) -> None:
    """Pause a trigger: it receives and starts nothing."""
    with target.client(target.settings()) as client:
        found = _find(client, name)
        _show(client.pause_trigger(found["kind"], found["name"]), as_json)


@trigger.command()
@name_argument
@key_option
@with_server
@json_options
def resume(name: str, target: Target, as_json: bool) -> None:
    """Continue a paused trigger."""
    with target.client(target.settings()) as client:
        found = _find(client, name)
        _show(client.resume_trigger(found["kind"], found["name"]), as_json)


@trigger.command()
@name_argument
@key_option
@with_server
@output_options
def remove(name: str, target: Target) -> None:
    """Delete a trigger; executions that it started continue."""
    with target.client(target.settings()) as client:
        found = _find(client, name)
        client.remove_trigger(found["kind"], found["name"])
    terminal.note(f"{found['kind']} {found['name']} is deleted")


@trigger.command()
@click.argument("name", metavar="[KIND/]NAME", required=False)
@click.option(
    "--status", type=click.Choice(["pending", "started", "skipped", "failed"]), help="Only deliveries of this status."
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True)
@with_server
@json_options
def deliveries(name: str | None, status: str | None, limit: int, target: Target, as_json: bool) -> None:
    """List what a trigger (or all triggers) received, newest first."""
    with target.client(target.settings()) as client:
        of = _find(client, name) if name else {}
        found = list(client.deliveries(of.get("kind"), of.get("name"), status, limit=limit))
    if as_json:
        terminal.json(found)
        return
    rows = [
        (
            one["id"],
            one["received_at"],
            f"{one['kind']}/{one['name']}",
            one["status"],
            one["execution_id"],
            one["error"],
        )
        for one in found
    ]
    terminal.table(("id", "received", "trigger", "status", "execution", "error"), rows, styles={"failed": "red"})


@trigger.command()
@click.argument("delivery", metavar="DELIVERY")
@key_option
@with_server
@json_options
def replay(delivery: str, target: Target, as_json: bool) -> None:
    """Start another execution with the payload of a delivery."""
    with target.client(target.settings()) as client:
        started = client.replay_delivery(delivery)
    if as_json:
        terminal.json(started)
    else:
        terminal.data(started["execution_id"])


def _find(client: Client, name: str) -> dict[str, Any]:
    """The trigger of NAME, KIND/NAME or the path of its playbook."""
    kind, slash, rest = name.partition("/")
    with suppress(NotFound):
        if slash:
            return client.trigger(kind, rest)
    known = list(client.triggers())
    found = [one for one in known if name in (one["name"], one["path"])]
    if not found:
        similar = [each for one in known for each in (one["name"], one["path"])]
        raise unknown("trigger", name, similar, "`noetl trigger list` shows all triggers")
    if len(found) > 1:
        names = ", ".join(f"{one['kind']}/{one['name']}" for one in found)
        raise Conflict(f"several triggers are named {name} or start it: {names}")
    return found[0]


def _refuse_known(client: Client, kind: str, name: str) -> None:
    try:
        client.trigger(kind, name)
    except NotFound:
        return
    raise Conflict(f"a trigger {kind}/{name} already exists; choose another name with --name")


def _source(document: Mapping[str, Any]) -> str:
    field = {"schedule": "cron", "webhook": "preset", **KINDS}.get(document["kind"])
    if field is None:  # of a plug-in
        own = {key: value for key, value in document.items() if key not in _COMMON and value not in (None, "")}
        return ", ".join(f"{key} {value}" for key, value in own.items())
    return str(document[field])


def _state(document: Mapping[str, Any]) -> str:
    if document["paused"]:
        return "paused"
    return document["problem"] or "active"


def _last(document: Mapping[str, Any]) -> str:
    last = document["last_delivery"]
    return f"{last['received_at']} {last['status']}" if last else "-"


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.json(document)
        return
    counts = ", ".join(f"{count} {status}" for status, count in sorted(document["deliveries"].items()))
    last = document["last_delivery"] or {}
    rows = [
        ("trigger", f"{document['kind']}/{document['name']}"),
        ("playbook", document["path"] + (f" version {document['version']}" if document["version"] else "")),
        ("source", _source(document)),
        ("state", _state(document)),
        ("overlap", f"{document['overlap']}, concurrency {document['concurrency']}"),
        ("so far", counts or "no deliveries"),
    ]
    if last:
        rows.append(("last", f"{last['received_at']} {last['status']} {last['execution_id'] or last['error'] or ''}"))
    for name, value in rows:
        terminal.data(f"{name:<10} {value}")
