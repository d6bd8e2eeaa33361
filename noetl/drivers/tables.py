"""Tables: Arrow batches on their way to bytes and back, and to the rows that playbooks see.

A row is a mapping of plain JSON data. Where Arrow has no type for a value, the column is text and
its field's metadata says what the text means: `noetl: json` for structures, `noetl: number` for
decimals of any size. So a table gives the same rows whether it went through a file or not.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from noetl.drivers import far_dates
from noetl.drivers.values import duration, jsonable

JSON = "application/json"
JSONL = "application/x-ndjson"
CSV = "text/csv"
TEXT = "text/plain"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"

CONTENT_TYPES = {
    "json": JSON,
    "jsonl": JSONL,
    "csv": CSV,
    "text": TEXT,
    "parquet": PARQUET,
    "arrow": ARROW,
    "bytes": BYTES,
}
TABULAR = ("jsonl", "csv", "parquet", "arrow")
_BY_TYPE = {
    JSON: "json", "text/json": "json",
    JSONL: "jsonl", "application/jsonl": "jsonl", "application/json-lines": "jsonl", "application/jsonlines": "jsonl",
    CSV: "csv", "application/csv": "csv", PARQUET: "parquet", "application/x-parquet": "parquet", ARROW: "arrow",
    "application/vnd.apache.arrow.file": "arrow",
}  # fmt: skip
_BY_ENDING = {
    "json": "json", "geojson": "json", "jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "tsv": "csv",
    "parquet": "parquet", "pq": "parquet", "arrow": "arrow", "arrows": "arrow", "feather": "arrow",
    "txt": "text", "md": "text", "sql": "text", "html": "text", "xml": "text", "yaml": "text", "yml": "text",
    "log": "text",
}  # fmt: skip
_ALIASES = {
    "ndjson": "jsonl",
    "json_lines": "jsonl",
    "jsonlines": "jsonl",
    "binary": "bytes",
    "raw": "bytes",
    "txt": "text",
}
FORMATS = tuple(CONTENT_TYPES)
_encode = msgspec.json.Encoder().encode


def format_of(
    *, given: Any = None, content_type: str | None = None, path: str | None = None, default: str = "bytes"
) -> str:
    """The format somebody names, else that of a content type, else that of a file's ending."""
    if given not in (None, "", "auto"):
        named = _ALIASES.get(str(given).lower(), str(given).lower())
        if named not in CONTENT_TYPES:
            raise ValueError(f"format {given!r} is not one of {', '.join(FORMATS)}")
        return named
    if content_type:
        bare = content_type.partition(";")[0].strip().lower()
        if bare in _BY_TYPE:
            return _BY_TYPE[bare]
        if bare.endswith("+json"):
            return "json"
        if bare.startswith("text/"):
            return "text"
    if path:
        ending = path.rpartition(".")[2].lower()
        if ending in _BY_ENDING:
            return _BY_ENDING[ending]
    return default


# ── rows and batches ────────────────────────────────────────────────────────────────────


class ColumnType(NamedTuple):
    """An Arrow type, and what its text means when it stands for something else (`json`, `number`).

    A `mixed` column is one of plain data in which texts stand beside other values; it is no column of documents, so
    where it is not kept as JSON its texts are just texts."""

    type: Any
    meaning: str | None = None
    mixed: bool = False


def schema_of(names: Sequence[str], types: Sequence[ColumnType]) -> Any:
    """An Arrow schema whose fields remember what their text means."""
    import pyarrow as pa

    fields = []
    for name, column in zip(names, types, strict=True):
        metadata = {"noetl": column.meaning} if column.meaning else {}
        if column.mixed:
            metadata["noetl_mixed"] = "true"
        fields.append(pa.field(name, column.type, metadata=metadata or None))
    return pa.schema(fields)


