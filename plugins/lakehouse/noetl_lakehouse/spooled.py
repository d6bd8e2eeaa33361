"""What both kinds share: rows are collected in a temporary file and written to the table by one commit.

Until then nothing of the table changes. The file has the rows by partition, so that data files are written one after
the other, each from a part of bounded size: the memory does not grow with the rows. A commit has the idempotency key of
the task: if a worker is lost after it, the next attempt finds the key and writes nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from noetl.tool import ConnectorError, RowTarget, TargetCall, auth_fields

MAX_PARTITIONS = 1_000  # that one transfer may replace
PART_BYTES = 4 << 20  # of rows that are in memory together
FILE_BYTES = 512 << 20  # of the rows of a data file, before they are compressed
PREFIXES = ("aws_", "s3_")


class SpooledTarget(RowTarget):
    """Collects the rows; `begin_table` and `write_table` are those of the kind."""

    stores_times = False  # of the day
    case_matters = False  # in names of columns

    def __init__(self, call: TargetCall) -> None:
        super().__init__(call)
        given = call.fields.get("partition_by") or []
        self.partition_by: list[str] = [given] if isinstance(given, str) else [str(name) for name in given]
        self.divided_by = self.partition_by  # the partition columns of the table, also if the task does not name them
        self.partitions: dict[tuple[Any, ...], list[tuple[int, int]]] = {}  # of the rows -> batches and their bytes
        self._batches = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._writer: Any = None
        self.schema: Any = None
        self.done = False  # by an earlier attempt

    # ── of the kind ─────────────────────────────────────────────────────────────────────

    def begin_table(self, schema: Any, storage: dict[str, str]) -> Any:
        """Open the table; the schema of its rows. Sets `done` if this task has written its rows already."""
        raise NotImplementedError

    def write_table(self) -> None:
        """Write all rows (`data_files`) by one commit."""
        raise NotImplementedError

    # ── the calls of a transfer ─────────────────────────────────────────────────────────

    async def begin(self, schema: Any) -> None:
        """Open the table, and the file for its rows."""
        plain = pa.schema([_stored_field(field, times=self.stores_times) for field in schema])
        missing = [name for name in self.partition_by if name not in plain.names]
        if missing:
            raise ConnectorError(f"`partition_by` has {missing[0]!r}; columns: {', '.join(plain.names)}")
        _check_names(self.partition_by, "`partition_by`")
        _check_names([name if self.case_matters else name.lower() for name in plain.names], "the source")
        credential = await auth_fields(self.call.fields.get("auth"), self.call.host, prefixes=PREFIXES)
        self.schema = await asyncio.to_thread(self.begin_table, plain, _storage(credential))
        unknown = [name for name in plain.names if name not in self.schema.names]
        if unknown:
            raise ConnectorError(f"the table has no column {unknown[0]!r}; columns: {', '.join(self.schema.names)}")
        self._folder = tempfile.TemporaryDirectory(prefix="noetl-lakehouse-")
        self._writer = ipc.new_file(str(self._path), self.schema)

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, "rows.arrow")

    async def write(self, table: Any) -> None:
        """Add rows to the file."""
        if not self.done:
            await asyncio.to_thread(self._spool, table)

    def _spool(self, table: Any) -> None:
        rows = pa.table([self._column(table, field) for field in self.schema], schema=self.schema)
        for values, part in _divided(rows, self.divided_by):
            self._writer.write_batch(part)
            self.partitions.setdefault(values, []).append((self._batches, part.nbytes))
            self._batches += 1
        if self.call.mode == "replace" and self.partition_by and len(self.partitions) > MAX_PARTITIONS:
            raise ConnectorError(f"the rows are in more than {MAX_PARTITIONS:,} partitions; use fewer or `append`")

    def _column(self, table: Any, field: Any) -> Any:
        if field.name not in table.schema.names:
            return pa.nulls(table.num_rows, field.type)
        column = table.column(field.name)
        try:
            return _stored_column(column, times=self.stores_times).cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
            raise ConnectorError(f"column {field.name!r} of the table is {field.type}: {wrong}") from None

    async def write_empty(self) -> None:
        """Without rows and columns nothing is known that could be replaced."""
        if self.call.mode == "replace" and not self.partition_by:
            raise ConnectorError("the source has neither rows nor columns, so the table cannot be replaced")

    async def commit(self) -> None:
        """Write the rows to the table."""
        if self._writer is None:
            return
        self._writer.close()
        try:
            if not self.done:
                await asyncio.to_thread(self.write_table)
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Remove the file."""
        folder, self._folder, self._writer = self._folder, None, None
        if folder is not None:
            folder.cleanup()  # not in a thread: a cancelled call that waits for one is not made

    def data_files(self) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        """The data files to write: the values of the partition, and its rows in parts of bounded size."""
        with pa.OSFile(str(self._path)) as file, ipc.open_file(file) as reader:
            for values, batches in self.partitions.items():
                for group in _groups(batches, FILE_BYTES):
                    yield values, (_part(reader, part) for part in _groups(group, PART_BYTES))


