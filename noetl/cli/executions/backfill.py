"""`noetl backfill`: one execution of a playbook for each slot of a time range."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Literal

import click

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.run import payload_option, set_option, wait_option
from noetl.cli.target import Target, key_option, with_target

if TYPE_CHECKING:
    from noetl.server.scheduling.backfills import Backfill, Progress

SHOW_SECONDS = 1.0  # between two lines of progress
POLL_SECONDS = 0.5

Command = Literal["pause", "resume", "cancel", "retry"]


class StartByDefault(click.Group):
    """`noetl backfill PATH ...` is `noetl backfill start PATH ...`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command of the first word; a word that is none is the path of `start`."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["start", *args])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before the path belong to `start`."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.group(cls=StartByDefault)
def backfill() -> None:
    """Run a playbook once for each slot of a time range.

    Example: noetl backfill etl/export --from 2026-01-01 --to 2026-02-01 --every 1d --concurrency 4

    The workload of each execution has the slot: `workload.slot.start`, `.end`, `.date` and `.index`; --as names another
    key. Values of --set may be templates over it. Each slot starts once, also after a crash. A backfill of this machine
    runs in this process; one of a server runs there.
    """


@backfill.command()
@click.argument("path", metavar="PATH[@VERSION]|FILE")
@click.option("--from", "start", required=True, metavar="INSTANT", help="Start of the first slot.")
@click.option("--to", "end", required=True, metavar="INSTANT", help="End of the range (exclusive).")
@click.option("--every", required=True, metavar="LENGTH", help="Length of a slot: 15m, 6h, 1d, '1 month'.")
@click.option("--timezone", metavar="ZONE", help="Zone of days, weeks, months, and of times without an offset.")
@click.option("--as", "variable", default="slot", show_default=True, metavar="NAME", help="Workload key of the slot.")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=1, show_default=True, help="Executions at once.")
@click.option("--name", metavar="NAME", help="Name of the backfill; default: made from the path.")
@payload_option
@set_option
@wait_option
@key_option
@with_target
@json_options
def start(
    path: str,
    start: str,
    end: str,
    every: str,
    payload: str | None,
    sets: tuple[str, ...],
    wait: bool,
    target: Target,
    as_json: bool,
    **options: Any,
) -> int:
    """Start a backfill."""
    from noetl.cli.inputs import read_payload, split_version

    path, version = split_version(path)
    options |= {"version": version, "payload": read_payload(payload, sets)}
    target = target if wait else target.at_server()
    if target.is_remote(target.settings()):
        with target.client(target.settings()) as client:
            document = client.add_backfill(path, start, end, every, **options)
        return _follow_remotely(target, document["name"], wait, as_json)
    if not wait:
        raise click.UsageError("--no-wait requires a server: a backfill of this machine runs in this process")

    async def begin(backend: Any) -> str:
        caller = os.path.join(os.getcwd(), "")
        created = await backend.backfill_service.add(path, start, end, every, caller=caller, **options)
        return str(created.name)

    return asyncio.run(_run_locally(target, begin, as_json))


@backfill.command("list")
@with_target
@json_options
def list_(target: Target, as_json: bool) -> None:
    """List backfills and their progress."""
    found = target.call(lambda backend: backend.backfills())
    if as_json:
        terminal.json(found)
    elif not found:
        terminal.note("no backfills")
    else:
        heads = ("NAME", "STATUS", "PATH", "SLOTS", "SUCCEEDED", "FAILED", "RUNNING", "WAITING")
        names = ("name", "status", "path", "total", "succeeded", "failed", "running", "waiting")
        terminal.table(heads, [tuple(each[name] for name in names) for each in found])


@backfill.command()
@click.argument("name")
@with_target
@json_options
def show(name: str, target: Target, as_json: bool) -> None:
    """Show a backfill, its running executions and failed slots."""
    _show(target.call(lambda backend: backend.backfill(name)), as_json)


@backfill.command()
@click.argument("name")
@key_option
@with_target
@json_options
def pause(name: str, target: Target, as_json: bool) -> None:
    """Start no more slots; those that run continue."""
    _show(target.call(lambda backend: backend.control_backfill(name, "pause")), as_json)


@backfill.command()
@click.argument("name")
@key_option
@with_target
@json_options
def cancel(name: str, target: Target, as_json: bool) -> None:
    """Start no more slots, and cancel those that run."""
    _show(target.call(lambda backend: backend.control_backfill(name, "cancel")), as_json)


@backfill.command()
@click.argument("name")
@wait_option
@key_option
@with_target
@json_options
def resume(name: str, wait: bool, target: Target, as_json: bool) -> int:
    """Continue a backfill that is paused, or whose process has ended."""
    return _continue(name, "resume", wait, target, as_json)


