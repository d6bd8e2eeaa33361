"""Rows of files, objects and stored results.

Parquet and Arrow are read in ranges from wherever they are. CSV and JSON are read by DuckDB, which finds
out their types, from a local copy if need be: memory stays small whatever their size.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from duckdb import BinderException, InvalidInputException

from noetl.connections import duckdb, objects
from noetl.connections.auth import fields_of
from noetl.core.model.tool import ToolCall
from noetl.data import arrow_tables as tables
from noetl.data import duckdb_files as duck_files
from noetl.data import formats, table_files
from noetl.data import payload_reader as reading
from noetl.data.content import file_blocks, save
from noetl.data.sql import bind
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.sources.arrow_rows import JSONS, NUMERICS, word_type

ROWS = 10_000  # of a batch


class ObjectSource:
    """Parquet, Arrow, CSV, JSON or JSON lines, in an object store or a file; `*` matches several files."""

    def __init__(self, call: ToolCall, fields: dict[str, Any], path: str | None) -> None:
        self._call = call
        self._fields = fields
        self._path = path

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        address = str(self._fields["uri"])
        known = await fields_of(self._fields.get("auth"), self._call.host, prefixes=objects.PREFIXES)
        place = place_of(self._call, self._fields, address, known)
        if place.scheme == "file":
            stream = self._local(f"{place.bucket}/{place.key}")
            async with aclosing(stream):
                async for batch in stream:
                    yield batch
            return
        store = objects.shared_store(place, known, connect=self._call.timeout.connect, total=self._call.timeout.total)
        payload = await objects.payload_of(store, place.key)
        format = formats.format_of(given=self._fields.get("format"), content_type=payload.content_type, path=place.key)
        if format in ("parquet", "arrow"):
            ranged = ranged_batches(payload, format)
            async with aclosing(ranged):
                async for batch in ranged:
                    yield batch
            return
        with tempfile.TemporaryDirectory(prefix="noetl-transfer-") as folder:
            local = str(Path(folder, f"object.{format}"))
            await save(payload.stream(), local)
            stream = self._local(local, format)
            async with aclosing(stream):
                async for batch in stream:
                    yield batch

    async def _local(self, path: str, format: str | None = None) -> AsyncGenerator[Any, None]:
        format = format or formats.format_of(given=self._fields.get("format"), path=path.rstrip("*"))
        if not any(mark in path for mark in "*?[") and not await asyncio.to_thread(Path(path).exists):
            raise FileNotFoundError(2, "there is no such file", path)
        stream = file_batches(path, format, self._path, self._fields.get("types"))
        async with aclosing(stream):
            async for batch in stream:
                yield batch

    async def count(self) -> int | None:
        """Not known before."""
        return None

    async def close(self) -> None:
        """Nothing is held."""


def place_of(
    call: ToolCall, fields: Mapping[str, Any], address: str, known: Mapping[str, Any]
) -> objects.ObjectLocation:
    """An address of a source or target; relative paths are the playbook's, a bucket may be the credential's."""
    scheme, bucket = fields.get("provider"), fields.get("bucket") or known.get("bucket")
    if "://" not in address and (scheme or "file") == "file":
        return objects.parse_location(call.host.resolve_path(f"{bucket}/{address}" if bucket else address))
    return objects.parse_location(address, scheme=scheme, bucket=bucket)


async def file_batches(path: str, format: str, rows_path: str | None, types: Any = None) -> AsyncGenerator[Any, None]:
    """The rows of local files: DuckDB reads them, and finds out their types."""
    if format == "arrow":
        stream = ranged_batches(LocalPayload(path), "arrow")
    elif format in ("parquet", "csv", "json", "jsonl"):
        stream = _duckdb_batches(path, format, rows_path, types)
    else:
        raise BadInput(f"{path} is {format}: rows come from Parquet, Arrow, CSV, JSON or JSON lines; say its `format`")
    async with aclosing(stream):
        async for batch in stream:
            yield batch


_TYPES = {
    "string": "VARCHAR", "int64": "BIGINT", "float64": "DOUBLE", "bool_": "BOOLEAN", "date32": "DATE",
}  # fmt: skip


def _wanted(types: Any) -> dict[str, str]:
    """What the source's `types` say, in DuckDB's words; numbers of any size are text that remembers what it is."""
    if types is not None and not isinstance(types, Mapping):
        raise BadInput("`types` of the source is a map: column -> type")
    return {
        str(name): "JSON" if word in JSONS else _TYPES.get(word_type(str(name), word), "VARCHAR")
        for name, word in ((name, str(kind).lower()) for name, kind in (types or {}).items())
    }


async def _duckdb_batches(path: str, format: str, rows_path: str | None, types: Any) -> AsyncGenerator[Any, None]:
    wanted = _wanted(types)
    numbers = {str(name) for name, kind in (types or {}).items() if str(kind).lower() in NUMERICS}
    database = duckdb.database(duckdb.MEMORY)
    async with database.cursor(writes=False) as cursor:

        def run() -> Any:
            if format == "parquet":
                query = f"SELECT * FROM read_parquet({duck_files.literal(path)})"
            elif format == "csv":
                query = f"SELECT * FROM {duck_files.csv_call(path, wanted)}"
            else:
                query = duck_files.json_query(cursor, path, format, rows_path.split(".") if rows_path else [], wanted)
            return duckdb.run_statement(cursor, bind(query, None, "duckdb"))

        try:
            _, parts, _ = await in_thread(run, interrupt=cursor.interrupt)
            stream = duckdb.batches(cursor, parts)
            async with aclosing(stream):
                async for batch in stream:
                    yield _marked(writable(batch), numbers, mixed=format in ("json", "jsonl"))
        except BinderException as failure:
            if not rows_path:
                raise
            raise BadInput(f"{path} has no list of rows at {rows_path!r} (chunk.path): {failure}") from None
        except InvalidInputException:
            wrong = await asyncio.to_thread(duck_files.misfit, path) if format == "csv" else None
            if wrong is None:
                raise
            raise BadInput(wrong) from None


def _marked(batch: Any, numbers: set[str], *, mixed: bool) -> Any:
    """The batch, in whose schema columns remember more of what they are."""
    import pyarrow as pa

    fields = []
    for field in batch.schema:
        if field.name in numbers:
            field = field.with_metadata({"noetl": "number"})
        elif mixed and tables.meaning_of(field) == "json":
            field = field.with_metadata({"noetl": "json", "noetl_mixed": "true"})
        fields.append(field)
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


async def ranged_batches(payload: reading.Payload, format: str) -> AsyncGenerator[Any, None]:
    """The batches of a Parquet or Arrow payload that is read in ranges."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = reading.RangedFile(payload, asyncio.get_running_loop())
    try:
        if format == "parquet":
            opened = await in_thread(lambda: pq.ParquetFile(file))
            batches, schema = opened.iter_batches(batch_size=ROWS), opened.schema_arrow
        else:
            reader = await in_thread(lambda: table_files.arrow_reader(file))
            batches, schema = iter(reader), reader.schema
        seen = False
        while (batch := await in_thread(lambda: next(batches, None))) is not None:
            seen = True
            yield writable(batch)
        if not seen:
            yield writable(pa.RecordBatch.from_pylist([], schema=schema))
    finally:
        file.close()


