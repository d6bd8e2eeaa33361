"""PostgreSQL target: writes rows with COPY.

All chunks are one transaction and one COPY: rows are visible when the whole transfer has succeeded. With
`on_error: warn` every chunk has its own savepoint instead, so a rejected chunk does not affect the others.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from decimal import Decimal
from typing import Any

import msgspec
import psycopg

from noetl.connections import postgres
from noetl.data.arrow_tables import MAX_DIGITS, meaning_of, plain_column
from noetl.data.sql import quote_name
from noetl.data.types import extended_dates as far_dates
from noetl.data.types.type_lattice import UNTYPED, UNTYPED_COMMENT, ColumnKind, kind_in_database
from noetl.data.values import jsonable
from noetl.tools._common.postgres_address import postgres_conninfo
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.nested_rows import MAX_NAME, list_tables
from noetl.tools.transfer.schema_contract import Changes
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.targets import postgres_table as pg_table
from noetl.tools.transfer.targets.ledger_target import OBJECTS, LedgerTarget
from noetl.tools.transfer.targets.mixed_columns import mixed_as_text

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
        """End the COPY, which reports whether the server accepts all rows."""
        if self._copy is not None:
            self._copy = self._schema = None
            await self._stack.aclose()
            await self._merge(await self._connect())

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


# ── CSV encoding for COPY ───────────────────────────────────────────────────────────────


def column_encodings(schema: Any, known: list[pg_table.PgColumn]) -> list[str]:
    """The encoding of each column: as Arrow writes it, as JSON, as an array, or as bytes."""
    import pyarrow as pa

    columns = {column.name: column for column in known}
    encodings = []
    for field in schema:
        column = columns.get(field.name)
        kind = field.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            encodings.append("bytes")
        elif pa.types.is_nested(kind):
            is_array = column is not None and column.category == "A"
            encodings.append(
                "array" if is_array and not (pa.types.is_struct(kind) or pa.types.is_map(kind)) else "json"
            )
        elif pa.types.is_duration(kind) or pa.types.is_null(kind) or pa.types.is_interval(kind):
            encodings.append("text")
        elif _may_have_fraction(field) and column is not None and column.type in ("int2", "int4", "int8"):
            encodings.append("whole")
        elif meaning_of(field) == "json" and column is not None and column.category == "A":
            encodings.append("documents" if column.type in ("_json", "_jsonb") else "array-of-json")
        else:
            encodings.append("plain")
    return encodings


def encode_csv(table: Any, encodings: list[str]) -> bytes:
    """The rows as CSV; nulls are empty and strings are quoted, so that they are distinct."""
    import pyarrow as pa
    from pyarrow import csv

    arrays = []
    for number, encoding in enumerate(encodings):
        column = table.column(number)
        if encoding == "plain":
            arrays.append(_printable(column, table.schema.field(number)))
            continue
        if encoding == "whole":
            arrays.append(_whole(column))
            continue
        field = table.schema.field(number)
        is_raw = _has_bytes(field.type) or encoding in ("array-of-json", "documents")
        values = column.to_pylist() if is_raw else plain_column(column, field)
        encode = _ENCODE[encoding]
        arrays.append(pa.array([None if value is None else encode(value) for value in values], pa.string()))
    plain = pa.table(arrays, names=[f"c{number}" for number in range(len(arrays))])
    sink = pa.BufferOutputStream()
    csv.write_csv(plain, sink, csv.WriteOptions(include_header=False, batch_size=10_000))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _may_have_fraction(field: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(field.type) or pa.types.is_decimal(field.type) or meaning_of(field) == "number")


def _whole(column: Any) -> Any:
    """Numbers without a fraction as integers, since 1e+10 and 3.0 are none; PostgreSQL rejects others."""
    import pyarrow as pa

    try:
        numbers = column.cast(pa.decimal128(MAX_DIGITS, 9)) if pa.types.is_string(column.type) else column
        return numbers.cast(pa.int64())
    except pa.ArrowInvalid:
        return column


def _printable(column: Any, field: Any) -> Any:
    """The column; as text if it contains dates or times that Python cannot represent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_time(column.type):
        last = pc.max(column.cast(pa.int64() if pa.types.is_time64(column.type) else pa.int32())).as_py()
        end = far_dates.ticks_per_day(column.type.unit)
        return column if last is None or last < end else pa.array(plain_column(column, field), pa.string())
    if not far_dates.is_calendar(column.type):
        return column
    ends = pc.min_max(column).values()
    try:
        for end in ends:
            end.as_py()
    except (OverflowError, ValueError):
        return pa.array([None if value is None else str(value) for value in far_dates.spelled(column)], pa.string())
    return column


def _has_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_bytes(kind.value_type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


_decode_exactly = msgspec.json.Decoder(float_hook=Decimal).decode


def _hex(value: bytes) -> str:
    return "\\x" + value.hex()


def _json(value: Any) -> str:
    return msgspec.json.encode(jsonable(value)).decode()


def _array_of_json(text: str) -> str:
    """A JSON list in PostgreSQL's array syntax; PostgreSQL rejects other values, or parses texts."""
    value = _decode_exactly(text)
    if isinstance(value, str):
        return value
    return _array(value) if isinstance(value, list) else text


def _documents(text: str) -> str:
    """A JSON list as an array of JSON documents, with all their digits."""
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        return _array_of_json(text)
    return _array([None if item == "null" else item for item in (bytes(raw).decode() for raw in items)])


def _array(value: Any) -> str:
    """A list in PostgreSQL's array syntax."""
    items = []
    for item in value:
        if item is None:
            items.append("NULL")
        elif isinstance(item, list):
            items.append(_array(item))
        elif isinstance(item, bool):
            items.append("t" if item else "f")
        elif isinstance(item, int | float):
            items.append(str(item))
        elif isinstance(item, bytes):
            items.append(f'"\\{_hex(item)}"')
        else:
            text = item if isinstance(item, str) else str(jsonable(item))
            items.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + ",".join(items) + "}"


_ENCODE: dict[str, Callable[[Any], str]] = {
    "bytes": _hex, "json": _json, "array": _array, "array-of-json": _array_of_json, "documents": _documents, "text": str
}  # fmt: skip
