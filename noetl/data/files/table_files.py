"""Tables in files: incremental encoding of batches and rows, and decoding of whole contents."""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import msgspec

from noetl.data.arrow_tables import batch_of_mappings, inferred_schema, is_mixed, meaning_of, plain_column, rows_of
from noetl.data.files.compression import Compressor, compression_of, without_ending
from noetl.data.files.csv_text import csv_rows
from noetl.data.files.formats import CONTENT_TYPES, CSV, JSON, JSONL, TABULAR
from noetl.data.values import jsonable, unique_names
from noetl.runtime.malloc import release_memory, returning_blocks
from noetl.runtime.temporary_folders import TemporaryFolder

_encode = msgspec.json.Encoder().encode

# ── batches to bytes ────────────────────────────────────────────────────────────────────


class Encoder(Protocol):
    """Encodes batches as the bytes of a file, incrementally."""

    content_type: str

    def write(self, batch: Any) -> bytes:
        """Return the bytes that are complete (may be none)."""

    def close(self) -> bytes:
        """Return the rest."""


def encoder(format: str, schema: Any, **options: Any) -> Encoder:
    """An encoder for `parquet`, `arrow`, `jsonl`, `json` or `csv`."""
    if format in ("parquet", "arrow"):
        return _ArrowEncoder(format, schema, **options)
    if format in ("json", "jsonl"):
        return _JsonEncoder(lines=format == "jsonl")
    if format == "csv":
        return _CsvEncoder(schema.names, **options)
    raise ValueError(f"format {format!r} is not a format of tables: use parquet, arrow, jsonl, json or csv")


def encoder_for(format: str, schema: Any, path: str) -> Any:
    """An encoder for the file of this name: its extension says whether it is compressed, and whether it has tabs."""
    tabs = format == "csv" and without_ending(path).lower().endswith(".tsv")
    found = encoder(format, schema, **({"delimiter": "\t"} if tabs else {}))
    compression = compression_of(None, path, format)
    return found if compression is None else _CompressedEncoder(found, compression)


class _CompressedEncoder:
    """Compresses what another encoder returns."""

    def __init__(self, encoder: Encoder, compression: str) -> None:
        self._encoder, self._compressor = encoder, Compressor(compression)

    def write(self, batch: Any) -> bytes:
        """Encode a batch; returns the bytes that are complete."""
        return self._compressor.write(self._encoder.write(batch))

    def close(self) -> bytes:
        """The rest of the file."""
        return self._compressor.write(self._encoder.close()) + self._compressor.close()


def row_encoder(format: str, names: Sequence[str], **options: Any) -> Any:
    """An encoder for `jsonl`, `json` or `csv` that is given rows of plain data by `write_rows`."""
    if format == "csv":
        return _CsvEncoder(names, **options)
    return _JsonEncoder(lines=format == "jsonl")


class _Sink(io.RawIOBase):
    """A file that holds only what was written since the last `take`."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Append to the buffer."""
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        """The number of bytes written in total."""
        return self._position

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = b"".join(self._pieces)
        self._pieces = []
        return taken


GROUP_BYTES = 16 << 20  # of a row group before it is packed


class _ArrowEncoder:
    def __init__(self, format: str, schema: Any, *, compression: str | None = "", group: int = 100_000) -> None:
        import pyarrow as pa

        self.content_type = CONTENT_TYPES[format]
        self._sink = _Sink()
        self._group = group
        self._pending: list[Any] = []
        self._rows = self._bytes = 0
        self._parquet = format == "parquet"
        if self._parquet:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(
                self._sink, schema, compression="zstd" if compression == "" else compression or "none"
            )
        else:
            options = pa.ipc.IpcWriteOptions(compression=compression if compression == "zstd" else None)
            self._writer = pa.ipc.new_stream(self._sink, schema, options=options)

    def write(self, batch: Any) -> bytes:
        if self._parquet:  # row groups worth the name, however small the batches are
            if batch.num_rows:
                self._pending.append(batch)
                self._rows += batch.num_rows
                self._bytes += batch.nbytes
            if self._rows >= self._group or self._bytes >= GROUP_BYTES:
                self._flush()
        else:
            self._writer.write_batch(batch)
        return self._sink.take()

    def close(self) -> bytes:
        if self._pending:
            self._flush()
        self._writer.close()
        return self._sink.take()

    @property
    def pending(self) -> int:
        """Bytes of rows that wait for the end of their row group."""
        return self._bytes

    def flush(self) -> bytes:
        """End the row group."""
        if self._pending:
            self._flush()
        return self._sink.take()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(self._pending), row_group_size=self._rows)
        self._pending, self._rows, self._bytes = [], 0, 0