class LocalPayload:
    """A local file as something to read in ranges."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.size = Path(path).stat().st_size

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """All of it."""
        async for block in file_blocks(self._path):
            yield block

    async def read(self, start: int, count: int) -> bytes:
        """A range of it."""

        def read() -> bytes:
            with Path(self._path).open("rb") as file:
                file.seek(start)
                return file.read(count)

        return await asyncio.to_thread(read)


class ReferenceSource:
    """A stored result."""

    def __init__(self, call: ToolCall, reference: Any, path: str | None) -> None:
        self._call = call
        self._reference = reference
        self._path = path

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows; the payload is verified before the first of them is given."""
        format = formats.format_of(content_type=self._reference.meta.content_type)
        with tempfile.TemporaryDirectory(prefix="noetl-transfer-") as folder:
            local = str(Path(folder, f"payload.{format}"))
            await save(self._call.host.open_result(self._reference), local)
            stream = file_batches(local, format, self._path)
            async with aclosing(stream):
                async for batch in stream:
                    yield batch

    async def count(self) -> int | None:
        """What the reference says."""
        rows: int | None = self._reference.meta.rows
        return rows

    async def close(self) -> None:
        """Nothing is held."""


def writable(batch: Any) -> Any:
    """A batch in types that every target knows: dictionaries decoded, intervals as text."""
    import pyarrow as pa

    schema = batch.schema
    arrays, fields = [], []
    changed = False
    for array, field in zip(batch.columns, schema, strict=True):
        kind = field.type
        if pa.types.is_dictionary(kind):
            array, changed = array.cast(kind.value_type), True
        elif pa.types.is_interval(kind):
            array, changed = pa.array(tables.plain_column(array, field), pa.string()), True
        elif isinstance(array, pa.ExtensionArray):
            array, changed = array.storage, True
        arrays.append(array)
        fields.append(pa.field(field.name, array.type, metadata=field.metadata))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if changed else batch
