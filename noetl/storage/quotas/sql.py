"""Token buckets in SQLite or Postgres, in the database of the event log. Postgres decides by its own clock."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any, TypeVar

from noetl.core.model.quotas.token_bucket import Bucket, decode_bucket, encode_bucket
from noetl.storage.document_checksums import is_intact, with_checksum
from noetl.storage.ports.quotas import Change
from noetl.storage.ports.sql import Schemas

T = TypeVar("T")

SCHEMAS: Schemas = {
    "sqlite": ("CREATE TABLE quotas(key TEXT PRIMARY KEY, data BLOB NOT NULL, idle_at REAL NOT NULL) WITHOUT ROWID",),
    "postgres": ("CREATE TABLE noetl_quotas(key text PRIMARY KEY, data bytea NOT NULL, idle_at float8 NOT NULL)",),
}
_NEW = encode_bucket(Bucket())

log = logging.getLogger("noetl.storage")


class SqlQuotaStore:
    """What the quota stores in SQLite and in Postgres share."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._table = f"{database.prefix}quotas"
        database.migrate("quotas", SCHEMAS[database.dialect])

    async def drop_idle(self, before: float) -> None:
        """Delete idle buckets."""
        await self._database.execute(f"DELETE FROM {self._table} WHERE idle_at < $1", before)


class SqliteQuotaStore(SqlQuotaStore):
    """`ports.QuotaStore` in the SQLite file of the event log."""

    async def update(self, key: str, now: float, change: Change[T]) -> T:
        """Replace a bucket in one transaction of the writer."""

        def job(db: sqlite3.Connection) -> T:
            row = db.execute("SELECT data, idle_at FROM quotas WHERE key = ?", (key,)).fetchone()
            bucket, answer = change(_bucket(key, *row) if row else Bucket(), now)
            db.execute(
                "INSERT INTO quotas(key, data, idle_at) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET data = excluded.data, idle_at = excluded.idle_at",
                (key, _document(key, bucket), bucket.idle_at),
            )
            return answer

        found: T = await self._database.write(job)
        return found


class PostgresQuotaStore(SqlQuotaStore):
    """`ports.QuotaStore` in the Postgres database of the event log."""

    async def update(self, key: str, now: float, change: Change[T]) -> T:
        """Replace a bucket under a lock of its row."""
        async with self._database.connection() as connection, connection.transaction():
            query = (
                f"SELECT data, idle_at, extract(epoch FROM clock_timestamp())::float8 FROM {self._table} "
                "WHERE key = $1 FOR UPDATE"
            )
            row = await connection.fetchrow(query, key)
            if row is None:
                await connection.execute(
                    f"INSERT INTO {self._table}(key, data, idle_at) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING",
                    key,
                    _NEW,
                )
                row = await connection.fetchrow(query, key)
            bucket, answer = change(_bucket(key, row[0], row[1]), row[2])
            await connection.execute(
                f"UPDATE {self._table} SET data = $2, idle_at = $3 WHERE key = $1",
                key,
                _document(key, bucket),
                bucket.idle_at,
            )
        return answer


def _document(key: str, bucket: Bucket) -> bytes:
    return with_checksum(encode_bucket(bucket), key, bucket.idle_at)


def _bucket(key: str, data: bytes, idle_at: float) -> Bucket:
    """The stored bucket; a damaged one is replaced by a full bucket, so that its runs are not stopped."""
    if is_intact(data, key, idle_at):
        return decode_bucket(data)
    log.error("the bucket of quota %s is damaged and begins again", key)
    return Bucket()