@backfill.command()
@click.argument("name")
@wait_option
@key_option
@with_target
@json_options
def retry(name: str, wait: bool, target: Target, as_json: bool) -> int:
    """Start the failed slots again."""
    return _continue(name, "retry", wait, target, as_json)


def _continue(name: str, command: Command, wait: bool, target: Target, as_json: bool) -> int:
    target = target if wait else target.at_server()
    if target.is_remote(target.settings()):
        target.call(lambda backend: backend.control_backfill(name, command))
        return _follow_remotely(target, name, wait, as_json)

    async def begin(backend: Any) -> str:
        await backend.control_backfill(name, command)
        return name

    unfinished = target.call(lambda backend: backend.executions(status=("pending", "running", "waiting", "paused")))
    mine = frozenset(each.execution_id for each in unfinished if (each.key or "").startswith(f"backfill:{name}:"))
    return asyncio.run(_run_locally(target, begin, as_json, mine))


async def _run_locally(target: Target, begin: Any, as_json: bool, running: frozenset[str] = frozenset()) -> int:
    """Run a backfill in this process; Ctrl-C stops it, and `noetl backfill resume` continues it.

    `running` are executions of a process that has ended, which continue here."""
    from noetl.cli.backend.local import LocalBackend
    from noetl.cli.local_engine import open_engine
    from noetl.errors import Conflict
    from noetl.runtime.clock import RealClock
    from noetl.server.scheduling.backfill_runner import BackfillRunner

    lines = _ProgressLines()
    async with open_engine(target.store, resume=running) as engine:
        backend = LocalBackend(engine)
        name = await begin(backend)
        runner = BackfillRunner(backend.backfill_service, engine.orchestrator, RealClock())

        async def run_or_follow() -> None:
            try:
                await runner.run(name, lines.show)
            except Conflict:  # executions that have started here end here
                terminal.note(f"a server on this store runs the backfill {name}")
                while (await backend.backfill(name))["status"] == "running":  # noqa: ASYNC110 - another process ends it
                    await asyncio.sleep(POLL_SECONDS)

        work = asyncio.ensure_future(run_or_follow())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            from noetl.cli.app import INTERRUPTED

            terminal.note(f"the backfill {name} stopped; `noetl backfill resume {name}` continues it")
            return INTERRUPTED
        document = await backend.backfill(name)
    return _result(document, as_json)


def _follow_remotely(target: Target, name: str, wait: bool, as_json: bool) -> int:
    with target.client(target.settings()) as client:
        document = client.backfill(name)
        shown = ""
        while wait and document["status"] == "running":
            line = _line(document)
            if line != shown:
                shown = line
                terminal.note(line)
            time.sleep(POLL_SECONDS)
            document = client.backfill(name)
    if not wait:
        _show(document, as_json)
        return 0
    return _result(document, as_json)


class _ProgressLines:
    """Writes the progress, at most one line per second."""

    def __init__(self) -> None:
        self._at = 0.0
        self._line = ""

    def show(self, backfill: Backfill, progress: Progress) -> None:
        """Write a line if something has changed."""
        now = time.monotonic()
        waiting = backfill.total - progress.cursor + len(progress.queue)
        line = _line(
            {
                "name": backfill.name,
                "total": backfill.total,
                "succeeded": progress.succeeded,
                "failed": len(progress.failed),
                "running": len(progress.running),
                "waiting": waiting,
            }
        )
        if line != self._line and now - self._at >= SHOW_SECONDS:
            self._line, self._at = line, now
            terminal.note(line)


def _line(document: dict[str, Any]) -> str:
    counts = ", ".join(f"{document[name]} {name}" for name in ("succeeded", "failed", "running", "waiting"))
    return f"backfill {document['name']}: {counts} of {document['total']} slots"


def _result(document: dict[str, Any], as_json: bool) -> int:
    """Print the end of a backfill; 1 if a slot failed or it is not complete."""
    from noetl.cli.app import FAILED

    if as_json:
        terminal.json(document)
    text = f"{document['status']}: {document['succeeded']} of {document['total']} slots succeeded"
    if document["failed"]:
        again = f"`noetl backfill retry {document['name']}` starts them again"
        terminal.error(f"backfill {document['name']} is {text}, {document['failed']} failed; {again}")
        return FAILED
    terminal.note(f"backfill {document['name']} is {text}")
    return 0 if document["status"] == "done" else FAILED


def _show(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.json(document)
        return
    for name in ("name", "status", "path", "from", "to", "total", "succeeded", "failed", "running", "waiting"):
        terminal.data(f"{name:<10} {document[name]}")
    for title in ("executions", "failures"):
        if document[title]:
            terminal.data(f"\n{title}")
            rows = [
                (each["index"], each["start"], each["end"], each["execution_id"], each.get("error"))
                for each in document[title]
            ]
            terminal.table(("SLOT", "START", "END", "EXECUTION", "ERROR"), rows)
