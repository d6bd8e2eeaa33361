"""Tables of DuckDB and SQLite as targets: all chunks are one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import duckdb

from noetl.drivers import duckdb as duck
from noetl.drivers import sqlite as lite
from noetl.drivers.moving.chunks import Chunk
from noetl.drivers.moving.sources import file_of
from noetl.drivers.moving.targets import Target
from noetl.drivers.sql import quote_column, quote_name, split_name
from noetl.drivers.sqltask import BadInput
from noetl.drivers.tables import meaning_of, plain_column
from noetl.drivers.threads import in_thread

VIEW = "noetl_chunk"
INCOMING = "noetl_incoming"


def _names(names: Any) -> str:
    return ", ".join(quote_column(name) for name in names)


class DuckdbTarget(Target):
    """A table of DuckDB."""

    _cursor: Any = None

    async def begin(self, schema: Any) -> None:
        """See that the table is there."""
        await self._open()
        await self._do(lambda: self._prepare(schema))
        if self.plan.warns:  # from here on each chunk is a transaction of its own
            await self._do(lambda: self._cursor.execute("COMMIT"))

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Insert (or merge) a chunk, handed over through Arrow."""
        if not self.plan.warns:
            await self._do(lambda: self._insert(table))
            return
        await self._do(lambda: self._cursor.execute("BEGIN TRANSACTION"))
        try:
            await self._do(lambda: self._insert(table))
            await self._do(lambda: self._cursor.execute("COMMIT"))
        except BaseException:
            with suppress(duckdb.Error):
                await in_thread(lambda: self._cursor.execute("ROLLBACK"))
            raise

    async def nothing_came(self) -> None:
        """Empty a table that is to be replaced by nothing."""
        if self.plan.mode == "replace":
            await self._open()
            if await self._do(self._columns):
                await self._do(lambda: self._cursor.execute(f"DELETE FROM {self._table}"))

    async def commit(self) -> None:
        """End the transaction."""
        if self._cursor is not None:
            if not (self.plan.warns and self._begun):
                await self._do(lambda: self._cursor.execute("COMMIT"))
            await self._close()

    async def abort(self) -> None:
        """Undo everything (but chunks that stand by themselves)."""
        if self._cursor is not None:
            with suppress(duckdb.Error):  # the failure that led here may have ended the transaction already
                await in_thread(lambda: self._cursor.execute("ROLLBACK"))
            await self._close()

    def explain(self, failure: Exception) -> Any:
        """What DuckDB said."""
        return duck.explain(failure) if isinstance(failure, duckdb.Error) else None

    async def _open(self) -> None:
        if self._cursor is not None:
            return
        self._table = quote_name(str(self.plan.fields["table"]))
        path = await file_of(self.call, self.plan.fields, self.plan.label)
        self._stack = AsyncExitStack()
        wait = self.call.timeout.connect or duck.WAIT_FOR_FILE
        self._cursor = await self._stack.enter_async_context(duck.database(path).cursor(writes=True, wait=wait))
        await self._do(lambda: self._cursor.execute("BEGIN TRANSACTION"))

    async def _close(self) -> None:
        self._cursor = None
        await self._stack.aclose()

    async def _do(self, deed: Any) -> Any:
        return await in_thread(deed, interrupt=self._cursor.interrupt)

    def _columns(self) -> list[str]:
        # Asking for a table that is not there would end the transaction; the catalogue may be asked.
        schema, name = (["main", *split_name(str(self.plan.fields["table"]))])[-2:]
        found = self._cursor.execute(
            "SELECT column_name FROM duckdb_columns() WHERE schema_name = ? AND table_name = ? AND "
            "database_name = current_database() ORDER BY column_index",
            [schema, name],
        )
        return [row[0] for row in found.fetchall()]

    def _prepare(self, schema: Any) -> None:
        plan, cursor = self.plan, self._cursor
        self._unique = False
        if not self._columns():
            if not plan.creates:
                raise BadInput(f"{plan.label}: there is no such table, and `create: false` forbids to make it")
            parts = split_name(str(plan.fields["table"]))
            if len(parts) > 1:
                cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_name('.'.join(parts[:-1]))}")
            cursor.register(VIEW, schema.empty_table())
            kinds = cursor.sql(f"SELECT * FROM {VIEW}").types
            cursor.unregister(VIEW)
            columns = [
                f"{quote_column(field.name)} {_duck_type(field, kind)}"
                for field, kind in zip(schema, kinds, strict=True)
            ]
            if plan.mode == "upsert":
                columns.append(f"PRIMARY KEY ({_names(plan.key)})")
            cursor.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
        elif plan.mode == "replace":
            cursor.execute(f"DELETE FROM {self._table}")
        if plan.mode == "upsert":
            found = cursor.execute(
                "SELECT constraint_column_names FROM duckdb_constraints() WHERE table_name = ? "
                "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
                [split_name(str(plan.fields["table"]))[-1]],
            ).fetchall()
            self._unique = any(sorted(row[0]) == sorted(plan.key) for row in found)

    def _insert(self, table: Any) -> None:
        cursor, plan = self._cursor, self.plan
        chosen = _names(table.schema.names)
        cursor.register(VIEW, _passing(table))
        try:
            if plan.mode == "upsert":
                self._merge(chosen, table.schema.names)
            else:
                cursor.execute(f"INSERT INTO {self._table} ({chosen}) SELECT {chosen} FROM {VIEW}")
        finally:
            cursor.unregister(VIEW)

    def _merge(self, chosen: str, names: list[str]) -> None:
        cursor, keys = self._cursor, _names(self.plan.key)
        # The last row of a key counts, also among rows of one chunk.
        cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE {INCOMING} AS SELECT {chosen} FROM "
            f"(SELECT *, row_number() OVER () AS noetl_order FROM {VIEW}) "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY noetl_order DESC) = 1"
        )
        insert = f"INSERT INTO {self._table} ({chosen}) SELECT {chosen} FROM {INCOMING}"
        if self._unique:
            others = [quote_column(name) for name in names if name not in self.plan.key]
            update = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            cursor.execute(f"{insert} ON CONFLICT ({keys}) DO {f'UPDATE SET {update}' if others else 'NOTHING'}")
        else:
            same = " AND ".join(f"t.{quote_column(key)} = i.{quote_column(key)}" for key in self.plan.key)
            cursor.execute(f"DELETE FROM {self._table} AS t USING {INCOMING} AS i WHERE {same}")
            cursor.execute(insert)
        cursor.execute(f"DROP TABLE {INCOMING}")


