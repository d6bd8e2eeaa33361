"""Copies of CSV and JSON lines in which every row has its position; lines that are no rows are recorded.

The copy is read like the file itself, with one column more.
"""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from noetl.data.files.csv_text import LongLine, csv_problem, csv_reader, text_lines
from noetl.data.files.duckdb_files import delimiter_of
from noetl.data.files.json_lines import LONGEST_LINE
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.quarantine.bad_rows import POSITION, SourceRows

NO_OBJECT = "is not a JSON object"
_decode = msgspec.json.Decoder().decode


def number_lines(path: str, copy: str, format: str, name: str, rows: SourceRows) -> None:
    """Write the copy of a file of CSV or JSON lines."""
    place = rows.place(name)
    try:
        with open(copy, "wb") as out:
            if format == "csv":
                delimiter = delimiter_of(path)
                with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
                    _number_csv(text, out, delimiter, place, rows)
            else:
                with open(path, "rb") as lines:
                    _number_json(lines, out, place, rows)
    except LongLine as wrong:
        raise BadInput(f"{name}: {wrong}") from None


def wrong_json_line(path: Path) -> str | None:
    """The first line of JSON lines that cannot be read, with the reason; None if a line before it is too long."""
    with path.open("rb") as lines:
        for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE + 1), b""), 1):
            if len(line) > LONGEST_LINE:
                return None
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            reason = _wrong_json(text) if text else None
            if reason is not None and reason != NO_OBJECT:
                return f"{path}: line {number:,} {reason}"
    return None


def _wrong_json(text: bytes) -> str | None:
    """What is wrong in a line that is not empty; None if it is a row."""
    try:
        row = _decode(text)
    except UnicodeDecodeError:
        return "is not UTF-8"
    except msgspec.DecodeError as wrong:
        return f"is not JSON: {wrong}"
    if not isinstance(row, dict):
        return NO_OBJECT
    # Only a line in which the text of a key occurs twice is decoded again.
    if any(text.count(b'"%s"' % name.encode("utf-8", "replace")) > 1 for name in row):
        names = json.loads(text, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            return f"has the key {repeated!r} twice"
    return None


def _number_json(lines: IO[bytes], out: IO[bytes], place: int, rows: SourceRows) -> None:
    for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE + 1), b""), 1):
        if len(line) > LONGEST_LINE:
            raise LongLine(f"line {number:,} has more than {LONGEST_LINE >> 20} MB")
        text = line.strip() if number > 1 else line.removeprefix(b"\xef\xbb\xbf").strip()
        if not text:
            continue
        reason = _wrong_json(text)
        if reason is not None:
            rows.reject(place + number, text.decode("utf-8", "replace"), f"the line {reason}")
            continue
        rest = text[1:].lstrip()
        separator = b"" if rest.startswith(b"}") else b","
        out.write(b'{"%s":%d%s%s\n' % (POSITION.encode(), place + number, separator, rest))


def numbered_rows(path: str, format: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of CSV or JSON lines that could be read, each with its first line: to find the one that is wrong."""
    if format == "jsonl":
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(b"\xef\xbb\xbf").strip()
                if text:
                    yield number, _decode(text)
        return
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(text_lines(file), delimiter=delimiter_of(path))
        names = next(reader, [])
        number = reader.line_num + 1
        for record in reader:
            yield number, {name: value or None for name, value in zip(names, record, strict=False)}
            number = reader.line_num + 1


class _Lines:
    """The lines of a file; those of a record that is no record are given back."""

    def __init__(self, file: IO[str]) -> None:
        self._lines = text_lines(file)
        self._again: deque[str] = deque()
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.taken.append(line)
        return line

    def give_back(self, lines: list[str]) -> None:
        """Read these lines again."""
        self._again.extendleft(reversed(lines))


def _number_csv(file: IO[str], out: IO[bytes], delimiter: str, place: int, rows: SourceRows) -> None:
    lines = _Lines(file)
    width, number = 0, 1
    reader = csv_reader(lines, delimiter, strict=True)
    while True:
        reason, record = None, None
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as wrong:  # only the first line is bad: the rest is read again
            reason = f"the line is not CSV: {csv_problem(wrong)}"
            lines.give_back(lines.taken[1:])
            del lines.taken[1:]
            reader = csv_reader(lines, delimiter, strict=True)
        text, first = "".join(lines.taken), number
        number += len(lines.taken)
        lines.taken = []
        if not width and record:
            width = len(record)
            head = _head(record, delimiter) or text.rstrip("\r\n")
            out.write(f"{POSITION}{delimiter}{head}\n".encode("utf-8", "surrogateescape"))
            continue
        if record is not None and (record or width == 1):
            reason = _misfit(record, text, width)
        if reason is not None:
            shown = text.rstrip("\r\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            rows.reject(place + first, shown, reason)
        elif record or width == 1:
            line = text.rstrip("\r\n")  # the copy has one kind of line ends
            out.write(f"{place + first}{delimiter}{line}\n".encode())


def _head(names: list[str], delimiter: str) -> str | None:
    """The first line with the names that DuckDB gives columns without one, which have their numbers; None if it has
    no such column."""
    if all(name.strip() for name in names):
        return None
    digits = len(str(len(names) - 1))
    named = [name if name.strip() else f"column{number:0{digits}}" for number, name in enumerate(names)]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="").writerow(named)
    return text.getvalue()


def _misfit(record: list[Any], text: str, width: int) -> str | None:
    if max(len(record), 1) != width:
        return f"the line has {len(record)} values, the first line has {width}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the line is not UTF-8"
    return None
