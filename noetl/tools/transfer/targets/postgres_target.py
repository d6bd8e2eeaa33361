"""A table of Postgres as a target, fed by COPY.

All chunks are one transaction, and one COPY: rows are there when the whole transfer has succeeded. With
`on_error: warn` every chunk has its own savepoint instead, so a chunk that is refused leaves the others.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
import psycopg

from noetl.connections import postgres
from noetl.data import extended_dates as far_dates
from noetl.data.arrow_tables import meaning_of, plain_column
from noetl.data.sql import quote_name
from noetl.data.values import jsonable
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.sources import postgres_info
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.targets import postgres_table as pg_table
from noetl.tools.transfer.targets.mixed_columns import in_words


class PostgresTarget(Target):
    """A table of Postgres."""

    _connection: psycopg.AsyncConnection[Any] | None = None
    _copy: Any = None

    async def begin(self, schema: Any) -> None:
        """Connect, see that the table is there, and open the COPY."""
        connection = await self._connect()
        plan = self.plan
        table = str(plan.fields["table"])
        await connection.execute(pg_table.LOCK_TIMEOUT)
        known = await columns_of(connection, table)
        names: list[str] = schema.names
        if not known:
            if not plan.creates:
                raise BadInput(f"{plan.label}: there is no such table, and `create: false` forbids to make it")
            types = {field.name: pg_table.type_of(field) for field in schema}
            key = plan.key if plan.mode == "upsert" else ()
            known = await self._make(connection, table, pg_table.create(table, types, key))
        elif plan.mode == "replace":
            await empty(connection, table)
        self._kinds = kinds_of(schema, known)
        self._structured = {
            column.name for column in known if column.type in ("json", "jsonb") or column.category == "A"
        }
        self._names = names
        self._into = quote_name(table)
        self._unique = False
        if plan.mode == "upsert":
            for statement in pg_table.incoming(table, names):
                await connection.execute(statement)
            self._into = pg_table.INCOMING
            found = await (await connection.execute(pg_table.unique(table))).fetchall()
            self._unique = any(sorted(plan.key) == row[0] for row in found)
        self._statement = pg_table.copy_in(self._into, names, "csv")
        self._stack = AsyncExitStack()
        if not plan.warns:
            self._copy = await self._stack.enter_async_context(connection.cursor().copy(self._statement))

    async def _make(
        self, connection: psycopg.AsyncConnection[Any], table: str, statements: list[str]
    ) -> list[pg_table.PgColumn]:
        """Make the table; if somebody else makes it at the same time, theirs is used when they have committed."""
        for left in reversed(range(pg_table.TRIES)):
            try:
                async with connection.transaction():
                    for statement in statements:
                        await connection.execute(statement)
            except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateSchema):
                if not left:
                    raise
            known = await columns_of(connection, table)
            if known:
                break
        return known

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Feed a chunk to the COPY (or to one of its own)."""
        data = await asyncio.to_thread(as_csv, in_words(table, self._is_structured), self._kinds)
        if self._copy is not None:
            for start in range(0, len(data), 1 << 18):
                await self._copy.write(data[start : start + (1 << 18)])
            return
        connection = await self._connect()
        async with connection.transaction():  # a savepoint: the outer one stays open
            async with connection.cursor().copy(self._statement) as copy:
                await copy.write(data)
            await self._merge(connection)

    async def nothing_came(self) -> None:
        """Empty a table that is to be replaced by nothing."""
        if self.plan.mode == "replace":
            connection = await self._connect()
            if await columns_of(connection, str(self.plan.fields["table"])):
                await empty(connection, str(self.plan.fields["table"]))

    async def settle(self) -> None:
        """End the COPY: now the server says whether it takes all rows."""
        if self._copy is not None:
            self._copy = None
            await self._stack.aclose()
            await self._merge(await self._connect())

    async def commit(self) -> None:
        """End the transaction."""
        connection = self._connection
        if connection is None:
            return
        await connection.commit()
        await connection.close()
        self._connection = None

    async def abort(self) -> None:
        """Undo everything."""
        connection, self._connection = self._connection, None
        copy, self._copy = self._copy, None
        if connection is None:
            return
        try:
            if copy is not None:
                with suppress(psycopg.Error):  # the server says that the COPY failed, which is what we tell it
                    await self._stack.__aexit__(InterruptedError, InterruptedError("the transfer failed"), None)
        finally:
            await connection.close()

    def explain(self, failure: Exception) -> Any:
        """What the server said."""
        return postgres.to_error_info(failure)[0] if isinstance(failure, psycopg.Error) else None

    async def _merge(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if self.plan.mode != "upsert":
            return
        table = str(self.plan.fields["table"])
        for statement in pg_table.merge(table, self._names, self.plan.key, has_unique=self._unique):
            await connection.execute(statement)

    def _is_structured(self, name: str) -> bool:
        return name in self._structured

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            info = await postgres_info(self.call, self.plan.fields)
            self._connection = await postgres.open_connection(info, timeout=self.call.timeout.connect)
            await self._connection.set_autocommit(False)
        return self._connection


async def columns_of(connection: psycopg.AsyncConnection[Any], table: str) -> list[pg_table.PgColumn]:
    """The columns of a table; none when it does not exist."""
    cursor = await connection.execute(pg_table.look(table))
    return [pg_table.PgColumn(*row) for row in await cursor.fetchall()]


async def empty(connection: psycopg.AsyncConnection[Any], table: str) -> None:
    """Empty a table: quickly if it may be, else row by row."""
    try:
        async with connection.transaction():
            await connection.execute(pg_table.EMPTY_AT_ONCE)
            await connection.execute(f"TRUNCATE {quote_name(table)}")
            await connection.execute(pg_table.LOCK_TIMEOUT)
    except (
        psycopg.errors.FeatureNotSupported,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.LockNotAvailable,
    ):
        await connection.execute(f"DELETE FROM {quote_name(table)}")


# ── CSV as COPY reads it ────────────────────────────────────────────────────────────────


def kinds_of(schema: Any, known: list[pg_table.PgColumn]) -> list[str]:
    """How each column is written: as Arrow writes it, as JSON, as an array, or as bytes."""
    import pyarrow as pa

    columns = {column.name: column for column in known}
    kinds = []
    for field in schema:
        column = columns.get(field.name)
        kind = field.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            kinds.append("bytes")
        elif pa.types.is_nested(kind):
            is_array = column is not None and column.category == "A"
            kinds.append("array" if is_array and not (pa.types.is_struct(kind) or pa.types.is_map(kind)) else "json")
        elif pa.types.is_duration(kind) or pa.types.is_null(kind) or pa.types.is_interval(kind):
            kinds.append("text")
        elif meaning_of(field) == "json" and column is not None and column.category == "A":
            kinds.append("array-of-json")
        else:
            kinds.append("plain")
    return kinds


def as_csv(table: Any, kinds: list[str]) -> bytes:
    """The rows as CSV: nulls are empty, texts are quoted, so the two are never mistaken for each other."""
    import pyarrow as pa
    from pyarrow import csv

    arrays = []
    for number, kind in enumerate(kinds):
        column = table.column(number)
        if kind == "plain":
            arrays.append(_said(column) if far_dates.is_calendar(column.type) else column)
            continue
        write = {"bytes": _hex, "json": _json, "array": _array, "array-of-json": _array_of_json, "text": _text}[kind]
        values = (
            column.to_pylist(maps_as_pydicts="lossy")
            if kind != "text"
            else plain_column(column, table.schema.field(number))
        )
        arrays.append(pa.array([None if value is None else write(value) for value in values], pa.string()))
    plain = pa.table(arrays, names=[f"c{number}" for number in range(len(arrays))])
    sink = pa.BufferOutputStream()
    csv.write_csv(plain, sink, csv.WriteOptions(include_header=False, batch_size=10_000))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _said(column: Any) -> Any:
    """Dates as Arrow writes them, or one by one where it has no words for some of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pc.min_max(column).values()
    try:
        for end in ends:
            end.as_py()
    except (OverflowError, ValueError):
        return pa.array([None if value is None else str(value) for value in far_dates.spelled(column)], pa.string())
    return column


def _hex(value: bytes) -> str:
    return "\\x" + value.hex()


def _json(value: Any) -> str:
    return msgspec.json.encode(jsonable(value)).decode()


def _text(value: Any) -> str:
    return str(value)


def _array_of_json(value: str) -> str:
    return _array(msgspec.json.decode(value))


def _array(value: Any) -> str:
    """A list as Postgres writes an array."""
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
        else:
            text = item if isinstance(item, str) else str(jsonable(item))
            items.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + ",".join(items) + "}"
