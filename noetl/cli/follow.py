"""Follows an execution to its end: shows progress, handles the timeout and Ctrl-C, returns the result.

The first Ctrl-C (or SIGTERM) cancels the execution, which is recorded in its log. The second one ends the process
at once; the log has what happened until then.
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
from noetl.core.model.events import Recorded, WaitStarted, instant
from noetl.core.model.waits import answer_command
from noetl.errors import Conflict
from noetl.server.read_models.summaries import RunResult
from noetl.worker.host import TaskLine, TaskObserver

SIGNALS = (signal.SIGINT, signal.SIGTERM)
QUIET_SECONDS = 1.0  # without an event, after which a reached limit is reported
MAX_OUTPUT_LINES = 50  # on a terminal; a pipe gets all lines


class ToolOutput(TaskObserver):
    """Shows what tools print on the display of the run."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def line(self, line: TaskLine) -> None:
        """Show a line; with -v it has the step and the task."""
        self._display.log(f"{line.step}.{line.task}: {line.line}" if terminal.verbose else line.line)


class ExecutionFollower:
    """Waits for one execution.

    With `detaches` an interruption ends only the waiting (the execution runs on a server); otherwise it cancels
    the execution."""

    def __init__(
        self,
        backend: Backend,
        execution_id: str,
        display: Display,
        timeout: float | None,
        *,
        detaches: bool = False,
        options: str = "",  # of commands for this execution in other terminals
    ) -> None:
        self._backend = backend
        self._id = execution_id
        self._display = display
        self._timeout = timeout
        self._detaches = detaches
        self._options = options
        self._stopped_by: int | None = None  # exit code of the cause: the timeout or the user
        self._cancelling: set[asyncio.Task[None]] = set()
        self._seen = 0  # events so far

    async def finish(self) -> tuple[RunResult, int]:
        """Wait for the end; return the result and the exit code."""
        loop = asyncio.get_running_loop()
        for name in SIGNALS:
            loop.add_signal_handler(name, self._interrupted)
        timer = loop.call_later(self._timeout, self._timed_out) if self._timeout is not None else None
        reporting = asyncio.ensure_future(self._report_limits())
        try:
            async for recorded in self._backend.follow(self._id):
                self._seen += 1
                self._display.event(recorded)
                if isinstance(recorded.body, WaitStarted) and recorded.body.quota is None:
                    self._display.log(wait_notice(recorded, recorded.body, self._options))
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            if timer is not None:
                timer.cancel()
            for name in SIGNALS:
                loop.remove_signal_handler(name)
        await asyncio.gather(*self._cancelling)
        result = await self._backend.result(self._id)
        if result.status == "success":
            return result, 0
        return result, (self._stopped_by or FAILED) if result.status == "cancelled" else FAILED

    async def _report_limits(self) -> None:
        """Report once when nothing happens because a limit is reached."""
        before = reported = -1
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            if before == self._seen != reported:
                for text in (await self._backend.execution(self._id))["waits_for"]:
                    reported = self._seen
                    self._display.log(f"waits: {text}")
            before = self._seen

    def _timed_out(self) -> None:
        self._stop(TIMED_OUT, f"timed out after {duration(self._timeout or 0)}")

    def _interrupted(self) -> None:
        if self._stopped_by == INTERRUPTED or self._detaches:
            self._display.close()
            if self._detaches:
                terminal.note(f"execution {self._id} continues; `noetl cancel {self._id}` stops it")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        self._display.log("cancelling the execution; Ctrl-C again exits at once")
        self._stop(INTERRUPTED, "interrupted by the user")

    def _stop(self, code: int, reason: str) -> None:
        self._stopped_by = code
        task = asyncio.ensure_future(self._cancel(reason))
        self._cancelling.add(task)

    async def _cancel(self, reason: str) -> None:
        try:
            await self._backend.cancel(self._id, reason)
        except Conflict:
            pass  # it has ended meanwhile


def wait_notice(recorded: Recorded, wait: WaitStarted, options: str = "") -> str:
    """For what a task waits, and how to answer it."""
    ends_at = wait.until if wait.for_s is None else recorded.at + wait.for_s
    until = "" if ends_at is None else f" until {instant(ends_at)[:19]}Z"
    if wait.signal is None:
        return f"{wait.step}.{wait.task} waits{until}"
    title = f": {wait.title}" if wait.title else ""
    command = answer_command(recorded.execution_id, wait.signal, wait.form, options)
    return f'{wait.step}.{wait.task} waits for the signal "{wait.signal}"{until}{title}\n  answer with: {command}'


def show_result(result: RunResult, as_json: bool) -> None:
    """Write the output to stdout and the status to stderr."""
    if as_json:
        terminal.json(result.document())
    else:
        show_output(result.output)
    took = duration(result.duration_ms / 1000)
    if result.status == "success":
        terminal.note(f"{terminal.styled('success', 'green')} in {took}, execution {result.execution_id}")
        return
    reason = f": {result.error['kind']}: {result.error['message']}" if result.error else ""
    terminal.error(f"{result.status} after {took}, execution {result.execution_id}{reason}")


def show_output(output: dict[str, Any]) -> None:
    """Write the data: text unchanged, rows as a table on a terminal, other data as JSON."""
    data, reference = output.get("data"), output.get("ref")
    if data is None:
        if reference is not None:
            size = reference.get("meta", {}).get("bytes", 0)
            terminal.note(
                f"the output ({size} bytes) is stored by reference: {reference['type']} {reference['locator']}"
            )
        return
    if isinstance(data, str):
        terminal.data(data)
    elif not sys.stdout.isatty():
        terminal.json(data)
    elif _is_table(data):
        rows = data["rows"][:MAX_OUTPUT_LINES]
        heads = list(rows[0])
        terminal.table(heads, [[row.get(head) for head in heads] for row in rows])
        if len(data["rows"]) > len(rows):
            terminal.note(f"... and {len(data['rows']) - len(rows)} more rows; --json prints all")
    else:
        lines = terminal.pretty(data).splitlines()
        terminal.data("\n".join(lines[:MAX_OUTPUT_LINES]))
        if len(lines) > MAX_OUTPUT_LINES:
            terminal.note(f"... and {len(lines) - MAX_OUTPUT_LINES} more lines; --json prints all")


def _is_table(data: Any) -> bool:
    rows = data.get("rows") if isinstance(data, dict) else None
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, dict) for row in rows)
