"""What the SQL tools have in common: reading their statements, and shaping what they answer.

`output.data` has `rows`, `row_count` and `columns` of the last statement, and `command_0`, `command_1`, ...
with the same of each. A result too large to hold is streamed into the result store as a table:
then `ref` leads to it, and its `row_count` and `columns` travel beside it. Reading `output.data.rows`
fetches it, as far as a template may; `resolve` takes a part of it.
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
from noetl.data import formats, table_files
from noetl.data.sql import Dialect, split, takes_sets
from noetl.tools._common.fields import COMMAND, INLINE_BYTES, INLINE_ROWS

TRAVELS = 4096
_TEXTS = ("command", "sql", "query", "statement")


class Statement(NamedTuple):
    """One statement and the parameters for it."""

    text: str
    params: Any = None


class BadInput(ValueError):
    """The task's parameters do not make sense; the message says which and why."""


async def statements_of(call: ToolCall, dialect: Dialect) -> list[Statement]:
    """The task's statements, in order."""
    given = call.input
    command = next((given[name] for name in ("command", *COMMAND.aliases) if given.get(name) is not None), None)
    script = given.get("script")
    if command is None and isinstance(script, Mapping):
        command = await _script(call, script)
    params = given.get("params", given.get("parameters"))
    items = list(command) if isinstance(command, list | tuple) else [command]
    statements: list[Statement] = []
    for item in items:
        own = params
        if isinstance(item, Mapping):
            own = item.get("params", params)
            item = next((item[name] for name in _TEXTS if isinstance(item.get(name), str)), None)
        if not isinstance(item, str):
            raise BadInput("there is no SQL to run: give `command` a text, a list of texts, or `script: {uri}`")
        statements += [Statement(text, own) for text in split(item, dialect)]
    if not statements:
        raise BadInput("`command` holds no statement, only blanks or comments")
    return statements


async def _script(call: ToolCall, script: Mapping[str, Any]) -> str:
    uri = script.get("uri")
    if not uri:
        raise BadInput("script needs a `uri`: the file, URL or object that holds the SQL")
    try:
        source = await call.host.fetch_source(str(uri), source=script.get("source"))
        return source.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"the script {uri} is not UTF-8 text") from None
    except OSError as failure:
        raise BadInput(f"the script {uri} cannot be read: {failure.strerror or failure}") from None


def is_many(statement: Statement, dialect: Dialect) -> bool:
    """Whether `params` is a list of parameter sets (maybe of none) rather than one."""
    params = statement.params
    if not isinstance(params, list | tuple):
        return False
    if not params:
        return takes_sets(statement.text, dialect)
    return all(isinstance(item, Mapping | list) for item in params)


def flag(value: Any, default: bool) -> bool:
    """A yes or no of `spec`, which may come from a template as text."""
    if value is None or value == "":
        return default
    if isinstance(value, str):
        return value.strip().lower() not in ("false", "no", "off", "0", "none")
    return bool(value)


# ── results ─────────────────────────────────────────────────────────────────────────────


class Chunk(Protocol):
    """Some rows of a result, in whatever form the driver has them."""

    columns: Sequence[str]

    def count(self) -> int:
        """How many rows."""

    def size(self) -> int:
        """About how many bytes."""

    def rows(self) -> list[dict[str, Any]]:
        """As plain JSON data."""

    def batch(self) -> Any:
        """As an Arrow batch."""


class Result(Struct, frozen=True):
    """What one statement answered."""

    columns: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = []
    row_count: int = 0
    ref: Reference | None = None
    extra: dict[str, Any] = {}

    def data(self) -> dict[str, Any]:
        """As part of `output.data`."""
        known: dict[str, Any] = {"row_count": self.row_count, "columns": list(self.columns), **self.extra}
        if self.ref is not None:
            return {**known, "ref": to_builtins(self.ref)}
        return {"rows": self.rows, **known}


class Limits(NamedTuple):
    """When a result is streamed into the store, and as what."""

    rows: int = INLINE_ROWS
    bytes: int = INLINE_BYTES
    format: str = "parquet"


