"""SQLite target: all chunks are written in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from noetl.connections import sqlite as lite
from noetl.data.sql import column_list, quote_column, quote_name, split_name
from noetl.data.types.type_lattice import ColumnKind
from noetl.runtime.threads import in_thread, open_in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.nested_rows import beginning, list_tables
from noetl.tools.transfer.schema_contract import Changes
from noetl.tools.transfer.sources import database_file
from noetl.tools.transfer.targets.database_file_target import DatabaseFileTarget
from noetl.tools.transfer.targets.merge_statements import update_and_insert
from noetl.tools.transfer.targets.sqlite_columns import kind_in_sqlite, sqlite_type, sqlite_values, stored_values

WIDER = "noetl_wider"  # a column while it replaces another


class _SharedTransaction:
    """The transaction that all targets of a transfer in the same SQLite file share; they write one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.commits = False  # a target has called commit
        self._owner: asyncio.Task[Any] | None = None  # of the savepoint
        self.connection: sqlite3.Connection | None = None
        self._turn: asyncio.Lock

    async def join(self, path: str, wait: float) -> None:
        """Add a user; the first one begins the transaction."""
        async with self.lock:
            if self.connection is None:
                self._turn = await lite.take_turn(path)
                try:
                    self.connection = await open_in_thread(lambda: _begun(path, wait), sqlite3.Connection.close)
                except BaseException:
                    self._turn.release()
                    raise
            self.users += 1

    async def run_in_thread(self, function: Any) -> Any:
        """Call a function in a thread."""
        async with nullcontext() if self._owner is asyncio.current_task() else self.lock:
            assert self.connection is not None
            return await in_thread(function, interrupt=self.connection.interrupt)

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None, None]:
        """Undo what this task writes meanwhile, if it fails; other targets wait."""
        async with self.lock:
            assert self.connection is not None
            self._owner, execute = asyncio.current_task(), self.connection.execute
            try:
                await in_thread(partial(execute, "SAVEPOINT noetl_tables"))
                try:
                    yield
                except BaseException:
                    await in_thread(partial(execute, "ROLLBACK TO noetl_tables"))
                    raise
                finally:
                    await in_thread(partial(execute, "RELEASE noetl_tables"))
            finally:
                self._owner = None

    async def leave(self) -> None:
        """Remove a user; the last one commits or rolls back the transaction."""
        async with self.lock:
            self.users -= 1
            connection = self.connection
            if self.users or connection is None:
                return
            self.connection = None
            try:
                await in_thread(connection.commit if self.commits else connection.rollback)
            finally:
                await in_thread(connection.close)
                self._turn.release()


def _begun(path: str, wait: float) -> sqlite3.Connection:
    """A connection with a transaction."""
    connection = lite.connect(path, wait)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except BaseException:
        connection.close()
        raise
    return connection


