"""Rebuilds what is derived in a damaged SQLite file: every index, and derived tables that cannot be read.

`REINDEX` and `VACUUM` read the damaged pages and fail. So the definitions are removed from the schema first, and
`VACUUM` writes the remaining tables to new pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing

Definition = tuple[str, str, str, str]  # kind, name, table, SQL
_DEFINITIONS = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"


def missing(db: sqlite3.Connection, scripts: Iterable[str]) -> list[Definition]:
    """The tables and indexes that these migrations create, and that do not exist."""
    with closing(sqlite3.connect(":memory:")) as complete:
        complete.executescript(";".join(scripts))
        expected = complete.execute(_DEFINITIONS).fetchall()
    present = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    return [each for each in expected if each[1] not in present]


def unreadable(db: sqlite3.Connection, derived: Collection[str]) -> list[str]:
    """The tables, except those of `derived`, that `rebuild` cannot read."""
    names = [name for kind, name, _, _ in db.execute(_DEFINITIONS).fetchall() if kind == "table"]
    return [name for name in names if name not in derived and not _is_readable(db, name, raises=False)]


def rebuild(db: sqlite3.Connection, derived: Collection[str], scripts: Iterable[str]) -> list[str]:
    """Rebuild the indexes of all tables, and the tables of `derived` that cannot be read, which are empty afterwards;
    returns the names of these. Indexes and derived tables of the migrations that are missing are created.

    The connection has no transaction. Raises sqlite3.DatabaseError, and changes nothing, if another table cannot be
    read."""
    schema = db.execute(_DEFINITIONS).fetchall()
    lost = []
    for kind, name, _, _ in schema:
        if kind == "table" and not _is_readable(db, name, raises=name not in derived):
            lost.append(name)
    removed = [each for each in schema if each[0] == "index" or each[2] in lost]
    db.execute("PRAGMA writable_schema=ON")
    try:
        db.execute("BEGIN IMMEDIATE")
        for kind, name, _, _ in removed:
            db.execute("DELETE FROM sqlite_master WHERE type = ? AND name = ?", (kind, name))
        for name in lost:  # the indexes of its constraints, which have no definition
            db.execute("DELETE FROM sqlite_master WHERE tbl_name = ?", (name,))
        db.execute("COMMIT")
        db.execute("PRAGMA writable_schema=RESET")
        _copy_tables_with_constraints(db)
    finally:
        db.execute("PRAGMA writable_schema=RESET")
    db.execute("VACUUM")
    tables = {name for kind, name, _, _ in db.execute(_DEFINITIONS) if kind == "table"} | set(derived)
    created = removed + [each for each in missing(db, scripts) if each not in removed and each[2] in tables]
    db.execute("BEGIN IMMEDIATE")
    for *_, sql in sorted(created, key=lambda each: each[0] == "index"):  # tables first
        db.execute(sql)
    db.execute("COMMIT")
    return lost


def _copy_tables_with_constraints(db: sqlite3.Connection) -> None:
    """Write tables anew whose constraints have an index: it cannot be removed, and `VACUUM` would copy it."""
    found = db.execute(
        "SELECT name, sql FROM sqlite_master AS t WHERE type = 'table' AND EXISTS "
        "(SELECT 1 FROM sqlite_master WHERE type = 'index' AND sql IS NULL AND tbl_name = t.name)"
    ).fetchall()
    for name, sql in found:
        db.execute("BEGIN IMMEDIATE")
        db.execute(f'ALTER TABLE "{name}" RENAME TO "{name}_damaged"')
        db.execute(sql)
        db.execute(f'INSERT INTO "{name}" SELECT * FROM "{name}_damaged" NOT INDEXED WHERE true')
        db.execute("PRAGMA writable_schema=ON")
        db.execute("DELETE FROM sqlite_master WHERE tbl_name = ?", (f"{name}_damaged",))
        db.execute("COMMIT")
        db.execute("PRAGMA writable_schema=RESET")


def _is_readable(db: sqlite3.Connection, table: str, *, raises: bool) -> bool:
    try:
        for _ in db.execute(f'SELECT * FROM "{table}" NOT INDEXED'):
            pass
    except sqlite3.DatabaseError:
        if raises:
            raise
        return False
    return True
