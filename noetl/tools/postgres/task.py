"""Runs the statements of kind `postgres`: transaction, COPY, exactly-once execution, streamed results."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psycopg
from msgspec import convert, json
from psycopg import pq

from noetl.connections import postgres as driver
from noetl.connections.auth import BadAuth
from noetl.connections.connection_pool import PoolExhausted
from noetl.connections.postgres import (
    BadAddress,
    ResultChunk,
    adapted,
    arrow_schema,
    column_names,
    plain_rows,
    run_statement,
    to_error_info,
)
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import batch_of_rows
from noetl.data.sql import ParameterError, bind, bind_sets, first_word, leaves_traces, steers_transaction, tokens
from noetl.errors import SecretUnavailable, StoreUnavailable
from noetl.tools._common import sql_task as sql
from noetl.tools._common.postgres_address import postgres_conninfo
from noetl.tools._common.sql_task import BadInput, Limits, Result, Statement, flag
from noetl.tools.postgres.spec import EXACTLY_ONCE_TABLE, ISOLATION_LEVELS, NULLS

COPY_INLINE = 4 * 1024 * 1024
MAX_RECORDED_RESULT = 1024 * 1024  # of a task that is executed exactly once


async def run(call: ToolCall) -> Outcome:
    """Execute the statements and return their results."""
    task = _Task(call)
    try:
        async with asyncio.timeout(call.timeout.total):
            return await task.run()
    except (BadInput, BadAddress, BadAuth, ParameterError) as wrong:
        return _failure("schema", str(wrong))
    except (SecretUnavailable, StoreUnavailable) as missing:
        return _failure(missing.kind, str(missing))
    except TimeoutError:
        message = f"the statement was cancelled: it ran longer than {call.timeout.total:g} s (spec.timeout)"
        return _failure("db.timeout", message, notices=task.notices)
    except (psycopg.Error, PoolExhausted) as failure:
        info, pg = to_error_info(failure)
        helper = {**NULLS, **pg, "notices": task.notices}
        return Outcome(status="error", error=info, helpers={"pg": helper})


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.notices: list[str] = []

    async def run(self) -> Outcome:
        """Validate the fields, connect, and execute the statements."""
        call = self.call
        statements = await sql.read_statements(call, "postgres")
        limits = sql.read_limits(call.spec)
        more = {"connect_timeout": call.timeout.connect} if call.timeout.connect else {}
        info = await postgres_conninfo(call.host, call.input, **more)
        pool = driver.pool(info, size=_pool_size(call.spec.get("pool_size")))
        connection = await pool.acquire(wait=call.timeout.connect)
        handler = self._add_notice_handler(connection)
        try:
            return await self._execute(connection, statements, limits)
        finally:
            connection.remove_notice_handler(handler)
            await pool.release(connection, used=any(leaves_traces(statement.text) for statement in statements))

    async def _execute(
        self, connection: psycopg.AsyncConnection[Any], statements: list[Statement], limits: Limits
    ) -> Outcome:
        """Execute all statements in one transaction, unless the SQL or the spec controls transactions itself."""
        call = self.call
        once = flag(call.spec.get("exactly_once"), False)
        has_control = any(steers_transaction(statement.text) for statement in statements)
        if once and has_control:
            raise BadInput(
                "spec.exactly_once requires the task's own transaction: remove BEGIN and COMMIT from the SQL"
            )
        if has_control or not flag(call.spec.get("transaction"), True):
            if once:
                raise BadInput("spec.exactly_once requires the task's own transaction: remove `transaction: false`")
            try:
                return self._success(await self._execute_each(connection, statements, limits))
            finally:
                await _roll_back_open_transaction(connection)
        if len(statements) == 1 and not once and not call.spec.get("isolation"):
            return self._success(await self._execute_each(connection, statements, limits))
        if once:
            await _create_key_table(connection)
        async with connection.transaction():
            await self._configure_transaction(connection)
            if once:
                recorded = await self._claim_key(connection)
                if recorded is not None:
                    return recorded
            outcome = self._success(await self._execute_each(connection, statements, limits))
            if once:
                await self._record_result(connection, outcome)
        return outcome

    async def _configure_transaction(self, connection: psycopg.AsyncConnection[Any]) -> None:
        isolation = self.call.spec.get("isolation")
        if isolation:
            level = str(isolation).lower().replace("_", " ")
            if level not in ISOLATION_LEVELS:
                raise BadInput(f"spec.isolation {isolation!r} is not one of {', '.join(ISOLATION_LEVELS)}")
            await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        if self.call.timeout.total:
            # If this worker dies, the server cancels the statement.
            await connection.execute(f"SET LOCAL statement_timeout = {max(1, round(self.call.timeout.total * 1000))}")

    async def _execute_each(
        self, connection: psycopg.AsyncConnection[Any], statements: list[Statement], limits: Limits
    ) -> list[Result]:
        results = []
        used = 0
        for statement in statements:
            if sql.has_parameter_sets(statement, "postgres"):
                results.append(await self._execute_many(connection, statement))
                continue
            result, count = await self._execute_one(connection, statement, limits, used)
            used += count
            results.append(result)
        return results

    async def _execute_one(
        self, connection: psycopg.AsyncConnection[Any], statement: Statement, limits: Limits, used: int
    ) -> tuple[Result, int]:
        """The result, and the number of positional parameters that the statement used."""
        if first_word(statement.text) == "copy" and _uses_client_stream(statement.text):
            return await self._copy(connection, statement.text), 0
        bound = bind(statement.text, statement.params, used=used)
        last: list[ResultChunk] = []
        result = await sql.collect(self.call.host, _chunks(run_statement(connection, bound), last), limits)
        if not result.columns and last and last[-1].affected is not None:
            result = Result(row_count=last[-1].affected)
        return result, len(bound.values)

    async def _execute_many(self, connection: psycopg.AsyncConnection[Any], statement: Statement) -> Result:
        """Execute one statement for each parameter set, pipelined."""
        text, sets = bind_sets(statement.text, statement.params)
        if not sets:
            return Result()
        values = [
            [adapted(value, json=number in bound.json) for number, value in enumerate(bound.values)] for bound in sets
        ]
        cursor = psycopg.AsyncRawCursor(connection)
        await cursor.executemany(text, values)
        self.call.host.progress(rows=cursor.rowcount)
        return Result(row_count=max(cursor.rowcount, 0))

    # ── COPY ────────────────────────────────────────────────────────────────────────────

    async def _copy(self, connection: psycopg.AsyncConnection[Any], text: str) -> Result:
        cursor = connection.cursor()
        if _reads_stdin(text):
            async with cursor.copy(text) as copy:
                await self._copy_in(copy, text)
            return Result(row_count=max(cursor.rowcount, 0))
        async with cursor.copy(text) as copy:
            extra = await self._copy_out(copy, text)
        reference = extra.pop("ref", None)
        return Result(row_count=max(cursor.rowcount, 0), ref=reference, extra=extra)

    async def _copy_in(self, copy: Any, text: str) -> None:
        source = self.call.input.get("stdin")
        if isinstance(source, str | bytes):
            await copy.write(source)
        elif isinstance(source, list):
            columns = _copy_columns(text)
            for row in source:
                await copy.write_row(_copy_row(row, columns))
        elif isinstance(source, Mapping) and source.get("file"):
            async for block in _file_blocks(self.call.host.resolve_path(str(source["file"]))):
                await copy.write(block)
        elif isinstance(source, Mapping) and source.get("ref"):
            async for block in self.call.host.open_result(convert(source["ref"], Reference)):
                await copy.write(block)
        else:
            raise BadInput("COPY ... FROM STDIN requires `stdin`: a string, a list of rows, `{file}` or `{ref}`")

    async def _copy_out(self, copy: Any, text: str) -> dict[str, Any]:
        target = self.call.input.get("stdout")
        if isinstance(target, Mapping) and target.get("file"):
            path = self.call.host.resolve_path(str(target["file"]))
            size = 0
            file = await asyncio.to_thread(Path(path).open, "wb")
            with file:
                async for block in copy:
                    size += await asyncio.to_thread(file.write, bytes(block))
            return {"file": path, "bytes": size}
        first = bytearray()
        blocks = aiter(copy)
        async for block in blocks:
            first += block
            if len(first) > COPY_INLINE:
                break
        else:
            binary = "binary" in text.lower()
            return {"text": base64.b64encode(first).decode() if binary else first.decode()}

        async def all_blocks() -> AsyncGenerator[bytes, None]:
            yield bytes(first)
            async for block in blocks:
                yield bytes(block)

        csv = "csv" in text.lower() and "header" in text.lower()  # a table requires column names
        reference = await self.call.host.put_result(all_blocks(), content_type="text/csv" if csv else "text/plain")
        return {"ref": reference}

    # ── exactly once ────────────────────────────────────────────────────────────────────

    async def _claim_key(self, connection: psycopg.AsyncConnection[Any]) -> Outcome | None:
        """Insert the idempotency key; if an earlier attempt has committed it, return that attempt's result."""
        call = self.call
        # A concurrent second attempt blocks here until the first has committed or rolled back.
        cursor = await connection.execute(
            f"INSERT INTO {EXACTLY_ONCE_TABLE} (key, execution_id, task_run_id) VALUES (%s, %s, %s) "
            "ON CONFLICT DO NOTHING",
            (call.idempotency_key, call.execution_id, call.task_run_id),
        )
        if cursor.rowcount:
            return None
        found = await connection.execute(
            f"SELECT answer FROM {EXACTLY_ONCE_TABLE} WHERE key = %s", (call.idempotency_key,)
        )
        row = await found.fetchone()
        return ok(row[0] if row else None, pg={**NULLS, "repeated": True, "notices": self.notices})

    async def _record_result(self, connection: psycopg.AsyncConnection[Any], outcome: Outcome) -> None:
        result = json.encode(outcome.data)
        if len(result) > MAX_RECORDED_RESULT:
            result = json.encode({key: outcome.data[key] for key in ("row_count", "columns") if key in outcome.data})
        await connection.execute(
            f"UPDATE {EXACTLY_ONCE_TABLE} SET answer = %s::jsonb WHERE key = %s",
            (result.decode(), self.call.idempotency_key),
        )

    def _success(self, results: list[Result]) -> Outcome:
        return sql.success(results, pg={**NULLS, "notices": self.notices})

    def _add_notice_handler(self, connection: psycopg.AsyncConnection[Any]) -> Any:
        def on_notice(diagnostic: Any) -> None:
            line = f"{diagnostic.severity}: {diagnostic.message_primary}"
            self.notices.append(line)
            self.call.host.log(line, stream="stderr")

        connection.add_notice_handler(on_notice)
        return on_notice


