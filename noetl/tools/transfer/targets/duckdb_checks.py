"""Finds the rows that a DuckDB table would not accept, before they are inserted.

An error ends the transaction in DuckDB, and there are no savepoints: with a quarantine, rows are compared with the
types and constraints of the table by queries that do not fail.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from noetl.data.sql import quote_column

VIEW = "noetl_checked"
ROW = "noetl_row"
CONSTRAINTS_QUERY = (
    "SELECT constraint_type, constraint_text, expression, constraint_column_names, referenced_table, "
    "referenced_column_names FROM duckdb_constraints() WHERE table_name = ? AND schema_name = ? AND "
    "database_name = current_database() ORDER BY constraint_index"
)


class TableChecks(NamedTuple):
    """A table with the types of its columns."""

    cursor: Any
    table: str  # quoted
    names: tuple[str, str]  # schema and table
    types: dict[str, str]
    key: tuple[str, ...]  # of mode upsert

    def rejected(self, rows: Any) -> dict[int, str]:
        """The rows that cannot be inserted, with the reason."""
        import pyarrow as pa

        numbered = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
        self.cursor.register(VIEW, numbered)
        try:
            kinds = self.cursor.sql(f"SELECT * FROM {VIEW}").types
            given = {name: str(kind) for name, kind in zip(numbered.schema.names, kinds, strict=True)}
            return self._rejected(given)
        finally:
            self.cursor.unregister(VIEW)

    def _rejected(self, given: dict[str, str]) -> dict[int, str]:
        converted = {
            name: quote_column(name) if given[name] == kind else f"TRY_CAST({quote_column(name)} AS {kind})"
            for name, kind in self.types.items()
            if name in given
        }
        found: dict[int, str] = {}
        tests = [
            (f"{quote_column(name)} IS NOT NULL AND {cast} IS NULL", f"the column {name!r}: not a value of type {kind}")
            for name, cast, kind in ((name, cast, self.types[name]) for name, cast in converted.items())
            if cast.startswith("TRY_CAST")
        ]
        for test, reason in tests:
            self._note(found, f"SELECT {ROW} FROM {VIEW} WHERE {test}", reason)
        absent = {name: f"NULL::{kind}" for name, kind in self.types.items() if name not in given}
        selected = ", ".join(f"{text} AS {quote_column(name)}" for name, text in {**converted, **absent}.items())
        incoming = f"(SELECT {selected}, {ROW} FROM {VIEW}) AS incoming"
        constraints = self.cursor.execute(CONSTRAINTS_QUERY, [self.names[1], self.names[0]]).fetchall()
        for kind, text, expression, columns, other, others in constraints:
            query = self._violations(kind, expression, columns, (other, others), incoming)
            if query and set(columns) <= set(converted):
                what = f"{', '.join(columns)} {text}" if kind == "NOT NULL" else text
                self._note(found, query, f"violates the constraint {what}")
        return found

    def _violations(
        self, kind: str, expression: str, columns: list[str], other: tuple[str, list[str]], incoming: str
    ) -> str | None:
        names = [quote_column(name) for name in columns]
        if kind == "NOT NULL":
            return f"SELECT {ROW} FROM {incoming} WHERE {names[0]} IS NULL"
        if kind == "CHECK":
            return f"SELECT {ROW} FROM {incoming} WHERE NOT coalesce(TRY({expression}), true)"
        if kind in ("PRIMARY KEY", "UNIQUE") and sorted(columns) != sorted(self.key):
            same = " AND ".join(f"t.{name} = incoming.{name}" for name in names)
            complete = " AND ".join(f"{name} IS NOT NULL" for name in names)
            repeated = f"row_number() OVER (PARTITION BY {', '.join(names)} ORDER BY {ROW}) > 1"
            if self.key:  # rows with the same key are replaced
                return None
            return (
                f"SELECT {ROW} FROM (SELECT *, {repeated} AS repeated FROM {incoming}) AS incoming "
                f"WHERE {complete} AND (repeated OR EXISTS (SELECT 1 FROM {self.table} AS t WHERE {same}))"
            )
        if kind == "FOREIGN KEY":
            table = f"{quote_column(self.names[0])}.{quote_column(other[0])}"
            pairs = zip(other[1], names, strict=True)
            same = " AND ".join(f"r.{quote_column(there)} = incoming.{here}" for there, here in pairs)
            complete = " AND ".join(f"{name} IS NOT NULL" for name in names)
            return (
                f"SELECT {ROW} FROM {incoming} WHERE {complete} AND "
                f"NOT EXISTS (SELECT 1 FROM {table} AS r WHERE {same})"
            )
        return None

    def _note(self, found: dict[int, str], query: str, reason: str) -> None:
        for (number,) in self.cursor.execute(query).fetchall():
            found.setdefault(number, reason)