class _JsonEncoder:
    def __init__(self, *, lines: bool) -> None:
        self.content_type = JSONL if lines else JSON
        self._lines = lines
        self._begun = False

    def write(self, batch: Any) -> bytes:
        columns = [_json_column(batch.column(number), field) for number, field in enumerate(batch.schema)]
        return self.write_rows([dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)])

    def write_rows(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        pieces = [_encode(row) for row in rows]
        if self._lines:
            return b"\n".join(pieces) + b"\n" if pieces else b""
        if not pieces:
            return b""
        head = b",\n" if self._begun else b"["
        self._begun = True
        return head + b",\n".join(pieces)

    def close(self) -> bytes:
        if self._lines:
            return b""
        return b"]\n" if self._begun else b"[]\n"


class _CsvEncoder:
    """CSV as PostgreSQL writes it: null is empty, an empty text is `""`."""

    def __init__(self, names: Sequence[str], *, header: bool = True, delimiter: str = ",") -> None:
        self.content_type = CSV
        self._names = list(names)
        self._header = header
        self._delimiter = delimiter
        self._special = re.compile(f'[{re.escape(delimiter)}"\\r\\n]')

    def write(self, batch: Any) -> bytes:
        columns = [csv_column(batch.column(number), field) for number, field in enumerate(batch.schema)]
        return self._lines(zip(*columns, strict=True))

    def write_rows(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        return self._lines([row.get(name) for name in self._names] for row in rows)

    def close(self) -> bytes:
        return self._lines(())  # the header, if there were no rows

    def _lines(self, rows: Iterable[Iterable[Any]]) -> bytes:
        lines = [self._delimiter.join([self._cell(value) for value in row]) for row in rows]
        if self._header:
            lines.insert(0, self._delimiter.join([self._cell(name) for name in self._names]))
            self._header = False
        return ("\n".join(lines) + "\n").encode() if lines else b""

    def _cell(self, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if not text or self._special.search(text):
            return '"' + text.replace('"', '""') + '"'
        return text


def csv_column(column: Any, field: Any) -> list[Any]:
    """The values of a column as CSV has them: plain data, and JSON documents as JSON."""
    if meaning_of(field) == "json" and not is_mixed(field):
        texts: list[Any] = getattr(column, "storage", column).to_pylist()
        return texts
    return plain_column(column, field)


def _json_column(column: Any, field: Any) -> list[Any]:
    """The values of a column as JSON has them: JSON documents on one line, with all digits of their numbers."""
    if meaning_of(field) != "json":
        return plain_column(column, field)
    texts = getattr(column, "storage", column).to_pylist()
    return [None if text is None else msgspec.Raw(msgspec.json.format(text.encode(), indent=-1)) for text in texts]


def encode_rows(rows: Iterable[Mapping[str, Any]], format: str, **options: Any) -> bytes:
    """Rows of plain data as the bytes of a file."""
    rows = list(rows)
    schema = inferred_schema(rows)
    writer = encoder(format, schema, **options)
    return writer.write(batch_of_mappings(rows, schema)) + writer.close()


def encode_value(value: Any, format: str, **options: Any) -> bytes:
    """Any value as the bytes of a file; tables are lists of mappings, or `{rows: [...]}`."""
    if format in ("parquet", "arrow", "jsonl", "csv"):
        rows = value.get("rows") if isinstance(value, Mapping) and isinstance(value.get("rows"), list) else value
        if isinstance(rows, Mapping):
            rows = [rows]
        if isinstance(rows, str | bytes) and format in ("csv", "jsonl"):
            return rows.encode() if isinstance(rows, str) else rows
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(f"format {format} needs a list of mappings (or a mapping with `rows`)")
        return encode_rows(rows, format, **options)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if format == "json":
        return msgspec.json.encode(jsonable(value))
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(jsonable(value))


# ── bytes to rows ───────────────────────────────────────────────────────────────────────


def csv_row(names: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    """A row of CSV: every value is text; what is missing is null, what is too much is `_rest`."""
    row: dict[str, Any] = dict(zip(names, [*cells, *[None] * (len(names) - len(cells))], strict=False))
    if len(cells) > len(names):
        row["_rest"] = list(cells[len(names) :])
    return row


def decode(data: bytes, format: str, *, path: str | None = None) -> Any:
    """The value of a whole payload: JSON as it is, a table as `{rows, row_count, columns}`, else text or bytes."""
    if format in ("json", "jsonl"):
        data = data.removeprefix(codecs.BOM_UTF8)
    if format == "json":
        return msgspec.json.decode(data)
    if format == "text":
        return data.decode()
    if format in TABULAR:
        return as_table(*_decode_rows(data, format, path))
    return data


def as_table(rows: list[dict[str, Any]], columns: Sequence[str]) -> dict[str, Any]:
    """Return a table in the form that playbooks read, the same for every tool."""
    return {"rows": rows, "row_count": len(rows), "columns": list(columns)}


def _decode_rows(data: bytes, format: str, path: str | None) -> tuple[list[dict[str, Any]], Sequence[str]]:
    if format == "jsonl":
        rows = [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
        return rows, list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
    if format == "csv":
        delimiter = "\t" if path and path.lower().endswith(".tsv") else ","
        lines = csv_rows(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter) or [[]]
        names = unique_names(lines[0])
        return [csv_row(names, cells) for cells in lines[1:]], names
    import pyarrow as pa

    if format == "parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(pa.BufferReader(data))
    else:
        table = arrow_reader(pa.BufferReader(data)).read_all()
    return rows_of(table), table.schema.names


GROUP_READ = 32 << 20  # of a row group that is read at once
BATCH_BYTES = 4 << 20
PAGES_READ = 64 << 20  # of all columns, decoded at a time
PAGE, DUCKDB_PAGE = 1 << 20, 100 << 20  # the usual size of a page, and that of DuckDB


def open_parquet(file: Any) -> Any:
    """A `ParquetFile`; large row groups are read page by page, because one has all rows of a column."""
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(file)
    meta = opened.metadata
    largest = max((_compressed(meta.row_group(number)) for number in range(meta.num_row_groups)), default=0)
    if largest <= GROUP_READ:
        return opened
    buffer = max(GROUP_READ // 8 // max(meta.num_columns, 1), 1 << 16)
    return pq.ParquetFile(file, metadata=meta, buffer_size=buffer, pre_buffer=False)


def _compressed(group: Any) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


def parquet_batches(file: Any, size: int, *, first: int = 0, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The batches of a `ParquetFile`, from a row group on, of at most `size` rows and about `BATCH_BYTES`.

    Each row group has a reader of its own: one reader for all keeps the bytes of the groups that were read."""
    with returning_blocks():
        for number in range(first, file.num_row_groups):
            group = file.metadata.row_group(number)
            width = max(group.total_byte_size // max(group.num_rows, 1), 1)
            rows = max(min(size, BATCH_BYTES // width), 1)
            parts = _column_parts(file, group, columns)
            if len(parts) == 1:
                yield from file.iter_batches(batch_size=rows, row_groups=[number], columns=columns)
            else:
                yield from _joined_batches(file, number, rows, parts)


def _column_parts(file: Any, group: Any, columns: Sequence[str] | None) -> list[list[str]]:
    """The columns of a row group in parts that are decoded together: every column has a page in memory."""
    names = list(columns or file.schema_arrow.names)
    page = DUCKDB_PAGE if str(file.metadata.created_by).startswith("DuckDB") else PAGE
    needed = dict.fromkeys(names, 0)
    for number in range(group.num_columns):
        column = group.column(number)
        name = column.path_in_schema.partition(".")[0]
        if name in needed:
            needed[name] += min(column.total_uncompressed_size, page)
    if sum(needed.values()) <= PAGES_READ or any("." in name for name in names):
        return [names]
    parts: list[list[str]] = []
    held = 0
    for name in names:
        if not parts or held + needed[name] > PAGES_READ // 2:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += needed[name]
    return parts


def _joined_batches(file: Any, group: int, rows: int, parts: Sequence[Sequence[str]]) -> Iterator[Any]:
    """The batches of a row group whose columns are decoded in parts, each into a temporary file."""
    import pyarrow as pa

    with TemporaryFolder("noetl-parquet-") as folder, ExitStack() as stack:
        readers = []
        for number, names in enumerate(parts):
            path, writer = os.path.join(folder, f"{number}.arrow"), None
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=names, use_threads=False):
                writer = writer or pa.ipc.new_stream(path, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
                readers.append(stack.enter_context(pa.ipc.open_stream(stack.enter_context(pa.OSFile(path)))))
            release_memory()
        for batches in zip(*readers, strict=True):
            fields = [field for batch in batches for field in batch.schema]
            yield pa.RecordBatch.from_arrays(
                [each for batch in batches for each in batch.columns], schema=pa.schema(fields)
            )


def arrow_reader(file: Any) -> Any:
    """A reader of an Arrow stream, or of an Arrow file (which begins with its magic)."""
    import pyarrow as pa

    head = file.read(6)
    file.seek(0)
    if bytes(head) == b"ARROW1":
        return _FileBatches(pa.ipc.open_file(file))
    return pa.ipc.open_stream(file)


class _FileBatches:
    """An Arrow file read as the stream it contains."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.schema = file.schema

    def __iter__(self) -> Any:
        return (self._file.get_batch(number) for number in range(self._file.num_record_batches))

    def read_all(self) -> Any:
        return self._file.read_all()
