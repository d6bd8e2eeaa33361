"""Rows of an upsert whose pages or files have different columns.

A column that a row of the load has is null in the rows that do not have it; columns that no row has keep their values.
So the table does not depend on how rows are divided into pages and files, nor on their order: later rows get the
columns of earlier ones, and a column that appears later is set to null in the rows before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from noetl.tools.transfer.targets.files.row_spool import RowSpool


class EarlierRows:
    """The columns of the rows so far, and their keys on disk while the table has columns that no row had."""

    def __init__(self, key: Sequence[str], columns: Iterable[str]) -> None:
        self._key = list(key)
        self._missing = set(columns)
        self._seen: dict[str, None] = {}
        self._spool: RowSpool | None = None

    def completed(self, table: Any) -> Any:
        """The rows with all columns that rows before them had."""
        import pyarrow as pa

        for name in self._seen:
            if name not in table.schema.names:
                table = table.append_column(name, pa.nulls(len(table)))
        return table if list(self._seen) == table.schema.names else table.select(self._ordered(table.schema.names))

    def _ordered(self, names: list[str]) -> list[str]:
        return [*self._seen, *(name for name in names if name not in self._seen)]

    def appearing(self, names: Iterable[str]) -> list[str]:
        """The columns of the table that these rows are the first to have."""
        found = [name for name in names if name in self._missing]
        self._missing.difference_update(found)
        return found

    def add(self, table: Any) -> None:
        """Remember rows that were written."""
        self._seen |= dict.fromkeys(table.schema.names)
        if self._missing:
            keys = table.select(self._key)
            self._spool = self._spool or RowSpool(keys.schema, replaces=False)
            self._spool.add(keys)

    def written(self) -> Iterator[Any]:
        """The keys of the rows, as tables."""
        return iter(()) if self._spool is None else self._spool.tables()

    def close(self) -> None:
        """Remove the keys."""
        if self._spool is not None:
            self._spool.close()
