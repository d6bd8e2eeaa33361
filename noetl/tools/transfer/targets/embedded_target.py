"""DuckDB and SQLite targets: all chunks are written in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import duckdb

from noetl.connections import duckdb as duck
from noetl.connections import sqlite as lite
from noetl.data.arrow_tables import meaning_of, plain_column
from noetl.data.sql import quote_column, quote_name, split_name
from noetl.runtime.threads import in_thread
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.sources import database_file
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.targets.merge_statements import update_and_insert
from noetl.tools.transfer.targets.mixed_columns import is_mixed, mixed_as_text

VIEW = "noetl_chunk"
STAGING = "noetl_incoming"
UNIQUE_KEYS_QUERY = (
    "SELECT constraint_column_names FROM duckdb_constraints() WHERE table_name = ? "
    "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
)
MEMORY_LIMIT = "64MB"  # of DuckDB while rows are written


def _column_list(names: Any) -> str:
    return ", ".join(quote_column(name) for name in names)


def _qualified_name(parts: Any) -> str:
    return ".".join(quote_column(part) for part in parts)


class DuckdbTarget(Target):
    """A DuckDB table."""

    _cursor: Any = None
    _limit: str | None = None

    async def begin(self, schema: Any) -> None:
        """Create or empty the table."""
        await self._open()
        await self._run_in_thread(lambda: self._prepare_table(schema))
        if self.plan.warn_on_error:  # from here on each chunk has its own transaction
            await self._run_in_thread(lambda: self._cursor.execute("COMMIT"))

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Insert or merge a chunk, passed as an Arrow table."""
        if not self.plan.warn_on_error:
            await self._run_in_thread(lambda: self._insert(table))
            return
        await self._run_in_thread(lambda: self._cursor.execute("BEGIN TRANSACTION"))
        try:
            await self._run_in_thread(lambda: self._insert(table))
            await self._run_in_thread(lambda: self._cursor.execute("COMMIT"))
        except BaseException:
            with suppress(duckdb.Error):
                await in_thread(lambda: self._cursor.execute("ROLLBACK"))
            raise

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.plan.mode == "replace":
            await self._open()
            if await self._run_in_thread(self._columns):
                await self._run_in_thread(lambda: self._cursor.execute(f"DELETE FROM {self._table}"))

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._cursor is not None:
            if not (self.plan.warn_on_error and self._begun):
                await self._run_in_thread(lambda: self._cursor.execute("COMMIT"))
            await self._close()

    async def abort(self) -> None:
        """Roll back everything except chunks with their own transaction."""
        if self._cursor is not None:
            with suppress(duckdb.Error):  # the original failure may have ended the transaction
                await in_thread(lambda: self._cursor.execute("ROLLBACK"))
            await self._close()

    def explain(self, failure: Exception) -> Any:
        """The error of DuckDB."""
        return duck.to_error_info(failure) if isinstance(failure, duckdb.Error) else None

    async def _open(self) -> None:
        if self._cursor is not None:
            return
        path = await database_file(self.call, self.plan.fields, self.plan.label)
        # Targets in the same file share the writer lock: the first acquires it, the others open after it in turn.
        before: asyncio.Future[None] | None = self.peers.get(path)
        opened = self.peers[path] = asyncio.get_running_loop().create_future()
        try:
            if before is not None:
                await asyncio.wait([before])
            self._stack = AsyncExitStack()
            wait = self.call.timeout.connect or duck.WAIT_FOR_FILE
            cursor = duck.database(path).cursor(writes=before is None, wait=wait)
            self._cursor = await self._stack.enter_async_context(cursor)
            await self._run_in_thread(self._begin)
        finally:
            opened.set_result(None)

    def _begin(self) -> None:
        """Qualify the table name, as a file can have the name of a schema; create the schema; begin the transaction."""
        parts = split_name(str(self.plan.fields["table"]))
        if len(parts) == 2:
            catalog = self._cursor.execute("SELECT current_database()").fetchone()[0]
            parts = [catalog, *parts]
            if self.plan.create_table and not self._has_schema(parts[1]):
                self._cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {_qualified_name(parts[:2])}")
        self._table = _qualified_name(parts)
        self._cursor.execute("BEGIN TRANSACTION")

    def _has_schema(self, name: str) -> bool:
        query = "SELECT 1 FROM duckdb_schemas() WHERE schema_name = ? AND database_name = current_database()"
        return bool(self._cursor.execute(query, [name]).fetchall())

    async def _close(self) -> None:
        cursor, self._cursor = self._cursor, None
        try:
            if self._limit is not None:
                await asyncio.to_thread(cursor.execute, f"SET memory_limit = '{self._limit}'")
        finally:
            await self._stack.aclose()

    async def _run_in_thread(self, function: Any) -> Any:
        return await in_thread(function, interrupt=self._cursor.interrupt)

    def _columns(self) -> dict[str, str]:
        """The columns of the table and their types; none when it does not exist."""
        # The catalog is queried because selecting from a missing table would abort the transaction.
        schema, name = (["main", *split_name(str(self.plan.fields["table"]))])[-2:]
        found = self._cursor.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = ? AND table_name = ? AND "
            "database_name = current_database() ORDER BY column_index",
            [schema, name],
        )
        return dict(found.fetchall())

    def _prepare_table(self, schema: Any) -> None:
        plan, cursor = self.plan, self._cursor
        if not self._columns():
            if not plan.create_table:
                raise plan.missing_table_error()
            cursor.register(VIEW, schema.empty_table())
            kinds = cursor.sql(f"SELECT * FROM {VIEW}").types
            cursor.unregister(VIEW)
            columns = [
                f"{quote_column(field.name)} {_duckdb_type(field, kind)}"
                for field, kind in zip(schema, kinds, strict=True)
            ]
            if plan.mode == "upsert":
                columns.append(f"PRIMARY KEY ({_column_list(plan.key)})")
            cursor.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
        elif plan.mode == "replace":
            cursor.execute(f"DELETE FROM {self._table}")
        self._types = self._columns()
        name = split_name(str(plan.fields["table"]))[-1]
        keys = cursor.execute(UNIQUE_KEYS_QUERY, [name]).fetchall()
        self._unique = any(sorted(row[0]) == sorted(plan.key) for row in keys)
        if not keys and not cursor.execute("SELECT 1 FROM duckdb_indexes() WHERE table_name = ?", [name]).fetchall():
            # Without a limit DuckDB caches the written rows as long as memory is available. A table with an index
            # needs that memory.
            self._limit = cursor.execute("SELECT current_setting('memory_limit')").fetchone()[0]
            cursor.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")

    def _insert(self, table: Any) -> None:
        cursor, plan = self._cursor, self.plan
        columns = _column_list(table.schema.names)
        cursor.register(VIEW, _consuming_reader(mixed_as_text(table, self._is_structured)))
        try:
            if plan.mode == "upsert":
                self._merge(columns, table.schema.names)
            else:
                cursor.execute(f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {VIEW}")
        except BaseException:
            with suppress(duckdb.Error):  # keep the original failure
                cursor.unregister(VIEW)
            raise
        cursor.unregister(VIEW)

    def _is_structured(self, name: str) -> bool:
        return self._types.get(name) == "JSON"

    def _merge(self, columns: str, names: list[str]) -> None:
        cursor, keys = self._cursor, _column_list(self.plan.key)
        # The last row with a key wins, also within a chunk.
        cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE {STAGING} AS SELECT {columns} FROM "
            f"(SELECT *, row_number() OVER () AS noetl_order FROM {VIEW}) "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY noetl_order DESC) = 1"
        )
        insert = f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {STAGING}"
        if self._unique:
            others = [quote_column(name) for name in names if name not in self.plan.key]
            update = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            cursor.execute(f"{insert} ON CONFLICT ({keys}) DO {f'UPDATE SET {update}' if others else 'NOTHING'}")
        else:
            for statement in update_and_insert(self._table, names, self.plan.key, STAGING):
                cursor.execute(statement)
        cursor.execute(f"DROP TABLE {STAGING}")


