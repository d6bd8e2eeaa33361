"""Load samples in SQLite or Postgres, in the database of the event log."""

from __future__ import annotations

import msgspec

from noetl.storage.document_checksums import is_intact, with_checksum
from noetl.storage.ports.load_samples import StoredLoad
from noetl.storage.ports.sql import Schemas, SqlDatabase

SCHEMAS: Schemas = {
    "sqlite": ("CREATE TABLE load_samples(at REAL NOT NULL, server TEXT NOT NULL, data BLOB NOT NULL, "
               "PRIMARY KEY(at, server)) WITHOUT ROWID",),
    "postgres": ("CREATE TABLE noetl_load_samples(at float8 NOT NULL, server text NOT NULL, data bytea NOT NULL, "
                 "PRIMARY KEY(at, server))",),
}  # fmt: skip

_decode = msgspec.json.Decoder(StoredLoad).decode


class SqlLoadSampleStore:
    """`ports.LoadSampleStore` in a database that other stores share."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._table = f"{database.prefix}load_samples"
        database.migrate("load_samples", SCHEMAS[database.dialect])

    async def add(self, sample: StoredLoad) -> None:
        """Store a sample."""
        await self._database.execute(
            f"INSERT INTO {self._table}(at, server, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            sample.at,
            sample.server,
            with_checksum(msgspec.json.encode(sample), sample.at, sample.server),
        )

    async def since(self, at: float) -> list[StoredLoad]:
        """The samples since an instant, oldest first; damaged ones are left out."""
        query = f"SELECT data, at, server FROM {self._table} WHERE at >= $1 ORDER BY at"
        return [_decode(row[0]) for row in await self._database.fetch(query, at) if is_intact(*row)]

    async def drop(self, before: float) -> None:
        """Delete the samples before an instant."""
        await self._database.execute(f"DELETE FROM {self._table} WHERE at < $1", before)
