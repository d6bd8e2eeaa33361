"""Runs the statements of kind `sqlite`: one file, one transaction, streamed results."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import closing
from typing import Any, TypeVar

from noetl.connections.sqlite import Rows, adapted, columns_of, connect, take_turn, to_error_info
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import ToolCall
from noetl.data.sql import ParameterError, bind, bind_sets, first_word, quote_column
from noetl.runtime.threads import in_thread
from noetl.tools._common import sql_task as sql
from noetl.tools._common.sql_task import BadInput, Limits, Result, Statement
from noetl.tools.sqlite.spec import BUSY_TIMEOUT, NULLS

CHUNK_ROWS = 1000
T = TypeVar("T")


async def run(call: ToolCall) -> Outcome:
    """Execute the statements and return their results."""
    try:
        async with asyncio.timeout(call.timeout.total):
            return await _Task(call).run()
    except (BadInput, ParameterError) as wrong:
        return _failure("schema", str(wrong))
    except TimeoutError:
        message = f"the statement was interrupted: it ran longer than {call.timeout.total:g} s (spec.timeout)"
        return _failure("db.timeout", message)
    except (sqlite3.Error, sqlite3.Warning) as failure:
        info = to_error_info(failure)
        return Outcome(status="error", error=info, helpers={"sqlite": {"code": info.details.get("code")}})
    except OSError as failure:
        return _failure("storage.access", f"cannot open the database file: {failure.strerror}")


class _Task:
    """One run of the tool, with its own connection."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call

    async def run(self) -> Outcome:
        """Open the file, execute the statements, and close it."""
        call = self.call
        statements = await sql.read_statements(call, "sqlite")
        limits = sql.read_limits({"result_format": "jsonl", **call.spec})
        if limits.format not in ("jsonl", "csv"):
            raise BadInput("spec.result_format of sqlite must be jsonl or csv: its columns have no fixed type")
        path = str(call.input.get("file") or ":memory:").removeprefix("sqlite://")
        path = path if path == ":memory:" else call.host.resolve_path(path)
        connection = await asyncio.to_thread(connect, path, call.timeout.connect or BUSY_TIMEOUT)
        with closing(connection):
            for name, file in self._attachments():
                await _in_thread(connection, connection.execute, f"ATTACH ? AS {name}", (file,))
            results = await self._execute_in_turn(connection, path, statements, limits)
        return sql.success(results, sqlite=dict(NULLS))

    def _attachments(self) -> list[tuple[str, str]]:
        attach = self.call.input.get("attach") or {}
        if not isinstance(attach, Mapping):
            raise BadInput("`attach` must be a mapping: name -> file")
        return [(quote_column(str(name)), self.call.host.resolve_path(str(file))) for name, file in attach.items()]

    async def _execute_in_turn(
        self, connection: sqlite3.Connection, path: str, statements: list[Statement], limits: Limits
    ) -> list[Result]:
        """Execute statements that write when no other task of this process writes to the file."""
        reads = all(first_word(statement.text) in ("select", "values", "explain") for statement in statements)
        if reads or path == ":memory:":
            return await self._execute(connection, statements, limits, reads=reads)
        turn = await take_turn(path)
        try:
            return await self._execute(connection, statements, limits, reads=False)
        finally:
            turn.release()

    async def _execute(
        self, connection: sqlite3.Connection, statements: list[Statement], limits: Limits, *, reads: bool
    ) -> list[Result]:
        if not sql.needs_transaction(statements, self.call.spec):
            return await self._execute_each(connection, statements, limits)
        await _in_thread(connection, connection.execute, "BEGIN" if reads else "BEGIN IMMEDIATE")
        try:
            results = await self._execute_each(connection, statements, limits)
        except BaseException:
            await asyncio.to_thread(connection.rollback)
            raise
        await _in_thread(connection, connection.execute, "COMMIT")
        return results

    async def _execute_each(
        self, connection: sqlite3.Connection, statements: list[Statement], limits: Limits
    ) -> list[Result]:
        results: list[Result] = []
        used = 0
        for statement in statements:
            if sql.has_parameter_sets(statement, "sqlite"):
                results.append(await _execute_many(connection, statement))
                continue
            bound = bind(statement.text, statement.params, "sqlite", used=used)
            used += len(bound.values)
            values = [adapted(value) for value in bound.values]
            cursor = await _in_thread(connection, connection.execute, bound.text, values)
            if cursor.description is None:
                results.append(Result(row_count=max(cursor.rowcount, 0)))
                continue
            results.append(await sql.collect(self.call.host, _chunks(connection, cursor), limits))
        return results


async def _execute_many(connection: sqlite3.Connection, statement: Statement) -> Result:
    text, sets = bind_sets(statement.text, statement.params, "sqlite")
    if not sets:
        return Result()
    values = [[adapted(value) for value in bound.values] for bound in sets]
    cursor = await _in_thread(connection, connection.executemany, text, values)
    return Result(row_count=max(cursor.rowcount, 0))


async def _chunks(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> AsyncGenerator[Any, None]:
    columns = columns_of(cursor)
    while True:
        rows = await _in_thread(connection, cursor.fetchmany, CHUNK_ROWS)
        yield Rows(columns, rows)
        if len(rows) < CHUNK_ROWS:
            return


async def _in_thread(connection: sqlite3.Connection, function: Callable[..., T], *args: Any) -> T:
    return await in_thread(lambda: function(*args), interrupt=connection.interrupt)


def _failure(kind: str, message: str) -> Outcome:
    return error(kind, message, sqlite=dict(NULLS))
