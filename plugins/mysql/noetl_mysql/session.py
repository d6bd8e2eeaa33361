"""Runs the statements of kind `mysql`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncmy.cursors import SSCursor

from noetl.tool import Outcome, SqlResult, ToolCall, run_sql
from noetl_mysql.arrow_types import BatchBuilder
from noetl_mysql.connection import begin, connected, explain, parameters
from noetl_mysql.text_rows import TextRows

BATCH_ROWS = 5000


async def run(call: ToolCall) -> Outcome:
    """Run the statements and return their results."""
    return await run_sql(call, _session, explain, "mysql")


@asynccontextmanager
async def _session(call: ToolCall) -> AsyncIterator[MysqlSession]:
    async with connected(call.input, call.host, call.timeout) as connection:
        yield MysqlSession(connection)


class MysqlSession:
    """One connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: str, values: list[Any]) -> SqlResult:
        """Execute a statement; rows of a query are read as they are used."""
        cursor = self._connection.cursor(cursor=SSCursor)
        await cursor.execute(statement, parameters(values) or None)
        if cursor.description is None:
            count = max(cursor.rowcount, 0)
            await cursor.close()
            return SqlResult(row_count=count)
        columns = tuple(column[0] for column in cursor.description)
        return SqlResult(columns=columns, batches=batches(cursor, BATCH_ROWS))

    async def begin(self) -> None:
        """Begin a transaction."""
        await begin(self._connection)

    async def commit(self) -> None:
        """Commit it."""
        await self._connection.commit()

    async def rollback(self) -> None:
        """Roll it back, unless the connection was lost."""
        if self._connection.connected:
            await self._connection.rollback()


async def batches(cursor: Any, size: int) -> AsyncGenerator[Any, None]:
    """The rows of an executed, unbuffered cursor as Arrow batches; one empty batch if there are none."""
    builder, rows, empty = BatchBuilder(cursor), TextRows(cursor), True
    while columns := await rows.read(size):
        empty = False
        with rows.paused():
            yield builder.batch(columns)
    if empty:
        yield builder.batch([])
    await cursor.close()
