"""Tables of DuckDB and SQLite as targets: all chunks are one transaction."""

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
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.sources import file_of
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.targets.merge_statements import merge_by_hand
from noetl.tools.transfer.targets.mixed_columns import in_words, is_mixed

VIEW = "noetl_chunk"
INCOMING = "noetl_incoming"
KEYS = (
    "SELECT constraint_column_names FROM duckdb_constraints() WHERE table_name = ? "
    "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
)
MEMORY_LIMIT = "64MB"  # of DuckDB itself while rows are written


def _names(names: Any) -> str:
    return ", ".join(quote_column(name) for name in names)


def _path(parts: Any) -> str:
    return ".".join(quote_column(part) for part in parts)


class DuckdbTarget(Target):
    """A table of DuckDB."""

    _cursor: Any = None
    _limit: str | None = None

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
        return duck.to_error_info(failure) if isinstance(failure, duckdb.Error) else None

    async def _open(self) -> None:
        if self._cursor is not None:
            return
        path = await file_of(self.call, self.plan.fields, self.plan.label)
        # Targets in one file are one writer: the first takes its turn, the others go in with it, one by one.
        before: asyncio.Future[None] | None = self.peers.get(path)
        opened = self.peers[path] = asyncio.get_running_loop().create_future()
        try:
            if before is not None:
                await asyncio.wait([before])
            self._stack = AsyncExitStack()
            wait = self.call.timeout.connect or duck.WAIT_FOR_FILE
            cursor = duck.database(path).cursor(writes=before is None, wait=wait)
            self._cursor = await self._stack.enter_async_context(cursor)
            await self._do(self._begin)
        finally:
            opened.set_result(None)

    def _begin(self) -> None:
        """Name the table in full, since a file may be called like a schema; a schema is made before the transaction."""
        parts = split_name(str(self.plan.fields["table"]))
        if len(parts) == 2:
            catalog = self._cursor.execute("SELECT current_database()").fetchone()[0]
            parts = [catalog, *parts]
            if self.plan.creates and not self._has_schema(parts[1]):
                self._cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {_path(parts[:2])}")
        self._table = _path(parts)
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

    async def _do(self, deed: Any) -> Any:
        return await in_thread(deed, interrupt=self._cursor.interrupt)

    def _columns(self) -> dict[str, str]:
        """The columns of the table and their types; none when it does not exist."""
        # Asking for a table that is not there would end the transaction; the catalog may be asked.
        schema, name = (["main", *split_name(str(self.plan.fields["table"]))])[-2:]
        found = self._cursor.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = ? AND table_name = ? AND "
            "database_name = current_database() ORDER BY column_index",
            [schema, name],
        )
        return dict(found.fetchall())

    def _prepare(self, schema: Any) -> None:
        plan, cursor = self.plan, self._cursor
        if not self._columns():
            if not plan.creates:
                raise BadInput(f"{plan.label}: there is no such table, and `create: false` forbids to make it")
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
        self._types = self._columns()
        name = split_name(str(plan.fields["table"]))[-1]
        keys = cursor.execute(KEYS, [name]).fetchall()
        self._unique = any(sorted(row[0]) == sorted(plan.key) for row in keys)
        if not keys and not cursor.execute("SELECT 1 FROM duckdb_indexes() WHERE table_name = ?", [name]).fetchall():
            # What is written is on disk soon; DuckDB would keep it in memory too, as long as there is some. The
            # index of a key it must have there.
            self._limit = cursor.execute("SELECT current_setting('memory_limit')").fetchone()[0]
            cursor.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")

    def _insert(self, table: Any) -> None:
        cursor, plan = self._cursor, self.plan
        chosen = _names(table.schema.names)
        cursor.register(VIEW, _passing(in_words(table, self._is_structured)))
        try:
            if plan.mode == "upsert":
                self._merge(chosen, table.schema.names)
            else:
                cursor.execute(f"INSERT INTO {self._table} ({chosen}) SELECT {chosen} FROM {VIEW}")
        except BaseException:
            with suppress(duckdb.Error):  # after a failure there is only the way back; why is what counts
                cursor.unregister(VIEW)
            raise
        cursor.unregister(VIEW)

    def _is_structured(self, name: str) -> bool:
        return self._types.get(name) == "JSON"

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
            for statement in merge_by_hand(self._table, names, self.plan.key, INCOMING):
                cursor.execute(statement)
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


