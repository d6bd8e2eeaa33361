"""Reads a payload of any format, or a part of it, without loading the whole.

| format | `select: a.b` | `select: [x, y]` | `limit`, `offset` |
|---|---|---|---|
| JSON | the value at that path | these keys of each row | elements of the list |
| Parquet, Arrow, CSV, JSON lines | `rows`, or one column's values | these columns | rows |
| text | | | lines |
| bytes (given as base64 text) | | | bytes |

The rows of JSON are the selected list, or the document itself, or the list under its key `rows`. Tables are
returned as `{rows, row_count, columns}`, as by the SQL tools.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any, NamedTuple, Protocol

import msgspec

from noetl.core.model.reference import Reference
from noetl.data import arrow_tables as tables
from noetl.data.files import table_files
from noetl.data.files.csv_text import csv_rows
from noetl.data.files.json_stream import JsonStream
from noetl.data.values import unique_names
from noetl.runtime.threads import in_thread

MAX_DECODED_WHOLE = 8 * 1024 * 1024  # smaller payloads are decoded as a whole
MAX_PART = 64 * 1024 * 1024
MAX_LINE = MAX_PART  # bytes of a line, or of a record of CSV


class TooLarge(ValueError):
    """The requested part is larger than the limit of a task."""


class PartNotFound(LookupError):
    """The payload has no such part."""


class Payload(Protocol):
    """Stored bytes of a known size that can be streamed and read in ranges."""

    size: int

    def stream(self) -> AsyncGenerator[bytes, None]:
        """All of it."""

    async def read(self, start: int, count: int) -> bytes:
        """A range of it."""


class MemoryPayload:
    """Bytes in memory."""

    content_type = None

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """All of it."""
        yield self._data

    async def read(self, start: int, count: int) -> bytes:
        """A range of it."""
        return self._data[start : start + count]


class StoredPayload:
    """A payload of a result store; `open` reads it, like `ResultStore.open`."""

    def __init__(self, reference: Reference, open: Callable[..., AsyncIterator[bytes]]) -> None:
        self.size = reference.meta.bytes
        self._reference = reference
        self._open = open

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """All of it."""
        async for chunk in self._open(self._reference):
            yield chunk

    async def read(self, start: int, count: int) -> bytes:
        """A range of it."""
        return b"".join([chunk async for chunk in self._open(self._reference, offset=start, length=count)])


class Part(NamedTuple):
    """The requested part of a payload."""

    select: str | Sequence[str] | None = None
    limit: int | None = None
    offset: int = 0

    @property
    def path(self) -> tuple[str, ...]:
        """The keys of a dotted path."""
        return tuple(self.select.split(".")) if isinstance(self.select, str) and self.select else ()

    @property
    def columns(self) -> list[str] | None:
        """The columns of a list."""
        return None if self.select is None or isinstance(self.select, str) else list(self.select)

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return not self.select and self.limit is None and not self.offset

    def of(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the requested range of a list."""
        end = None if self.limit is None else self.offset + self.limit
        return items[self.offset : end]


async def read_part(
    payload: Payload, format: str, part: Part, *, most: int = MAX_PART, verify: bool = True, path: str | None = None
) -> Any:
    """Return the requested part as plain data.

    With `verify`, the payload is read to its end even if the part is complete before, because its checksum is
    known only then."""
    if format in ("parquet", "arrow"):
        if verify:
            await drain(payload.stream())
        read = _parquet if format == "parquet" else _arrow
        return await _in_thread(payload, lambda file: read(file, part, most))
    stream = payload.stream()
    async with aclosing(stream):
        try:
            return await _sequential(payload, stream, format, part, most, path)
        finally:
            if verify:  # a checksum error is raised instead of the parse error that it caused
                async for _ in stream:
                    continue


async def _sequential(
    payload: Payload, stream: AsyncGenerator[bytes, None], format: str, part: Part, most: int, path: str | None
) -> Any:
    if format == "json":
        return await _json(payload, stream, part, most)
    if format in ("jsonl", "csv"):
        return await _lines(stream, format, part, most, "\t" if path and path.lower().endswith(".tsv") else ",")
    if format == "text":
        return await _text(stream, part, most)
    return await _bytes(stream, part, most)


# ── JSON ────────────────────────────────────────────────────────────────────────────────


async def _json(payload: Payload, stream: AsyncGenerator[bytes, None], part: Part, most: int) -> Any:
    if payload.size <= MAX_DECODED_WHOLE or part.is_all:
        data = await _all(stream, most)
        return _cut(msgspec.json.decode(data), part)
    with closing(JsonStream(stream)) as document:
        return await _streamed_json(document, part, most)


