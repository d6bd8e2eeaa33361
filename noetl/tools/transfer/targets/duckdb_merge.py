"""Merges rows by key into a DuckDB table without indexes, in little memory.

DuckDB keeps an index in memory as a whole, and a merge of each chunk would read all keys of the table again. So rows
are collected in a temporary table, which DuckDB moves to disk, and merged when their keys fill some memory, or at the
end of the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from noetl.data.sql import column_list, quote_column
from noetl.tools.transfer.targets.merge_statements import update_and_insert

MERGED_ROWS, MERGED_KEYS = 500_000, 16 << 20  # at most about so many rows, or bytes of keys, are merged at a time
FOUND = "noetl_found"


class StagedRows:
    """The rows of a load, until they are merged. The methods are called in a thread."""

    def __init__(self, cursor: Any, table: str, key: Sequence[str]) -> None:
        self._cursor = cursor
        self._table = table
        self._key = key
        self._columns: list[str] = []  # of the rows that wait
        self._count = self._bytes = 0  # of these rows, and of their keys
        # The tables of one transaction have different names.
        self._rows = quote_column(f"noetl_incoming {table}")

    def add(self, view: str, rows: Any) -> None:
        """Add the rows of an Arrow table, which is registered as a view, in the types of the table."""
        columns = rows.schema.names
        if columns != self._columns:
            self.merge()
            self._cursor.execute(
                f"CREATE TEMP TABLE {self._rows} AS SELECT {column_list(columns)} FROM {self._table} LIMIT 0"
            )
            self._columns = columns
        self._cursor.execute(f"INSERT INTO {self._rows} SELECT {column_list(columns)} FROM {view}")
        self._count += rows.num_rows
        self._bytes += sum(rows.column(name).nbytes for name in self._key)
        if self._count >= MERGED_ROWS or self._bytes >= MERGED_KEYS:
            self.merge()

    def delete(self, keys: str, same: str) -> None:
        """Forget the rows `t` that match some keys `k`."""
        if self._columns:
            self._cursor.execute(f"DELETE FROM {self._rows} AS t USING {keys} AS k WHERE {same}")

    def merge(self) -> None:
        """Write the rows to the table; the last one with each key wins."""
        if not self._columns:
            return
        names, self._columns, self._count, self._bytes = self._columns, [], 0, 0
        self._cursor.execute(
            f"DELETE FROM {self._rows} WHERE rowid NOT IN "
            f"(SELECT max(rowid) FROM {self._rows} GROUP BY {column_list(self._key)})"
        )
        for statement in self._statements(names):
            self._cursor.execute(statement)
        self._cursor.execute(f"DROP TABLE {self._rows}")

    def _statements(self, names: list[str]) -> Iterable[str]:
        columns = column_list(names)
        if not self._cursor.execute(f"SELECT 1 FROM {self._table} LIMIT 1").fetchall():
            return [f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {self._rows}"]
        if len(names) < len(self._cursor.sql(f"SELECT * FROM {self._table}").columns):
            return update_and_insert(self._table, names, self._key, self._rows)
        # An update of all columns keeps the old and the new rows in memory; deleted rows are not copied. A key that
        # several rows of the table have is found, and inserted, several times. The rows are not joined with what was
        # found, which could have all of them in memory, unless there are such keys.
        same = " AND ".join(f"t.{quote_column(name)} = i.{quote_column(name)}" for name in self._key)
        keys = ", ".join(f"t.{quote_column(name)}" for name in self._key)
        own = ", ".join(f"i.{quote_column(name)}" for name in names)
        self._cursor.execute(
            f"CREATE TEMP TABLE {FOUND} AS SELECT t.rowid AS noetl_row, {keys} "
            f"FROM {self._table} AS t JOIN {self._rows} AS i ON {same}"
        )
        repeated = f"FROM {FOUND} AS t GROUP BY {keys} HAVING count(*) > 1"
        insert = f"INSERT INTO {self._table} ({columns}) SELECT {own} FROM {self._rows} AS i"
        again = (
            [f"{insert} JOIN (SELECT {keys}, unnest(range(count(*) - 1)) {repeated}) AS t ON {same}"]
            if self._cursor.execute(f"SELECT 1 {repeated} LIMIT 1").fetchall()
            else []
        )
        return [
            f"DELETE FROM {self._table} WHERE rowid IN (SELECT noetl_row FROM {FOUND})",
            insert,
            *again,
            f"DROP TABLE {FOUND}",
        ]
