"""The objects that were loaded into a table (`only_new`), in a table of the same database.

They are written in the transaction of the rows: after a crash, either both are there or neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from noetl.data.sql import quote_name

TABLE = "noetl_loaded_objects"


def create() -> str:
    """Create the table."""
    return (
        f"CREATE TABLE IF NOT EXISTS {quote_name(TABLE)} (target text NOT NULL, object text NOT NULL, "
        "version text NOT NULL, loaded_at text NOT NULL, PRIMARY KEY (target, object))"
    )


def select(mark: str) -> str:
    """The objects of a target and their versions."""
    return f"SELECT object, version FROM {quote_name(TABLE)} WHERE target = {mark}"


def insert(mark: str) -> str:
    """Record an object."""
    return (
        f"INSERT INTO {quote_name(TABLE)} (target, object, version, loaded_at) VALUES ({mark}, {mark}, {mark}, {mark}) "
        "ON CONFLICT (target, object) DO UPDATE SET version = excluded.version, loaded_at = excluded.loaded_at"
    )


def rows(target: str, found: Iterable[Sequence[str]], now: str) -> list[tuple[str, str, str, str]]:
    """The values of `insert` for objects and their versions."""
    return [(target, name, version, now) for name, version in found]
