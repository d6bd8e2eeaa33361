"""Finds the rows that a DuckDB table would not accept, before they are inserted.

An error ends the transaction in DuckDB, and there are no savepoints: with a quarantine, rows are compared with the
types and constraints of the table by queries that do not fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from noetl.data.sql import quote_column
from noetl.tools.transfer.nested_rows import belongs

VIEW = "noetl_checked"
ROW = "noetl_row"
CONSTRAINTS_QUERY = (
    "SELECT constraint_type, constraint_text, expression, constraint_column_names, referenced_table, "
    "referenced_column_names FROM duckdb_constraints() WHERE table_name = ? AND schema_name = ? AND "
    "database_name = current_database() ORDER BY constraint_index"
)
INDEXES_QUERY = (
    "SELECT index_name, expressions::VARCHAR[] FROM duckdb_indexes() WHERE is_unique AND table_name = ? AND "
    "schema_name = ? AND database_name = current_database() ORDER BY index_name"
)


class TableChecks(NamedTuple):
    """A table with the types of its columns."""

    cursor: Any
    table: str  # quoted
    names: tuple[str, str]  # schema and table
    types: dict[str, str]
    key: tuple[str, ...]  # of mode upsert
    replaced: tuple[str, ...]  # the part of it with which rows of the table are replaced
    root: str = ""  # of a child table: its rows are written before

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
        place = [self.names[1], self.names[0]]
        constraints = self.cursor.execute(CONSTRAINTS_QUERY, place).fetchall()
        indexes = self.cursor.execute(INDEXES_QUERY, place).fetchall()
        key = sorted(map(quote_column, self.key))
        unique = {
            f"violates the unique index {name} ({', '.join(expressions)})": expressions
            for name, expressions in indexes
            if sorted(quote_column(each.strip('"')) for each in expressions) != key
        }
        for kind, text, expression, columns, other, others in constraints:
            if not set(columns) <= set(converted):
                continue
            if kind in ("PRIMARY KEY", "UNIQUE") and sorted(columns) != sorted(self.key):
                unique[f"violates the constraint {text}"] = [quote_column(name) for name in columns]
            query = self._violations(kind, expression, columns, (other, others), incoming)
            if query is not None:
                what = f"{', '.join(columns)} {text}" if kind == "NOT NULL" else text
                self._note(found, query, f"violates the constraint {what}")
        self._note_repeated(found, unique, incoming)
        return found

    def _note_repeated(self, found: dict[int, str], unique: Mapping[str, list[str]], incoming: str) -> None:
        """Note the rows whose values another row has: of the table, or one before them that is accepted.

        With `key` rows with the same key replace each other, and share their values."""
        owners: dict[int, int] = {}  # row -> the number of its key, or the row itself
        uses: dict[int, list[tuple[str, int, bool]]] = {}  # row -> reason, number of the values, whether they are taken
        for reason, expressions in unique.items():
            for row, owner, values, is_taken in self.cursor.execute(self._uses(expressions, incoming)).fetchall():
                owners[row] = owner
                if values is not None:
                    uses.setdefault(row, []).append((reason, values, is_taken))
        holders: dict[tuple[str, int], int] = {}
        held: dict[int, list[tuple[str, int]]] = {}
        for row in sorted(owners.keys() - found.keys()):
            owner, own = owners[row], uses.get(row, [])
            wrong = [reason for reason, values, taken in own if taken or holders.get((reason, values), owner) != owner]
            if wrong:
                found[row] = wrong[0]
                continue
            for place in held.pop(owner, ()):
                del holders[place]
            held[owner] = [(reason, values) for reason, values, _ in own]
            holders.update(dict.fromkeys(held[owner], owner))

    def _uses(self, expressions: Sequence[str], incoming: str) -> str:
        """The query for rows whose unique values others have, or whose key occurs again."""
        names = [f"noetl_value_{number}" for number in range(len(expressions))]
        values = ", ".join(f"{each} AS {name}" for each, name in zip(expressions, names, strict=True))
        keys = [quote_column(name) for name in self.key]
        complete = " AND ".join(f"i.{name} IS NOT NULL" for name in names)
        same = " AND ".join(f"t.{name} = i.{name}" for name in names)
        owner = f"dense_rank() OVER (ORDER BY {', '.join(keys)})" if keys else ROW
        again = f"count(*) OVER (PARTITION BY {', '.join(keys)}) > 1" if keys else "false"
        replaced = [quote_column(name) for name in self.replaced]
        if replaced:
            same += f" AND ({' AND '.join(f't.{name} = i.{name}' for name in replaced)}) IS NOT TRUE"
        table = f"(SELECT {', '.join([*replaced, values])} FROM {self.table}) AS t"
        return (
            f"SELECT {ROW}, owner, place, taken FROM (SELECT {ROW}, {owner} AS owner, {again} AS again, "
            f"CASE WHEN {complete} THEN dense_rank() OVER (ORDER BY {', '.join(names)}) END AS place, "
            f"count(*) OVER (PARTITION BY {', '.join(names)}) > 1 AS repeated, "
            f"{complete} AND EXISTS (SELECT 1 FROM {table} WHERE {same}) AS taken "
            f"FROM (SELECT *, {values} FROM {incoming}) AS i) WHERE again OR taken OR (repeated AND place IS NOT NULL)"
        )

    def _violations(
        self, kind: str, expression: str, columns: list[str], other: tuple[str, list[str]], incoming: str
    ) -> str | None:
        names = [quote_column(name) for name in columns]
        if kind == "NOT NULL":
            return f"SELECT {ROW} FROM {incoming} WHERE {names[0]} IS NULL"
        if kind == "CHECK":
            return f"SELECT {ROW} FROM {incoming} WHERE NOT coalesce(TRY({expression}), true)"
        if kind == "FOREIGN KEY" and not (self.root and (other[0] == self.root or belongs(other[0], self.root))):
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
