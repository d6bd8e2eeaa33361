"""Reads a query or table with an unbuffered cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from asyncmy.cursors import SSCursor

from noetl.tool import ConnectorError, SourceCall, bind_sql
from noetl_mysql.connection import connected, parameters
from noetl_mysql.names import quoted_table
from noetl_mysql.session import batches


async def read(call: SourceCall) -> AsyncIterator[Any]:
    """The rows as Arrow batches."""
    text, values = statement(call.fields)
    async with connected(call.fields, call.host, call.timeout) as connection:
        cursor = connection.cursor(cursor=SSCursor)
        await cursor.execute(text, values or None)
        if cursor.description is None:
            raise ConnectorError("the source's statement returns no rows")
        async with aclosing(batches(cursor, call.batch_rows)) as stream:
            async for batch in stream:
                yield batch


async def count(call: SourceCall) -> int | None:
    """The number of rows, from `SELECT count(*)`."""
    text, values = statement(call.fields)
    async with connected(call.fields, call.host, call.timeout) as connection, connection.cursor() as cursor:
        await cursor.execute(f"SELECT count(*) FROM ({text}\n) AS counted", values or None)
        (found,) = await cursor.fetchone()
        return int(found)


def statement(fields: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The statement with placeholders `%s`, and their values."""
    if fields.get("table") and not fields.get("query"):
        return f"SELECT * FROM {quoted_table(str(fields['table']))}", []
    text, values = bind_sql(str(fields["query"]), fields.get("params"), "mysql")
    return text, parameters(values)
