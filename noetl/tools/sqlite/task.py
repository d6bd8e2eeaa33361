"""What kind `sqlite` does: one file, one transaction, results of any size."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from typing import Any

from noetl.connections.sqlite import Rows, adapted, columns_of, connect, to_error_info
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import ToolCall
from noetl.data.sql import ParameterError, bind, bind_sets, first_word, quote_column, steers_transaction
from noetl.runtime.threads import in_thread
from noetl.tools._common.fields import SQLITE_BUSY, SQLITE_NULLS
from noetl.tools._common.sql_task import (
    BadInput,
    Limits,
    Result,
    Statement,
    answer,
    collect,
    flag,
    is_many,
    limits_of,
    statements_of,
)

CHUNK = 1000


async def perform(call: ToolCall) -> Outcome:
    """Run the statements and give their results."""
    try:
        async with asyncio.timeout(call.timeout.total):
            return await _Task(call).run()
    except (BadInput, ParameterError) as wrong:
        return _failed("schema", str(wrong))
    except TimeoutError:
        message = f"the statement was interrupted: it ran longer than {call.timeout.total:g} s (spec.timeout)"
        return _failed("db.timeout", message)
    except (sqlite3.Error, sqlite3.Warning) as failure:
        info = to_error_info(failure)
        return Outcome(status="error", error=info, helpers={"sqlite": {"code": info.details.get("code")}})
    except OSError as failure:
        return _failed("storage.access", f"the database file: {failure.strerror}")


class _Task:
    """One run of the tool, on a connection of its own."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call

    async def run(self) -> Outcome:
        """Open the file, run everything, close it."""
        call = self.call
        statements = await statements_of(call, "sqlite")
        limits = limits_of({"result_format": "jsonl", **call.spec})
        if limits.format not in ("jsonl", "csv"):
            raise BadInput("spec.result_format of sqlite is jsonl or csv: its columns have no fixed type")
        given = call.input
        path = given.get("file") or ":memory:"
        path = str(path).removeprefix("sqlite://")
        path = path if path == ":memory:" else call.host.resolve_path(path)
        connection = await asyncio.to_thread(connect, path, call.timeout.connect or SQLITE_BUSY)
        with closing(connection):
            for name, file in self._attached():
                await self._do(
                    connection, lambda name=name, file=file: connection.execute(f"ATTACH ? AS {name}", (file,))
                )
            results = await self._all(connection, statements, limits)
        return answer(results, sqlite=dict(SQLITE_NULLS))

    def _attached(self) -> list[tuple[str, str]]:
        wanted = self.call.input.get("attach") or {}
        if not isinstance(wanted, Mapping):
            raise BadInput("`attach` is a map: name -> file")
        return [(quote_column(str(name)), self.call.host.resolve_path(str(file))) for name, file in wanted.items()]

    async def _all(self, connection: sqlite3.Connection, statements: list[Statement], limits: Limits) -> list[Result]:
        steered = any(steers_transaction(statement.text) for statement in statements)
        one = len(statements) > 1 and flag(self.call.spec.get("transaction"), True) and not steered
        if not one:
            return await self._each(connection, statements, limits)
        reads = all(first_word(statement.text) in ("select", "values", "explain") for statement in statements)
        await self._do(connection, lambda: connection.execute("BEGIN" if reads else "BEGIN IMMEDIATE"))
        try:
            results = await self._each(connection, statements, limits)
        except BaseException:
            await asyncio.to_thread(connection.rollback)
            raise
        await self._do(connection, lambda: connection.execute("COMMIT"))
        return results

    async def _each(self, connection: sqlite3.Connection, statements: list[Statement], limits: Limits) -> list[Result]:
        results: list[Result] = []
        used = 0
        for statement in statements:
            if is_many(statement, "sqlite"):
                text, sets = bind_sets(statement.text, statement.params, "sqlite")
                values = [[adapted(value) for value in one.values] for one in sets]
                if not sets:
                    results.append(Result())
                    continue
                cursor = await self._do(
                    connection, lambda text=text, values=values: connection.executemany(text, values)
                )
                results.append(Result(row_count=max(cursor.rowcount, 0)))
                continue
            bound = bind(statement.text, statement.params, "sqlite", used=used)
            used += len(bound.values)
            values = [adapted(value) for value in bound.values]
            cursor = await self._do(
                connection, lambda bound=bound, values=values: connection.execute(bound.text, values)
            )
            if cursor.description is None:
                results.append(Result(row_count=max(cursor.rowcount, 0)))
                continue
            results.append(await collect(self.call.host, self._chunks(connection, cursor, columns_of(cursor)), limits))
        return results

    async def _chunks(
        self, connection: sqlite3.Connection, cursor: Any, columns: list[str]
    ) -> AsyncGenerator[Any, None]:

        while True:
            rows = await self._do(connection, lambda: cursor.fetchmany(CHUNK))
            yield Rows(columns, rows)
            if len(rows) < CHUNK:
                return

    async def _do(self, connection: sqlite3.Connection, deed: Any) -> Any:
        return await in_thread(deed, interrupt=connection.interrupt)


def _failed(kind: str, message: str) -> Outcome:
    return error(kind, message, sqlite=dict(SQLITE_NULLS))