class SqliteTarget(DatabaseFileTarget):
    """A SQLite table."""

    BEGIN = "BEGIN IMMEDIATE"
    _transaction: _SharedTransaction | None = None

    async def begin(self, schema: Any) -> None:
        """Create or empty the table."""
        await self._open()
        await self._run_in_thread(lambda: self._prepare_table(schema))

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Insert or merge a chunk."""
        await self._run_in_thread(lambda: self._insert(table))

    async def child_tables(self) -> list[str]:
        """The tables of lists, which have positions."""
        await self._open()
        table = str(self.plan.fields["table"])
        prefix = beginning(split_name(table)[-1])
        query = (
            "SELECT name, EXISTS (SELECT 1 FROM pragma_table_info(m.name) WHERE name = '_index_1') "
            "FROM sqlite_master AS m WHERE type = 'table' AND substr(name, 1, ?) = ? ORDER BY 1"
        )
        values = (len(prefix), prefix)
        found = await self._run_in_thread(lambda: self._session.execute(query, values).fetchall())
        return list_tables(table, found)

    async def delete_rows(self, keys: Any) -> None:
        """Delete rows by key."""
        await self._open()
        await self._change_rows(f"DELETE FROM {self._table}", keys)

    async def clear_columns(self, keys: Any, columns: Sequence[str]) -> None:
        """Set columns to null by key."""
        nulls = ", ".join(f"{quote_column(name)} = NULL" for name in columns)
        await self._change_rows(f"UPDATE {self._table} SET {nulls}", keys)

    async def _change_rows(self, statement: str, keys: Any) -> None:
        same = " AND ".join(f"{quote_column(name)} = ?" for name in keys.schema.names)
        columns = [sqlite_values(keys.column(number), field) for number, field in enumerate(keys.schema)]
        rows = list(zip(*columns, strict=True))
        await self._run_in_thread(lambda: self._session.executemany(f"{statement} WHERE {same}", rows))

    async def known_columns(self) -> dict[str, ColumnKind]:
        """The columns of the table; their values have any type, and some change numbers."""
        await self._open()
        return {row[1]: kind_in_sqlite(row[2]) for row in await self._run_in_thread(self._columns)}

    async def alter(self, changes: Changes) -> None:
        """Add columns, and replace others by columns without a type."""
        await self._run_in_thread(lambda: self._alter(changes))

    def _alter(self, changes: Changes) -> None:
        for field in changes.add:
            self._change(f"ADD COLUMN {quote_column(field.name)} {sqlite_type(field)}")
        for name in changes.widen:
            self._change(f"ADD COLUMN {WIDER}")
            self._session.execute(f"UPDATE {self._table} SET {WIDER} = {quote_column(name)}")
            try:
                self._change(f"DROP COLUMN {quote_column(name)}")
            except sqlite3.OperationalError as refused:  # it has a key, an index, a view
                raise BadInput(
                    f"{self.plan.label}: the column {name!r} would change values of these rows, and SQLite cannot "
                    f"replace it by one without a type: {refused}; load into a new table, or make it TEXT"
                ) from None
            self._change(f"RENAME COLUMN {WIDER} TO {quote_column(name)}")

    def _change(self, action: str) -> None:
        self._session.execute(f"ALTER TABLE {self._table} {action}")

    can_undo = True

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None, None]:
        """A savepoint in the transaction."""
        assert self._transaction is not None
        async with self._transaction.savepoint():
            yield

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._transaction is not None:
            self._transaction.commits = True
            await self._leave()

    async def abort(self) -> None:
        """Roll back the transaction."""
        await self._leave()

    def is_refused(self, failure: Exception) -> bool:
        """A key, an index or a view depends on the column."""
        return isinstance(failure, BadInput)

    def is_row_error(self, failure: Exception) -> bool:
        """Violated constraints, and values that SQLite does not accept."""
        kinds = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError)
        return super().is_row_error(failure) or isinstance(failure, kinds)

    def explain(self, failure: Exception) -> Any:
        """The error of SQLite."""
        return lite.to_error_info(failure) if isinstance(failure, sqlite3.Error) else None

    @property
    def _session(self) -> sqlite3.Connection:
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
        found = self._session.execute(f"PRAGMA table_xinfo({self._table})").fetchall()
        return [row for row in found if row[6] != 1]  # hidden columns of virtual tables

    def _is_unique(self) -> bool:
        """Whether the key is the primary key of the table, or has a unique index."""
        key = sorted(self.plan.key)
        if sorted(row[1] for row in self._columns() if row[5]) == key:
            return True
        execute = self._session.execute
        for index in execute(f"PRAGMA index_list({self._table})").fetchall():
            if index[2] and not index[4]:
                columns = [row[2] for row in execute(f"PRAGMA index_info({quote_column(index[1])})").fetchall()]
                if None not in columns and sorted(columns) == key:
                    return True
        return False

    def _prepare_table(self, schema: Any) -> None:
        plan, connection = self.plan, self._session
        if not self._columns():
            if not plan.create_table:
                raise plan.missing_table_error()
            columns = [f"{quote_column(field.name)} {sqlite_type(field)}" for field in schema]
            if plan.mode == "upsert":
                columns.append(f"PRIMARY KEY ({column_list(plan.key)})")
            connection.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
        elif plan.mode == "replace":
            connection.execute(f"DELETE FROM {self._table}")
        self._unique = plan.mode == "upsert" and self._is_unique()

    def _insert(self, table: Any) -> None:
        plan, connection, known = self.plan, self._session, self._columns()
        table = self.writable(table, [row[1] for row in known if row[6]])
        names: list[str] = table.schema.names
        marks = ", ".join("?" * len(names))
        declared = {self.identifier(row[1]): row[2] for row in known}
        values = (
            stored_values(table.column(number), field, declared.get(self.identifier(field.name), ""), plan.label)
            for number, field in enumerate(table.schema)
        )
        rows = list(zip(*values, strict=True))
        insert = f"INSERT INTO {self._table} ({column_list(names)}) VALUES ({marks})"
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
        connection, key = self._session, self.plan.key
        others = [name for name in names if name not in key]
        if self._unique:
            update = ", ".join(f"{quote_column(name)} = excluded.{quote_column(name)}" for name in others)
            action = f"UPDATE SET {update}" if others else "NOTHING"
            connection.executemany(f"{insert} ON CONFLICT ({column_list(key)}) DO {action}", rows)
            return
        columns = ", ".join(f"? AS {quote_column(name)}" for name in names)
        for row in rows:
            for statement in update_and_insert(self._table, names, key, f"(SELECT {columns})"):
                connection.execute(statement, row)
