"""What kind `postgres` does: one transaction, COPY, exactly once, results of any size."""

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
from noetl.connections.auth import BadAuth, fields_of
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
from noetl.errors import SecretUnavailable
from noetl.tools._common.fields import EXACTLY_ONCE, PG_NULLS
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

COPY_INLINE = 4 * 1024 * 1024
KEEP_ANSWER = 1024 * 1024
ISOLATION = ("read committed", "repeatable read", "serializable")


async def perform(call: ToolCall) -> Outcome:
    """Run the statements and give their results."""
    task = _Task(call)
    try:
        async with asyncio.timeout(call.timeout.total):
            return await task.run()
    except (BadInput, BadAddress, BadAuth, ParameterError) as wrong:
        return _failed("schema", str(wrong))
    except SecretUnavailable as missing:
        return _failed(missing.kind, str(missing))
    except TimeoutError:
        message = f"the statement was cancelled: it ran longer than {call.timeout.total:g} s (spec.timeout)"
        return _failed("db.timeout", message, notices=task.notices)
    except (psycopg.Error, PoolExhausted) as failure:
        info, pg = to_error_info(failure)
        helper = {**PG_NULLS, **pg, "notices": task.notices}
        return Outcome(status="error", error=info, helpers={"pg": helper})


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.notices: list[str] = []

    async def run(self) -> Outcome:
        """Check the input, find the server, run everything there."""
        call = self.call
        statements = await statements_of(call, "postgres")
        limits = limits_of(call.spec)
        pool = driver.pool(await self._server(), size=_size(call.spec.get("pool_size")))
        connection = await pool.acquire(wait=call.timeout.connect)
        notices = self._listen(connection)
        try:
            return await self._all(connection, statements, limits)
        finally:
            connection.remove_notice_handler(notices)
            await pool.release(connection, used=any(leaves_traces(statement.text) for statement in statements))

    async def _server(self) -> str:
        given = self.call.input
        fields = await fields_of(given.get("auth"), self.call.host, prefixes=driver.PREFIXES)
        own = {
            name: given[name]
            for name in ("dsn", "host", "port", "user", "password", "database", "sslmode")
            if given.get(name)
        }
        if self.call.timeout.connect:
            own["connect_timeout"] = self.call.timeout.connect
        return driver.conninfo({**fields, **own})

    async def _all(
        self, connection: psycopg.AsyncConnection[Any], statements: list[Statement], limits: Limits
    ) -> Outcome:
        """All statements: in one transaction, unless the author steers it or wants none."""
        call = self.call
        once = flag(call.spec.get("exactly_once"), False)
        steered = any(steers_transaction(statement.text) for statement in statements)
        if once and steered:
            raise BadInput("spec.exactly_once needs the task's own transaction: take BEGIN and COMMIT out of the SQL")
        if steered or not flag(call.spec.get("transaction"), True):
            if once:
                raise BadInput("spec.exactly_once needs the task's own transaction: take `transaction: false` out")
            try:
                return self._answer(await self._each(connection, statements, limits))
            finally:
                await _leave_no_transaction(connection)
        if len(statements) == 1 and not once and not call.spec.get("isolation"):
            return self._answer(await self._each(connection, statements, limits))
        if once:
            await _make_key_table(connection)
        async with connection.transaction():
            await self._settings(connection)
            if once:
                first = await self._first_answer(connection)
                if first is not None:
                    return first
            outcome = self._answer(await self._each(connection, statements, limits))
            if once:
                await self._remember(connection, outcome)
        return outcome

    async def _settings(self, connection: psycopg.AsyncConnection[Any]) -> None:
        isolation = self.call.spec.get("isolation")
        if isolation:
            level = str(isolation).lower().replace("_", " ")
            if level not in ISOLATION:
                raise BadInput(f"spec.isolation {isolation!r} is not one of {', '.join(ISOLATION)}")
            await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        if self.call.timeout.total:
            # Should this worker die, the server ends the statement by itself.
            await connection.execute(f"SET LOCAL statement_timeout = {max(1, round(self.call.timeout.total * 1000))}")

    async def _each(
        self, connection: psycopg.AsyncConnection[Any], statements: list[Statement], limits: Limits
    ) -> list[Result]:

        results = []
        used = 0
        for statement in statements:
            if is_many(statement, "postgres"):
                results.append(await self._many(connection, statement))
                continue
            result, taken = await self._one(connection, statement, limits, used)
            used += taken
            results.append(result)
        return results

    async def _one(
        self, connection: psycopg.AsyncConnection[Any], statement: Statement, limits: Limits, used: int
    ) -> tuple[Result, int]:

        if first_word(statement.text) == "copy" and _copies_over_the_wire(statement.text):
            return await self._copy(connection, statement.text), 0

        bound = bind(statement.text, statement.params, used=used)
        tag: list[ResultChunk] = []
        result = await collect(self.call.host, _chunks(run_statement(connection, bound), tag), limits)
        if not result.columns and tag and tag[-1].affected is not None:
            result = Result(row_count=tag[-1].affected)
        return result, len(bound.values)

    async def _many(self, connection: psycopg.AsyncConnection[Any], statement: Statement) -> Result:
        """One statement for each of many parameter sets, sent without waiting in between."""

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
        if _copies_in(text):
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
            columns = _copied_columns(text)
            for row in source:
                await copy.write_row(_copied_row(row, columns))
        elif isinstance(source, Mapping) and source.get("file"):
            async for block in _file_blocks(self.call.host.resolve_path(str(source["file"]))):
                await copy.write(block)
        elif isinstance(source, Mapping) and source.get("ref"):
            async for block in self.call.host.open_result(convert(source["ref"], Reference)):
                await copy.write(block)
        else:
            raise BadInput("COPY ... FROM STDIN reads `stdin`: give it text, a list of rows, `{file}` or `{ref}`")

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
        held = bytearray()
        blocks = aiter(copy)
        async for block in blocks:
            held += block
            if len(held) > COPY_INLINE:
                break
        else:
            binary = "binary" in text.lower()

            return {"text": base64.b64encode(held).decode() if binary else held.decode()}

        async def rest() -> AsyncGenerator[bytes, None]:
            yield bytes(held)
            async for more in blocks:
                yield bytes(more)

        csv = "csv" in text.lower() and "header" in text.lower()  # a table needs to know its columns
        reference = await self.call.host.put_result(rest(), content_type="text/csv" if csv else "text/plain")
        return {"ref": reference}

    # ── exactly once ────────────────────────────────────────────────────────────────────

    async def _first_answer(self, connection: psycopg.AsyncConnection[Any]) -> Outcome | None:
        """Claim the key; when an earlier attempt has committed under it, that attempt's answer."""
        call = self.call
        # A second attempt that runs beside the first waits here until the first has ended.
        cursor = await connection.execute(
            f"INSERT INTO {EXACTLY_ONCE} (key, execution_id, task_run_id) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (call.idempotency_key, call.execution_id, call.task_run_id),
        )
        if cursor.rowcount:
            return None
        found = await connection.execute(f"SELECT answer FROM {EXACTLY_ONCE} WHERE key = %s", (call.idempotency_key,))
        row = await found.fetchone()
        return ok(row[0] if row else None, pg={**PG_NULLS, "repeated": True, "notices": self.notices})

    async def _remember(self, connection: psycopg.AsyncConnection[Any], outcome: Outcome) -> None:
        answer = json.encode(outcome.data)
        if len(answer) > KEEP_ANSWER:
            kept = {key: outcome.data[key] for key in ("row_count", "columns") if key in outcome.data}
            answer = json.encode(kept)
        await connection.execute(
            f"UPDATE {EXACTLY_ONCE} SET answer = %s::jsonb WHERE key = %s", (answer.decode(), self.call.idempotency_key)
        )

    def _answer(self, results: list[Result]) -> Outcome:
        return answer(results, pg={**PG_NULLS, "notices": self.notices})

    def _listen(self, connection: psycopg.AsyncConnection[Any]) -> Any:
        def note(diagnostic: Any) -> None:
            line = f"{diagnostic.severity}: {diagnostic.message_primary}"
            self.notices.append(line)
            self.call.host.log(line, stream="stderr")

        connection.add_notice_handler(note)
        return note


