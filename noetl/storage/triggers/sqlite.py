"""Schedules and webhooks in SQLite, in the file of the catalog that they refer to."""

from __future__ import annotations

import sqlite3

from noetl.errors import Conflict
from noetl.storage.ports.triggers import StoredTrigger
from noetl.storage.sqlite.database_file import SqliteFile

SCHEMA = (
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
)

_SELECT = "SELECT kind, name, data, revision, wake FROM triggers"


class SqliteTriggerStore:
    """`ports.TriggerStore` in a SQLite file that other stores share."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        file.migrate("triggers", SCHEMA)

    async def add(self, trigger: StoredTrigger) -> None:
        """Add a trigger; Conflict if the name exists."""

        def job(db: sqlite3.Connection) -> None:
            where = (trigger.kind, trigger.name)
            if db.execute("SELECT 1 FROM triggers WHERE kind = ? AND name = ?", where).fetchone():
                raise Conflict(f"a {trigger.kind} named {trigger.name!r} already exists")
            row = (*where, trigger.data, trigger.revision, trigger.wake)
            db.execute("INSERT INTO triggers(kind, name, data, revision, wake) VALUES (?, ?, ?, ?, ?)", row)

        await self._file.write(job, len(trigger.data))

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the previous revision; False if it is not the stored one."""
        row = (trigger.data, trigger.revision, trigger.wake, trigger.kind, trigger.name, trigger.revision - 1)

        def job(db: sqlite3.Connection) -> bool:
            changed = db.execute(
                "UPDATE triggers SET data = ?, revision = ?, wake = ? WHERE kind = ? AND name = ? AND revision = ?", row
            )
            return changed.rowcount > 0

        return await self._file.write(job, len(trigger.data))

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """The trigger of a name; None if it does not exist."""
        found = await self._rows(f"{_SELECT} WHERE kind = ? AND name = ?", kind, name)
        return found[0] if found else None

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Triggers whose `wake` has passed, the earliest first."""
        return await self._rows(f"{_SELECT} WHERE kind = ? AND wake <= ? ORDER BY wake, name LIMIT ?", kind, now, limit)

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of a kind."""
        query = "SELECT min(wake) FROM triggers WHERE kind = ? AND wake IS NOT NULL"
        found: float | None = await self._file.read(lambda db: db.execute(query, (kind,)).fetchone()[0])
        return found

    async def remove(self, kind: str, name: str) -> bool:
        """Delete a trigger; False if it does not exist."""
        return await self._file.write(
            lambda db: db.execute("DELETE FROM triggers WHERE kind = ? AND name = ?", (kind, name)).rowcount > 0
        )

    async def _rows(self, query: str, *values: object) -> list[StoredTrigger]:
        return await self._file.read(lambda db: [StoredTrigger(*row) for row in db.execute(query, values)])

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """One page of triggers, by name."""
        return await self._rows(
            f"{_SELECT} WHERE kind = ? AND name > ? ORDER BY name LIMIT ?", kind, after or "", limit
        )