def _check_names(names: list[str], where: str) -> None:
    if "" in names:
        raise ConnectorError(f"{where} has a column without a name; name it with `mapping`")
    repeated = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if repeated is not None:
        raise ConnectorError(
            f"{where} has the column {repeated!r} twice; the table distinguishes no upper and lower case"
        )


def _part(reader: Any, batches: list[tuple[int, int]]) -> Any:
    pa.default_memory_pool().release_unused()
    return pa.Table.from_batches([reader.get_batch(number) for number, _ in batches])


def _groups(batches: list[tuple[int, int]], limit: int) -> Iterator[list[tuple[int, int]]]:
    """The batches in groups with at least as many bytes."""
    group: list[tuple[int, int]] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch[1]
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group


def _divided(rows: Any, names: list[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The rows as one batch for each partition, in their order."""
    if not rows.num_rows:
        return
    codes = pa.nulls(rows.num_rows, pa.int64()).fill_null(0)
    for name in names:
        column = pa.concat_arrays(rows.column(name).chunks).dictionary_encode(null_encoding="encode")
        codes = pc.add(pc.multiply(codes, len(column.dictionary)), column.indices.cast(pa.int64()))
    order = pc.sort_indices(codes)
    ends = pc.run_end_encode(codes.take(order)).run_ends.to_pylist()
    for start, end in pairwise([0, *ends]):
        part = rows.take(order.slice(start, end - start)).combine_chunks().to_batches()[0]
        yield tuple(part.column(name)[0].as_py() for name in names), part


_STORAGE = {
    "access_key_id": ("access_key_id", "key_id", "key"),
    "secret_access_key": ("secret_access_key", "secret"),
    "session_token": ("session_token", "token"),
    "region": ("region",),
    "endpoint": ("endpoint", "endpoint_url"),
}


def _storage(credential: Mapping[str, Any]) -> dict[str, str]:
    """The settings of the object store in a credential, under one name each."""
    found = {name: [credential[each] for each in names if credential.get(each)] for name, names in _STORAGE.items()}
    return {name: str(values[0]) for name, values in found.items() if values}


def _stored_field(field: Any, *, times: bool) -> Any:
    """The column that keeps the values of a field exactly; what the format has no type for is text."""
    return pa.field(field.name, _stored_type(field.type, times=times))


def _stored_type(type: Any, *, times: bool) -> Any:
    if pa.types.is_unsigned_integer(type):
        return pa.decimal128(20, 0) if type.bit_width == 64 else pa.int64()
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", tz="UTC" if type.tz else None)
    if pa.types.is_time(type):
        return pa.time64("us") if times else pa.string()
    if (
        pa.types.is_decimal256(type)
        or pa.types.is_null(type)
        or pa.types.is_duration(type)
        or pa.types.is_interval(type)
    ):
        return pa.string()
    if pa.types.is_large_string(type):
        return pa.string()
    if pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        return pa.binary()
    if pa.types.is_float16(type):
        return pa.float32()
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(_stored_type(type.value_type, times=times))
    if pa.types.is_struct(type):
        return pa.struct([_stored_field(each, times=times) for each in type])
    return type


def _stored_column(column: Any, *, times: bool) -> Any:
    kind = _stored_type(column.type, times=times)
    if kind == column.type:
        return column
    if pa.types.is_string(kind) and not (pa.types.is_large_string(column.type) or pa.types.is_time(column.type)):
        return pa.chunked_array(
            [pa.array([None if value is None else str(value) for value in column.to_pylist()], kind)]
        )
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return pc.cast(column, kind, safe=False)
    return column.cast(kind)
