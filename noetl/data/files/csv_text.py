"""CSV as Python's `csv` reads it, with long values: its own limit of 128 KiB is too small for documents in cells.

A line without an end is not read as a whole: a file that is no text may have gigabytes of it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO, Any

import msgspec

MAX_VALUE = 64 << 20  # characters; a longer one is taken for a quote that is not closed


class LongLine(ValueError):
    """A line that is too long to be held in memory."""


def text_lines(file: IO[str]) -> Iterator[str]:
    """The lines of a file; LongLine for one with more characters than a value may have."""
    for number, line in enumerate(iter(partial(file.readline, MAX_VALUE + 1), ""), 1):
        if len(line) > MAX_VALUE:
            raise LongLine(f"line {number:,} has more than {MAX_VALUE >> 20} MB; is this a text file?")
        yield line


def csv_reader(lines: Iterable[str], delimiter: str, *, strict: bool = False) -> Any:
    """The records of lines; `csv.Error` for malformed ones."""
    if csv.field_size_limit() < MAX_VALUE:  # a setting of the process
        csv.field_size_limit(MAX_VALUE)
    return csv.reader(lines, delimiter=delimiter, strict=strict)


def csv_problem(failure: csv.Error) -> str:
    """What is wrong in a record, in words."""
    return str(failure).replace("unexpected end of data", "a quote is not closed")


def csv_rows(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    """All records that are not empty; `msgspec.DecodeError` for malformed ones."""
    try:
        return [cells for cells in csv_reader(lines, delimiter) if cells]
    except csv.Error as wrong:
        raise msgspec.DecodeError(f"CSV is malformed: {wrong}") from None
