"""Output of commands: data on stdout, messages on stderr, colors only on a terminal.

There is one `terminal` per process; the options `--quiet` and `-v` of a command change what it prints.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, TextIO, cast

import click

from noetl.runtime.printable import printable, printable_json

MAX_QUOTED_BYTES = 8 * 1024 * 1024  # diagnostics of a larger text do not quote it
STYLES = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1", "cyan": "36"}


class Terminal:
    """The standard output and error of this process."""

    def __init__(self) -> None:
        self.quiet = False
        self.verbose = 0

    # ── data ────────────────────────────────────────────────────────────────────────────

    def data(self, text: str) -> None:
        """Write lines of data to stdout; control characters of the data are shown as escapes."""
        text = shown(text)
        sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def document(self, text: str) -> None:
        """Write a document to stdout: unchanged to a file or a pipe, like `data` to a terminal."""
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)

    def binary(self, *, is_json: bool) -> BinaryIO:
        """A stream of encoded text to stdout, with the same treatment as `document`."""
        if not sys.stdout.isatty():
            return sys.stdout.buffer
        return cast(BinaryIO, _PrintedText(printable_json if is_json else printable))

    def json(self, document: Any) -> None:
        """Write a JSON document to stdout, indented on a terminal."""
        import msgspec

        indented = sys.stdout.isatty()
        text = self.pretty(document) if indented else msgspec.json.encode(document, enc_hook=str).decode()
        sys.stdout.write(printable_json(text) + "\n")

    def pretty(self, document: Any) -> str:
        """A JSON document with indentation."""
        import msgspec

        return msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode()

    def json_line(self, document: Any) -> None:
        """Write one line of a stream of JSON documents and flush it."""
        import msgspec

        sys.stdout.write(printable_json(msgspec.json.encode(document, enc_hook=str).decode()) + "\n")
        sys.stdout.flush()

    def table(
        self, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, styles: dict[str, str] | None = None
    ) -> None:
        """Write a table; a cell that is a key of `styles` has that style."""
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(heads)]
        colored = self.supports_color(sys.stdout)

        def line(row: Sequence[str], style: Callable[[str], str | None]) -> str:
            parts = []
            for i, (text, width) in enumerate(zip(row, widths, strict=True)):
                padded = text if i == len(row) - 1 else text.ljust(width)
                parts.append(_colored(padded, style(text)) if colored else padded)
            return "  ".join(parts).rstrip()

        self.data(line([head.upper() for head in heads], lambda text: "dim"))
        for row in cells:
            self.data(line(row, lambda text: (styles or {}).get(text)))

    # ── messages ────────────────────────────────────────────────────────────────────────

    def note(self, text: str) -> None:
        """Write a message, unless --quiet is given."""
        if not self.quiet:
            self._write(text)

    def detail(self, text: str) -> None:
        """Write a message if -v is given."""
        if self.verbose:
            self._write(text)

    def warn(self, text: str) -> None:
        """Write a warning, unless --quiet is given."""
        if not self.quiet:
            self._write(f"{self.styled('warning:', 'yellow')} {text}")

    def error(self, text: str) -> None:
        """Write an error."""
        self._write(f"{self.styled('error:', 'red')} {text}")

    def diagnostics(self, found: Iterable[Any], text: bytes = b"") -> None:
        """Write the problems of a playbook, each with its position in the text and its fix."""
        found = list(found)
        if not found:
            return
        try:
            source = text.decode() if len(text) <= MAX_QUOTED_BYTES else ""
        except UnicodeDecodeError:
            source = ""  # binary data is not quoted
        lines = self.diagnostics_text(found, {one.file: source for one in found}, sys.stderr)
        self._write(lines.rstrip("\n"), is_safe=True)

    def diagnostics_text(self, found: Iterable[Any], sources: Mapping[str, str], stream: TextIO) -> str:
        """The text of diagnostics for a stream, in which the data of the playbook is escaped."""
        from noetl.core.language.diagnostics import as_text

        quoted = {printable(file): printable(source) for file, source in sources.items()}
        return as_text(map(_printable_diagnostic, found), quoted, color=self.supports_color(stream))

    def styled(self, text: str, style: str, stream: TextIO | None = None) -> str:
        """The text in a style, if the stream (stderr) supports colors."""
        return _colored(text, style) if self.supports_color(stream or sys.stderr) else text

    def colored_cell(self, text: str, styles: dict[str, str], width: int = 0) -> str:
        """A padded text for stdout in the style that `styles` has for it."""
        padded = text.ljust(width)
        return _colored(padded, styles.get(text)) if self.supports_color(sys.stdout) else padded

    def supports_color(self, stream: TextIO) -> bool:
        """Whether the stream supports colors and the user has not turned them off."""
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def _write(self, text: str, *, is_safe: bool = False) -> None:
        sys.stdout.flush()
        sys.stderr.write((text if is_safe else shown(text)) + "\n")
        sys.stderr.flush()


class _PrintedText(io.RawIOBase):
    """Prints UTF-8 text that arrives in pieces."""

    def __init__(self, escape: Callable[[str], str]) -> None:
        self._escape = escape
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        sys.stdout.write(self._escape(self._decode(bytes(data))))
        return len(data)

    def flush(self) -> None:
        sys.stdout.flush()


terminal = Terminal()


# Styles are written as marks that data cannot contain by chance, and become escape sequences when they are printed.
_MARK = f"\x00{os.urandom(6).hex()}:"
_MARKED = re.compile(re.escape(printable(_MARK)) + r"(\d+)m")


def shown(text: str) -> str:
    """The text as it is printed: characters of the data that a terminal would obey are escapes, styles are not."""
    text = printable(text)
    return _MARKED.sub("\x1b[\\1m", text) if "\\x00" in text else text


def _colored(text: str, style: str | None) -> str:
    return f"{_MARK}{STYLES[style]}m{text}{_MARK}0m" if style and text else text


def _printable_diagnostic(one: Any) -> Any:
    import msgspec

    given = {name: getattr(one, name, None) for name in ("message", "hint", "file")}
    texts = {name: printable(each) for name, each in given.items() if each}
    return msgspec.structs.replace(one, **texts)


def _cell(value: Any) -> str:
    return "-" if value is None or value == "" else " ".join(str(value).split())


# ── the options of every command ────────────────────────────────────────────────────────


def _set_quiet(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    terminal.quiet = terminal.quiet or value


def _set_verbose(ctx: click.Context, parameter: click.Parameter, value: int) -> None:
    terminal.verbose = max(terminal.verbose, value)


def output_options(function: Any) -> Any:
    """Add `--quiet` and `-v` to a command."""
    quiet = click.option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="Print only errors."
    )
    verbose = click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=_set_verbose, help="Print more, and tracebacks."
    )
    return quiet(verbose(function))


def json_options(function: Any) -> Any:
    """Add `--json`, `--quiet` and `-v` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")(output_options(function))
