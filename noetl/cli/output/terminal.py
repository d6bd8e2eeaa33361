"""Where words go: data to stdout, everything else to stderr, in colour only for eyes.

One `terminal` for the whole process; the options `--quiet` and `-v` of a command turn its knobs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

import click

SHOWN_TEXT = 8 * 1024 * 1024  # a text larger than any playbook is not quoted from
STYLES = {"good": "32", "bad": "31", "odd": "33", "quiet": "2", "strong": "1", "busy": "36"}


class Terminal:
    """This process's two streams."""

    def __init__(self) -> None:
        self.quiet = False
        self.verbose = 0

    # ── data ────────────────────────────────────────────────────────────────────────────

    def data(self, text: str) -> None:
        """A line (or more) of what the command is about."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def json(self, document: Any) -> None:
        """One JSON document: indented for eyes, on one line for programs."""
        import msgspec

        eyes = sys.stdout.isatty()
        self.data(self.pretty(document) if eyes else msgspec.json.encode(document, enc_hook=str).decode())

    def pretty(self, document: Any) -> str:
        """A JSON document on indented lines."""
        import msgspec

        return msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode()

    def json_line(self, document: Any) -> None:
        """One line of a stream of documents, readable at once by whoever follows."""
        import msgspec

        self.data(msgspec.json.encode(document, enc_hook=str).decode())
        sys.stdout.flush()

    def table(
        self, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, styles: dict[str, str] | None = None
    ) -> None:
        """Columns as wide as their contents; a cell that is a key of `styles` wears that style."""
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(heads)]
        colour = self.colours(sys.stdout)

        def line(row: Sequence[str], style: Callable[[str], str | None]) -> str:
            parts = []
            for i, (text, width) in enumerate(zip(row, widths, strict=True)):
                padded = text if i == len(row) - 1 else text.ljust(width)
                parts.append(_wear(padded, style(text)) if colour else padded)
            return "  ".join(parts).rstrip()

        self.data(line([head.upper() for head in heads], lambda text: "quiet"))
        for row in cells:
            self.data(line(row, lambda text: (styles or {}).get(text)))

    # ── words ───────────────────────────────────────────────────────────────────────────

    def note(self, text: str) -> None:
        """Something worth knowing, unless the user asked for quiet."""
        if not self.quiet:
            self._say(text)

    def detail(self, text: str) -> None:
        """Something only a user who asked for more wants to know."""
        if self.verbose:
            self._say(text)

    def warn(self, text: str) -> None:
        """Something odd that does not stop the command."""
        if not self.quiet:
            self._say(f"{self.styled('warning:', 'odd')} {text}")

    def error(self, text: str) -> None:
        """Why the command did not do what it was asked."""
        self._say(f"{self.styled('error:', 'bad')} {text}")

    def diagnostics(self, found: Iterable[Any], text: bytes = b"") -> None:
        """Problems of a playbook, each with its place in the text and its way out."""
        from noetl.core.language.diagnostics import as_text

        found = list(found)
        try:
            source = text.decode() if len(text) <= SHOWN_TEXT else ""
        except UnicodeDecodeError:
            source = ""  # bytes that are no text are not quoted
        self._say(as_text(found, {one.file: source for one in found}, color=self.colours(sys.stderr)).rstrip("\n"))

    def styled(self, text: str, style: str, stream: TextIO | None = None) -> str:
        """The text in a style, where the stream (stderr) can show one."""
        return _wear(text, style) if self.colours(stream or sys.stderr) else text

    def painted(self, text: str, styles: dict[str, str], width: int = 0) -> str:
        """A word for stdout, padded, in the style that `styles` has for it."""
        padded = text.ljust(width)
        return _wear(padded, styles.get(text)) if self.colours(sys.stdout) else padded

    def colours(self, stream: TextIO) -> bool:
        """Whether this stream shows colours and the user wants them."""
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def _say(self, text: str) -> None:
        sys.stdout.flush()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


terminal = Terminal()


def _wear(text: str, style: str | None) -> str:
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and text else text


def _cell(value: Any) -> str:
    return "-" if value is None or value == "" else " ".join(str(value).split())


# ── the options every verb has ──────────────────────────────────────────────────────────


def _be_quiet(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    terminal.quiet = terminal.quiet or value


def _be_verbose(ctx: click.Context, parameter: click.Parameter, value: int) -> None:
    terminal.verbose = max(terminal.verbose, value)


def talk(function: Any) -> Any:
    """`--quiet` and `-v`, on any command."""
    quiet = click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_be_quiet, help="Say only errors.")
    verbose = click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=_be_verbose, help="Say more, and show tracebacks."
    )
    return quiet(verbose(function))


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