class _PartChunk:
    """A chunk of rows as received from the server."""

    def __init__(self, part: ResultChunk) -> None:
        self._part = part
        self.columns = column_names(part.columns)

    def count(self) -> int:
        return len(self._part.rows)

    def size(self) -> int:
        rows = self._part.rows
        if not rows:
            return 0
        sample = rows[:: max(1, len(rows) // 8)]
        return sum(len(str(value)) + 8 for row in sample for value in row) * len(rows) // len(sample)

    def rows(self) -> list[dict[str, Any]]:
        return plain_rows(self._part, self.columns)

    def batch(self) -> Any:
        return batch_of_rows(self._part.rows, arrow_schema(self._part.columns))


async def _chunks(parts: AsyncGenerator[ResultChunk, None], last: list[ResultChunk]) -> AsyncGenerator[Any, None]:
    """The parts of a result that have columns; `last` receives the last part."""
    async with aclosing(parts):
        async for part in parts:
            last[:] = [part]
            if part.columns:
                yield _PartChunk(part)


async def _roll_back_open_transaction(connection: psycopg.AsyncConnection[Any]) -> None:
    """Roll back a transaction that the SQL began and did not end, before the next task uses the connection."""
    if connection.pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
        await connection.rollback()


async def _create_key_table(connection: psycopg.AsyncConnection[Any]) -> None:
    cursor = await connection.execute("SELECT to_regclass(%s)", (EXACTLY_ONCE_TABLE,))
    row = await cursor.fetchone()
    if row is None or row[0] is None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(7355608002)")  # workers may create it concurrently
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {EXACTLY_ONCE_TABLE} (key text PRIMARY KEY, execution_id text NOT NULL, "
                "task_run_id text NOT NULL, answer jsonb, at timestamptz NOT NULL DEFAULT now())"
            )


def _words(text: str) -> set[str]:
    return {token.text.lower() for token in tokens(text) if token.kind == "word"}


def _uses_client_stream(text: str) -> bool:
    return not _words(text).isdisjoint({"stdin", "stdout"})


def _reads_stdin(text: str) -> bool:
    return "stdin" in _words(text)


def _copy_columns(text: str) -> list[str]:
    """The column list of a COPY statement; empty if it has none."""
    found = re.match(r"\s*copy\s+[^(]+\(([^)]*)\)\s*from\b", text, re.IGNORECASE)
    return [name.strip().strip('"') for name in found[1].split(",")] if found else []


def _copy_row(row: Any, columns: list[str]) -> list[Any]:
    if isinstance(row, Mapping):
        if not columns:
            raise BadInput("rows of `stdin` are mappings: COPY requires a column list, as in COPY t (a, b) FROM STDIN")
        row = [row.get(name) for name in columns]
    return [adapted(value) for value in row]


async def _file_blocks(path: str) -> AsyncIterator[bytes]:
    try:
        file = await asyncio.to_thread(Path(path).open, "rb")
    except OSError as failure:
        raise BadInput(f"cannot read stdin.file {path}: {failure.strerror}") from None
    with file:
        while block := await asyncio.to_thread(file.read, 256 * 1024):
            yield block


def _pool_size(value: Any) -> int | None:
    return max(1, int(value)) if value not in (None, "") else None


def _failure(kind: str, message: str, *, notices: list[str] | None = None) -> Outcome:
    return error(kind, message, pg={**NULLS, "notices": notices or []})
