"""CSV as Python's `csv` reads it, with long values: its own limit of 128 KiB is too small for documents in cells."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Any

import msgspec

MAX_VALUE = 64 << 20  # characters; a longer one is taken for a quote that is not closed


def csv_reader(lines: Iterable[str], delimiter: str, *, strict: bool = False) -> Any:
    """The records of lines; `csv.Error` for malformed ones."""
    if csv.field_size_limit() < MAX_VALUE:  # a setting of the process
        csv.field_size_limit(MAX_VALUE)
    return csv.reader(lines, delimiter=delimiter, strict=strict)


def csv_rows(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    """All records that are not empty; `msgspec.DecodeError` for malformed ones."""
    try:
        return [cells for cells in csv_reader(lines, delimiter) if cells]
    except csv.Error as wrong:
        raise msgspec.DecodeError(f"CSV is malformed: {wrong}") from None
