"""Show a run while it goes: a live picture on a terminal, a line per change elsewhere.

Both displays take the same three calls: `event` for what the log says, `log` for what tools
print, `close` at the end. Everything goes to stderr.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from noetl.cli.output.progress import Progress, StepRow
from noetl.cli.output.terminal import terminal
from noetl.core.model.events import LoopStarted, Recorded, StepScheduled

LINE_EVERY = 1.0  # seconds between two lines about the same loop
FRAMES_PER_SECOND = 8
BAR = 24


class Display(Protocol):
    """What a run is shown on."""

    def event(self, recorded: Recorded) -> None:
        """Something happened."""

    def log(self, line: str) -> None:
        """A tool printed a line."""

    def close(self) -> None:
        """Nothing more will come."""


def open_display() -> Display:
    """The display that suits this terminal and the user's wishes."""
    if terminal.quiet:
        return SilentDisplay()
    if sys.stderr.isatty() and terminal.colours(sys.stderr) and (sys.stderr.encoding or "").lower().startswith("utf"):
        return LiveDisplay()
    return PlainDisplay()


class SilentDisplay:
    """--quiet."""

    def event(self, recorded: Recorded) -> None:
        """Say nothing."""

    def log(self, line: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Say nothing."""


class PlainDisplay:
    """A line whenever a step changes its state; about a loop, at most one a second."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._said: dict[str, str] = {}
        self._at: dict[str, float] = {}

    def event(self, recorded: Recorded) -> None:
        """Say what has changed, if it has."""
        first = not self.progress.execution_id
        name = self.progress.apply(recorded)
        if first:
            terminal.note(f"execution {self.progress.execution_id} of {self.progress.path}")
        if name is None:
            return
        row = self.progress.steps[name]
        news = row.state if row.state != "running" else f"running {row.loop or ''}{row.retries or ''}"
        if news == self._said.get(name):
            return
        now = time.monotonic()
        change = row.state != "running" or isinstance(recorded.body, StepScheduled | LoopStarted)
        if not change and not terminal.verbose and now - self._at.get(name, 0.0) < LINE_EVERY:
            return
        self._said[name], self._at[name] = news, now
        terminal.note(f"{name}: {sentence(row, recorded.at)}")

    def log(self, line: str) -> None:
        """Pass it on."""
        terminal.note(line)

    def close(self) -> None:
        """Every line has been said."""


def sentence(row: StepRow, now: float) -> str:
    """A row in words."""
    parts = [
        row.state if row.ended_at is None or row.state == "skipped" else f"{row.state} in {duration(row.seconds(now))}"
    ]
    if row.runs > 1:
        parts.append(f"{row.runs} runs")
    if row.loop is not None:
        owed, done, failed = row.loop
        parts.append(f"{done + failed} of {owed} iterations" if row.ended_at is None else f"{owed} iterations")
        if failed:
            parts.append(f"{failed} failed")
    if row.retries:
        parts.append(f"{row.retries} retries" if row.retries > 1 else "1 retry")
    if row.state == "failed" and row.trouble:
        parts.append(row.trouble)
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


class LiveDisplay:
    """A row per step that moves: a spinner, the loop's bar, retries, time."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.progress = Progress()
        self._console = Console(stderr=True, highlight=False)
        self._live = RichLive(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=FRAMES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def event(self, recorded: Recorded) -> None:
        """Take it in; the next frame shows it."""
        self.progress.apply(recorded)
        if not self._live.is_started:
            self._live.start()

    def log(self, line: str) -> None:
        """Print it above the moving picture."""
        from rich.text import Text

        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        """Leave the last picture standing."""
        self._live.stop()

    def _picture(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        now = time.time()
        rows = list(self.progress.steps.values())
        room = max(4, self._console.size.height - 6)
        hidden = 0
        if len(rows) > room:
            moving = [row for row in rows if row.state in ("running", "failed")]
            resting = [row for row in rows if row not in moving]
            kept = {row.name for row in (moving[-room:] + resting[-max(0, room - len(moving)) :])[:room]}
            hidden = len(rows) - len(kept)
            rows = [row for row in rows if row.name in kept]
        grid = Table.grid(padding=(0, 1))
        for _ in range(5):
            grid.add_column(no_wrap=True, overflow="ellipsis")
        if hidden:
            grid.add_row("", Text(f"... and {hidden} more steps", style="dim"))
        for row in rows:
            grid.add_row(
                _sign(row),
                Text(row.name, style="bold"),
                _bar(row),
                Text(duration(row.seconds(now)), style="dim"),
                _remark(row),
            )
        return grid


_SIGNS = {
    "done": ("✔", "green"),
    "failed": ("✖", "red"),
    "skipped": ("·", "dim"),
    "parked": ("⏸", "yellow"),
    "waiting": ("·", "dim"),
}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def _sign(row: StepRow) -> Any:
    from rich.text import Text

    if row.state == "running":
        return Text(_SPINNER[int(time.monotonic() * FRAMES_PER_SECOND) % len(_SPINNER)], style="cyan")
    sign, style = _SIGNS[row.state]
    return Text(sign, style=style)


def _bar(row: StepRow) -> Any:
    from rich.text import Text

    if row.loop is None:
        return Text("")
    owed, done, failed = row.loop
    good = BAR * done // owed if owed else BAR
    bad = min(BAR - good, -(-BAR * failed // owed)) if owed else 0
    return Text.assemble(
        ("━" * good, "green"),
        ("━" * bad, "red"),
        ("━" * (BAR - good - bad), "bright_black"),
        f" {done + failed}/{owed}",
    )


def _remark(row: StepRow) -> Any:
    from rich.text import Text

    parts = []
    if row.state == "failed":
        parts.append((row.trouble, "red"))
    elif row.state == "running" and row.doing:
        parts.append((row.doing, "cyan"))
    if row.retries:
        parts.append((f"{row.retries} retries" if row.retries > 1 else "1 retry", "yellow"))
    if row.runs > 1:
        parts.append((f"{row.runs} runs", "dim"))
    remark = Text()
    for text, style in parts:
        remark.append(("  " if len(remark) else "") + " ".join(text.split()), style=style)
    return remark
