"""Triggers in SQLite or Postgres, in the database of the catalog that they refer to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from noetl.errors import Conflict, CorruptLog
from noetl.storage.document_checksums import is_intact, with_checksum, without_checksum
from noetl.storage.ports.sql import Schemas, SqlDatabase
from noetl.storage.ports.triggers import StoredTrigger

SCHEMAS: Schemas = {
    "sqlite": (
        """
        CREATE TABLE triggers(
          kind TEXT NOT NULL,
          name TEXT NOT NULL,
          data BLOB NOT NULL,
          revision INTEGER NOT NULL,
          wake REAL,
          PRIMARY KEY(kind, name)
        ) WITHOUT ROWID;
        CREATE INDEX triggers_wake ON triggers(kind, wake) WHERE wake IS NOT NULL
        """,
    ),
    "postgres": (
        """
        CREATE TABLE noetl_triggers(
          kind text NOT NULL,
          name text COLLATE "C" NOT NULL,
          data bytea NOT NULL,
          revision int8 NOT NULL,
          wake float8,
          PRIMARY KEY(kind, name)
        );
        CREATE INDEX noetl_triggers_wake ON noetl_triggers(kind, wake) WHERE wake IS NOT NULL
        """,
    ),
}


log = logging.getLogger("noetl.storage")


class SqlTriggerStore:
    """`ports.TriggerStore` in a database that other stores share."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._table = f"{database.prefix}triggers"
        self._reported: set[tuple[str, str]] = set()  # damaged ones
        database.migrate("triggers", SCHEMAS[database.dialect])

    async def add(self, trigger: StoredTrigger) -> None:
        """Add a trigger; Conflict if the name exists."""
        added = await self._database.execute(
            f"INSERT INTO {self._table}(kind, name, data, revision, wake) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (kind, name) DO NOTHING",
            trigger.kind,
            trigger.name,
            _document(trigger),
            trigger.revision,
            trigger.wake,
        )
        if not added:
            raise Conflict(f"a {trigger.kind} named {trigger.name!r} already exists")

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the previous revision; False if it is not the stored one."""
        changed = await self._database.execute(
            f"UPDATE {self._table} SET data = $1, revision = $2, wake = $3 "
            "WHERE kind = $4 AND name = $5 AND revision = $6",
            _document(trigger),
            trigger.revision,
            trigger.wake,
            trigger.kind,
            trigger.name,
            trigger.revision - 1,
        )
        return changed > 0

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """The trigger of a name; None if it does not exist, CorruptLog if it is damaged."""
        rows = await self._rows("kind = $1 AND name = $2", kind, name)
        return _intact_trigger(rows[0]) if rows else None

    async def named(self, kind: str, names: Sequence[str]) -> dict[str, StoredTrigger]:
        """Those of these names that exist; CorruptLog if one is damaged."""
        if not names:
            return {}
        places = ", ".join(f"${number}" for number in range(2, 2 + len(names)))
        rows = await self._rows(f"kind = $1 AND name IN ({places})", kind, *names)
        return {row[1]: _intact_trigger(row) for row in rows}

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Triggers whose `wake` has passed, the earliest first."""
        return await self._select("kind = $1 AND wake <= $2 ORDER BY wake, name LIMIT $3", kind, now, limit)

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of a kind."""
        query = f"SELECT min(wake) FROM {self._table} WHERE kind = $1 AND wake IS NOT NULL"
        found: float | None = (await self._database.row(query, kind))[0]
        return found

    async def remove(self, kind: str, name: str) -> bool:
        """Delete a trigger; False if it does not exist."""
        return await self._database.execute(f"DELETE FROM {self._table} WHERE kind = $1 AND name = $2", kind, name) > 0

    async def _rows(self, where: str, *values: object) -> Sequence[Any]:
        query = f"SELECT kind, name, data, revision, wake FROM {self._table} WHERE {where}"
        return await self._database.fetch(query, *values)

    async def _select(self, where: str, *values: object) -> list[StoredTrigger]:
        """The intact rows: a damaged one does not stop the others."""
        found = []
        for row in await self._rows(where, *values):
            if _is_intact(row):
                found.append(_trigger(row))
            elif (row[0], row[1]) not in self._reported:
                self._reported.add((row[0], row[1]))
                log.error("the %s %r is damaged and is not used; delete it and create it again", row[0], row[1])
        return found

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """One page of triggers, by name."""
        return await self._select(
            "kind = $1 AND name > $2 ORDER BY name LIMIT $3", kind, (after or "").replace("\x00", ""), limit
        )


def _document(trigger: StoredTrigger) -> bytes:
    return with_checksum(trigger.data, trigger.kind, trigger.name, trigger.revision, trigger.wake)


def _is_intact(row: Sequence[Any]) -> bool:
    kind, name, data, revision, wake = row
    return is_intact(data, kind, name, revision, wake)


def _intact_trigger(row: Sequence[Any]) -> StoredTrigger:
    if not _is_intact(row):
        raise CorruptLog(f"the {row[0]} {row[1]!r} is damaged; delete it and create it again, or restore a backup")
    return _trigger(row)


def _trigger(row: Sequence[Any]) -> StoredTrigger:
    kind, name, data, revision, wake = row
    return StoredTrigger(kind, name, without_checksum(data), revision, wake)
