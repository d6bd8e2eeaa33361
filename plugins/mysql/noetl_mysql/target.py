"""Writes rows to a table in one transaction.

MySQL commits a transaction when a table is created, altered or truncated. So a missing table is created first, and
dropped again if the transfer fails; mode replace deletes the rows instead of truncating the table. With a schema
contract, and for an upsert into a table without a unique index on the key, rows are collected in a temporary table; the
table is altered and the rows are merged after the last chunk. A table with child tables has a contract, and so have
they: all of them are altered before the rows of the first one are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncmy import errors

from noetl.tool import ConnectorError, RowTarget, TargetCall
from noetl_mysql import table_columns
from noetl_mysql.arrow_types import column_type, values_of
from noetl_mysql.connection import EXACT, begin, connect, settings, stop
from noetl_mysql.deleted_rows import ROW, DeletedRows
from noetl_mysql.names import quoted, quoted_table, table_parts

MOST_BYTES = 1_000_000  # of one INSERT; a larger row is sent alone
STAGING, KEYS, LAST = "_noetl_staging", "_noetl_keys", "`_noetl_last`"


class MysqlTarget(RowTarget):
    """A table."""

    _connection: Any = None
    _created = False
    _staged = False
    _has_key = False
    _largest = 0  # bytes of a statement

    def __init__(self, call: TargetCall) -> None:
        super().__init__(call)
        self._tables = [self]  # and its child tables
        self._root = self
        self._use_staging("")
        self._names: list[str] = []
        self._types: dict[str, str] = {}
        self._changes: list[str] = []  # of the table, which are made before the rows are merged
        self._booleans: list[str] = []  # columns of booleans that become text
        self._runs: list[tuple[list[str], int]] = []

    def _use_staging(self, suffix: str) -> None:
        self._staging = quoted(f"{STAGING}{suffix}")
        self._deleted = DeletedRows(self._execute, self._insert_into, quoted(f"{KEYS}{suffix}"), self._staging)

    async def begin(self, schema: Any) -> None:
        """Connect, create or empty the table."""
        await self._open()
        call = self.call
        self._names = list(schema.names)
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
        if call.contract or (call.mode == "upsert" and not self._has_key):
            await self._stage()
        if not call.contract:
            await self._index_key()
        await self._begin()
        if call.mode == "replace" and not self._staged:
            await self._execute(f"DELETE FROM {self._table}")

    async def write(self, table: Any) -> None:
        """Insert the rows of a chunk; a chunk that fails leaves nothing behind."""
        if self._staged and self._names != table.schema.names:
            await self._end_run()
        self._names = list(table.schema.names)
        rows = values_of(table, self._kind_of)
        if table.nbytes > self._largest:
            self._check_sizes(rows)
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
        await self._open()
        return self._types

    def _kind_of(self, name: str) -> str:
        return next((kind for known, kind in self._types.items() if known.lower() == name.lower()), "")

    def identifier(self, name: str) -> str:
        """The name in lower case, which MySQL does not distinguish from upper case."""
        return name.lower()

    async def alter(self, add: list[Any], widen: dict[str, str]) -> None:
        """Change the temporary table now, and the table before the rows are merged."""
        await self._stage()
        changes = [f"ADD COLUMN {quoted(field.name)} {column_type(field)}" for field in add]
        changes += await table_columns.modifications(self._execute, self._table, widen)
        await self._deleted.drop_index(widen)
        await self._execute(f"ALTER TABLE {self._staging} {', '.join(changes)}")
        await self._deleted.widen(self._table, widen)
        await self._begin()  # it has ended the transaction, and with it the savepoints of chunks
        booleans = [name for name, kind in widen.items() if kind == "text" and self._types[name] == "tinyint(1)"]
        await self._spell_booleans(self._staging, booleans)
        self._booleans += booleans
        self._changes += changes
        self._types |= {field.name: table_columns.portable(column_type(field)) for field in add} | widen

    async def _spell_booleans(self, table: str, names: list[str]) -> None:
        """Write booleans of a column that became text as later chunks do; MySQL stores them as 1 and 0."""
        for name in map(quoted, names):
            value = f"CASE {name} WHEN '1' THEN 'true' WHEN '0' THEN 'false' ELSE {name} END"
            await self._execute(f"UPDATE {table} SET {name} = {value}")

    async def prepare(self) -> None:
        """Alter the tables and merge the collected rows."""
        if not self._staged:
            return
        if self._root is self:
            for each in self._tables:  # rows are in temporary tables only: nothing else is committed here
                await each._index_key()
                if each._changes:
                    await self._execute(f"ALTER TABLE {each._table} {', '.join(each._changes)}")
            await self._begin()
        await self._spell_booleans(self._table, self._booleans)
        await self._deleted.apply(self._table)
        if self.call.mode == "replace":
            await self._execute(f"DELETE FROM {self._table}")
        await self._merge()

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.call.mode != "replace":
            return
        await self._open()
        if self._types:
            await self._begin()
            await self._execute(f"DELETE FROM {self._table}")

    # ── child tables ─────────────────────────────────────────────────────────────────────────

    def join(self, root: RowTarget) -> None:
        """Use the connection of another table."""
        assert isinstance(root, MysqlTarget)
        self._root = root
        self._use_staging(f"_{len(root._tables)}")
        root._tables.append(self)

    async def tables(self, beginning: str) -> dict[str, list[str]]:
        """The tables whose names start so, and their columns."""
        await self._open()
        *schema, _ = table_parts(str(self.call.fields["table"]))
        query = (
            "SELECT c.table_name, c.column_name FROM information_schema.columns AS c JOIN information_schema.tables "
            "AS t ON t.table_schema = c.table_schema AND t.table_name = c.table_name AND t.table_type = 'BASE TABLE' "
            f"WHERE c.table_schema = {'%s' if schema else 'DATABASE()'} AND LEFT(c.table_name, CHAR_LENGTH(%s)) = %s"
        )
        found: dict[str, list[str]] = {}
        for table, column in await self._execute(query, [*schema, beginning, beginning]):
            if table.startswith(beginning):  # the catalog does not distinguish upper and lower case
                found.setdefault(table, []).append(column)
        return found

    async def delete(self, keys: Any) -> None:
        """Delete rows by key: collected ones now, those of the table before the others are merged."""
        await self._open()
        await self._stage()
        await self._deleted.add(keys.schema.names, values_of(keys, self._kind_of))
        await self._begin()

    async def savepoint(self) -> None:
        """A savepoint in the transaction."""
        await self._begin()
        await self._execute("SAVEPOINT tables")

    async def undo(self) -> None:
        """Roll back to the savepoint."""
        await self._execute("ROLLBACK TO SAVEPOINT tables")

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._root is self and self._connection is not None:
            await self._connection.commit()
            connection, self._connection = self._connection, None
            await connection.ensure_closed()

    async def abort(self) -> None:
        """Roll back, and drop the tables that this transfer has created."""
        connection, self._connection = self._connection, None
        if self._root is not self or connection is None:
            return
        await stop(connection, self._arguments, self.call.timeout)
        created = [each._table for each in self._tables if each._created]
        if created:
            other = await connect(self._arguments, self.call.timeout)
            try:
                async with other.cursor() as cursor:
                    await cursor.execute(f"DROP TABLE {', '.join(created)}")
            finally:
                await other.ensure_closed()

    @property
    def _table(self) -> str:
        return quoted_table(str(self.call.fields["table"]))

    async def _open(self) -> None:
        """Connect, and read the columns of the table."""
        if self._connection is None:
            await self._connect()
            self._types = await self._columns()

    async def _connect(self) -> None:
        call = self.call
        if self._root is not self:
            await self._root._open()
            self._connection, self._largest = self._root._connection, self._root._largest
            return
        self._arguments = await settings(call.fields, call.host)
        database = table_parts(str(call.fields["table"]))[:-1]  # temporary tables need one
        self._arguments["database"] = self._arguments["database"] or next(iter(database), None)
        self._connection = await connect(self._arguments, call.timeout)
        await self._execute(EXACT)
        ((largest,),) = await self._execute("SELECT @@max_allowed_packet")
        self._largest = int(largest)

    async def _begin(self) -> None:
        """Begin a transaction, unless one is open: another would commit it."""
        if not self._connection.get_transaction_status():
            await begin(self._connection)

    async def _stage(self) -> None:
        """Create the temporary table for rows."""
        if not self._staged:
            self._staged = True
            options = await table_columns.charset(self._execute, self._table)
            await self._execute(f"CREATE TEMPORARY TABLE {self._staging} {options} SELECT * FROM {self._table} LIMIT 0")
            await self._execute(f"ALTER TABLE {self._staging} ADD COLUMN {ROW} BIGINT AUTO_INCREMENT PRIMARY KEY")

    async def _index_key(self) -> None:
        """Add an index to the temporary table, if its rows are joined with those of the table."""
        joins = self._staged and self._names and self.call.mode == "upsert" and not self._has_key
        if joins and not await table_columns.has_index(self._execute, self._staging):
            indexed = await table_columns.indexed(self._execute, self._staging, self.call.key)
            await self._execute(f"ALTER TABLE {self._staging} ADD INDEX ({indexed})")

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

    def _check_sizes(self, rows: list[tuple[Any, ...]]) -> None:
        """An error for a row that the server does not accept: it would only close the connection."""
        size = max(sum(len(value) for value in row if isinstance(value, str | bytes)) for row in rows)
        if size > self._largest:
            raise errors.OperationalError(1153, f"a row of {size:,} bytes is larger than {self._largest:,} bytes")

    def _last_of_each_key(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        places = [self._names.index(name) for name in self.call.key]
        return list({tuple(row[place] for place in places): row for row in rows}.values())

    async def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        into, end = (self._staging, "") if self._staged else (self._table, self._on_conflict(self._names))
        await self._insert_into(into, self._names, rows, end)

    async def _insert_into(self, into: str, names: Sequence[str], rows: list[tuple[Any, ...]], end: str = "") -> None:
        if not rows:
            return
        columns, marks = ", ".join(map(quoted, names)), ", ".join(["%s"] * len(names))
        text = f"INSERT INTO {into} ({columns}) VALUES (\0){end}".replace("%", "%%").replace("\0", marks)
        async with self._connection.cursor() as cursor:
            cursor.max_stmt_length = min(MOST_BYTES, self._largest - 1024)
            await cursor.executemany(text, rows)

    def _on_conflict(self, names: Sequence[str]) -> str:
        if not self._has_key:
            return ""
        changes = [f"{quoted(name)} = VALUES({quoted(name)})" for name in names if name not in self.call.key]
        first = quoted(self.call.key[0])
        return f" ON DUPLICATE KEY UPDATE {', '.join(changes or [f'{first} = VALUES({first})'])}"

    async def _end_run(self) -> None:
        """Note up to which row the collected rows have the current columns."""
        ((last,),) = await self._execute(f"SELECT max({ROW}) FROM {self._staging}")
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
                await self._execute(f"UPDATE {self._staging} SET {', '.join(missing)} WHERE {where}")
            first = last
        self._runs = [(names, first)]

    async def _merge_run(self, names: Sequence[str], last: int) -> None:
        """Merge the rows up to the last one; each statement uses the temporary table once, as MySQL requires."""
        columns = ", ".join(map(quoted, names))
        if self.call.mode == "upsert" and not self._has_key:
            await self._update_existing(names, last)
        # In the order in which they arrived: the last row of a key wins.
        await self._execute(
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {self._staging} WHERE {ROW} <= {last} "
            f"ORDER BY {ROW}{self._on_conflict(names)}"
        )
        await self._execute(f"DELETE FROM {self._staging} WHERE {ROW} <= {last}")

    async def _update_existing(self, names: Sequence[str], last: int) -> None:
        """Update rows that exist, and remove them and rows that later ones replace from the temporary table."""
        keys = ", ".join(map(quoted, self.call.key))
        same = " AND ".join(f"t.{quoted(name)} = i.{quoted(name)}" for name in self.call.key)
        changes = [f"t.{quoted(name)} = i.{quoted(name)}" for name in names if name not in self.call.key]
        merged = f"i.{ROW} <= {last}"
        await self._execute(f"DROP TEMPORARY TABLE IF EXISTS {LAST}")
        await self._execute(
            f"CREATE TEMPORARY TABLE {LAST} (r BIGINT PRIMARY KEY) SELECT max({ROW}) AS r FROM {self._staging} AS i "
            f"WHERE {merged} GROUP BY {keys}"
        )
        await self._execute(
            f"DELETE i FROM {self._staging} AS i LEFT JOIN {LAST} AS l ON l.r = i.{ROW} WHERE l.r IS NULL AND {merged}"
        )
        if changes:
            joined = f"UPDATE {self._table} AS t JOIN {self._staging} AS i ON {same} AND {merged}"
            await self._execute(f"{joined} SET {', '.join(changes)}")
        await self._execute(f"DELETE i FROM {self._staging} AS i JOIN {self._table} AS t ON {same} WHERE {merged}")
