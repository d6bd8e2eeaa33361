"""Schedules and webhooks in Postgres, in the database of the catalog that they refer to."""

from __future__ import annotations

from noetl.errors import Conflict
from noetl.storage.ports.triggers import StoredTrigger
from noetl.storage.postgres.database import PostgresDatabase

SCHEMA = (
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
)

_SELECT = "SELECT kind, name, data, revision, wake FROM noetl_triggers"


class PostgresTriggerStore:
    """`ports.TriggerStore` in a Postgres database that other stores share."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        database.migrate("triggers", SCHEMA)

    async def add(self, trigger: StoredTrigger) -> None:
        """Add a trigger; Conflict if the name exists."""
        row = await self._database.row(
            "INSERT INTO noetl_triggers(kind, name, data, revision, wake) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (kind, name) DO NOTHING RETURNING name",
            trigger.kind,
            trigger.name,
            trigger.data,
            trigger.revision,
            trigger.wake,
        )
        if row is None:
            raise Conflict(f"a {trigger.kind} named {trigger.name!r} already exists")

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the previous revision; False if it is not the stored one."""
        row = await self._database.row(
            "UPDATE noetl_triggers SET data = $1, revision = $2, wake = $3 "
            "WHERE kind = $4 AND name = $5 AND revision = $6 RETURNING name",
            trigger.data,
            trigger.revision,
            trigger.wake,
            trigger.kind,
            trigger.name,
            trigger.revision - 1,
        )
        return row is not None

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """The trigger of a name; None if it does not exist."""
        found = await self._rows(f"{_SELECT} WHERE kind = $1 AND name = $2", kind, name)
        return found[0] if found else None

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Triggers whose `wake` has passed, the earliest first."""
        return await self._rows(
            f"{_SELECT} WHERE kind = $1 AND wake <= $2 ORDER BY wake, name LIMIT $3", kind, now, limit
        )

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of a kind."""
        row = await self._database.row(
            "SELECT min(wake) FROM noetl_triggers WHERE kind = $1 AND wake IS NOT NULL", kind
        )
        found: float | None = row[0]
        return found

    async def remove(self, kind: str, name: str) -> bool:
        """Delete a trigger; False if it does not exist."""
        row = await self._database.row(
            "DELETE FROM noetl_triggers WHERE kind = $1 AND name = $2 RETURNING name", kind, name
        )
        return row is not None

    async def _rows(self, query: str, *values: object) -> list[StoredTrigger]:
        return [StoredTrigger(*tuple(row)) for row in await self._database.fetch(query, *values)]

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """One page of triggers, by name."""
        return await self._rows(
            f"{_SELECT} WHERE kind = $1 AND name > $2 ORDER BY name LIMIT $3", kind, after or "", limit
        )
