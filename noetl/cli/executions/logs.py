"""`noetl logs`: the lines that the tasks of an execution print."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import click

from noetl.cli.executions.inspect import id_argument
from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import Target, with_target

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {"error": "red", "warning": "yellow", "debug": "dim"}


@click.command()
@id_argument
@click.option("-f", "--follow", is_flag=True, help="Print lines as they arrive, until the execution has ended.")
@click.option("--step", help="Only lines of this step.")
@click.option("--iteration", metavar="N", help="Only lines of this iteration; in nested loops N.M.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only lines of this attempt of a task.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only lines of this stream.")
@click.option(
    "--level", type=click.Choice(["error", "warning", "info", "debug"]), help="Only lines that name this level."
)
@click.option("--search", metavar="TEXT", help="Only lines that contain this text, without regard to case.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only lines after this one.")
@with_target
@json_options
def logs(execution_id: str, follow: bool, after: int, target: Target, as_json: bool, **where: Any) -> None:
    """Print what the tasks of an execution print (stdout and stderr); with --json one line per document.

    A line that counts dropped lines is shown where they are missing.
    """
    dropped = 0

    def show(line: dict[str, Any]) -> None:
        nonlocal dropped
        dropped += line.get("dropped", 0)
        if not _matches(line, where):
            return
        if as_json:
            terminal.json_line(line)
        else:
            terminal.data(_formatted(line))
            if follow:
                sys.stdout.flush()  # for a reader of a pipe

    async def read() -> None:
        from noetl.cli.backend.base import find_execution

        async with target.open() as backend:
            summary = await find_execution(backend, execution_id)
            if follow:
                target.warn_if_orphaned(summary.execution_id, summary.status)
            async for line in (backend.follow_logs if follow else backend.logs)(summary.execution_id, after):
                show(line)

    asyncio.run(read())
    if dropped:
        terminal.note(f"{dropped:,} lines were dropped")


def _matches(line: dict[str, Any], where: dict[str, Any]) -> bool:
    search = where["search"]
    return all(
        where[name] is None or line[name] == where[name] for name in ("step", "iteration", "attempt", "stream", "level")
    ) and (search is None or search.lower() in line["text"].lower())


def _formatted(line: dict[str, Any]) -> str:
    from noetl.core.model.events import instant

    where = line["step"] + (f"[{line['iteration']}]" if line["iteration"] else "")
    attempt = f" attempt {line['attempt']}" if line["attempt"] > 1 else ""
    head = f"{instant(line['at'] / 1000)[11:23]}  {where}.{line['task']}{attempt}"
    text = f"{line['dropped']:,} {line['text']}" if line.get("dropped") else line["text"]
    if not terminal.supports_color(sys.stdout):
        return f"{head}  {_CONTROL.sub('', text)}"
    # Colors of the task are kept; other control sequences could change the terminal.
    text = _CONTROL.sub(lambda found: found[0] if _COLOR.fullmatch(found[0]) else "", text)
    level = line["level"] or ("error" if line["stream"] == "stderr" else "")
    style = "yellow" if line.get("dropped") else _LEVELS.get(level)
    text = terminal.styled(text, style, sys.stdout) if style else text
    return f"{terminal.styled(head, 'dim', sys.stdout)}  {text}"
