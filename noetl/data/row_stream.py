"""The rows of a stored payload, one after the other: JSON lists, JSON lines, CSV, Parquet and Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

from noetl.core.model.reference import Reference
from noetl.data import arrow_tables as tables
from noetl.data.files import table_files
from noetl.data.files.formats import format_of
from noetl.data.files.json_stream import JsonStream
from noetl.data.payload_reader import RangedFile, StoredPayload, csv_records, drain, json_records
from noetl.runtime.threads import in_thread

BATCH = 10_000  # rows of a table file that are in memory at a time


class NotRows(ValueError):
    """A payload that is not a list of rows."""


async def rows_of(reference: Reference, open_: Callable[..., AsyncIterator[bytes]]) -> AsyncGenerator[Any, None]:
    """The rows of a payload; text formats are parsed as they are read, table files in batches."""
    content_type = reference.meta.content_type.partition(";")[0].strip().lower()
    format = format_of(content_type=content_type, default="text")
    payload = StoredPayload(reference, open_)
    if format == "json":
        rows = _json_rows(payload)
    elif format in ("jsonl", "csv"):
        rows = _records(payload, format)
    elif format in ("parquet", "arrow"):
        rows = _table_rows(payload, format)
    else:
        raise NotRows(f"a payload of type {content_type} is not a list of rows")
    async with aclosing(rows):
        async for row in rows:
            yield row


async def _json_rows(payload: StoredPayload) -> AsyncGenerator[Any, None]:
    with closing(JsonStream(payload.stream())) as document:
        opening = await document.go_to(())
        if opening == "{":
            opening = await document.go_to(("rows",))
        if opening != "[":
            raise NotRows("the payload is not a list")
        async for row in document.elements():
            yield row


async def _records(payload: StoredPayload, format: str) -> AsyncGenerator[Any, None]:
    stream = payload.stream()
    records = csv_records(stream, ",") if format == "csv" else json_records(stream)
    async for record, _ in records:
        yield record


async def _table_rows(payload: StoredPayload, format: str) -> AsyncGenerator[Any, None]:
    await drain(payload.stream())  # its checksum is known at the end
    with closing(RangedFile(payload, asyncio.get_running_loop())) as file:
        batches = await in_thread(lambda: _batches(file, format))
        while (batch := await in_thread(lambda: next(batches, None))) is not None:
            for row in tables.rows_of(batch):
                yield row


def _batches(file: RangedFile, format: str) -> Iterator[Any]:
    if format == "parquet":
        return table_files.parquet_batches(table_files.open_parquet(file), BATCH)
    return iter(table_files.arrow_reader(file))
