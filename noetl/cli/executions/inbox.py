"""`noetl inbox`: the waits that people answer, and signed links for those who have no access."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import Target, with_target
from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from noetl.cli.backend.base import Document


@click.command()
@click.option("--link", "execution_id", metavar="ID", help="Create a link that answers a wait of this execution once.")
@click.option("--name", default="", help="With --link: the name of the signal.")
@click.option("--for", "recipient", default="", metavar="WHO", help="With --link: recorded as the sender.")
@click.option("--expires", default="7d", show_default=True, help="With --link: how long the link is valid.")
@with_target
@json_options
def inbox(execution_id: str | None, name: str, recipient: str, expires: str, target: Target, as_json: bool) -> None:
    """List what waits for an answer, newest execution first, with the command that answers it.

    `noetl signal ID --name NAME --set field=VALUE` sends an answer. A link (of a server) opens a page with the form,
    for a mail or a chat message: its recipient can answer once, until it expires.
    """
    if execution_id is not None:
        document = asyncio.run(_create_link(target, execution_id, name, recipient, expires))
        terminal.json(document) if as_json else terminal.data(document["url"])
        return

    async def listed() -> list[Document]:
        async with target.open() as backend:
            return await backend.inbox()

    found = asyncio.run(listed())
    if as_json:
        terminal.json(found)
    elif not found:
        terminal.note("nothing waits for an answer")
    else:
        _show(found)


def _show(entries: list[dict[str, Any]]) -> None:
    from noetl.core.model.waits import answer_command

    heads = ("EXECUTION", "PATH", "STEP", "SIGNAL", "SINCE", "DUE", "TITLE")
    rows = [
        (
            each["execution_id"],
            each["path"],
            "/".join(
                [each["step"], *(".".join(map(str, each["iteration"])),)] if each["iteration"] else [each["step"]]
            ),
            each["signal"],
            each["since"][:19] + "Z",
            each["due"][:19] + "Z" if each["due"] else None,
            each["title"],
        )
        for each in entries
    ]
    terminal.table(heads, rows)
    last = entries[0]
    terminal.note(f"answer with: {answer_command(last['execution_id'], last['signal'], last['form'])}")


async def _create_link(target: Target, execution_id: str, name: str, recipient: str, expires: str) -> dict[str, Any]:
    from noetl.cli.backend.base import find_execution
    from noetl.cli.backend.remote import RemoteBackend
    from noetl.core.model.durations import seconds

    target = target.at_server()
    if not target.is_remote(target.settings()):
        raise RequestRefused("a link is a page of a server; start one with `noetl server start`, or give --server URL")
    try:
        expires_s = seconds(expires)
    except ValueError:
        raise click.UsageError(f"--expires {expires!r} is not a duration: write 30m, 24h or 7d") from None
    async with target.open() as backend:
        assert isinstance(backend, RemoteBackend)
        found = (await find_execution(backend, execution_id)).execution_id
        if not name:
            names = sorted({each["signal"] for each in await backend.inbox() if each["execution_id"] == found})
            if len(names) != 1:
                what = f"waits for {', '.join(names)}; choose one with --name" if names else "waits for no signal"
                raise RequestRefused(f"execution {found} {what}")
            (name,) = names
        return await asyncio.to_thread(
            backend.client.answer_link, found, name, recipient=recipient, expires_s=expires_s
        )