class _Rows:
    """A chunk of rows as the server sent it."""

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


async def _chunks(parts: AsyncGenerator[ResultChunk, None], tag: list[ResultChunk]) -> AsyncGenerator[Any, None]:
    """The parts of a result that have columns; the last part goes to `tag` too."""
    async with aclosing(parts):
        async for part in parts:
            tag.append(part)
            del tag[:-1]
            if part.columns:
                yield _Rows(part)


async def _leave_no_transaction(connection: psycopg.AsyncConnection[Any]) -> None:
    """A transaction the author began and did not end is undone, not left to the next task."""
    if connection.pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
        await connection.rollback()


async def _make_key_table(connection: psycopg.AsyncConnection[Any]) -> None:
    cursor = await connection.execute("SELECT to_regclass(%s)", (EXACTLY_ONCE,))
    row = await cursor.fetchone()
    if row is None or row[0] is None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(7355608002)")  # two workers may come first
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {EXACTLY_ONCE} (key text PRIMARY KEY, execution_id text NOT NULL, "
                "task_run_id text NOT NULL, answer jsonb, at timestamptz NOT NULL DEFAULT now())"
            )


def _copies_over_the_wire(text: str) -> bool:
    words = [token.text.lower() for token in tokens(text) if token.kind == "word"]
    return "stdin" in words or "stdout" in words


def _copies_in(text: str) -> bool:
    return any(token.kind == "word" and token.text.lower() == "stdin" for token in tokens(text))


def _copied_columns(text: str) -> list[str]:
    """The columns a COPY statement lists in brackets, if it does."""
    found = re.match(r"\s*copy\s+[^(]+\(([^)]*)\)\s*from\b", text, re.IGNORECASE)
    return [name.strip().strip('"') for name in found[1].split(",")] if found else []


def _copied_row(row: Any, columns: list[str]) -> list[Any]:
    if isinstance(row, Mapping):
        if not columns:
            raise BadInput("rows of `stdin` are mappings: list the columns, as in COPY t (a, b) FROM STDIN")
        row = [row.get(name) for name in columns]
    return [adapted(value) for value in row]


async def _file_blocks(path: str) -> AsyncIterator[bytes]:
    try:
        file = await asyncio.to_thread(Path(path).open, "rb")
    except OSError as failure:
        raise BadInput(f"stdin.file {path} cannot be read: {failure.strerror}") from None
    with file:
        while block := await asyncio.to_thread(file.read, 256 * 1024):
            yield block


def _size(value: Any) -> int | None:
    return max(1, int(value)) if value not in (None, "") else None


def _failed(kind: str, message: str, *, notices: list[str] | None = None) -> Outcome:
    return error(kind, message, pg={**PG_NULLS, "notices": notices or []})
