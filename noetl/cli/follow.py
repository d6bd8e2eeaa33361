"""See an execution through to its end: show it, heed the clock and Ctrl-C, give its result.

The first Ctrl-C (or SIGTERM) cancels the execution, which is then recorded as cancelled like any
other; a second one leaves at once, and the log says what had happened until then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from noetl.cli.app import FAILED, INTERRUPTED, TIMED_OUT
from noetl.cli.backend.base import Backend
from noetl.cli.output.display import Display, duration
from noetl.cli.output.terminal import terminal
from noetl.errors import Conflict
from noetl.server.read_models.summaries import RunResult
from noetl.worker.host import TaskLine, Watcher

SIGNALS = (signal.SIGINT, signal.SIGTERM)
QUIET_SECONDS = 1.0  # without an event, after which it is asked whether a limit holds it
SHOWN_LINES = 50  # of an output on a terminal; a pipe gets all of it


class Shown(Watcher):
    """What tools print goes where the run is shown."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def line(self, line: TaskLine) -> None:
        """A line of a tool's own output; who said it only for those who asked for more."""
        said = f"{line.step}.{line.task}: {line.line}" if terminal.verbose else line.line
        self._display.log(said)


class ExecutionFollower:
    """One execution that this process waits for.

    `leaves`: an interruption leaves the execution to those who run it (a server); otherwise it is cancelled."""

    def __init__(
        self, backend: Backend, execution_id: str, display: Display, timeout: float | None, *, leaves: bool = False
    ) -> None:
        self._backend = backend
        self._id = execution_id
        self._display = display
        self._timeout = timeout
        self._leaves = leaves
        self._stopped_by: int | None = None  # exit code of who cancelled it: the clock or the user
        self._cancelling: set[asyncio.Task[None]] = set()
        self._seen = 0  # events so far

    async def finish(self) -> tuple[RunResult, int]:
        """The result, and the exit code that says how it came about."""
        loop = asyncio.get_running_loop()
        for name in SIGNALS:
            loop.add_signal_handler(name, self._interrupted)
        timer = loop.call_later(self._timeout, self._timed_out) if self._timeout is not None else None
        telling = asyncio.ensure_future(self._tell_what_holds_it())
        try:
            async for recorded in self._backend.follow(self._id):
                self._seen += 1
                self._display.event(recorded)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            if timer is not None:
                timer.cancel()
            for name in SIGNALS:
                loop.remove_signal_handler(name)
        await asyncio.gather(*self._cancelling)
        result = await self._backend.result(self._id)
        if result.status == "success":
            return result, 0
        return result, (self._stopped_by or FAILED) if result.status == "cancelled" else FAILED

    async def _tell_what_holds_it(self) -> None:
        """Say it, once, when nothing moves because a limit is reached."""
        before = told = -1
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            if before == self._seen != told:
                for words in (await self._backend.execution(self._id))["waits_for"]:
                    told = self._seen
                    self._display.log(words)
            before = self._seen

    def _timed_out(self) -> None:
        self._stop(TIMED_OUT, f"timed out after {duration(self._timeout or 0)}")

    def _interrupted(self) -> None:
        if self._stopped_by == INTERRUPTED or self._leaves:
            self._display.close()
            if self._leaves:
                terminal.note(f"execution {self._id} goes on; `noetl cancel {self._id}` stops it")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        self._display.log("cancelling; Ctrl-C again leaves at once")
        self._stop(INTERRUPTED, "interrupted by the user")

    def _stop(self, code: int, reason: str) -> None:
        self._stopped_by = code
        task = asyncio.ensure_future(self._cancel(reason))
        self._cancelling.add(task)

    async def _cancel(self, reason: str) -> None:
        try:
            await self._backend.cancel(self._id, reason)
        except Conflict:
            pass  # it ended first, and its end is what counts


def show_result(result: RunResult, as_json: bool) -> None:
    """The output on stdout, how it ended on stderr."""
    if as_json:
        terminal.json(result.document())
    else:
        show_output(result.output)
    took = duration(result.duration_ms / 1000)
    if result.status == "success":
        terminal.note(f"{terminal.styled('success', 'good')} in {took}, execution {result.execution_id}")
        return
    reason = f": {result.error['kind']}: {result.error['message']}" if result.error else ""
    terminal.error(f"{result.status} after {took}, execution {result.execution_id}{reason}")


def show_output(output: dict[str, Any]) -> None:
    """The payload: text as it is, rows as a table for eyes, everything else as JSON."""
    data, reference = output.get("data"), output.get("ref")
    if data is None:
        if reference is not None:
            size = reference.get("meta", {}).get("bytes", 0)
            terminal.note(f"the output ({size} bytes) is kept by reference: {reference['type']} {reference['locator']}")
        return
    if isinstance(data, str):
        terminal.data(data)
    elif not sys.stdout.isatty():
        terminal.json(data)
    elif _is_table(data):
        rows = data["rows"][:SHOWN_LINES]
        heads = list(rows[0])
        terminal.table(heads, [[row.get(head) for head in heads] for row in rows])
        if len(data["rows"]) > len(rows):
            terminal.note(f"... and {len(data['rows']) - len(rows)} more rows; --json prints all")
    else:
        lines = terminal.pretty(data).splitlines()
        terminal.data("\n".join(lines[:SHOWN_LINES]))
        if len(lines) > SHOWN_LINES:
            terminal.note(f"... and {len(lines) - SHOWN_LINES} more lines; --json prints all")


def _is_table(data: Any) -> bool:
    rows = data.get("rows") if isinstance(data, dict) else None
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) for row in rows)
