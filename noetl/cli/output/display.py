"""Shows the progress of an execution on stderr: live rows on a terminal, one line per change elsewhere.

A display has three methods: `event` takes an event of the log, `log` a line that a tool prints, `close` ends it.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from noetl.cli.output.progress import Progress, StepRow
from noetl.cli.output.terminal import terminal
from noetl.core.model.events import LoopStarted, Recorded, StepScheduled
from noetl.runtime.printable import printable

LOOP_LINE_SECONDS = 1.0  # the least time between two lines about the same loop
FRAMES_PER_SECOND = 8
BAR_WIDTH = 24


class Display(Protocol):
    """Shows the progress of one execution."""

    def event(self, recorded: Recorded) -> None:
        """Show an event."""

    def log(self, line: str) -> None:
        """Show a line that a tool prints."""

    def close(self) -> None:
        """End the display."""


def open_display() -> Display:
    """The display for this terminal and the given options."""
    if terminal.quiet:
        return SilentDisplay()
    if (
        sys.stderr.isatty()
        and terminal.supports_color(sys.stderr)
        and (sys.stderr.encoding or "").lower().startswith("utf")
    ):
        return LiveDisplay()
    return PlainDisplay()


class SilentDisplay:
    """--quiet."""

    def event(self, recorded: Recorded) -> None:
        """Show nothing."""

    def log(self, line: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class PlainDisplay:
    """Writes a line when a step changes its state; for a loop at most one per second."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._last_state: dict[str, str] = {}
        self._last_time: dict[str, float] = {}

    def event(self, recorded: Recorded) -> None:
        """Write a line if a step has changed."""
        first = not self.progress.execution_id
        name = self.progress.apply(recorded)
        if first:
            terminal.note(f"execution {self.progress.execution_id} of {self.progress.path}")
        if name is None:
            return
        row = self.progress.steps[name]
        state = row.state if row.state != "running" else f"running {row.loop or ''}{row.retries or ''}"
        if state == self._last_state.get(name):
            return
        now = time.monotonic()
        change = row.state != "running" or isinstance(recorded.body, StepScheduled | LoopStarted)
        if not change and not terminal.verbose and now - self._last_time.get(name, 0.0) < LOOP_LINE_SECONDS:
            return
        self._last_state[name], self._last_time[name] = state, now
        terminal.note(f"{name}: {describe_row(row, recorded.at)}")

    def log(self, line: str) -> None:
        """Write the line."""
        terminal.note(line)

    def close(self) -> None:
        """Every line has been written."""


def describe_row(row: StepRow, now: float) -> str:
    """A row as text."""
    parts = [
        row.state if row.ended_at is None or row.state == "skipped" else f"{row.state} in {duration(row.seconds(now))}"
    ]
    if row.runs > 1:
        parts.append(f"{row.runs} runs")
    if row.loop is not None:
        total, done, failed = row.loop
        parts.append(f"{done + failed} of {total} iterations" if row.ended_at is None else f"{total} iterations")
        if failed:
            parts.append(f"{failed} failed")
    if row.retries:
        parts.append(f"{row.retries} retries" if row.retries > 1 else "1 retry")
    if row.state == "failed" and row.error:
        parts.append(row.error)
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """A number of seconds as text."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


class LiveDisplay:
    """One live row per step: a spinner, the progress of a loop, retries, time."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.progress = Progress()
        self._console = Console(stderr=True, highlight=False)
        self._live = RichLive(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=FRAMES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def event(self, recorded: Recorded) -> None:
        """Apply an event; the next frame shows it."""
        self.progress.apply(recorded)
        if not self._live.is_started:
            self._live.start()

    def log(self, line: str) -> None:
        """Print a line above the rows."""
        from rich.text import Text

        from noetl.cli.output.terminal import shown

        self._console.print(Text.from_ansi(shown(line)), soft_wrap=True)

    def close(self) -> None:
        """Stop; the last frame stays on the terminal."""
        self._live.stop()

    def _render(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        now = time.time()
        rows = list(self.progress.steps.values())
        height = max(4, self._console.size.height - 6)
        hidden = 0
        if len(rows) > height:
            active = [row for row in rows if row.state in ("running", "failed")]
            others = [row for row in rows if row not in active]
            shown = {row.name for row in (active[-height:] + others[-max(0, height - len(active)) :])[:height]}
            hidden = len(rows) - len(shown)
            rows = [row for row in rows if row.name in shown]
        grid = Table.grid(padding=(0, 1))
        for _ in range(5):
            grid.add_column(no_wrap=True, overflow="ellipsis")
        if hidden:
            grid.add_row("", Text(f"... and {hidden} more steps", style="dim"))
        for row in rows:
            grid.add_row(
                _symbol(row),
                Text(printable(row.name, one_line=True), style="bold"),
                _bar(row),
                Text(duration(row.seconds(now)), style="dim"),
                _notes(row),
            )
        return grid


_SYMBOLS = {
    "done": ("✔", "green"),
    "failed": ("✖", "red"),
    "skipped": ("·", "dim"),
    "parked": ("⏸", "yellow"),
    "waiting": ("·", "dim"),
}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def _symbol(row: StepRow) -> Any:
    from rich.text import Text

    if row.state == "running":
        return Text(_SPINNER[int(time.monotonic() * FRAMES_PER_SECOND) % len(_SPINNER)], style="cyan")
    symbol, style = _SYMBOLS[row.state]
    return Text(symbol, style=style)


def _bar(row: StepRow) -> Any:
    from rich.text import Text

    if row.loop is None:
        return Text("")
    total, done, failed = row.loop
    green = BAR_WIDTH * done // total if total else BAR_WIDTH
    red = min(BAR_WIDTH - green, -(-BAR_WIDTH * failed // total)) if total else 0
    return Text.assemble(
        ("━" * green, "green"),
        ("━" * red, "red"),
        ("━" * (BAR_WIDTH - green - red), "bright_black"),
        f" {done + failed}/{total}",
    )


def _notes(row: StepRow) -> Any:
    from rich.text import Text

    parts = []
    if row.state == "failed":
        parts.append((row.error, "red"))
    elif row.state == "running" and row.task:
        parts.append((row.task, "cyan"))
    if row.retries:
        parts.append((f"{row.retries} retries" if row.retries > 1 else "1 retry", "yellow"))
    if row.runs > 1:
        parts.append((f"{row.runs} runs", "dim"))
    notes = Text()
    for text, style in parts:
        notes.append(("  " if len(notes) else "") + printable(" ".join(text.split()), one_line=True), style=style)
    return notes
