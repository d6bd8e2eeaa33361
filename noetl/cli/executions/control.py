"""Commands that control executions, locally or on a server; each of them is recorded in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from noetl.cli.executions.inspect import id_argument
from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.run import timeout_option
from noetl.cli.target import Target, key_option, with_target

if TYPE_CHECKING:
    from noetl.cli.backend.base import Backend
    from noetl.embedded import LocalEngine
    from noetl.storage.ports.events import ExecutionSummary


@click.command()
@id_argument
@click.option("--reason", default="cancelled by the user", help="Recorded in the log.")
@click.option("--compensate", is_flag=True, help="Run the compensations of completed steps before it ends.")
@key_option
@with_target
@json_options
def cancel(execution_id: str, reason: str, compensate: bool, target: Target, as_json: bool) -> None:
    """Cancel an execution; completed work is undone only with --compensate."""

    def change(backend: Backend, found: str) -> Awaitable[ExecutionSummary]:
        return backend.cancel(found, reason, compensate)

    _control(target, execution_id, change, as_json, "being cancelled")


@click.command()
@id_argument
@click.option("--reason", default="", help="Recorded in the log.")
@key_option
@with_target
@json_options
def pause(execution_id: str, reason: str, target: Target, as_json: bool) -> None:
    """Start no new run in an execution; runs that have started continue."""
    _control(target, execution_id, lambda backend, found: backend.pause(found, reason), as_json)


@click.command()
@id_argument
@click.option("--reason", default="", help="Recorded in the log.")
@timeout_option
@key_option
@with_target
@json_options
def resume(execution_id: str, reason: str, timeout: float | None, target: Target, as_json: bool) -> int:
    """Continue an execution that is paused, or whose process has ended.

    An execution of this machine whose `noetl run` was killed continues in this process from where it stopped, with
    progress and output as for `noetl run`. A paused execution continues in the process that runs it.
    """
    if target.is_remote(target.settings()):
        _control(target, execution_id, lambda backend, found: backend.resume(found, reason), as_json)
        return 0
    return asyncio.run(_resume_locally(execution_id, reason, timeout, target, as_json))


async def _resume_locally(execution_id: str, reason: str, timeout: float | None, target: Target, as_json: bool) -> int:
    from noetl.cli.backend.base import find_execution
    from noetl.cli.run import run_locally
    from noetl.errors import Conflict

    async with target.open() as backend:
        summary = await find_execution(backend, execution_id)
        if summary.ended_at is not None:
            raise Conflict(
                f"execution {summary.execution_id} has ended ({summary.status}); `noetl rerun` runs it again"
            )
        if summary.status == "paused":
            summary = await backend.resume(summary.execution_id, reason)
            if target.is_process_alive(summary.execution_id):
                show_summary(summary, as_json)
                return 0

    async def begin(engine: LocalEngine) -> str:
        return summary.execution_id

    return await run_locally(begin, target.store, timeout, as_json, resume=summary.execution_id)


@click.command()
@id_argument
@click.option("--payload", metavar="JSON|@FILE", help="The data of the signal; @- is stdin.")
@click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the data, read as YAML.")
@click.option("--name", default="", help="Name of the signal: that of the wait that it answers.")
@key_option
@with_target
@json_options
def signal(
    execution_id: str, payload: str | None, sets: tuple[str, ...], name: str, target: Target, as_json: bool
) -> None:
    """Answer a wait of an execution, or send values to its ctx.

    A signal with the name of a `wait` task is the answer to it; if nothing waits for it yet, it is kept until then.
    `noetl inbox` lists the open waits. Any other signal is merged into ctx, which may open a closed gate.
    """
    from noetl.cli.inputs import read_payload

    given = read_payload(payload, sets)
    _control(target, execution_id, lambda backend, found: backend.signal(found, given, name), as_json)


def _control(
    target: Target,
    execution_id: str,
    operation: Callable[[Backend, str], Awaitable[ExecutionSummary]],
    as_json: bool,
    unfinished: str = "",  # printed instead of the status while the execution has not ended
) -> None:
    async def run() -> ExecutionSummary:
        from noetl.cli.backend.base import find_execution

        async with target.open() as backend:
            return await operation(backend, (await find_execution(backend, execution_id)).execution_id)

    show_summary(asyncio.run(run()), as_json, unfinished)


def show_summary(summary: ExecutionSummary, as_json: bool, unfinished: str = "") -> None:
    """Print the status of an execution."""
    if as_json:
        from noetl.server.read_models.documents import summary_document

        terminal.json(summary_document(summary))
    else:
        state = summary.status if summary.ended_at is not None or not unfinished else unfinished
        terminal.note(f"execution {summary.execution_id} is {state}")
