"""PostgreSQL target: writes rows with COPY.

All chunks are one transaction and one COPY: rows are visible when the whole transfer has succeeded. With
`on_error: warn` every chunk has its own savepoint instead, so a rejected chunk does not affect the others.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import psycopg

from noetl.connections import postgres
from noetl.data.sql import quote_name
from noetl.data.types.type_lattice import UNTYPED, UNTYPED_COMMENT, ColumnKind, kind_in_database
from noetl.tools._common.postgres_address import postgres_conninfo
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.nested_rows import MAX_NAME, list_tables
from noetl.tools.transfer.schema_contract import Changes
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.targets import postgres_table as pg_table
from noetl.tools.transfer.targets.ledger_target import OBJECTS, LedgerTarget
from noetl.tools.transfer.targets.mixed_columns import mixed_as_text
from noetl.tools.transfer.targets.postgres_csv import column_encodings, encode_csv

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


class PostgresTarget(LedgerTarget):
    """A PostgreSQL table."""

    _connection: psycopg.AsyncConnection[Any] | None = None
    _locking: psycopg.AsyncConnection[Any] | None = None
    _copy: Any = None
    _schema: Any = None  # of the rows of the open COPY
    _columns: Any = None  # of the table
    _root: PostgresTarget | None = None

    def identifier(self, name: str) -> str:
        """The name as far as PostgreSQL keeps it."""
        return name.encode()[:MAX_NAME].decode(errors="ignore")

    def join(self, root: Target) -> None:
        """Write over the connection of another table."""
        assert isinstance(root, PostgresTarget)
        self._root = root

    async def child_tables(self) -> list[str]:
        """The tables of lists, which have positions."""
        table = str(self.plan.fields["table"])
        connection = await self._connect()
        found = await (await connection.execute(*pg_table.select_child_tables(table))).fetchall()
        return list_tables(table, found)

    async def delete_rows(self, keys: Any) -> None:
        """Delete rows by key, with the keys in a temporary table."""
        await self._change_rows(keys, ())

    async def clear_columns(self, keys: Any, columns: Sequence[str]) -> None:
        """Set columns to null by key."""
        await self.prepare()
        await self._change_rows(keys, columns)

    async def _change_rows(self, keys: Any, columns: Sequence[str]) -> None:
        connection, table = await self._connect(), str(self.plan.fields["table"])
        create, copy, change = pg_table.change_by_key(table, keys.schema.names, columns)
        for statement in create:
            await connection.execute(statement)
        data = encode_csv(keys, column_encodings(keys.schema, await table_columns(connection, table)))
        async with connection.cursor().copy(copy) as writer:
            await writer.write(data)
        await connection.execute(change)

    async def begin(self, schema: Any) -> None:
        """Connect, and create or empty the table."""
        connection = await self._connect()
        plan = self.plan
        table = str(plan.fields["table"])
        await connection.execute(pg_table.LOCK_TIMEOUT)
        known = await table_columns(connection, table)
        if not known:
            if not plan.create_table:
                raise plan.missing_table_error()
            types = {field.name: pg_table.type_of(field) for field in schema}
            key = plan.key if plan.mode == "upsert" else ()
            statements = [*pg_table.create_table(table, types, key), *pg_table.untyped(table, schema)]
            known = await self._create_table(connection, table, statements)
        elif plan.mode == "replace":
            await empty_table(connection, table)
        self._columns = known
        if self.contract is None:
            await self._start(self._writable(schema.empty_table()).schema)

    def _writable(self, table: Any) -> Any:
        return self.writable(table, [column.name for column in self._columns if column.generated])

    async def _start(self, schema: Any) -> None:
        """Start the COPY for rows of this schema."""
        connection, plan, known = await self._connect(), self.plan, self._columns
        table, names = str(plan.fields["table"]), schema.names
        self._schema = schema
        self._encodings = column_encodings(schema, known)
        self._structured = {
            column.name for column in known if column.type in ("json", "jsonb") or column.category == "A"
        }
        self._names = names
        self._into = quote_name(table)
        self._unique = False
        if plan.mode == "upsert":
            for statement in pg_table.create_staging(table, names):
                await connection.execute(statement)
            self._into = pg_table.STAGING
            found = await (await connection.execute(pg_table.select_unique_keys(table))).fetchall()
            self._unique = any(sorted(plan.key) == row[0] for row in found)
        self._statement = pg_table.copy_in(self._into, names, "csv")
        self._stack = AsyncExitStack()
        if not self.keeps_going:
            self._copy = await self._stack.enter_async_context(connection.cursor().copy(self._statement))

    async def _create_table(
        self, connection: psycopg.AsyncConnection[Any], table: str, statements: list[str]
    ) -> list[pg_table.PgColumn]:
        """Create the table; if another session creates it concurrently, use that one after its commit."""
        for remaining in reversed(range(pg_table.CREATE_ATTEMPTS)):
            try:
                async with connection.transaction():
                    for statement in statements:
                        await connection.execute(statement)
            except (
                psycopg.errors.UniqueViolation,
                psycopg.errors.DuplicateTable,
                psycopg.errors.DuplicateSchema,
                psycopg.errors.DuplicateObject,  # the row type of the table
            ):
                if not remaining:
                    raise
            known = await table_columns(connection, table)
            if known:
                break
        return known

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Write a chunk to the COPY, or to its own COPY with `on_error: warn`."""
        table = self._writable(table)
        if self._schema is None or not self._schema.equals(table.schema, check_metadata=True):
            await self.prepare()  # the columns have changed
            await self._start(table.schema)
        data = await asyncio.to_thread(encode_csv, mixed_as_text(table, self._is_structured), self._encodings)
        if self._copy is not None:
            for start in range(0, len(data), 1 << 18):
                await self._copy.write(data[start : start + (1 << 18)])
            return
        connection = await self._connect()
        async with connection.transaction():  # a savepoint in the open transaction
            async with connection.cursor().copy(self._statement) as copy:
                await copy.write(data)
            await self._merge(connection)

    async def open_ledger(self, name: str, create: str) -> bool:
        """Create the table in a transaction of its own; two sessions cannot create it at once."""
        connection = await self._connect()
        exists = ("SELECT to_regclass(%s)", [quote_name(name)])
        try:
            if (await (await connection.execute(*exists)).fetchone() or (None,))[0] is None:
                await connection.execute(pg_table.LOCK_TIMEOUT)
                await connection.execute(LOCK, [name])
                await connection.execute(create)
                await connection.commit()
        except psycopg.errors.InsufficientPrivilege:
            await connection.rollback()
            return False
        await connection.execute(pg_table.LOCK_TIMEOUT)
        return True

    async def run_sql(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Run a statement in the transaction."""
        cursor = await (await self._connect()).execute(statement.replace("?", "%s"), values)
        return await cursor.fetchall()

    async def has_rows(self) -> bool:
        """Whether the table exists and has rows."""
        connection, table = await self._connect(), str(self.plan.fields["table"])
        query = f"SELECT 1 FROM {quote_name(table)} LIMIT 1"
        return bool(await table_columns(connection, table)) and bool(await self.run_sql(query, []))

    async def checkpoint(self, record: Callable[[], Awaitable[None]]) -> None:
        """Commit; the next chunk starts a new COPY."""
        await self.prepare()
        await record()
        connection = await self._connect()
        await connection.commit()
        await connection.execute(pg_table.LOCK_TIMEOUT)

    async def lock_ledger(self) -> None:
        """Lock it in a transaction of another connection: this one ends its transactions at checkpoints."""
        self._locking = await self._new_connection()
        await self._locking.execute(pg_table.LOCK_TIMEOUT)
        await self._locking.execute(LOCK, [f"{OBJECTS} {self.plan.fields['table']}"])

    async def known_columns(self) -> dict[str, ColumnKind]:
        """The columns of the table and their types."""
        if self._columns is None:
            self._columns = await table_columns(await self._connect(), str(self.plan.fields["table"]))
        return {
            column.name: UNTYPED if column.comment == UNTYPED_COMMENT else kind_in_database(column.spelled)
            for column in self._columns
        }

    async def alter(self, changes: Changes) -> None:
        """Add columns and change types, between two COPY commands of the same transaction."""
        await self.prepare()
        connection, table = await self._connect(), str(self.plan.fields["table"])
        changes = await self._without_values(connection, table, changes)
        documents = {column.name for column in self._columns if column.type in ("json", "jsonb")}
        for statement in pg_table.alter_table(table, changes, documents):
            await connection.execute(statement)
        self._columns = await table_columns(connection, table)
        self._schema = None  # the next rows are encoded and staged for the new types

    async def _without_values(self, connection: psycopg.AsyncConnection[Any], table: str, changes: Changes) -> Changes:
        """The changes without types for columns that others have filled: these stay text."""
        define = []
        for field in changes.define:
            await connection.execute(pg_table.comment_on(table, field.name, None))
            if not await (await connection.execute(pg_table.select_value(table, field.name))).fetchone():
                define.append(field)
        return changes._replace(define=define)

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.plan.mode == "replace":
            connection = await self._connect()
            if await table_columns(connection, str(self.plan.fields["table"])):
                await empty_table(connection, str(self.plan.fields["table"]))

    async def prepare(self) -> None:
        """End the COPY."""
        await self.end_chunk()

    async def end_chunk(self) -> None:
        """End the COPY, which reports whether the server accepts all rows. All tables use one staging table."""
        self._schema = None
        if self._copy is not None:
            self._copy = None
            await self._stack.aclose()
            await self._merge(await self._connect())

    can_undo = True

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None, None]:
        """A savepoint in the open transaction."""
        async with (await self._connect()).transaction():
            yield

    async def commit(self) -> None:
        """Commit the transaction, unless another table does."""
        connection = self._connection
        if connection is None:
            return
        await connection.commit()
        await connection.close()
        self._connection = None
        await self._unlock_ledger()

    async def abort(self) -> None:
        """Roll back the transaction."""
        connection, self._connection = self._connection, None
        copy, self._copy = self._copy, None
        await self._unlock_ledger()
        if connection is None:
            return
        try:
            if copy is not None:
                with suppress(psycopg.Error):  # the server confirms that the COPY was aborted
                    await self._stack.__aexit__(InterruptedError, InterruptedError("the transfer failed"), None)
        finally:
            await connection.close()

    def is_row_error(self, failure: Exception) -> bool:
        """Data exceptions and violated constraints."""
        state = getattr(failure, "sqlstate", None) or ""
        return super().is_row_error(failure) or (isinstance(failure, psycopg.Error) and state[:2] in ("22", "23"))

    def is_refused(self, failure: Exception) -> bool:
        """A constraint, an index, a view or a key of another table depends on the type."""
        state = getattr(failure, "sqlstate", None) or ""
        return isinstance(failure, psycopg.Error) and state[:2] in ("0A", "22", "23", "2B", "42")

    def failed_row(self, failure: Exception, table: Any) -> int | None:
        """The row at the line of the COPY."""
        context = getattr(getattr(failure, "diag", None), "context", None) or ""
        found = re.match(r"COPY \S+, line (\d+)", context)
        if found is None:
            return None
        last_lines = pg_table.last_lines(table)
        return bisect_left(last_lines, int(found[1]))

    def explain(self, failure: Exception) -> Any:
        """The error of the server, with the column of a COPY that has a wrong value."""
        if not isinstance(failure, psycopg.Error):
            return None
        info = postgres.to_error_info(failure)[0]
        column = re.match(r"COPY .+?, line \d+, column ([^:]+)", failure.diag.context or "")
        return msgspec.structs.replace(info, message=f"the column {column[1]!r}: {info.message}") if column else info

    async def _merge(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if self.plan.mode != "upsert" or not self._names:
            return
        table = str(self.plan.fields["table"])
        for statement in pg_table.merge(table, self._names, self.plan.key, has_unique=self._unique):
            await connection.execute(statement)

    def _is_structured(self, name: str) -> bool:
        return name in self._structured

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        if self._root is not None:
            return await self._root._connect()
        if self._connection is None:
            self._connection = await self._new_connection()
        return self._connection

    async def _new_connection(self) -> psycopg.AsyncConnection[Any]:
        info = await postgres_conninfo(self.call.host, self.plan.fields)
        connection = await postgres.open_connection(info, timeout=self.call.timeout.connect)
        await connection.set_autocommit(False)
        return connection

    async def _unlock_ledger(self) -> None:
        locking, self._locking = self._locking, None
        if locking is not None:
            await locking.close()


async def table_columns(connection: psycopg.AsyncConnection[Any], table: str) -> list[pg_table.PgColumn]:
    """The columns of a table; empty if it does not exist."""
    cursor = await connection.execute(pg_table.select_columns(table))
    return [pg_table.PgColumn(*row) for row in await cursor.fetchall()]


async def empty_table(connection: psycopg.AsyncConnection[Any], table: str) -> None:
    """Empty a table: with TRUNCATE if possible, otherwise with DELETE."""
    try:
        async with connection.transaction():
            await connection.execute(pg_table.TRUNCATE_LOCK_TIMEOUT)
            await connection.execute(f"TRUNCATE {quote_name(table)}")
            await connection.execute(pg_table.LOCK_TIMEOUT)
    except (
        psycopg.errors.FeatureNotSupported,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.LockNotAvailable,
    ):
        await connection.execute(f"DELETE FROM {quote_name(table)}")