def _consuming_reader(table: Any) -> Any:
    """The table as a stream that releases each batch when it is read.

    DuckDB keeps a reference to a registered table until the transaction ends, so with tables all rows of the transfer
    would stay in memory."""
    import pyarrow as pa

    batches = table.to_batches()

    def consume() -> Iterator[Any]:
        while batches:
            yield batches.pop(0)

    return pa.RecordBatchReader.from_batches(table.schema, consume())


def _duckdb_type(field: Any, kind: Any) -> str:
    meaning = meaning_of(field)
    if meaning == "json":
        return "JSON"
    if meaning == "number":
        return "DOUBLE"
    return "VARCHAR" if str(kind) in ('"NULL"', "NULL") else str(kind)


class _SharedTransaction:
    """The transaction that all targets of a transfer in the same SQLite file share; they write one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.commits = False  # a target has called commit
        self.connection: sqlite3.Connection | None = None

    async def join(self, path: str, wait: float) -> None:
        """Add a user; the first one begins the transaction."""
        async with self.lock:
            if self.connection is None:
                self.connection = await asyncio.to_thread(lite.connect, path, wait)
                await asyncio.to_thread(self.connection.execute, "BEGIN IMMEDIATE")
            self.users += 1

    async def run_in_thread(self, function: Any) -> Any:
        """Call a function in a thread."""
        async with self.lock:
            assert self.connection is not None
            return await in_thread(function, interrupt=self.connection.interrupt)

    async def leave(self) -> None:
        """Remove a user; the last one commits or rolls back the transaction."""
        async with self.lock:
            self.users -= 1
            connection = self.connection
            if self.users or connection is None:
                return
            self.connection = None
            try:
                await asyncio.to_thread(connection.commit if self.commits else connection.rollback)
            finally:
                await asyncio.to_thread(connection.close)


class SqliteTarget(Target):
    """A SQLite table."""

    _transaction: _SharedTransaction | None = None

    async def begin(self, schema: Any) -> None:
        """Create or empty the table."""
        await self._open()
        await self._run_in_thread(lambda: self._prepare_table(schema))

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Insert or merge a chunk."""
        await self._run_in_thread(lambda: self._insert(table))

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.plan.mode == "replace":
            await self._open()
            if await self._run_in_thread(self._columns):
                await self._run_in_thread(lambda: self._connection.execute(f"DELETE FROM {self._table}"))

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._transaction is not None:
            self._transaction.commits = True
            await self._leave()

    async def abort(self) -> None:
        """Roll back the transaction."""
        await self._leave()

    def explain(self, failure: Exception) -> Any:
        """The error of SQLite."""
        return lite.to_error_info(failure) if isinstance(failure, sqlite3.Error) else None

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._transaction is not None and self._transaction.connection is not None
        return self._transaction.connection

    async def _open(self) -> None:
        if self._transaction is None:
            self._table = quote_name(str(self.plan.fields["table"]))
            path = await database_file(self.call, self.plan.fields, self.plan.label)
            transaction: _SharedTransaction = self.peers.setdefault(path, _SharedTransaction())
            await transaction.join(path, self.call.timeout.connect or 30.0)
            self._transaction = transaction

    async def _leave(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.leave()

    async def _run_in_thread(self, function: Any) -> Any:
        assert self._transaction is not None
        return await self._transaction.run_in_thread(function)

    def _columns(self) -> list[Any]:
        return self._connection.execute(f"PRAGMA table_info({self._table})").fetchall()

    def _is_unique(self) -> bool:
        """Whether the key is the primary key of the table, or has a unique index."""
        key = sorted(self.plan.key)
        if sorted(row[1] for row in self._columns() if row[5]) == key:
            return True
        execute = self._connection.execute
        for index in execute(f"PRAGMA index_list({self._table})").fetchall():
            if index[2] and not index[4]:
                columns = [row[2] for row in execute(f"PRAGMA index_info({quote_column(index[1])})").fetchall()]
                if None not in columns and sorted(columns) == key:
                    return True
        return False

    def _prepare_table(self, schema: Any) -> None:
        plan, connection = self.plan, self._connection
        if not self._columns():
            if not plan.create_table:
                raise plan.missing_table_error()
            columns = [f"{quote_column(field.name)} {_sqlite_type(field)}" for field in schema]
            if plan.mode == "upsert":
                columns.append(f"PRIMARY KEY ({_column_list(plan.key)})")
            connection.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
        elif plan.mode == "replace":
            connection.execute(f"DELETE FROM {self._table}")
        self._unique = plan.mode == "upsert" and self._is_unique()

    def _insert(self, table: Any) -> None:
        plan, connection = self.plan, self._connection
        names: list[str] = table.schema.names
        marks = ", ".join("?" * len(names))
        rows = list(
            zip(
                *(_sqlite_values(table.column(number), field) for number, field in enumerate(table.schema)), strict=True
            )
        )
        insert = f"INSERT INTO {self._table} ({_column_list(names)}) VALUES ({marks})"
        connection.execute("SAVEPOINT noetl_chunk")
        try:
            if plan.mode == "upsert":
                key_indexes = [names.index(key) for key in plan.key]
                # The last row with a key wins, also within a chunk.
                latest = list({tuple(row[index] for index in key_indexes): row for row in rows}.values())
                self._merge(insert, names, latest)
            else:
                connection.executemany(insert, rows)
        except BaseException:
            connection.execute("ROLLBACK TO noetl_chunk")
            raise
        finally:
            connection.execute("RELEASE noetl_chunk")

    def _merge(self, insert: str, names: list[str], rows: list[tuple[Any, ...]]) -> None:
        connection, key = self._connection, self.plan.key
        others = [name for name in names if name not in key]
        if self._unique:
            update = ", ".join(f"{quote_column(name)} = excluded.{quote_column(name)}" for name in others)
            action = f"UPDATE SET {update}" if others else "NOTHING"
            connection.executemany(f"{insert} ON CONFLICT ({_column_list(key)}) DO {action}", rows)
            return
        columns = ", ".join(f"? AS {quote_column(name)}" for name in names)
        for row in rows:
            for statement in update_and_insert(self._table, names, key, f"(SELECT {columns})"):
                connection.execute(statement, row)


def _sqlite_type(field: Any) -> str:
    import pyarrow as pa

    kind = field.type
    if is_mixed(field):
        return ""  # no type: values are stored unchanged
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or meaning_of(field) == "number":
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _sqlite_values(column: Any, field: Any) -> list[Any]:
    import pyarrow as pa

    if (meaning_of(field) == "json" and not is_mixed(field)) or pa.types.is_binary(field.type):
        values: list[Any] = column.to_pylist()
        return values
    return [lite.adapted(value) for value in plain_column(column, field)]
