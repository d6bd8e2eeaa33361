"""Statements that merge rows by key into a table without a unique index on the key, valid in every database."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.data.sql import quote_column


def update_and_insert(
    table: str, columns: Sequence[str], key: Sequence[str], staging: str, overriding: str = ""
) -> list[str]:
    """Update existing rows and insert new ones; columns that are not listed keep their values.

    `table` and `staging` are SQL expressions; `staging` contains every key at most once. `overriding`
    is a clause of the INSERT before its SELECT."""
    same = " AND ".join(f"t.{quote_column(name)} = i.{quote_column(name)}" for name in key)
    update = ", ".join(f"{quote_column(name)} = i.{quote_column(name)}" for name in columns if name not in key)
    column_list = ", ".join(quote_column(name) for name in columns)
    insert = (
        f"INSERT INTO {table} ({column_list}) {overriding} SELECT {column_list} FROM {staging} AS i "
        f"WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {same})"
    )
    return [f"UPDATE {table} AS t SET {update} FROM {staging} AS i WHERE {same}", insert] if update else [insert]
