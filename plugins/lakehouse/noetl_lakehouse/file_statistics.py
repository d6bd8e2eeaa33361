"""What the log of a Delta table says about a data file: the values of its partition, and bounds of its columns."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MAX_COLUMNS = 32  # with bounds
MAX_TEXT = 64  # characters of a bound; a column with longer texts has none


def partition_value(value: Any) -> str | None:
    """A value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return None if value is None else str(value)


class _Column:
    def __init__(self) -> None:
        self.nulls = 0
        self.least: Any = None
        self.greatest: Any = None
        self.bounded = True

    def add(self, values: Any) -> None:
        self.nulls += values.null_count
        ends = pc.min_max(values)
        least, greatest = ends["min"].as_py(), ends["max"].as_py()
        if least is None:
            return
        if least != least or any(isinstance(end, str) and len(end) > MAX_TEXT for end in (least, greatest)):
            self.bounded = False
        elif self.least is None:
            self.least, self.greatest = least, greatest
        else:
            self.least, self.greatest = min(self.least, least), max(self.greatest, greatest)


class Statistics:
    """Collects the statistics of one file."""

    def __init__(self, names: list[str]) -> None:
        self._rows = 0
        self._columns = {name: _Column() for name in names}

    def add(self, rows: Any) -> None:
        """Count the rows of a part."""
        self._rows += rows.num_rows
        for name, column in self._columns.items():
            column.add(rows.column(name))

    def json(self) -> str:
        """The statistics as the log has them."""
        bounded = {name: each for name, each in self._columns.items() if each.bounded and each.least is not None}
        return json.dumps({
            "numRecords": self._rows,
            "minValues": {name: _bound(each.least) for name, each in bounded.items()},
            "maxValues": {name: _bound(each.greatest) for name, each in bounded.items()},
            "nullCount": {name: each.nulls for name, each in self._columns.items()},
        })  # fmt: skip


def statistics(schema: Any) -> Statistics:
    """Statistics of the first columns that can have bounds: integers, dates, timestamps and texts."""
    kinds = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_string)
    names = [field.name for field in schema if any(check(field.type) for check in kinds)]
    return Statistics(names[:MAX_COLUMNS])


def _bound(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        zone = "Z" if value.tzinfo else ""
        return value.replace(tzinfo=None).isoformat("T", "microseconds") + zone
    return value.isoformat() if isinstance(value, datetime.date) else value
