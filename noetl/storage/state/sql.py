"""State in SQLite or Postgres, in the tables of the event log."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from typing import Any, ClassVar

import msgspec

from noetl.errors import CorruptLog
from noetl.storage.document_checksums import LENGTH, is_intact
from noetl.storage.events.state_commits import (
    check_in_sqlite,
    check_versions,
    lock_in_postgres,
    write_in_postgres,
    write_in_sqlite,
)
from noetl.storage.ports.state import StateCommit, StateEntry, StatePath, StateStore


class SqlStateStore(StateStore):
    """What the state stores in SQLite and in Postgres share: reading."""

    _CHECKSUM: ClassVar[str]  # the length of the checksum in `data`; 0 in a row of an earlier release

    def __init__(self, database: Any) -> None:
        self._database = database
        self._table = f"{database.prefix}state"

    async def read(self, path: str) -> dict[str, StateEntry]:
        """The values of a playbook by key."""
        query = f"SELECT key, data, version, updated_at, execution FROM {self._table} WHERE path = $1 ORDER BY key"
        found = {}
        for key, data, version, updated_at, execution in await self._database.fetch(query, path):
            if not is_intact(data, path, key, version, updated_at, execution):
                raise CorruptLog(
                    f"state.{key} of {path} is damaged; `noetl state set` replaces it, `noetl state reset` deletes the "
                    "state of the playbook"
                )
            found[key] = StateEntry(key, msgspec.json.decode(data), version, updated_at, execution)
        return found

    @abstractmethod
    async def commit(self, commit: StateCommit) -> None:
        """Store the changes; StateConflict if a key does not have the expected version."""

    async def paths(self, after: str = "", limit: int = 100) -> list[StatePath]:
        """One page of the playbooks that have state, by path."""
        query = (
            f"SELECT path, count(*), sum(length(data) - {self._CHECKSUM}), max(updated_at) FROM {self._table} "
            f"WHERE path > $1 GROUP BY path ORDER BY path LIMIT {limit:d}"
        )
        return [
            StatePath(path, keys, int(size), at) for path, keys, size, at in await self._database.fetch(query, after)
        ]


class SqliteStateStore(SqlStateStore):
    """`ports.StateStore` in the SQLite file of the event log."""

    _CHECKSUM = f"(CASE substr(data, -{LENGTH}, 1) WHEN x'0a' THEN {LENGTH} ELSE 0 END)"

    async def commit(self, commit: StateCommit) -> None:
        """Store the changes; StateConflict if a key does not have the expected version."""

        def job(db: sqlite3.Connection) -> None:
            check_in_sqlite(db, commit)
            write_in_sqlite(db, commit)

        await self._database.write(job)


class PostgresStateStore(SqlStateStore):
    """`ports.StateStore` in the Postgres database of the event log."""

    _CHECKSUM = f"(CASE substr(right(encode(data, 'hex'), {2 * LENGTH}), 1, 2) WHEN '0a' THEN {LENGTH} ELSE 0 END)"

    async def commit(self, commit: StateCommit) -> None:
        """Store the changes; StateConflict if a key does not have the expected version."""
        async with self._database.connection() as connection, connection.transaction():
            found = await lock_in_postgres(connection, [commit.path])
            check_versions(commit, found[commit.path])
            await write_in_postgres(connection, [commit])