async def _streamed_json(document: JsonStream, part: Part, most: int) -> Any:
    opening = await document.go_to(part.path)
    if opening is None:
        raise PartNotFound(f"the payload has no value at {part.select!r}")
    if opening == "{" and (part.columns or part.limit is not None or part.offset):
        opening = await document.go_to(("rows",))
        if opening != "[":
            raise PartNotFound("`limit`, `offset` and a list of columns need a list: select the path of one")
    if opening != "[":
        value = await document.value(lambda size: _check(size, most))
        _check(_size(value), most)
        return _cut(value, Part(None, part.limit, part.offset))
    rows: list[Any] = []
    size = 0
    if part.limit != 0:
        elements = document.elements(skip=part.offset, check=lambda more: _check(size + more, most))
        async with aclosing(elements):
            async for element in elements:
                size += _size(element)
                _check(size, most)
                rows.append(_project(element, part.columns))
                if part.limit is not None and len(rows) >= part.limit:
                    break
    return rows


def _cut(value: Any, part: Part) -> Any:
    """Return the requested part of a decoded value."""
    for step in part.path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise PartNotFound(f"the payload has no value at {part.select!r} (no {step!r})")
    if part.columns is None and part.limit is None and not part.offset:
        return value
    rows = value["rows"] if isinstance(value, Mapping) and isinstance(value.get("rows"), list) else value
    if not isinstance(rows, list):
        raise PartNotFound("`limit`, `offset` and a list of columns need a list: select the path of one")
    return [_project(row, part.columns) for row in part.of(rows)]


def _project(row: Any, columns: list[str] | None) -> Any:
    if columns is None:
        return row
    if not isinstance(row, Mapping):
        raise PartNotFound("a list of columns needs rows that are mappings")
    return {name: _dotted(row, name) for name in columns}


def _dotted(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    value: Any = row
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


# ── rows in lines ───────────────────────────────────────────────────────────────────────


async def _lines(stream: AsyncIterator[bytes], format: str, part: Part, most: int, delimiter: str) -> Any:
    rows: list[Any] = []
    names: dict[str, None] = {}
    size = seen = 0
    wanted = _wanted(part)
    records = csv_records(stream, delimiter) if format == "csv" else json_records(stream)
    async with aclosing(records):
        async for record, length in records:
            names.update(dict.fromkeys(record) if isinstance(record, Mapping) else {})
            seen += 1
            if seen <= part.offset:
                continue
            if part.limit is not None and len(rows) >= part.limit:
                break
            size += length
            _check(size, most)
            rows.append(_project(record, wanted))
    if format == "csv" and rows:
        _known(wanted, list(names))
    return _shaped(rows, wanted or list(names), part)


async def json_records(stream: AsyncIterator[bytes]) -> AsyncGenerator[tuple[Any, int], None]:
    """The records of JSON lines with their sizes."""
    async for line in lines_of(stream):
        if line.strip():
            yield msgspec.json.decode(line), len(line)


async def csv_records(stream: AsyncIterator[bytes], delimiter: str) -> AsyncGenerator[tuple[Any, int], None]:
    """Records of CSV; a quoted field may hold line breaks, so lines are joined until the quotes match."""
    names: list[str] | None = None
    lines: list[str] = []  # of a record that has not ended
    size = quotes = 0
    first = True
    async for line in lines_of(stream, keep=True):
        lines.append(line.decode("utf-8-sig" if first else "utf-8"))
        first = False
        size += len(line)
        quotes += lines[-1].count('"')
        if quotes % 2:
            if size > MAX_LINE:
                break
            continue
        for cells in csv_rows(io.StringIO("".join(lines), newline=""), delimiter):  # several, if lines end with \r
            if names is None:
                names = unique_names(cells)
            else:
                yield table_files.csv_row(names, cells), sum(map(len, cells))
        lines, size, quotes = [], 0, 0
    if lines:
        raise msgspec.DecodeError("CSV is malformed: a quoted field does not end")


async def lines_of(stream: AsyncIterator[bytes], *, keep: bool = False) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a byte stream; with `keep`, including their line ends. TooLarge if one is too long."""
    pending: list[bytes] = []
    size = 0
    async for chunk in stream:
        first, *lines = chunk.split(b"\n")
        pending.append(first)
        size += len(first)
        if size > MAX_LINE:
            raise TooLarge(f"a line has more than {MAX_LINE} bytes")
        if not lines:
            continue
        lines[:0] = [b"".join(pending)]
        pending = [lines.pop()]
        size = len(pending[0])
        for line in lines:
            yield line + b"\n" if keep else line
    if size:
        yield b"".join(pending)


def _wanted(part: Part) -> list[str] | None:
    """The columns to read: those listed, or the one that a path names."""
    if part.columns is not None:
        return part.columns
    return [str(part.select)] if part.path and part.select != "rows" else None


def _shaped(rows: list[Any], columns: Sequence[str], part: Part) -> Any:
    """Return a table, its rows, or the values of one column."""
    if part.select == "rows":
        return rows
    if part.path:
        name = str(part.select)
        return [row[name] for row in rows]
    return table_files.as_table(rows, columns)


# ── Parquet and Arrow ───────────────────────────────────────────────────────────────────


def _parquet(file: Any, part: Part, most: int) -> Any:
    source = table_files.open_parquet(file)
    names = source.schema_arrow.names
    wanted = _known(_wanted(part), names)
    first, skipped = 0, 0
    groups = source.metadata.num_row_groups
    if part.limit is None:
        _check((source.metadata.num_rows - part.offset) * _row_size(wanted or names), most)
    while first < groups and skipped + source.metadata.row_group(first).num_rows <= part.offset:
        skipped += source.metadata.row_group(first).num_rows
        first += 1
    batches = table_files.parquet_batches(source, 16_384, first=first, columns=wanted)
    rows = _batched_rows(batches, part.offset - skipped, part.limit, most)
    return _shaped([_project(row, wanted) for row in rows], wanted or names, part)


def _arrow(file: Any, part: Part, most: int) -> Any:
    reader = table_files.arrow_reader(file)
    names = reader.schema.names
    wanted = _known(_wanted(part), names)
    batches = (batch.select(wanted) if wanted else batch for batch in reader)
    return _shaped(_batched_rows(batches, part.offset, part.limit, most), wanted or names, part)


def _batched_rows(batches: Any, skip: int, limit: int | None, most: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    size = 0
    if limit == 0:
        return rows
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        left = None if limit is None else limit - len(rows)
        batch = batch.slice(skip, left) if left is not None else batch.slice(skip)
        skip = 0
        size += batch.nbytes + batch.num_rows * _row_size(batch.schema.names)
        _check(size, most)
        rows += tables.rows_of(batch)
        if limit is not None and len(rows) >= limit:
            break
    return rows


def _row_size(names: Sequence[str]) -> int:
    """What a row counts beside its values: rows are mappings, which take many times the memory of columns."""
    return 32 + sum(len(name) + 4 for name in names)


def _known(wanted: list[str] | None, names: Sequence[str]) -> list[str] | None:
    missing = [name for name in wanted or () if name not in names]
    if missing:
        raise PartNotFound(f"the table has no column {', '.join(missing)}; it has {', '.join(names)}")
    return wanted


async def _in_thread(payload: Payload, read: Any) -> Any:
    """Run a function that reads a file on the payload, in a thread."""
    file = RangedFile(payload, asyncio.get_running_loop())
    try:
        return await in_thread(lambda: read(file))
    finally:
        file.close()


class RangedFile(io.RawIOBase):
    """A payload as a file for libraries that seek; every read is a range of the payload.

    Reads are rounded up and the last one is cached, because libraries read a footer in small steps. Read it with
    `in_thread`: the payload may need the threads of the event loop's own pool, which must not all wait for it."""

    AHEAD = 1 << 20

    def __init__(self, payload: Payload, loop: asyncio.AbstractEventLoop) -> None:
        self._payload = payload
        self._loop = loop
        self._position = 0
        self._kept = (0, b"")

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._payload.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, count: int = -1) -> bytes:
        """Read up to `count` bytes."""
        left = self._payload.size - self._position
        count = left if count is None or count < 0 else min(count, left)
        if count <= 0:
            return b""
        start, data = self._kept
        if not (start <= self._position and self._position + count <= start + len(data)):
            ahead = min(max(count, self.AHEAD), left)
            start = self._position
            data = asyncio.run_coroutine_threadsafe(self._payload.read(start, ahead), self._loop).result()
            self._kept = (start, data)
        piece = data[self._position - start : self._position - start + count]
        self._position += len(piece)
        return piece


