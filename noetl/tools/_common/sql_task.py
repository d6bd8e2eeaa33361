"""Shared code of the SQL kinds: parses the statements of a task and builds its outcome.

`output.data` has `rows`, `row_count` and `columns` of the last statement, and `command_0`, `command_1`, ...
with the same for each statement. A large result is streamed to the result store as a table; the outcome then has
its reference, and `row_count` and `columns` as extracts. Reading `output.data.rows` fetches the table, within the
limits of templates; kind `resolve` reads a part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, json, structs, to_builtins

from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference
from noetl.core.model.tool import Host, ToolCall
from noetl.core.templates.views import KEYS
from noetl.data.files import formats, table_files
from noetl.data.sql import Dialect, steers_transaction, takes_sets
from noetl.data.sql.sql_statements import split
from noetl.tools._common.scripts import ScriptUnavailable, read_script
from noetl.tools._common.sql_fields import COMMAND, INLINE_BYTES, INLINE_ROWS

EXTRACT_BYTES = 4096  # largest result of one statement that an event includes with its rows
_SQL_KEYS = ("command", "sql", "query", "statement")


class Statement(NamedTuple):
    """One statement and its parameters."""

    text: str
    params: Any = None


class BadInput(ValueError):
    """Invalid fields of a task; the message names the field and the reason."""


async def read_statements(call: ToolCall, dialect: Dialect) -> list[Statement]:
    """The task's statements, in order."""
    fields = call.input
    command = next((fields[name] for name in ("command", *COMMAND.aliases) if fields.get(name) is not None), None)
    script = fields.get("script")
    if command is None and isinstance(script, Mapping):
        try:
            command = await read_script(call, script)
        except ScriptUnavailable as failure:
            raise BadInput(str(failure)) from None
    task_params = fields.get("params", fields.get("parameters"))
    items = list(command) if isinstance(command, list | tuple) else [command]
    statements: list[Statement] = []
    for item in items:
        params = task_params
        if isinstance(item, Mapping):
            params = item.get("params", task_params)
            item = next((item[name] for name in _SQL_KEYS if isinstance(item.get(name), str)), None)
        if not isinstance(item, str):
            raise BadInput("no SQL: `command` is a string or a list of strings, or use `script: {uri}`")
        statements += [Statement(text, params) for text in split(item, dialect)]
    if not statements:
        raise BadInput("`command` contains no statement, only white space or comments")
    return statements


def needs_transaction(statements: Sequence[Statement], spec: Mapping[str, Any]) -> bool:
    """Whether the task must begin a transaction: it has several statements, and none of them controls one."""
    if len(statements) < 2 or not flag(spec.get("transaction"), True):
        return False
    return not any(steers_transaction(statement.text) for statement in statements)


def has_parameter_sets(statement: Statement, dialect: Dialect) -> bool:
    """Whether `params` is a list of parameter sets (possibly empty) instead of a single set."""
    params = statement.params
    if not isinstance(params, list | tuple):
        return False
    if not params:
        return takes_sets(statement.text, dialect)
    return all(isinstance(item, Mapping | list) for item in params)


def flag(value: Any, default: bool) -> bool:
    """A boolean, which a template may have rendered as a string."""
    if value is None or value == "":
        return default
    if isinstance(value, str):
        return value.strip().lower() not in ("false", "no", "off", "0", "none")
    return bool(value)


# ── results ─────────────────────────────────────────────────────────────────────────────


class Chunk(Protocol):
    """Some rows of a result, in the driver's representation."""

    columns: Sequence[str]

    def count(self) -> int:
        """Number of rows."""

    def size(self) -> int:
        """Approximate size in bytes."""

    def rows(self) -> list[dict[str, Any]]:
        """The rows as JSON data."""

    def batch(self) -> Any:
        """The rows as an Arrow batch."""


class Result(Struct, frozen=True):
    """Result of one statement."""

    columns: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = []
    row_count: int = 0
    ref: Reference | None = None
    extra: dict[str, Any] = {}

    def data(self) -> dict[str, Any]:
        """The result as part of `output.data`."""
        summary: dict[str, Any] = {"row_count": self.row_count, "columns": list(self.columns), **self.extra}
        if self.ref is not None:
            return {**summary, "ref": to_builtins(self.ref)}
        return {"rows": self.rows, **summary}


class Limits(NamedTuple):
    """Size above which a result is streamed to the store, and the format it is stored in."""

    rows: int = INLINE_ROWS
    bytes: int = INLINE_BYTES
    format: str = "parquet"


