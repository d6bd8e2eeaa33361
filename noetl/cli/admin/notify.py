"""`noetl notify`: rules that send messages about failures, lateness, waiting executions and broken triggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from noetl.cli.admin.aliases import AliasedGroup
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import Target, key_option, with_server
from noetl.errors import Conflict, NotFound

OCCURRENCES = ("failed", "late", "waiting", "recovered", "dead-trigger")


class OccurrenceType(click.Choice):  # type: ignore[type-arg]
    """One of the occurrences, or `event:` with the name of a custom event or a pattern of names."""

    name = "occurrence"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """Check the occurrence."""
        if isinstance(value, str) and value.startswith("event:"):
            if not value.removeprefix("event:").strip():
                self.fail("event: needs the name of a custom event, or a pattern such as event:order_*")
            return value
        return super().convert(value, param, context)


@click.group(cls=AliasedGroup)
def notify() -> None:
    """Send mails and messages when executions fail, are late or wait."""


@notify.command()
@click.argument("name")
@click.option(
    "--on",
    multiple=True,
    type=OccurrenceType((*OCCURRENCES, "event:NAME")),
    help="Occurrence; may be repeated; event:NAME is a custom event, or a pattern; default: failed, recovered.",
)
@click.option("--path", "paths", multiple=True, metavar="PATTERN", help="Paths of playbooks; default: all.")
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only playbooks or triggers with this label."
)
@click.option("--mail", multiple=True, metavar="ADDRESS", help="Send a mail; --credential has the mail server.")
@click.option("--slack", is_flag=True, help="Send to a webhook of Slack; --credential has its `url`.")
@click.option("--http", "url", metavar="URL", help="Send a request.")
@click.option("--body", metavar="JSON|@FILE", help="With --http: body; its templates read {{ notification }}.")
@click.option("--credential", metavar="NAME", help="Credential of the channel.")
@click.option(
    "--group", metavar="DURATION", help="Occurrences within this time after a message are one message; default: 60s."
)
@click.option(
    "--answer-url",
    metavar="URL",
    help="Address of the server: messages of `waiting` contain links that answer the wait.",
)
@key_option
@with_server
@json_options
def add(
    name: str,
    on: tuple[str, ...],
    paths: tuple[str, ...],
    labels: tuple[str, ...],
    mail: tuple[str, ...],
    slack: bool,
    url: str | None,
    body: str | None,
    credential: str | None,
    group: str | None,
    answer_url: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Add a rule: what to notify of, and where.

    Examples:

    \b
      noetl notify add ops --on failed --on late --path 'reports/*' --mail ops@example.com --credential smtp
      noetl notify add chat --on failed --on recovered --slack --credential slack
      noetl notify add sales --on 'event:order_*' --mail sales@example.com --credential smtp
      noetl notify add pager --on failed --http https://example.com/a --body '{"text": "{{ notification.subject }}"}'
    """
    from noetl.cli.inputs import read_labels, read_payload

    if sum((bool(mail), slack, url is not None)) != 1:
        raise click.UsageError("give exactly one of --mail, --slack and --http")
    to: dict[str, Any] = {"kind": "mail" if mail else "slack" if slack else "http"}
    if mail:
        to["to"] = list(mail)
    if url is not None:
        to["url"] = url
    if body is not None:
        to["body"] = read_payload(body, ())
    if credential:
        to["credential"] = credential
    occurrences = [each if each.startswith("event:") else each.replace("-", "_") for each in on]
    definition: dict[str, Any] = {"on": occurrences or ["failed", "recovered"], "to": to}
    if paths:
        definition["paths"] = list(paths)
    if labels:
        definition["labels"] = read_labels(labels)
    if group:
        definition["group"] = group
    if answer_url:
        definition["answer_url"] = answer_url
    with target.client(target.settings()) as client:
        try:
            client.notification(name)
        except NotFound:
            _show(client.put_notification(name, definition), as_json)
            return
    raise Conflict(f"a notification rule {name!r} already exists; remove it or choose another name")


@notify.command("list")
@with_server
@json_options
def list_(target: Target, as_json: bool) -> None:
    """List all rules."""
    with target.client(target.settings()) as client:
        found = list(client.notifications())
    if as_json:
        terminal.json(found)
    elif found:
        rows = [(one["name"], ", ".join(one["on"]), ", ".join(one["paths"]), _channel(one)) for one in found]
        terminal.table(("name", "on", "paths", "to"), rows)
    else:
        terminal.note("no notification rules; `noetl notify add NAME` adds one")


@notify.command()
@click.argument("name")
@with_server
@json_options
def show(name: str, target: Target, as_json: bool) -> None:
    """Show a rule."""
    with target.client(target.settings()) as client:
        _show(client.notification(name), as_json)


@notify.command()
@click.argument("name")
@key_option
@with_server
@json_options
def test(name: str, target: Target, as_json: bool) -> None:
    """Send a test message to the channel of a rule."""
    with target.client(target.settings()) as client:
        sent = client.test_notification(name)
    if as_json:
        terminal.json(sent)
    else:
        terminal.data(f"sent: {sent['answer']}")


@notify.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True)
@with_server
@json_options
def log(name: str, limit: int, target: Target, as_json: bool) -> None:
    """List the messages of a rule, newest first."""
    with target.client(target.settings()) as client:
        found = list(client.notification_deliveries(name, limit=limit))
    if as_json:
        terminal.json(found)
        return
    rows = [
        (one["received_at"], one["status"], one["attempts"], one["title"], one["error"] or one["answer"])
        for one in found
    ]
    terminal.table(("received", "status", "attempts", "occurrence", "answer"), rows, styles={"failed": "red"})


@notify.command()
@click.argument("name")
@key_option
@with_server
@output_options
def remove(name: str, target: Target) -> None:
    """Delete a rule; messages that are not sent yet are dropped."""
    with target.client(target.settings()) as client:
        client.remove_notification(name)
    terminal.note(f"notification rule {name} is deleted")


def _channel(document: Mapping[str, Any]) -> str:
    to = document["to"]
    where = ", ".join(to["to"]) if to["kind"] == "mail" else to.get("url") or f"credential {to['credential']}"
    return f"{to['kind']} {where}"


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.json(document)
        return
    labels = ", ".join(f"{name}={value}" for name, value in document["labels"].items())
    for name, value in (
        ("rule", document["name"]),
        ("on", ", ".join(document["on"])),
        ("paths", ", ".join(document["paths"])),
        ("labels", labels),
        ("to", _channel(document)),
        ("group", f"{document['group']:g} s"),
    ):
        if value:
            terminal.data(f"{name:<10} {value}")