class _LiteWriting:
    """The one transaction in which all targets of a transfer that are in the same file write, one at a time."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.users = 0
        self.lasts = False  # one of them has been told to make it last
        self.connection: sqlite3.Connection | None = None

    async def join(self, path: str, wait: float) -> None:
        """Have another user."""
        async with self.turn:
            if self.connection is None:
                self.connection = await asyncio.to_thread(lite.connect, path, wait)
                await asyncio.to_thread(self.connection.execute, "BEGIN IMMEDIATE")
            self.users += 1

    async def do(self, deed: Any) -> Any:
        """Run something in a thread."""
        async with self.turn:
            assert self.connection is not None
            return await in_thread(deed, interrupt=self.connection.interrupt)

    async def leave(self) -> None:
        """Have a user less; the last one ends the transaction."""
        async with self.turn:
            self.users -= 1
            connection = self.connection
            if self.users or connection is None:
                return
            self.connection = None
            try:
                await asyncio.to_thread(connection.commit if self.lasts else connection.rollback)
            finally:
                await asyncio.to_thread(connection.close)


class SqliteTarget(Target):
    """A table of SQLite."""

    _writing: _LiteWriting | None = None

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
        if self._writing is not None:
            self._writing.lasts = True
            await self._leave()

    async def abort(self) -> None:
        """Undo everything."""
        await self._leave()

    def explain(self, failure: Exception) -> Any:
        """What SQLite said."""
        return lite.to_error_info(failure) if isinstance(failure, sqlite3.Error) else None

    @property
    def _connected(self) -> sqlite3.Connection:
        assert self._writing is not None and self._writing.connection is not None
        return self._writing.connection

    async def _open(self) -> None:
        if self._writing is None:
            self._table = quote_name(str(self.plan.fields["table"]))
            path = await file_of(self.call, self.plan.fields, self.plan.label)
            writing: _LiteWriting = self.peers.setdefault(path, _LiteWriting())
            await writing.join(path, self.call.timeout.connect or 30.0)
            self._writing = writing

    async def _leave(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing.leave()

    async def _do(self, deed: Any) -> Any:
        assert self._writing is not None
        return await self._writing.do(deed)

    def _columns(self) -> list[Any]:
        return self._connected.execute(f"PRAGMA table_info({self._table})").fetchall()

    def _is_unique(self) -> bool:
        """Whether the key is the table's primary key, or has a unique index."""
        key = sorted(self.plan.key)
        if sorted(row[1] for row in self._columns() if row[5]) == key:
            return True
        ask = self._connected.execute
        for index in ask(f"PRAGMA index_list({self._table})").fetchall():
            if index[2] and not index[4]:
                named = [row[2] for row in ask(f"PRAGMA index_info({quote_column(index[1])})").fetchall()]
                if None not in named and sorted(named) == key:
                    return True
        return False

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
        self._unique = plan.mode == "upsert" and self._is_unique()

    def _insert(self, table: Any) -> None:
        plan, connection = self.plan, self._connected
        names: list[str] = table.schema.names
        marks = ", ".join("?" * len(names))
        rows = list(
            zip(*(_lite_column(table.column(number), field) for number, field in enumerate(table.schema)), strict=True)
        )
        insert = f"INSERT INTO {self._table} ({_names(names)}) VALUES ({marks})"
        connection.execute("SAVEPOINT noetl_chunk")
        try:
            if plan.mode == "upsert":
                places = [names.index(key) for key in plan.key]
                # The last row of a key counts, also among rows of one chunk.
                latest = list({tuple(row[place] for place in places): row for row in rows}.values())
                self._merge(insert, names, latest)
            else:
                connection.executemany(insert, rows)
        except BaseException:
            connection.execute("ROLLBACK TO noetl_chunk")
            raise
        finally:
            connection.execute("RELEASE noetl_chunk")

    def _merge(self, insert: str, names: list[str], rows: list[tuple[Any, ...]]) -> None:
        connection, key = self._connected, self.plan.key
        others = [name for name in names if name not in key]
        if self._unique:
            update = ", ".join(f"{quote_column(name)} = excluded.{quote_column(name)}" for name in others)
            action = f"UPDATE SET {update}" if others else "NOTHING"
            connection.executemany(f"{insert} ON CONFLICT ({_names(key)}) DO {action}", rows)
            return
        columns = ", ".join(f"? AS {quote_column(name)}" for name in names)
        for row in rows:
            for statement in merge_by_hand(self._table, names, key, f"(SELECT {columns})"):
                connection.execute(statement, row)


def _lite_type(field: Any) -> str:
    import pyarrow as pa

    kind = field.type
    if is_mixed(field):
        return ""  # every value as it is
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or meaning_of(field) == "number":
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _lite_column(column: Any, field: Any) -> list[Any]:
    import pyarrow as pa

    if (meaning_of(field) == "json" and not is_mixed(field)) or pa.types.is_binary(field.type):
        values: list[Any] = column.to_pylist()
        return values
    return [lite.adapted(value) for value in plain_column(column, field)]