def read_limits(spec: Mapping[str, Any]) -> Limits:
    """The limits in a task's spec."""
    try:
        format = formats.format_of(given=spec.get("result_format") or "parquet")
        rows, size = int(spec.get("inline_rows") or INLINE_ROWS), int(spec.get("inline_bytes") or INLINE_BYTES)
    except (TypeError, ValueError) as wrong:
        raise BadInput(f"spec: {wrong}") from None
    if format not in formats.TABULAR:
        raise BadInput(f"spec.result_format: {format!r} is not a table format; use {', '.join(formats.TABULAR)}")
    return Limits(rows, size, format)


async def collect(host: Host, chunks: AsyncGenerator[Chunk, None], limits: Limits) -> Result:
    """Collect a small result in memory; stream a large one to the result store as a table."""
    collected: list[Chunk] = []
    count = size = 0
    columns: Sequence[str] = ()
    async with aclosing(chunks):
        async for chunk in chunks:
            columns = chunk.columns
            collected.append(chunk)
            count += chunk.count()
            size += chunk.size()
            if count > limits.rows or size > limits.bytes:
                return await _store(host, collected, chunks, limits.format)
        rows = [row for chunk in collected for row in chunk.rows()]
    return Result(tuple(columns), rows, len(rows))


async def _store(host: Host, first: list[Chunk], rest: AsyncIterator[Chunk], format: str) -> Result:
    count = 0
    types: tuple[str, ...] | None = None
    columns = tuple(first[0].columns)
    content_type = formats.CONTENT_TYPES[format]

    async def blocks() -> AsyncGenerator[bytes, None]:
        nonlocal count, types
        encoder: Any = None
        async for chunk in _chain(first, rest):
            if encoder is None:
                encoder, types = await asyncio.to_thread(_create_encoder, format, chunk)
            count += chunk.count()
            data = await asyncio.to_thread(_encode, encoder, chunk)
            host.progress(rows=count)
            if data:
                yield data
        yield await asyncio.to_thread(encoder.close)

    reference = await host.put_result(blocks(), content_type=content_type)
    meta = structs.replace(reference.meta, rows=count, columns=columns, types=types)
    return Result(columns, [], count, structs.replace(reference, meta=meta))


def _create_encoder(format: str, chunk: Chunk) -> tuple[Any, tuple[str, ...] | None]:
    """The encoder of a format, and the types of the columns if it has them."""
    if format in ("jsonl", "csv"):
        return table_files.row_encoder(format, chunk.columns), None
    schema = _batch(chunk).schema
    return table_files.encoder(format, schema), tuple(map(str, schema.types))


def _batch(chunk: Chunk) -> Any:
    from pyarrow import ArrowInvalid

    try:
        return chunk.batch()
    except ArrowInvalid as wrong:
        fix = "cast the column in the query, or use spec.result_format: jsonl"
        raise BadInput(f"the result cannot be stored as a table: {wrong}; {fix}") from None


def _encode(encoder: Any, chunk: Chunk) -> bytes:
    data: bytes = encoder.write_rows(chunk.rows()) if hasattr(encoder, "write_rows") else encoder.write(_batch(chunk))
    return data


async def _chain(first: list[Chunk], rest: AsyncIterator[Chunk]) -> AsyncGenerator[Chunk, None]:
    while first:
        yield first.pop(0)  # releases the memory of the chunk
    async for chunk in rest:
        yield chunk


def success(results: Sequence[Result], *, meta: dict[str, Any] | None = None, **helpers: dict[str, Any]) -> Outcome:
    """The outcome of a task whose statements all succeeded.

    If the last result is in the store, its row count and columns are extracts next to the reference."""
    last = results[-1]
    commands = {f"command_{number}": result.data() for number, result in enumerate(results)}
    if last.ref is None:
        return Outcome(status="ok", data={**last.data(), **commands}, meta=meta or {}, helpers=helpers)
    extracts = {name: _extract(data) for name, data in {**last.data(), **commands}.items() if name != "ref"}
    extracts[KEYS] = ["rows", *extracts]
    return Outcome(status="ok", ref=last.ref, extracts=extracts, meta=meta or {}, helpers=helpers)


def _extract(value: Any) -> Any:
    """A statement's result for an event: without its rows if it is large."""
    if isinstance(value, dict) and len(json.encode(value)) > EXTRACT_BYTES:
        return {name: part for name, part in value.items() if name != "rows"}
    return value
