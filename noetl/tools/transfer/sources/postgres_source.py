"""Reads PostgreSQL rows as Arrow batches: with ADBC if it is installed and supports the query, otherwise with psycopg.

Types that Arrow does not have are cast by the database to text, with metadata that says what the text means: numeric
without a precision is a number of any size, and the others keep the name of their type.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any, NamedTuple

import msgspec

from noetl.connections import postgres
from noetl.connections.postgres import Column
from noetl.data import arrow_tables as tables
from noetl.data.sql import Bound, bind, first_word, quote_column, quote_name, tokens
from noetl.data.sql.sql_statements import split
from noetl.data.types import extended_dates as far_dates
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput

BATCH_BYTES = 4 << 20
# bool, bytea, int8, int2, int4, text, json, float4, float8, bpchar, varchar, date, time, timestamp(tz), interval,
# jsonb, and arrays of scalar types: the driver returns these without a cast.
_NATIVE = frozenset({16, 17, 20, 21, 23, 25, 114, 700, 701, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 3802})
_NATIVE_ARRAYS = {
    1000: "bool", 1005: "int2", 1007: "int4", 1016: "int8",
    1009: "text", 1015: "varchar", 1021: "float4", 1022: "float8",
    1182: "date", 1183: "time", 1115: "timestamp", 1185: "timestamptz",
}  # fmt: skip
_TEXT_ARRAYS = frozenset({2951, 1231, 1014, 1041, 651})  # uuid, numeric, bpchar, inet, cidr: lists of text
_DECIMAL = 1700
# Names of other types, so that a table created for them in PostgreSQL has the same types.
_TYPE_NAMES = {
    114: "json", 1700: "numeric", 2950: "uuid", 869: "inet", 650: "cidr", 829: "macaddr", 142: "xml", 26: "bigint",
    1266: "timetz", 3904: "int4range", 3926: "int8range", 3906: "numrange", 3908: "tsrange", 3910: "tstzrange",
    3912: "daterange", 3614: "tsvector", 2951: "uuid[]", 1231: "numeric[]", 1041: "inet[]", 651: "cidr[]",
    3807: "jsonb[]", 199: "json[]", 1187: "interval[]", 1001: "bytea[]", 790: "money",
}  # fmt: skip
_MEANINGS = {114: "json", 3802: "json", 3807: "json", 199: "json", 2950: "uuid"}


class Query(NamedTuple):
    """A query without parameters, and its columns (None: it cannot be used as a subquery)."""

    text: str
    columns: tuple[Column, ...] | None


async def read_query(connection: Any, fields: dict[str, Any]) -> Query:
    """The query of a source: `query` with its `params`, or all of `table`."""
    if fields.get("table") and not fields.get("query"):
        text = f"SELECT * FROM {quote_name(str(fields['table']))}"
    else:
        text = _with_literals(str(fields.get("query") or ""), fields.get("params"))
    if first_word(text) not in ("select", "with", "values", "table"):
        return Query(text, None)
    text += "\n"  # a comment at its end must not include what follows it in a COPY or as a subquery
    try:
        cursor = await connection.execute(f"SELECT * FROM ({text}) AS noetl_source LIMIT 0")
    except _syntax_errors():
        return Query(text, None)  # invalid, which executing it reports, or a statement that changes data
    return Query(
        text,
        tuple(
            Column(item.name, item.type_code, _modifier(cursor, number))
            for number, item in enumerate(cursor.description)
        ),
    )


def _modifier(cursor: Any, number: int) -> int:
    modifier: int = cursor.pgresult.fmod(number)
    return modifier


def _syntax_errors() -> Any:
    from psycopg import errors

    return (errors.SyntaxError, errors.FeatureNotSupported)


def _with_literals(text: str, params: Any) -> str:
    """The statement with its parameters as literals, quoted by the driver, as COPY does not accept parameters."""
    from psycopg import sql

    statements = split(text)
    if len(statements) != 1:
        raise BadInput("the source requires `query` with one statement, or `table`")
    bound = bind(statements[0], params)
    if not bound.values:
        return bound.text
    literals = [
        sql.Literal(postgres.adapted(value, json=number in bound.json)).as_string(None)
        for number, value in enumerate(bound.values)
    ]
    pieces = [
        literals[int(token.text[1:]) - 1] if token.kind == "numbered" else token.text for token in tokens(bound.text)
    ]
    return "".join(pieces)


def add_casts(query: Query) -> str:
    """The query with a cast for each column whose type requires one."""
    assert query.columns is not None
    names = postgres.column_names(query.columns)
    casts = [_cast(column, f"c{number}", names[number]) for number, column in enumerate(query.columns)]
    if not any(casts) and names == [column.name for column in query.columns]:
        return query.text
    inner = [f"c{number}" for number in range(len(names))]
    selected = ", ".join(
        f"{cast or column} AS {quote_column(name)}" for column, cast, name in zip(inner, casts, names, strict=True)
    )
    return f"SELECT {selected} FROM ({query.text}) AS noetl_source({', '.join(inner)})"


def _cast(column: Column, inner: str, name: str) -> str:
    if column.oid in _NATIVE:
        return ""
    if column.oid in _NATIVE_ARRAYS or column.oid in _TEXT_ARRAYS:
        # The driver would flatten a multidimensional array; the invalid cast of this message raises it as an error.
        message = f"the column {name} has multidimensional arrays; select to_jsonb(...) of it ("
        text = "'" + message.replace("'", "''") + f"' || array_dims({inner}) || ')'"
        element = _NATIVE_ARRAYS.get(column.oid, "text")
        value = inner if column.oid in _NATIVE_ARRAYS else f"{inner}::text[]"
        return f"CASE WHEN array_ndims({inner}) > 1 THEN ({text})::{element}[] ELSE {value} END"
    if column.oid in (3807, 199):
        return f"to_jsonb({inner})::text"
    return f"{inner}::bigint" if column.oid == 26 else f"{inner}::text"


def _precision(column: Column) -> tuple[int, int] | None:
    precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
    return (precision, scale) if column.modifier >= 4 and 0 < precision <= 38 and scale <= precision else None


async def batches(info: str, query: Query) -> AsyncGenerator[Any, None]:
    """The rows, in batches of a few megabytes."""
    if query.columns is not None:
        stream = _adbc_batches(info, query)
    else:
        stream = _psycopg_batches(info, query)
    async with aclosing(stream):
        async for batch in stream:
            yield batch


async def _adbc_batches(info: str, query: Query) -> AsyncGenerator[Any, None]:
    import pyarrow as pa
    from adbc_driver_postgresql import dbapi

    assert query.columns is not None
    columns, text = query.columns, add_casts(query)
    opened: list[Any] = []
    try:
        await in_thread(lambda: opened.append(dbapi.connect(info, autocommit=True)))
    except asyncio.CancelledError:
        for connection in opened:  # connected after the cancellation
            connection.close()
        raise
    (connection,) = opened
    try:
        cursor = connection.cursor()
        try:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})

            def begin() -> Any:
                cursor.execute(postgres.APPLY_TEXT_SETTINGS)
                cursor.fetchall()
                cursor.execute(text)
                # The public reader hides the server's error code; the internal one does not.
                return getattr(getattr(cursor, "_results", None), "reader", None) or cursor.fetch_record_batch()

            def next_batch() -> Any:
                try:
                    return _cast_batch(reader.read_next_batch(), schema)
                except StopIteration:
                    return None
                except dbapi.Error as failure:
                    if "Interval with time value" not in str(failure):
                        raise
                    names = [field.name for field in schema if pa.types.is_interval(field.type)]
                    raise _unfit(" or ".join(names), "the range of intervals (292 years of hours)") from None

            reader = await in_thread(begin, interrupt=cursor.adbc_cancel)
            schema = _schema(reader.schema, columns)
            empty = True
            while (batch := await in_thread(next_batch, interrupt=cursor.adbc_cancel)) is not None:
                empty = False
                yield batch
            if empty:
                yield pa.RecordBatch.from_pylist([], schema=schema)
        finally:
            await in_thread(cursor.close)
    finally:
        await in_thread(connection.close)


def _schema(given: Any, columns: Sequence[Column]) -> Any:
    """The schema of the driver without extension types; JSON is text with metadata."""
    import pyarrow as pa

    fields = []
    for field, column in zip(given, columns, strict=True):
        kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        precision = _precision(column) if column.oid == _DECIMAL else None
        if precision:
            kind = pa.decimal128(*precision)
        metadata = {"noetl": _MEANINGS[column.oid]} if column.oid in _MEANINGS else {}
        if column.oid == _DECIMAL and not precision:
            metadata["noetl"] = "number"
        elif column.oid in _TYPE_NAMES and not precision:
            metadata["postgres"] = _TYPE_NAMES[column.oid]
        if pa.types.is_list(kind):
            kind = pa.list_(pa.field("item", kind.value_type))
        fields.append(pa.field(field.name, kind, metadata=metadata or None))
    return pa.schema(fields)


def _unfit(name: str, reason: str, is_decimal: bool = False) -> BadInput:
    other = f" or {quote_column(name)}::numeric" if is_decimal else ""
    return BadInput(
        f"a value of the column {name!r} does not fit {reason}; select {quote_column(name)}::text{other} of it"
    )


def _cast_batch(batch: Any, schema: Any) -> Any:
    import pyarrow as pa

    arrays = []
    for array, field in zip(batch.columns, schema, strict=True):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        try:
            array = array if array.type.equals(field.type) else array.cast(field.type)
            arrays.append(far_dates.with_infinity(array))
        except (pa.ArrowInvalid, OverflowError) as wrong:
            raise _unfit(field.name, f"{field.type}: {wrong}", pa.types.is_decimal(field.type)) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


async def _psycopg_batches(info: str, query: Query) -> AsyncGenerator[Any, None]:
    import pyarrow as pa

    connection = await postgres.open_connection(info)
    connection.adapters.register_loader("json", _json_loader())
    connection.adapters.register_loader("jsonb", _json_loader())
    try:
        await connection.execute(postgres.APPLY_TEXT_SETTINGS)
        parts = postgres.run_statement(connection, Bound(query.text, [], frozenset()), chunk=5000)
        has_columns = False
        async with aclosing(parts):
            async for part in parts:
                if not part.columns:
                    continue
                schema = postgres.arrow_schema(part.columns)
                if part.rows or not has_columns:
                    rows = part.rows
                    yield tables.batch_of_rows(rows, schema) if rows else pa.RecordBatch.from_pylist([], schema=schema)
                has_columns = True
        if not has_columns:
            raise BadInput("the source's statement returns no rows")
    finally:
        await connection.close()


@cache
def _json_loader() -> Any:
    """Reads JSON without a change: numbers keep all digits, and the document `null` is no SQL NULL."""
    from psycopg.adapt import Loader

    class RawJson(Loader):
        def load(self, data: Any) -> msgspec.Raw:
            return msgspec.Raw(bytes(data))

    return RawJson


async def count(connection: Any, query: Query) -> int | None:
    """The number of rows of the query."""
    if query.columns is None:
        return None
    cursor = await connection.execute(f"SELECT count(*) FROM ({query.text}) AS noetl_source")
    row = await cursor.fetchone()
    return int(row[0])