def limits_of(spec: Mapping[str, Any]) -> Limits:
    """The limits a task's spec asks for."""
    try:
        format = formats.format_of(given=spec.get("result_format") or "parquet")
        rows, size = int(spec.get("inline_rows") or INLINE_ROWS), int(spec.get("inline_bytes") or INLINE_BYTES)
    except (TypeError, ValueError) as wrong:
        raise BadInput(f"spec: {wrong}") from None
    if format not in formats.TABULAR:
        raise BadInput(f"spec.result_format: {format!r} is no table's: use {', '.join(formats.TABULAR)}")
    return Limits(rows, size, format)


async def collect(host: Host, chunks: AsyncGenerator[Chunk, None], limits: Limits) -> Result:
    """A result in memory if it is small, else as a table in the result store."""
    held: list[Chunk] = []
    count = size = 0
    columns: Sequence[str] = ()
    async with aclosing(chunks):
        async for chunk in chunks:
            columns = chunk.columns
            held.append(chunk)
            count += chunk.count()
            size += chunk.size()
            if count > limits.rows or size > limits.bytes:
                return await _stored(host, held, chunks, limits.format)
        rows = [row for chunk in held for row in chunk.rows()]
    return Result(tuple(columns), rows, len(rows))


async def _stored(host: Host, held: list[Chunk], chunks: AsyncIterator[Chunk], format: str) -> Result:
    count = 0
    columns = tuple(held[0].columns)
    content_type = formats.CONTENT_TYPES[format]

    async def pieces() -> AsyncGenerator[bytes, None]:
        nonlocal count
        encoder: Any = None
        async for chunk in _each(held, chunks):
            if encoder is None:
                encoder = await asyncio.to_thread(_encoder, format, chunk)
            count += chunk.count()
            data = await asyncio.to_thread(_encoded, encoder, chunk)
            host.progress(rows=count)
            if data:
                yield data
        yield await asyncio.to_thread(encoder.close)

    reference = await host.put_result(pieces(), content_type=content_type)
    meta = structs.replace(reference.meta, rows=count, columns=columns)
    return Result(columns, [], count, structs.replace(reference, meta=meta))


def _encoder(format: str, chunk: Chunk) -> Any:
    if format in ("jsonl", "csv"):
        return table_files.row_encoder(format, chunk.columns)
    return table_files.encoder(format, _batch(chunk).schema)


def _batch(chunk: Chunk) -> Any:
    from pyarrow import ArrowInvalid

    try:
        return chunk.batch()
    except ArrowInvalid as wrong:
        way_out = "cast the column in the query, or use spec.result_format: jsonl"
        raise BadInput(f"the result cannot be stored as a table: {wrong}; {way_out}") from None


def _encoded(encoder: Any, chunk: Chunk) -> bytes:
    data: bytes = encoder.write_rows(chunk.rows()) if hasattr(encoder, "write_rows") else encoder.write(_batch(chunk))
    return data


async def _each(held: list[Chunk], chunks: AsyncIterator[Chunk]) -> AsyncGenerator[Chunk, None]:
    while held:
        yield held.pop(0)
    async for chunk in chunks:
        yield chunk


def answer(results: Sequence[Result], *, meta: dict[str, Any] | None = None, **helpers: dict[str, Any]) -> Outcome:
    """The outcome of a task whose statements all succeeded.

    When the last result is in the store, what is known of it travels beside its reference."""
    last = results[-1]
    commands = {f"command_{number}": result.data() for number, result in enumerate(results)}
    if last.ref is None:
        return Outcome(status="ok", data={**last.data(), **commands}, meta=meta or {}, helpers=helpers)
    known = {name: _brief(data) for name, data in {**last.data(), **commands}.items() if name != "ref"}
    known[KEYS] = ["rows", *known]
    return Outcome(status="ok", ref=last.ref, extracts=known, meta=meta or {}, helpers=helpers)


def _brief(value: Any) -> Any:
    """A statement's answer that may travel in an event: without its rows when they are many."""
    if isinstance(value, dict) and len(json.encode(value)) > TRAVELS:
        return {name: part for name, part in value.items() if name != "rows"}
    return value