def batch_of_columns(columns: Sequence[Sequence[Any]], schema: Any, *, plain: bool = False) -> Any:
    """A batch of values as a driver gave them, column by column; `plain` says that they are JSON data already."""
    import pyarrow as pa

    arrays = []
    for values, field in zip(columns, schema, strict=True):
        meaning = meaning_of(field)
        if meaning == "json":
            said = values if plain else [jsonable(value) for value in values]
            values = [None if value is None else _encode(value).decode() for value in said]
        elif meaning == "number" or (pa.types.is_string(field.type) and not plain):
            values = [value if value is None or isinstance(value, str) else text_of(value) for value in values]
        elif pa.types.is_string(field.type):
            try:
                arrays.append(pa.array(values, type=field.type))
                continue
            except pa.ArrowTypeError:
                values = [value if value is None or isinstance(value, str) else text_of(value) for value in values]
        elif far_dates.is_calendar(field.type):
            values = far_dates.numbered(values, field.type)
        try:
            arrays.append(pa.array(values, type=field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as wrong:
            raise pa.ArrowInvalid(f"the column {field.name!r} is {field.type}: {wrong}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_of_rows(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    """A batch of rows as a driver gave them."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return batch_of_columns(columns, schema)


def inferred_schema(rows: Sequence[Mapping[str, Any]], known: Sequence[str] = ()) -> Any:
    """The schema of rows of plain JSON data: all their keys, each with the widest type it needs."""
    import pyarrow as pa

    names = list(dict.fromkeys([*known, *(key for row in rows for key in row)]))
    types = []
    for name in names:
        kinds = {type(row.get(name)) for row in rows} - {type(None)}
        if kinds <= {bool} and kinds:
            types.append(ColumnType(pa.bool_()))
        elif kinds <= {int} and kinds:
            values = [row[name] for row in rows if row.get(name) is not None]
            fits = min(values) >= -(2**63) and max(values) < 2**63
            types.append(ColumnType(pa.int64()) if fits else ColumnType(pa.string(), "number"))
        elif kinds <= {int, float} and kinds:
            types.append(ColumnType(pa.float64()))
        elif kinds <= {bytes, bytearray, memoryview} and kinds:
            types.append(ColumnType(pa.binary()))
        elif kinds <= {str}:
            types.append(ColumnType(pa.string()))
        elif any(issubclass(kind, Mapping | list | tuple) for kind in kinds) or len(kinds) > 1:
            types.append(ColumnType(pa.string(), "json", mixed=str in kinds))
        else:
            types.append(ColumnType(pa.infer_type([row.get(name) for row in rows])))
    return schema_of(names, types)


def batch_of_mappings(rows: Sequence[Mapping[str, Any]], schema: Any, *, plain: bool = False) -> Any:
    """A batch of mappings; what the schema does not have is left out, what a row does not have is null."""
    return batch_of_columns([[row.get(name) for row in rows] for name in schema.names], schema, plain=plain)


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch (or table) as plain JSON data."""
    names = batch.schema.names
    columns = [plain_column(batch.column(number), field) for number, field in enumerate(batch.schema)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def meaning_of(field: Any) -> str | None:
    """What the text of a column means."""
    metadata = field.metadata or {}
    meaning = metadata.get(b"noetl")
    return meaning.decode() if meaning else None


def plain_column(column: Any, field: Any) -> list[Any]:
    """The values of a column as plain JSON data."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_float32(kind):  # as short as it can be said: 0.1, not what the nearest double looks like
        return [None if value is None else jsonable(float(value)) for value in column.cast(pa.string()).to_pylist()]
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        if not far_dates.is_calendar(kind):
            raise
        values = far_dates.spelled(column)
    meaning = meaning_of(field)
    if meaning == "json":
        return [None if value is None else msgspec.json.decode(value) for value in values]
    if meaning == "number":
        from decimal import Decimal

        return [None if value is None else jsonable(Decimal(value)) for value in values]
    if (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return values
    if pa.types.is_interval(kind):
        return [None if value is None else _calendar(*value) for value in values]
    return [jsonable(value) for value in values]


def _calendar(months: int, days: int, nanoseconds: int) -> str:
    """An interval of months, days and time as an ISO 8601 duration."""
    from datetime import timedelta

    rest = duration(timedelta(days=days, microseconds=nanoseconds // 1000))
    if not months:
        return rest
    return f"P{months}M" + ("" if rest == "PT0S" else rest.removeprefix("P"))


def text_of(value: Any) -> str:
    """A value as text: texts as they are, everything else as JSON."""
    plain = jsonable(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


# ── batches to bytes ────────────────────────────────────────────────────────────────────


class Encoder(Protocol):
    """Turns batches into the bytes of a file, as they come."""

    content_type: str

    def write(self, batch: Any) -> bytes:
        """The bytes that can be written now (may be none)."""

    def close(self) -> bytes:
        """The rest."""


def encoder(format: str, schema: Any, **options: Any) -> Encoder:
    """An encoder for `parquet`, `arrow`, `jsonl`, `json` or `csv`."""
    if format in ("parquet", "arrow"):
        return _ArrowEncoder(format, schema, **options)
    if format in ("json", "jsonl"):
        return _JsonEncoder(lines=format == "jsonl")
    if format == "csv":
        return _CsvEncoder(schema.names, **options)
    raise ValueError(f"format {format!r} is no table's: use parquet, arrow, jsonl, json or csv")


def row_encoder(format: str, names: Sequence[str], **options: Any) -> Any:
    """An encoder for `jsonl`, `json` or `csv` that is given rows of plain data by `write_rows`."""
    if format == "csv":
        return _CsvEncoder(names, **options)
    return _JsonEncoder(lines=format == "jsonl")


class _Sink(io.RawIOBase):
    """A file that only remembers what was written since it was last asked."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Remember."""
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        """How much was written in all."""
        return self._position

    def take(self) -> bytes:
        """What was written since the last time."""
        taken = b"".join(self._pieces)
        self._pieces = []
        return taken


GROUP_BYTES = 16 << 20  # of a row group before it is packed


class _ArrowEncoder:
    def __init__(self, format: str, schema: Any, *, compression: str | None = "zstd", group: int = 100_000) -> None:
        import pyarrow as pa

        self.content_type = CONTENT_TYPES[format]
        self._sink = _Sink()
        self._group = group
        self._pending: list[Any] = []
        self._rows = self._bytes = 0
        self._parquet = format == "parquet"
        if self._parquet:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(self._sink, schema, compression=compression or "none")
        else:
            self._writer = pa.ipc.new_stream(self._sink, schema)

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

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(self._pending), row_group_size=self._rows)
        self._pending, self._rows, self._bytes = [], 0, 0


class _JsonEncoder:
    def __init__(self, *, lines: bool) -> None:
        self.content_type = JSONL if lines else JSON
        self._lines = lines
        self._encode = msgspec.json.Encoder().encode
        self._begun = False

    def write(self, batch: Any) -> bytes:
        return self.write_rows(rows_of(batch))

    def write_rows(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        pieces = [self._encode(row) for row in rows]
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
    def __init__(self, names: Sequence[str], *, header: bool = True, delimiter: str = ",") -> None:
        self.content_type = CSV
        self._names = list(names)
        self._header = header
        self._delimiter = delimiter

    def write(self, batch: Any) -> bytes:
        return self.write_rows(rows_of(batch))

    def write_rows(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self._delimiter, lineterminator="\n")
        if self._header:
            writer.writerow(self._names)
            self._header = False
        for row in rows:
            writer.writerow([_cell(row.get(name)) for name in self._names])
        return text.getvalue().encode()

    def close(self) -> bytes:
        if not self._header:
            return b""
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerow(self._names)
        self._header = False
        return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return value


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


def csv_names(cells: Sequence[str]) -> list[str]:
    """The names in the first line of CSV; one that comes twice gets a number."""
    seen: dict[str, int] = {}
    names = []
    for name in cells:
        count = seen[name] = seen.get(name, 0) + 1
        names.append(f"{name}_{count}" if count > 1 else name)
    return names


def csv_row(names: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    """A row of CSV: every value is text; what is missing is null, what is too much is `_rest`."""
    row: dict[str, Any] = dict(zip(names, [*cells, *[None] * (len(names) - len(cells))], strict=False))
    if len(cells) > len(names):
        row["_rest"] = list(cells[len(names) :])
    return row


def decode(data: bytes, format: str, *, path: str | None = None) -> Any:
    """The value of a whole payload: JSON as it is, a table as `{rows, row_count, columns}`, else text or bytes."""
    if format == "json":
        return msgspec.json.decode(data)
    if format == "text":
        return data.decode()
    if format in TABULAR:
        return as_table(*_decode_rows(data, format, path))
    return data


def as_table(rows: list[dict[str, Any]], columns: Sequence[str]) -> dict[str, Any]:
    """What a table looks like to a playbook, whichever tool it came from."""
    return {"rows": rows, "row_count": len(rows), "columns": list(columns)}


def _decode_rows(data: bytes, format: str, path: str | None) -> tuple[list[dict[str, Any]], Sequence[str]]:
    if format == "jsonl":
        rows = [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
        return rows, list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
    if format == "csv":
        delimiter = "\t" if path and path.lower().endswith(".tsv") else ","
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter)
        names = csv_names(next(lines, []))
        return [csv_row(names, cells) for cells in lines if cells], names
    import pyarrow as pa

    if format == "parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(pa.BufferReader(data))
    else:
        table = arrow_reader(pa.BufferReader(data)).read_all()
    return rows_of(table), table.schema.names


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
