"""Partitions of a folder of files: `partition_by: [region, "date_trunc('day', ordered_at)"]`.

The layout is that of Hive, `region=eu/ordered_at_day=2024-01-31/`, with one file per partition and transfer. The
columns stay in the files, so every file is complete by itself.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from noetl.data.arrow_tables import plain_column, text_of
from noetl.data.content import unfinished
from noetl.data.values import unique_names
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.side_fields import UNITS

MAX_PARTITIONS = 10_000
MAX_FOLDER = 240  # bytes of a name, with room for the ending of one that is not complete
MISSING = "__HIVE_DEFAULT_PARTITION__"
_EXPRESSION = re.compile(r"date_trunc\(\s*'(\w+)'\s*,\s*(?:\"([^\"]+)\"|(\w+))\s*\)(?:\s+as\s+(\w+))?", re.IGNORECASE)
_NO_NAME = re.compile(r"[%/\\=\x00-\x1f]")  # what the name of a column may have, and that of a folder not
_AT_FDCWD, _EXCHANGE = -100, 2


class Partitioning(NamedTuple):
    """One part of the path of a partition: the name, the column, and the unit to which a time is truncated."""

    name: str
    column: str
    unit: str | None = None


def read_partitioning(given: Any, what: str) -> tuple[Partitioning, ...]:
    """The partitioning in the fields of a target; BadInput if it is invalid."""
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, list | tuple) or not items or not all(isinstance(item, str) and item for item in items):
        raise BadInput(f"{what}: `partition_by` is a list of columns and expressions date_trunc('day', column)")
    parts = []
    for item in items:
        found = _EXPRESSION.fullmatch(item.strip())
        if found is None and "(" in item:
            raise BadInput(f"{what}: partition_by {item!r} is neither a column nor date_trunc('day', column)")
        if found is None:
            parts.append(Partitioning(item, item))
            continue
        unit, column = found[1].lower(), found[2] or found[3]
        if unit not in UNITS:
            raise BadInput(f"{what}: partition_by: the unit {unit!r} is not one of {', '.join(UNITS)}")
        parts.append(Partitioning(found[4] or f"{column}_{unit}", column, unit))
    names = unique_names(part.name for part in parts)
    if names != [part.name for part in parts]:
        raise BadInput(f"{what}: `partition_by` has the same name twice; use date_trunc('day', column) AS name")
    return tuple(parts)


def split(table: Any, parts: tuple[Partitioning, ...], label: str) -> Iterator[tuple[str, Any]]:
    """The rows of each partition of a table of one chunk as a table of its own, with its relative path."""
    import pyarrow.compute as pc

    numbers: Any = None  # of every row: the index of its path
    paths: list[str] = []
    for part in parts:
        if part.column not in table.schema.names:
            raise BadInput(
                f"{label}: partition_by: the rows have no column {part.column!r}; columns: "
                f"{', '.join(table.schema.names)}"
            )
        found, texts = _numbered(table.column(part.column), table.schema.field(part.column), part, label)
        if numbers is None:
            numbers, paths = found, texts
        else:
            both = pc.add(pc.multiply(numbers, len(texts)), found).dictionary_encode()
            pairs = (divmod(number, len(texts)) for number in both.dictionary.to_pylist())
            numbers, paths = both.indices.cast("int64"), [f"{paths[outer]}/{texts[inner]}" for outer, inner in pairs]
    order = pc.sort_indices(numbers)
    runs = pc.run_end_encode(numbers.take(order))
    begin = 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield paths[number], table.take(order.slice(begin, end - begin))
        begin = end


def _numbered(column: Any, field: Any, part: Partitioning, label: str) -> tuple[Any, list[str]]:
    """The parts of the path that the values of a column have, and for every row the index of its part."""
    import pyarrow as pa

    if part.unit is not None:
        column = _truncated(column, field, part, label)
        field = pa.field(field.name, column.type)
    column = column.combine_chunks()
    try:
        encoded = column.dictionary_encode(null_encoding="encode")
    except pa.ArrowNotImplementedError:  # a nested type
        values = [None if value is None else text_of(value) for value in plain_column(column, field)]
        encoded, field = pa.array(values, pa.string()).dictionary_encode(null_encoding="encode"), pa.field("", "string")
    found: dict[str, int] = {}
    places = []
    folder = _NO_NAME.sub(lambda mark: quote(mark[0], safe=""), part.name)
    for value in plain_column(encoded.dictionary, field):
        key = None if value is None else text_of(value)
        text = f"{folder}={MISSING if key is None else quote(key, safe='') or MISSING}"
        if key is not None and len(text) > MAX_FOLDER:
            raise BadInput(
                f"{label}: partition_by: a value of {part.column!r} has {len(key)} characters, which is too long "
                f"for the name of a folder ({MAX_FOLDER} bytes); use a shorter column"
            )
        places.append(found.setdefault(text, len(found)))
    return pa.array(places, pa.int64()).take(encoded.indices), list(found)


def _truncated(column: Any, field: Any, part: Partitioning, label: str) -> Any:
    """The times of a column, truncated to the unit, as texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)):
        raise BadInput(
            f"{label}: partition_by: date_trunc needs a date or timestamp, and {part.column!r} is {field.type}; "
            f"declare it in the source: types: {{{part.column}: timestamptz}}"
        )
    if pa.types.is_date(field.type):
        column = column.cast(pa.timestamp("us"))
    column = pc.floor_temporal(column, unit=part.unit)
    form = {"year": "%Y", "month": "%Y-%m", "hour": "%Y-%m-%dT%H"}.get(part.unit or "", "%Y-%m-%d")
    return pc.strftime(column, form)


def replace_partition(base: Path, folder: Path, temporary: Path, name: str) -> None:
    """Make a complete file the only one of a partition, atomically: readers see the old files or the new one."""
    others = [each for each in folder.iterdir() if each.name != name and not each.name.endswith(".unfinished")]
    if not others:
        temporary.replace(folder / name)
        return
    # Outside of the base: a reader of all partitions must not find the old files beside the new one.
    aside = unfinished(base)
    try:
        aside.mkdir()
        fresh = aside / folder.name
        fresh.mkdir()
        temporary.replace(fresh / name)
        if _exchange(fresh, folder):
            return
        (fresh / name).replace(temporary)
    except OSError:  # the base is a mount point, or its folder cannot be written
        if not temporary.exists():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _replace_beside(folder, temporary, name)


def _replace_beside(folder: Path, temporary: Path, name: str) -> None:
    """The same without an atomic exchange: the partition is missing for a moment, but it is never a mix."""
    fresh, aside = unfinished(folder), unfinished(folder)
    fresh.mkdir()
    temporary.replace(fresh / name)
    folder.rename(aside)
    fresh.rename(folder)
    shutil.rmtree(aside)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders with one system call; False if the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _EXCHANGE) == 0)