# ── text and bytes ──────────────────────────────────────────────────────────────────────


async def _text(stream: AsyncIterator[bytes], part: Part, most: int) -> str:
    if part.select:
        raise PartNotFound("`select` needs a structure: this payload is text")
    if part.is_all:
        return (await _all(stream, most)).decode()
    lines: list[bytes] = []
    seen = size = 0
    async for line in lines_of(stream, keep=True):
        seen += 1
        if seen <= part.offset:
            continue
        if part.limit is not None and len(lines) >= part.limit:
            break
        size += len(line)
        _check(size, most)
        lines.append(line)
    return b"".join(lines).decode()


async def _bytes(stream: AsyncIterator[bytes], part: Part, most: int) -> str:
    if part.select:
        raise PartNotFound("`select` needs a structure: this payload is bytes; set its `format`")
    taken = bytearray()
    position = 0
    end = None if part.limit is None else part.offset + part.limit
    async for chunk in stream:
        taken += chunk[max(part.offset - position, 0) : None if end is None else max(end - position, 0)]
        _check(len(taken), most)
        position += len(chunk)
        if end is not None and position >= end:
            break
    return base64.b64encode(taken).decode()


async def _all(stream: AsyncIterator[bytes], most: int) -> bytes:
    data = bytearray()
    async for chunk in stream:
        data += chunk
        _check(len(data), most)
    return bytes(data)


async def drain(stream: AsyncGenerator[bytes, None]) -> None:
    """Read a stream to its end."""
    async with aclosing(stream):
        async for _ in stream:
            continue


def _size(value: Any) -> int:
    """The bytes of a value as JSON."""
    return len(msgspec.json.encode(value))


def _check(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(f"the requested part is larger than {most} bytes: use `select`, `limit` and `offset`")
