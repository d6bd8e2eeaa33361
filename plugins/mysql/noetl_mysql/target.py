"""Writes rows to a table in one transaction.

MySQL commits a transaction when a table is created or truncated. So a missing table is created first, and dropped again
if the transfer fails; mode replace deletes the rows instead of truncating the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl.tool import ConnectorError, RowTarget
from noetl_mysql.arrow_types import column_type, values_of
from noetl_mysql.connection import connect, settings, stop
from noetl_mysql.names import quoted, quoted_table, table_parts

STAGING = "`_noetl_staging`"


class MysqlTarget(RowTarget):
    """A table."""

    _connection: Any = None
    _created = False

    async def begin(self, schema: Any) -> None:
        """Connect, create or empty the table."""
        await self._connect()
        call = self.call
        known = await self._columns()
        if not known:
            if not call.create:
                raise ConnectorError(f"{call.label}: the table does not exist, and `create` is false")
            await self._create(schema)
        else:
            missing = [name for name in schema.names if name.lower() not in known]
            if missing:
                have = ", ".join(known)
                raise ConnectorError(f"{call.label}: the table has no column {missing[0]!r}; columns: {have}")
        await self._connection.begin()
        if call.mode == "replace":
            await self._execute(f"DELETE FROM {self._table}")
        self._names = list(schema.names)
        self._into, self._on_conflict = self._table, ""
        self._staged = False
        if call.mode == "upsert":
            await self._prepare_upsert()

    async def write(self, table: Any) -> None:
        """Insert the rows of a chunk; a chunk that fails leaves nothing behind."""
        rows = values_of(table)
        if self.call.mode == "upsert":
            rows = self._last_of_each_key(rows)
        if self.call.keeps_going:
            await self._execute("SAVEPOINT chunk")
        try:
            await self._insert(rows)
            if self._staged:
                await self._merge()
        except Exception:
            if self.call.keeps_going:
                await self._execute("ROLLBACK TO SAVEPOINT chunk")
            raise

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.call.mode != "replace":
            return
        await self._connect()
        if await self._columns():
            await self._connection.begin()
            await self._execute(f"DELETE FROM {self._table}")

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._connection is not None:
            await self._connection.commit()
            connection, self._connection = self._connection, None
            await connection.ensure_closed()

    async def abort(self) -> None:
        """Roll back, and drop a table that this transfer has created."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        await stop(connection, self._arguments, self.call.timeout)
        if self._created:
            other = await connect(self._arguments, self.call.timeout)
            try:
                async with other.cursor() as cursor:
                    await cursor.execute(f"DROP TABLE {self._table}")
            finally:
                await other.ensure_closed()

    @property
    def _table(self) -> str:
        return quoted_table(str(self.call.fields["table"]))

    async def _connect(self) -> None:
        call = self.call
        self._arguments = await settings(call.fields, call.host)
        self._connection = await connect(self._arguments, call.timeout)

    async def _execute(self, statement: str, values: Sequence[Any] | None = None) -> Any:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement, values)
            return await cursor.fetchall() if cursor.description else []

    async def _columns(self) -> list[str]:
        """The names of the table's columns in lower case; empty if it does not exist."""
        *schema, table = table_parts(str(self.call.fields["table"]))
        where = "table_schema = %s" if schema else "table_schema = DATABASE()"
        query = (
            f"SELECT column_name FROM information_schema.columns WHERE {where} AND table_name = %s "
            "ORDER BY ordinal_position"
        )
        found = await self._execute(query, [*schema, table])
        return [row[0].lower() for row in found]

    async def _create(self, schema: Any) -> None:
        key = self.call.key if self.call.mode == "upsert" else ()
        columns = [f"{quoted(field.name)} {column_type(field, key=field.name in key)}" for field in schema]
        if key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        text = (
            f"CREATE TABLE {self._table} ({', '.join(columns)}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ENGINE=InnoDB"
        )
        await self._execute(text)
        self._created = True

    async def _prepare_upsert(self) -> None:
        """Insert directly if the key is the only unique index of the table; otherwise through a temporary table."""
        unique: dict[str, list[str]] = {}
        for row in await self._execute(f"SHOW INDEX FROM {self._table}"):
            if not row[1]:
                unique.setdefault(row[2], []).append(row[4].lower())
        updated = [name for name in self._names if name not in self.call.key]
        if [sorted(columns) for columns in unique.values()] == [sorted(name.lower() for name in self.call.key)]:
            first = quoted(self.call.key[0])
            changes = [f"{quoted(name)} = VALUES({quoted(name)})" for name in updated] or [f"{first} = {first}"]
            self._on_conflict = f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"
            return
        columns = ", ".join(map(quoted, self._names))
        await self._execute(f"CREATE TEMPORARY TABLE {STAGING} SELECT {columns} FROM {self._table} LIMIT 0")
        self._staged, self._into = True, STAGING

    def _last_of_each_key(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        places = [self._names.index(name) for name in self.call.key]
        return list({tuple(row[place] for place in places): row for row in rows}.values())

    async def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        columns = ", ".join(map(quoted, self._names)).replace("%", "%%")
        marks = ", ".join(["%s"] * len(self._names))
        into = self._into.replace("%", "%%")
        statement = f"INSERT INTO {into} ({columns}) VALUES ({marks}){self._on_conflict.replace('%', '%%')}"
        async with self._connection.cursor() as cursor:
            await cursor.executemany(statement, rows)

    async def _merge(self) -> None:
        """Update rows that exist and insert the others; the temporary table is used once in each statement."""
        same = " AND ".join(f"t.{quoted(name)} = i.{quoted(name)}" for name in self.call.key)
        columns = ", ".join(map(quoted, self._names))
        changes = [f"t.{quoted(name)} = i.{quoted(name)}" for name in self._names if name not in self.call.key]
        if changes:
            await self._execute(f"UPDATE {self._table} AS t JOIN {STAGING} AS i ON {same} SET {', '.join(changes)}")
        await self._execute(
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {STAGING} AS i "
            f"WHERE NOT EXISTS (SELECT 1 FROM {self._table} AS t WHERE {same})"
        )
        await self._execute(f"DELETE FROM {STAGING}")
