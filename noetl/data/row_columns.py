"""The columns of rows that DuckDB reads from JSON lines: names that it distinguishes, and exact types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from noetl.data.files.duckdb_files import literal
from noetl.data.files.json_kinds import (
    EXACT_INTEGER,
    WITHOUT_MAPS,
    changed_columns,
    decimal_kind,
    narrowed,
    nested_kind,
)
from noetl.data.sql import quote_column

_SMALLEST_BUFFER = 1 << 20  # bytes; DuckDB has buffers of the size of the longest line
_EMPTY = "_"  # the column of an empty key, which DuckDB does not have


class RowColumns:
    """The columns of rows, as the rows are seen."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[str, str] = {}  # of keys, as columns: DuckDB does not distinguish Name and name
        self._taken: set[str] = set()
        self._renamed = False
        self.longest = 0  # bytes of a line
        self._large: set[str] = set()  # columns with integers that are no doubles, at any depth
        for name in names:
            self._column(name)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._names.values())

    def seen(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row, with other names for keys that differ from earlier ones only in case."""
        for name, value in row.items():
            column = self._names.get(name) or self._column(name)
            if type(value) is int:
                if not -EXACT_INTEGER <= value <= EXACT_INTEGER:
                    self._large.add(column)
            elif isinstance(value, list | Mapping) and column not in self._large and _has_large_integer(value):
                self._large.add(column)
        return {self._names[name]: value for name, value in row.items()} if self._renamed else row

    def query(self, cursor: Any, path: Path) -> str:
        """The query that reads the rows from a file of JSON lines."""
        size = max(self.longest, _SMALLEST_BUFFER)
        file = f"{literal(str(path))}, format='newline_delimited', maximum_object_size={size}"

        def typed(kinds: Mapping[str, str]) -> str:
            columns = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in kinds.items())
            return f"SELECT * FROM read_json({file}, columns={{{columns}}})"

        if not self._names:  # empty objects
            return f"SELECT json FROM read_json_objects({file})"
        call = f"read_json_auto({file}, sample_size=-1"
        kinds = _detected(cursor, call)
        if len(kinds) < len(self._names):  # a row is a map
            kinds = _detected(cursor, f"{call}, {WITHOUT_MAPS}")
        kinds = narrowed(cursor, kinds, typed(kinds))
        texts, numbers = changed_columns(cursor, typed, kinds)
        kinds |= dict.fromkeys(texts | numbers, "VARCHAR")
        for name in self._large:
            if "DOUBLE" in kinds[name]:  # inside of objects or lists
                kinds[name] = "JSON"
        query = typed(kinds)
        if not numbers:
            return query
        # From text: DuckDB reads a fraction of JSON as a double, and so a decimal with 16 digits at most.
        exact = (
            f"{quote_column(name)}::{decimal_kind(cursor, name, query)} AS {quote_column(name)}" for name in numbers
        )
        return f"SELECT * REPLACE ({', '.join(exact)}) FROM ({query})"

    def _column(self, name: str) -> str:
        wanted = name.replace("\0", "") or _EMPTY
        column, number = wanted, 0
        while column.lower() in self._taken:
            number += 1
            column = f"{wanted}_{number}"
        self._names[name] = column
        self._taken.add(column.lower())
        self._renamed |= column != name
        return column


def _detected(cursor: Any, call: str) -> dict[str, str]:
    """The types that DuckDB detects; objects whose keys differ only in case are no structures, but JSON."""
    from duckdb import Error

    try:
        found = cursor.sql(f"SELECT * FROM {call})")
    except Error as problem:
        if "Duplicate name" not in str(problem):
            raise
        found = cursor.sql(f"SELECT * FROM {call}, maximum_depth=1)")
    return {name: nested_kind(kind) for name, kind in zip(found.columns, found.types, strict=True)}


def _has_large_integer(value: Any) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is int:
            if not -EXACT_INTEGER <= each <= EXACT_INTEGER:
                return True
        elif isinstance(each, list | Mapping):
            waiting += each.values() if isinstance(each, Mapping) else each
    return False
