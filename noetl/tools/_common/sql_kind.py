"""Runs the statements of a SQL kind of a plug-in; public as `noetl.tool.run_sql`.

The plug-in gives a session (one connection); parameters, transactions, several statements and large results work as
in the built-in SQL kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, cast

from noetl.connections.auth import BadAuth
from noetl.core.model.connector import ConnectorError, Explain, SqlResult, SqlSession
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import ToolCall
from noetl.data import arrow_tables as tables
from noetl.data.sql import Dialect, ParameterError, bind
from noetl.errors import SecretUnavailable
from noetl.tools._common import sql_task as sql
from noetl.tools._common.sql_task import BadInput, Limits, Result, Statement

Connect = Callable[[ToolCall], AbstractAsyncContextManager[SqlSession]]


async def run_sql(call: ToolCall, connect: Connect, explain: Explain, dialect: Dialect) -> Outcome:
    """Run the statements of `command` or `script` and return their results."""
    try:
        async with asyncio.timeout(call.timeout.total):
            statements = await sql.read_statements(call, dialect)
            limits = sql.read_limits(call.spec)
            async with connect(call) as session:
                return sql.success(await _run(call, session, statements, limits, dialect))
    except (BadInput, BadAuth, ParameterError, ConnectorError) as wrong:
        return error("schema", str(wrong))
    except SecretUnavailable as missing:
        return error("auth", str(missing))
    except TimeoutError as late:
        if call.timeout.total is None:
            return error("timeout", f"{call.kind}: {late or 'timed out'}")
        return error("db.timeout", f"the statement ran longer than {call.timeout.total:g} s (spec.timeout)")
    except Exception as failure:
        info = explain(failure)
        if info is None:
            raise
        return Outcome(status="error", error=info)


async def _run(
    call: ToolCall, session: SqlSession, statements: Sequence[Statement], limits: Limits, dialect: Dialect
) -> list[Result]:
    one_transaction = sql.needs_transaction(statements, call.spec) or any(
        sql.has_parameter_sets(statement, dialect) for statement in statements
    )
    if one_transaction:
        await session.begin()
    try:
        results = []
        used = 0
        for statement in statements:
            if sql.has_parameter_sets(statement, dialect):
                results.append(await _run_sets(session, statement, dialect))
                continue
            bound = bind(statement.text, statement.params, dialect, used=used)
            if statement.params is statements[0].params and isinstance(statement.params, list):
                used += len(bound.values)
            results.append(await _result(call, await session.execute(bound.text, bound.values), limits))
        if one_transaction:
            await session.commit()
        return results
    except BaseException:
        if one_transaction:
            await session.rollback()
        raise


async def _run_sets(session: SqlSession, statement: Statement, dialect: Dialect) -> Result:
    """Execute a statement once per parameter set."""
    count = 0
    for params in statement.params:
        bound = bind(statement.text, params, dialect)
        done = await session.execute(bound.text, bound.values)
        if done.batches is not None:
            async with aclosing(cast(AsyncGenerator[Any, None], done.batches)) as batches:
                async for batch in batches:
                    count += batch.num_rows
        else:
            count += max(done.row_count, 0)
    return Result(row_count=count)


async def _result(call: ToolCall, done: SqlResult, limits: Limits) -> Result:
    if done.batches is None:
        return Result(row_count=max(done.row_count, 0))
    found = await sql.collect(call.host, _chunks(done.batches), limits)
    return found if found.columns else Result(done.columns, found.rows, found.row_count)


async def _chunks(batches: AsyncIterator[Any]) -> AsyncGenerator[sql.Chunk, None]:
    async with aclosing(cast(AsyncGenerator[Any, None], batches)) as stream:
        async for batch in stream:
            yield ArrowChunk(batch)


class ArrowChunk:
    """An Arrow batch as a chunk of a result."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.columns: Sequence[str] = batch.schema.names

    def count(self) -> int:
        """Number of rows."""
        rows: int = self._batch.num_rows
        return rows

    def size(self) -> int:
        """Size in bytes."""
        size: int = self._batch.nbytes
        return size

    def rows(self) -> list[dict[str, Any]]:
        """The rows as JSON data."""
        import pyarrow as pa

        return tables.rows_of(pa.Table.from_batches([self._batch]))

    def batch(self) -> Any:
        """The rows as an Arrow batch."""
        return self._batch
