"""Runs the statements of the kinds."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import adbc_driver_manager as manager

from noetl.tool import Outcome, SqlResult, ToolCall, run_sql
from noetl_adbc.connection import connect, explain, in_thread, is_abandoned, parameters


async def run(call: ToolCall) -> Outcome:
    """Run the statements and return their results."""
    return await run_sql(call, _session, explain, "ansi")


@asynccontextmanager
async def _session(call: ToolCall) -> AsyncIterator[Session]:
    connection = await connect(call.kind, call.input, call.host)
    session = Session(connection)
    try:
        yield session
    except BaseException as failure:
        if not is_abandoned(failure):
            await session.close()
        raise
    await session.close()


class Session:
    """One connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursors: list[Any] = []
        self._in_transaction = False

    async def execute(self, statement: str, values: list[Any]) -> SqlResult:
        """Execute a statement; batches of a query are read as they are used."""
        cursor = self._connection.cursor()
        self._cursors.append(cursor)
        bound = parameters(values) or None
        await in_thread(lambda: cursor.execute(statement, bound), cursor.adbc_cancel)
        if not cursor.description:
            return SqlResult(row_count=cursor.rowcount)
        names = tuple(column[0] for column in cursor.description)
        return SqlResult(columns=names, batches=batches(cursor))

    async def begin(self) -> None:
        """Begin a transaction, if the database has transactions."""
        try:
            await in_thread(lambda: self._connection.adbc_connection.set_autocommit(False))
            self._in_transaction = True
        except manager.NotSupportedError:
            self._in_transaction = False  # BigQuery: every statement commits

    async def commit(self) -> None:
        """Commit it."""
        if self._in_transaction:
            await self._close_cursors()
            await in_thread(self._connection.adbc_connection.commit)
            await in_thread(lambda: self._connection.adbc_connection.set_autocommit(True))

    async def rollback(self) -> None:
        """Roll it back."""
        if self._in_transaction and not is_abandoned(sys.exception()):
            await self._close_cursors()
            await in_thread(self._connection.adbc_connection.rollback)
            await in_thread(lambda: self._connection.adbc_connection.set_autocommit(True))

    async def close(self) -> None:
        """Close the cursors and the connection."""
        await self._close_cursors()
        await in_thread(self._connection.close)

    async def _close_cursors(self) -> None:
        cursors, self._cursors = self._cursors, []
        for cursor in cursors:
            await in_thread(cursor.close)


async def batches(cursor: Any, rows: int | None = None) -> AsyncGenerator[Any, None]:
    """The result as Arrow batches of at most `rows` rows; one empty batch if there are no rows."""
    import pyarrow as pa

    reader = await in_thread(cursor.fetch_record_batch, cursor.adbc_cancel)
    schema, count = reader.schema, 0

    def following() -> Any:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None

    while (batch := await in_thread(following, cursor.adbc_cancel)) is not None:
        for start in range(0, batch.num_rows, rows or max(batch.num_rows, 1)):
            count += 1
            yield batch.slice(start, rows)
    if not count:
        yield pa.RecordBatch.from_pylist([], schema)
