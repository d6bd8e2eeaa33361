"""Writes rows to a table in one transaction.

MySQL commits a transaction when a table is created, altered or truncated. So a missing table is created first, and
dropped again if the transfer fails; mode replace deletes the rows instead of truncating the table. With a schema
contract, and for an upsert into a table without a unique index on the key, rows are collected in a temporary table; the
table is altered and the rows are merged after the last chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl.tool import ConnectorError, RowTarget
from noetl_mysql import table_columns
from noetl_mysql.arrow_types import column_type, values_of
from noetl_mysql.connection import connect, settings, stop
from noetl_mysql.names import quoted, quoted_table, table_parts

STAGING, LAST, ROW = "`_noetl_staging`", "`_noetl_last`", "`_noetl_row`"


class MysqlTarget(RowTarget):
    """A table."""

    _connection: Any = None
    _created = False
    _staged = False

    async def begin(self, schema: Any) -> None:
        """Connect, create or empty the table."""
        await self._connect()
        call = self.call
        self._names = list(schema.names)
        self._types = await self._columns()
        self._changes: list[str] = []  # of the table, which are made before the rows are merged
        self._booleans: list[str] = []  # columns of booleans that become text
        if not self._types:
            if not call.create:
                raise ConnectorError(f"{call.label}: the table does not exist, and `create` is false")
            await self._create(schema)
        elif not call.contract:
            known = [name.lower() for name in self._types]
            missing = [name for name in schema.names if name.lower() not in known]
            if missing:
                have = ", ".join(known)
                raise ConnectorError(f"{call.label}: the table has no column {missing[0]!r}; columns: {have}")
        self._has_key = call.mode == "upsert" and await self._only_unique_index() == sorted(
            name.lower() for name in call.key
        )
        self._staged = call.contract or (call.mode == "upsert" and not self._has_key)
        if self._staged:
            self._runs: list[tuple[list[str], int]] = []
            await self._execute(f"CREATE TEMPORARY TABLE {STAGING} SELECT * FROM {self._table} LIMIT 0")
            await self._execute(f"ALTER TABLE {STAGING} ADD COLUMN {ROW} BIGINT AUTO_INCREMENT PRIMARY KEY")
        await self._connection.begin()
        if call.mode == "replace" and not self._staged:
            await self._execute(f"DELETE FROM {self._table}")

    async def write(self, table: Any) -> None:
        """Insert the rows of a chunk; a chunk that fails leaves nothing behind."""
        if self._staged and self._names != table.schema.names:
            await self._end_run()
        self._names = list(table.schema.names)
        rows = values_of(table, self._kind_of)
        if self.call.mode == "upsert":
            rows = self._last_of_each_key(rows)
        if self.call.keeps_going:
            await self._execute("SAVEPOINT chunk")
        try:
            await self._insert(rows)
            if self._staged and self.call.keeps_going and not self.call.contract:
                await self._merge()
        except Exception:
            if self.call.keeps_going:
                await self._execute("ROLLBACK TO SAVEPOINT chunk")
            raise

    async def columns(self) -> dict[str, str]:
        """The columns of the table and their types, with the changes that were asked for."""
        return self._types

    def _kind_of(self, name: str) -> str:
        return next((kind for known, kind in self._types.items() if known.lower() == name.lower()), "")

    def identifier(self, name: str) -> str:
        """The name in lower case, which MySQL does not distinguish from upper case."""
        return name.lower()

    async def alter(self, add: list[Any], widen: dict[str, str]) -> None:
        """Change the temporary table now, and the table before the rows are merged."""
        changes = [f"ADD COLUMN {quoted(field.name)} {column_type(field)}" for field in add]
        changes += await table_columns.modifications(self._execute, self._table, widen)
        await self._execute(f"ALTER TABLE {STAGING} {', '.join(changes)}")
        await self._connection.begin()  # it has ended the transaction, and with it the savepoints of chunks
        booleans = [name for name, kind in widen.items() if kind == "text" and self._types[name] == "tinyint(1)"]
        await self._spell_booleans(STAGING, booleans)
        self._booleans += booleans
        self._changes += changes
        self._types |= {field.name: table_columns.portable(column_type(field)) for field in add} | widen

    async def _spell_booleans(self, table: str, names: list[str]) -> None:
        """Write booleans of a column that became text as later chunks do; MySQL stores them as 1 and 0."""
        for name in map(quoted, names):
            value = f"CASE {name} WHEN '1' THEN 'true' WHEN '0' THEN 'false' ELSE {name} END"
            await self._execute(f"UPDATE {table} SET {name} = {value}")

    async def prepare(self) -> None:
        """Alter the table and merge the collected rows."""
        if not self._staged:
            return
        if self._changes:  # rows are in the temporary table only: nothing else is committed here
            await self._execute(f"ALTER TABLE {self._table} {', '.join(self._changes)}")
            await self._connection.begin()
            await self._spell_booleans(self._table, self._booleans)
        if self.call.mode == "replace":
            await self._execute(f"DELETE FROM {self._table}")
        await self._merge()

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

    async def _columns(self) -> dict[str, str]:
        """The names of the table's columns, each with its portable type; empty if it does not exist."""
        *schema, table = table_parts(str(self.call.fields["table"]))
        where = "table_schema = %s" if schema else "table_schema = DATABASE()"
        query = (
            f"SELECT column_name, column_type FROM information_schema.columns WHERE {where} AND table_name = %s "
            "ORDER BY ordinal_position"
        )
        columns = await self._execute(query, [*schema, table])
        return await table_columns.types_of(self._execute, self._table, columns)

    async def _create(self, schema: Any) -> None:
        key = self.call.key if self.call.mode == "upsert" else ()
        columns = [f"{quoted(field.name)} {column_type(field, key=field.name in key)}" for field in schema]
        if key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        collation = await table_columns.exact_collation(self._execute)
        text = (
            f"CREATE TABLE {self._table} ({', '.join(columns)}) CHARACTER SET utf8mb4 COLLATE {collation} ENGINE=InnoDB"
        )
        await self._execute(text)
        self._created = True
        self._types = await self._columns()

    async def _only_unique_index(self) -> list[str] | None:
        """The columns of the unique index, in lower case; None if there are none or several."""
        unique: dict[str, list[str]] = {}
        for row in await self._execute(f"SHOW INDEX FROM {self._table}"):
            if not row[1]:
                unique.setdefault(row[2], []).append(row[4].lower())
        return sorted(next(iter(unique.values()))) if len(unique) == 1 else None

    def _last_of_each_key(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        places = [self._names.index(name) for name in self.call.key]
        return list({tuple(row[place] for place in places): row for row in rows}.values())

    async def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        into, end = (STAGING, "") if self._staged else (self._table, self._on_conflict(self._names))
        columns, marks = ", ".join(map(quoted, self._names)), ", ".join(["%s"] * len(self._names))
        text = f"INSERT INTO {into} ({columns}) VALUES (\0){end}".replace("%", "%%").replace("\0", marks)
        async with self._connection.cursor() as cursor:
            await cursor.executemany(text, rows)

    def _on_conflict(self, names: Sequence[str]) -> str:
        if not self._has_key:
            return ""
        changes = [f"{quoted(name)} = VALUES({quoted(name)})" for name in names if name not in self.call.key]
        first = quoted(self.call.key[0])
        return f" ON DUPLICATE KEY UPDATE {', '.join(changes or [f'{first} = VALUES({first})'])}"

    async def _end_run(self) -> None:
        """Note up to which row the collected rows have the current columns."""
        ((last,),) = await self._execute(f"SELECT max({ROW}) FROM {STAGING}")
        if last is not None:
            self._runs.append((self._names, last))

    async def _merge(self) -> None:
        """Write the collected rows to the table; columns that none of them has keep their values."""
        await self._end_run()
        if self.call.mode == "upsert" and len(self._runs) > 1:
            await self._join_runs()
        for names, last in self._runs:
            await self._merge_run(names, last)
        self._runs = []

    async def _join_runs(self) -> None:
        """Make one run of all: a column that only other rows have is null, not its default."""
        names = list(dict.fromkeys(name for columns, _ in self._runs for name in columns))
        first = 0
        for columns, last in self._runs:
            if missing := [f"{quoted(name)} = NULL" for name in names if name not in columns]:
                where = f"{ROW} > {first} AND {ROW} <= {last}"
                await self._execute(f"UPDATE {STAGING} SET {', '.join(missing)} WHERE {where}")
            first = last
        self._runs = [(names, first)]

    async def _merge_run(self, names: Sequence[str], last: int) -> None:
        """Merge the rows up to the last one; each statement uses the temporary table once, as MySQL requires."""
        columns = ", ".join(map(quoted, names))
        if self.call.mode == "upsert" and not self._has_key:
            await self._update_existing(names, last)
        # In the order in which they arrived: the last row of a key wins.
        await self._execute(
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {STAGING} WHERE {ROW} <= {last} "
            f"ORDER BY {ROW}{self._on_conflict(names)}"
        )
        await self._execute(f"DELETE FROM {STAGING} WHERE {ROW} <= {last}")

    async def _update_existing(self, names: Sequence[str], last: int) -> None:
        """Update rows that exist, and remove them and rows that later ones replace from the temporary table."""
        keys = ", ".join(map(quoted, self.call.key))
        same = " AND ".join(f"t.{quoted(name)} = i.{quoted(name)}" for name in self.call.key)
        changes = [f"t.{quoted(name)} = i.{quoted(name)}" for name in names if name not in self.call.key]
        merged = f"i.{ROW} <= {last}"
        await self._execute(f"DROP TEMPORARY TABLE IF EXISTS {LAST}")
        await self._execute(
            f"CREATE TEMPORARY TABLE {LAST} SELECT max({ROW}) AS r FROM {STAGING} AS i WHERE {merged} GROUP BY {keys}"
        )
        await self._execute(f"ALTER TABLE {LAST} ADD PRIMARY KEY (r)")
        await self._execute(
            f"DELETE i FROM {STAGING} AS i LEFT JOIN {LAST} AS l ON l.r = i.{ROW} WHERE l.r IS NULL AND {merged}"
        )
        if not await table_columns.has_index(self._execute, STAGING):
            indexed = await table_columns.indexed(self._execute, STAGING, self.call.key)
            await self._execute(f"ALTER TABLE {STAGING} ADD INDEX ({indexed})")
        if changes:
            joined = f"UPDATE {self._table} AS t JOIN {STAGING} AS i ON {same} AND {merged}"
            await self._execute(f"{joined} SET {', '.join(changes)}")
        await self._execute(f"DELETE i FROM {STAGING} AS i JOIN {self._table} AS t ON {same} WHERE {merged}")
