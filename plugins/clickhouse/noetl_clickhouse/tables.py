"""Tables as source and target of transfers.

ClickHouse has no transactions over HTTP. Rows are loaded into a staging table; at the end one statement moves them
(append), or exchanges the tables (replace). `upsert` deletes rows by key and inserts the new ones, in two statements.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import pyarrow as pa

from noetl.tool import ConnectorError, RowTarget, SourceCall, jsonable, mixed_as_text
from noetl_clickhouse.connection import connected
from noetl_clickhouse.parameters import typed
from noetl_clickhouse.results import batches

ENGINE = "MergeTree ORDER BY tuple()"
NUMBER = "noetl_row_number"


def quoted(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quoted_table(name: str) -> str:
    """`table` or `database.table` in backticks."""
    return ".".join(map(quoted, name.split(".", 1)))


async def read(call: SourceCall) -> AsyncIterator[Any]:
    """The rows as Arrow batches."""
    fields = call.fields
    params = fields.get("params") or {}
    query = str(fields.get("query") or f"SELECT * FROM {quoted_table(str(fields.get('table')))}").strip().rstrip(";")
    async with (
        connected(fields["auth"], call.host, call.timeout) as client,
        client.request(typed(query, params), params=params, settings=fields.get("settings")) as response,
        aclosing(batches(response, call.batch_rows)) as found,
    ):
        async for batch in found:
            yield batch


def column_type(field: Any) -> str:
    """The type of a column for an Arrow field."""
    type, inner = field.type, "String"
    if pa.types.is_boolean(type):
        inner = "Bool"
    elif pa.types.is_integer(type):
        inner = f"{'UInt' if pa.types.is_unsigned_integer(type) else 'Int'}{type.bit_width}"
    elif pa.types.is_floating(type):
        inner = "Float32" if pa.types.is_float32(type) else "Float64"
    elif pa.types.is_decimal(type):
        inner = f"Decimal({type.precision}, {type.scale})"
    elif pa.types.is_date(type):
        inner = "Date32"
    elif pa.types.is_timestamp(type):
        inner = f"DateTime64(6, '{type.tz}')" if type.tz else "DateTime64(6)"
    return f"Nullable({inner})"


def sendable(table: Any) -> Any:
    """The table in types that ClickHouse reads from Arrow: nested values, times and unknown types as text."""
    table, arrays, fields = mixed_as_text(table), [], []
    for column, field in zip(table.columns, table.schema, strict=True):
        if pa.types.is_nested(field.type):
            values = [None if value is None else json.dumps(jsonable(value)) for value in column.to_pylist()]
            column = pa.chunked_array([pa.array(values, pa.string())])
        elif pa.types.is_null(field.type) or pa.types.is_time(field.type) or pa.types.is_duration(field.type):
            values = [None if value is None else str(value) for value in column.to_pylist()]
            column = pa.chunked_array([pa.array(values, pa.string())])
        arrays.append(column)
        fields.append(pa.field(field.name, column.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


async def _completed(statement: Coroutine[Any, Any, None]) -> None:
    """Await a statement; a cancellation waits for its end, because the server goes on with it, and `abort` would drop
    the table before it is created."""
    running = asyncio.ensure_future(statement)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # retrieved: the task was cancelled all the same
        raise


class TableTarget(RowTarget):
    """A table, written through a staging table."""

    _client: Any = None

    async def begin(self, schema: Any) -> None:
        """Connect, create a missing table and the staging table."""
        call = self.call
        await self._connect()
        self._names = list(schema.names)
        exists = await self._exists()
        if not exists and not call.create:
            await self._close()
            raise ConnectorError(f"{call.label}: the table does not exist, and `create` is false")
        columns = ", ".join(f"{quoted(field.name)} {column_type(field)}" for field in schema)
        if not exists:
            engine = str(call.fields.get("engine") or ENGINE)
            await self._client.execute(f"CREATE TABLE {self._table} ({columns}) ENGINE = {engine}")
        digest = hashlib.sha256(f"{call.idempotency_key} {self._table}".encode()).hexdigest()[:12]
        *database, name = str(call.fields["table"]).split(".", 1)
        self._staging = ".".join(map(quoted, [*database, f"noetl_{digest}_{name}"]))
        self._count = 0
        self._others = await self._other_columns() if call.mode == "upsert" else []
        await self._client.execute(f"DROP TABLE IF EXISTS {self._staging}")
        # With the engine of the table, so that both can be exchanged.
        await _completed(self._client.execute(f"CREATE TABLE {self._staging} AS {self._table}"))
        if call.mode == "upsert":
            await self._client.execute(f"ALTER TABLE {self._staging} ADD COLUMN {NUMBER} Int64")

    async def write(self, table: Any) -> None:
        """Load a chunk into the staging table."""
        table = sendable(table)
        if self.call.mode == "upsert":
            numbers = pa.array(range(self._count, self._count + table.num_rows), pa.int64())
            table = table.append_column(NUMBER, numbers)
        self._count += table.num_rows
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        names = ", ".join(map(quoted, table.schema.names))
        insert = f"INSERT INTO {self._staging} ({names}) FORMAT ArrowStream"
        await self._client.execute(insert, body=sink.getvalue().to_pybytes())

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.call.mode == "replace":
            await self._connect()
            if await self._exists():
                await self._client.execute(f"TRUNCATE TABLE {self._table}")

    async def commit(self) -> None:
        """Move the staged rows; if that fails, `abort` drops the staging table."""
        if self._client is None:
            return
        if hasattr(self, "_staging"):
            for statement in self._statements():
                await self._client.execute(statement)
            await self._client.execute(f"DROP TABLE IF EXISTS {self._staging}")
        await self._close()

    async def abort(self) -> None:
        """Drop the staging table."""
        if self._client is not None:
            try:
                if hasattr(self, "_staging"):
                    await self._client.execute(f"DROP TABLE IF EXISTS {self._staging}")
            finally:
                await self._close()

    @property
    def _table(self) -> str:
        return quoted_table(str(self.call.fields["table"]))

    def _statements(self) -> list[str]:
        columns = ", ".join(map(quoted, self._names))
        if self.call.mode == "replace":
            return [f"EXCHANGE TABLES {self._table} AND {self._staging}"]
        if self.call.mode == "append":
            return [f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {self._staging}"]
        key = ", ".join(map(quoted, self.call.key))
        keys = f"({key})" if len(self.call.key) > 1 else key
        newest = f"SELECT * FROM {self._staging} ORDER BY {NUMBER} DESC LIMIT 1 BY {key}"
        staged = f"SELECT {key} FROM {self._staging}"
        merged = []
        if self._others:  # rows that exist are staged once more, with the values of the columns that the source lacks
            others = ", ".join(map(quoted, self._others))
            values = [f"n.{quoted(name)}" for name in self._names] + [f"t.{quoted(name)}" for name in self._others]
            columns = f"{columns}, {others}"
            merged = [
                f"INSERT INTO {self._staging} ({columns}, {NUMBER}) SELECT {', '.join(values)}, {self._count} "
                f"FROM ({newest}) AS n ANY INNER JOIN {self._table} AS t USING ({key})"
            ]
        return [
            *merged,
            f"ALTER TABLE {self._table} DELETE WHERE {keys} IN ({staged}) SETTINGS mutations_sync = 2",
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM ({newest})",
        ]

    async def _connect(self) -> None:
        self._session = connected(self.call.fields["auth"], self.call.host, self.call.timeout)
        self._client = await self._session.__aenter__()

    async def _close(self) -> None:
        self._client = None
        await self._session.__aexit__(None, None, None)

    async def _other_columns(self) -> list[str]:
        """The columns of the table that the source does not have, and that can be written."""
        async with self._client.request(f"DESCRIBE TABLE {self._table}") as response:
            rows = [row async for batch in batches(response, 1000) for row in batch.to_pylist()]
        computed = ("MATERIALIZED", "ALIAS", "EPHEMERAL")
        found = [_text(row["name"]) for row in rows if _text(row["default_type"]) not in computed]
        return [name for name in found if name not in self._names]

    async def _exists(self) -> bool:
        async with self._client.request(f"EXISTS TABLE {self._table}") as response:
            found = [batch.to_pylist() async for batch in batches(response, 10)]
        return any(next(iter(row.values())) for rows in found for row in rows)
