"""Verbs that steer executions, here or on a server: every one of them is an event in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from noetl.cli.executions.inspect import id_argument
from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.run import timeout_option
from noetl.cli.target import Target, with_target

if TYPE_CHECKING:
    from noetl.cli.backend.base import Backend
    from noetl.embedded import LocalEngine
    from noetl.storage.ports.events import ExecutionSummary


@click.command()
@id_argument
@click.option("--reason", default="cancelled by the user", help="Kept in the log.")
@with_target
@as_json
@talk
def cancel(execution_id: str, reason: str, place: Target, as_json: bool) -> None:
    """Stop an execution; what it has done stays done."""
    _steer(place, execution_id, lambda backend, found: backend.cancel(found, reason), as_json, "being cancelled")


@click.command()
@id_argument
@click.option("--reason", default="", help="Kept in the log.")
@with_target
@as_json
@talk
def pause(execution_id: str, reason: str, place: Target, as_json: bool) -> None:
    """Start nothing new in an execution; what runs goes on."""
    _steer(place, execution_id, lambda backend, found: backend.pause(found, reason), as_json)


@click.command()
@id_argument
@click.option("--reason", default="", help="Kept in the log.")
@timeout_option
@with_target
@as_json
@talk
def resume(execution_id: str, reason: str, timeout: float | None, place: Target, as_json: bool) -> int:
    """Go on with an execution that was paused, or whose process died.

    An execution of this machine that was left behind by a killed `noetl run` goes on in this process, where it
    stopped; it is shown and waited for like any run. What is paused goes on where it runs.
    """
    if place.means_server(place.settings()):
        _steer(place, execution_id, lambda backend, found: backend.resume(found, reason), as_json)
        return 0
    return asyncio.run(_resume_here(execution_id, reason, timeout, place, as_json))


async def _resume_here(execution_id: str, reason: str, timeout: float | None, place: Target, as_json: bool) -> int:
    from noetl.cli.backend.base import find_execution
    from noetl.cli.run import drive
    from noetl.errors import Conflict

    async with place.opened() as backend:
        summary = await find_execution(backend, execution_id)
        if summary.ended_at is not None:
            raise Conflict(
                f"execution {summary.execution_id} has ended ({summary.status}); `noetl rerun` runs it again"
            )
        if summary.status == "paused":
            summary = await backend.resume(summary.execution_id, reason)
            if place.runs(summary.execution_id):
                show_summary(summary, as_json)
                return 0

    async def begin(engine: LocalEngine) -> str:
        return summary.execution_id

    return await drive(begin, place.store, timeout, as_json, resume=summary.execution_id)


@click.command()
@id_argument
@click.option("--payload", metavar="JSON|@FILE", help="Laid over the execution's ctx; @- is stdin.")
@click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of ctx, read as YAML.")
@click.option("--name", default="", help="What the signal is called in the log.")
@with_target
@as_json
@talk
def signal(
    execution_id: str, payload: str | None, sets: tuple[str, ...], name: str, place: Target, as_json: bool
) -> None:
    """Tell an execution something: the values are laid over its ctx, which may open a closed gate."""
    from noetl.cli.inputs import read_payload

    given = read_payload(payload, sets)
    _steer(place, execution_id, lambda backend, found: backend.signal(found, given, name), as_json)


def _steer(
    place: Target,
    execution_id: str,
    deed: Callable[[Backend, str], Awaitable[ExecutionSummary]],
    as_json: bool,
    goes_on: str = "",  # what to say of it while it has not ended
) -> None:
    async def steered() -> ExecutionSummary:
        from noetl.cli.backend.base import find_execution

        async with place.opened() as backend:
            return await deed(backend, (await find_execution(backend, execution_id)).execution_id)

    show_summary(asyncio.run(steered()), as_json, goes_on)


def show_summary(summary: ExecutionSummary, as_json: bool, goes_on: str = "") -> None:
    """How an execution is now."""
    if as_json:
        from noetl.server.read_models.documents import summary_document

        terminal.json(summary_document(summary))
    else:
        state = summary.status if summary.ended_at is not None or not goes_on else goes_on
        terminal.note(f"execution {summary.execution_id} is {state}")