def _passing(table: Any) -> Any:
    """The table as a stream that lets go of what was read.

    DuckDB holds on to what it is handed until the transaction ends; of a stream that is nothing, of tables it would
    be all rows of the transfer."""
    import pyarrow as pa

    batches = table.to_batches()

    def popped() -> Iterator[Any]:
        while batches:
            yield batches.pop(0)

    return pa.RecordBatchReader.from_batches(table.schema, popped())


def _duck_type(field: Any, kind: Any) -> str:
    meaning = meaning_of(field)
    if meaning == "json":
        return "JSON"
    if meaning == "number":
        return "DOUBLE"
    return "VARCHAR" if str(kind) in ('"NULL"', "NULL") else str(kind)


class SqliteTarget(Target):
    """A table of SQLite."""

    _connection: sqlite3.Connection | None = None

    async def begin(self, schema: Any) -> None:
        """See that the table is there."""
        await self._open()
        await self._do(lambda: self._prepare(schema))

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Insert (or merge) a chunk."""
        await self._do(lambda: self._insert(table))

    async def nothing_came(self) -> None:
        """Empty a table that is to be replaced by nothing."""
        if self.plan.mode == "replace":
            await self._open()
            if await self._do(self._columns):
                await self._do(lambda: self._connected.execute(f"DELETE FROM {self._table}"))

    async def commit(self) -> None:
        """End the transaction."""
        if self._connection is not None:
            await self._do(lambda: self._connected.execute("COMMIT"))
            await self._close()

    async def abort(self) -> None:
        """Undo everything."""
        if self._connection is not None:
            await asyncio.to_thread(self._connection.rollback)
            await self._close()

    def explain(self, failure: Exception) -> Any:
        """What SQLite said."""
        return lite.explain(failure) if isinstance(failure, sqlite3.Error) else None

    @property
    def _connected(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    async def _open(self) -> None:
        if self._connection is None:
            self._table = quote_name(str(self.plan.fields["table"]))
            path = await file_of(self.call, self.plan.fields, self.plan.label)
            self._connection = await asyncio.to_thread(lite.connect, path, self.call.timeout.connect or 30.0)
            await self._do(lambda: self._connected.execute("BEGIN IMMEDIATE"))

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.to_thread(connection.close)

    async def _do(self, deed: Any) -> Any:
        return await in_thread(deed, interrupt=self._connected.interrupt)

    def _columns(self) -> list[str]:
        return [row[1] for row in self._connected.execute(f"PRAGMA table_info({self._table})").fetchall()]

    def _prepare(self, schema: Any) -> None:
        plan, connection = self.plan, self._connected
        if not self._columns():
            if not plan.creates:
                raise BadInput(f"{plan.label}: there is no such table, and `create: false` forbids to make it")
            columns = [f"{quote_column(field.name)} {_lite_type(field)}" for field in schema]
            if plan.mode == "upsert":
                columns.append(f"PRIMARY KEY ({_names(plan.key)})")
            connection.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
        elif plan.mode == "replace":
            connection.execute(f"DELETE FROM {self._table}")

    def _insert(self, table: Any) -> None:
        plan, connection = self.plan, self._connected
        names = table.schema.names
        marks = ", ".join("?" * len(names))
        rows = list(
            zip(*(_lite_column(table.column(number), field) for number, field in enumerate(table.schema)), strict=True)
        )
        insert = f"INSERT INTO {self._table} ({_names(names)}) VALUES ({marks})"
        connection.execute("SAVEPOINT noetl_chunk")
        try:
            if plan.mode == "upsert":
                same = " AND ".join(f"{quote_column(key)} = ?" for key in plan.key)
                places = [names.index(key) for key in plan.key]
                # The last row of a key counts, also among rows of one chunk.
                latest = list({tuple(row[place] for place in places): row for row in rows}.values())
                connection.executemany(
                    f"DELETE FROM {self._table} WHERE {same}", [tuple(row[place] for place in places) for row in latest]
                )
                connection.executemany(insert, latest)
            else:
                connection.executemany(insert, rows)
        except BaseException:
            connection.execute("ROLLBACK TO noetl_chunk")
            raise
        finally:
            connection.execute("RELEASE noetl_chunk")


def _lite_type(field: Any) -> str:
    import pyarrow as pa

    kind = field.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or meaning_of(field) == "number":
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _lite_column(column: Any, field: Any) -> list[Any]:
    import pyarrow as pa

    if meaning_of(field) == "json" or pa.types.is_binary(field.type):
        values: list[Any] = column.to_pylist()
        return values
    return [lite.adapted(value) for value in plain_column(column, field)]
