"""Rows merged by key into a table that has no unique index to do it by: statements that every database takes."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.data.sql import quote_column


def merge_by_hand(table: str, columns: Sequence[str], key: Sequence[str], incoming: str) -> list[str]:
    """What is there is updated, what is not is added; columns that do not come keep what they have.

    `table` and `incoming` are SQL already; `incoming` has no key twice."""
    same = " AND ".join(f"t.{quote_column(name)} = i.{quote_column(name)}" for name in key)
    update = ", ".join(f"{quote_column(name)} = i.{quote_column(name)}" for name in columns if name not in key)
    chosen = ", ".join(quote_column(name) for name in columns)
    added = (
        f"INSERT INTO {table} ({chosen}) SELECT {chosen} FROM {incoming} AS i "
        f"WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {same})"
    )
    return [f"UPDATE {table} AS t SET {update} FROM {incoming} AS i WHERE {same}", added] if update else [added]
