"""Reads local files and stored results as Arrow batches.

Parquet and Arrow are read in ranges from their location. CSV and JSON are read by DuckDB, which infers their types,
from a local copy if they are remote: memory use does not depend on their size.
"""

from __future__ import annotations

import asyncio
import glob
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from duckdb import BinderException, ConversionException, InvalidInputException
from duckdb import Error as DuckdbError

from noetl.connections import duckdb, objects
from noetl.connections.duckdb_memory import OPTIONS, set_options
from noetl.core.model.excerpt import excerpt
from noetl.core.model.tool import ToolCall
from noetl.data import arrow_tables as tables
from noetl.data import payload_reader as reading
from noetl.data.content import file_blocks, save
from noetl.data.files import duckdb_files as duck_files
from noetl.data.files import formats, table_files
from noetl.data.sql import bind
from noetl.data.types.column_types import DeclaredType, WrongValue
from noetl.runtime.temporary_folders import TemporaryFolder
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.quarantine.bad_rows import POSITION, NumberedRows, RowError, SourceRows, without_positions
from noetl.tools.transfer.sources.arrow_rows import BATCH_ROWS, declared_column, declared_types
from noetl.tools.transfer.sources.json_documents import write_lines
from noetl.tools.transfer.sources.numbered_lines import number_lines, numbered_rows, wrong_json_line
from noetl.tools.transfer.sources.wide_csv import Kind, WideCsv, is_wide

INTERVAL = DeclaredType("interval")
CSV_MEMORY = "112MB"
LARGE_DOCUMENT = 8 << 20
EVOLVE = "set `schema: evolve` in the target to load the columns of all files"


def resolve_address(
    call: ToolCall, fields: Mapping[str, Any], address: str, credential: Mapping[str, Any]
) -> objects.ObjectLocation:
    """The location of a source or target; paths are relative to the playbook, the credential can contain the bucket."""
    scheme, bucket = fields.get("provider"), fields.get("bucket") or credential.get("bucket")
    try:
        if "://" not in address and (scheme or "file") == "file":
            return objects.parse_location(call.host.resolve_path(f"{bucket}/{address}" if bucket else address))
        return objects.parse_location(address, scheme=scheme, bucket=bucket)
    except ValueError as wrong:
        raise BadInput(f"{excerpt(address)} is not a valid address: {wrong}") from None


class Files(NamedTuple):
    """Local files of one format, and what they are called in a quarantine and in errors."""

    path: str  # `*` matches several
    format: str
    names: Mapping[str, str]  # path -> name, where they differ

    def paths(self) -> list[str]:
        """The files in the order of their names."""
        paths = (
            sorted(glob.glob(self.path, recursive=True)) if any(mark in self.path for mark in "*?[") else [self.path]
        )
        if not paths:
            raise FileNotFoundError(2, "file not found", self.path)
        return paths

    def name(self, path: str) -> str:
        """What a file is called."""
        return self.names.get(path, path)


async def file_batches(
    files: Files, rows_path: str | None, types: Any = None, rows: SourceRows | None = None, *, evolves: bool = False
) -> AsyncGenerator[Any, None]:
    """The rows of local files, in the order of their names; `rows` takes those that cannot be read.

    With `evolves`, files may have different columns."""
    path, format = files.path, files.format
    if format == "csv" and await asyncio.to_thread(lambda: all(map(duck_files.is_blank, files.paths()))):
        return
    groups = await asyncio.to_thread(_csv_groups, files, evolves=evolves) if format == "csv" else []
    if len(groups) > 1:
        streams = _group_batches(files, groups, types, rows)
        async with aclosing(streams):
            async for batch in streams:
                yield batch
        return
    declared = declared_types(types)
    if format in ("parquet", "arrow"):
        stream = _table_batches(files, declared, rows, evolves=evolves)
    elif (format in ("csv", "json", "jsonl") and rows is not None) or (
        format == "json" and declared and len(files.paths()) == 1  # an error names the row
    ):
        stream = _checked_batches(files, rows_path, declared, rows)
    elif format == "json":
        stream = _document_batches(path, rows_path, declared)
    elif format in ("csv", "jsonl"):
        stream = _duckdb_batches(path, format, rows_path, declared)
    else:
        raise BadInput(f"{path} has the format {format}: use Parquet, Arrow, CSV, JSON or JSON lines, or set `format`")
    try:
        async with aclosing(stream):
            async for batch in stream:
                yield batch
    except (BadInput, DuckdbError) as failure:
        raise _renamed(failure, files.names) from failure.__cause__


def _csv_groups(files: Files, *, evolves: bool) -> list[list[str]]:
    """The files in groups with the same columns; an error if there are several and the target does not evolve."""
    paths = files.paths()
    groups = duck_files.same_columns(paths) if len(paths) > 1 else []
    if len(groups) > 1 and not evolves:
        found = BadInput(f"{duck_files.different(paths[0], groups[1][0])}; {EVOLVE}")
        raise _renamed(found, files.names)
    return groups


async def _group_batches(
    files: Files, groups: list[list[str]], types: Any, rows: SourceRows | None
) -> AsyncGenerator[Any, None]:
    """The rows of CSV files, group by group; a declared type is for the files that have the column."""
    known = declared_types(types)
    names = [duck_files.first_line(group[0], duck_files.delimiter_of(group[0])) for group in groups]
    for name in known:
        if not any(name in each for each in names):
            raise missing_type(name, [column for each in names for column in each])
    for group, columns in zip(groups, names, strict=True):
        with TemporaryFolder("noetl-transfer-") as folder:
            links = {str(Path(folder, f"{number:06}.csv")): path for number, path in enumerate(group)}
            await in_thread(partial(_link, links))
            own = {name: kind for name, kind in (types or {}).items() if name in columns}
            part = Files(str(Path(folder, "*.csv")), "csv", {link: files.name(path) for link, path in links.items()})
            stream = file_batches(part, None, own, rows)
            async with aclosing(stream):
                async for batch in stream:
                    yield batch


def _renamed(failure: Exception, names: Mapping[str, str]) -> Exception:
    """The failure with the names of files instead of their paths."""
    text = re.split("\n\nLINE |\nTry setting ", str(failure))[0]  # without DuckDB's query, and advice for it
    for path, name in names.items():
        text = text.replace(path, name)
    return failure if text == str(failure) else type(failure)(text)


def _link(links: Mapping[str, str]) -> None:
    for link, path in links.items():
        Path(link).symlink_to(path)


async def _table_batches(
    files: Files, types: dict[str, DeclaredType], rows: SourceRows | None, *, evolves: bool
) -> AsyncGenerator[Any, None]:
    """The rows of Parquet or Arrow files; the first one has the columns of all, unless the target evolves."""
    paths = await asyncio.to_thread(files.paths)
    names: list[str] = []
    for each in paths:
        stream = ranged_batches(LocalPayload(each), files.format, files.name(each))
        numbered = NumberedRows(rows, files.name(each))
        async with aclosing(stream):
            async for batch in stream:
                names = names or batch.schema.names
                if sorted(batch.schema.names) == sorted(names):
                    batch = batch.select(names)
                elif not evolves:
                    found = f"{each} has the columns {', '.join(batch.schema.names)}, {paths[0]} has {', '.join(names)}"
                    raise BadInput(f"{found}; {EVOLVE}")
                own = {name: kind for name, kind in types.items() if not evolves or name in batch.schema.names}
                for part in numbered.converted(partial(with_types, types=own), batch):
                    yield part


async def _checked_batches(
    files: Files, rows_path: str | None, types: dict[str, DeclaredType], rows: SourceRows | None
) -> AsyncGenerator[Any, None]:
    """The rows of CSV or JSON with their positions; what is no row, or does not have the declared types, is recorded.

    CSV and JSON lines are read from copies with line numbers, JSON documents one after the other."""
    paths = await asyncio.to_thread(files.paths)
    if files.format == "json":
        declared = {name: "JSON" for name, each in types.items() if each.name != "json"}
        for path in paths:
            numbered = NumberedRows(rows, files.name(path))
            stream = _document_batches(path, rows_path, types, declared)
            async with aclosing(stream):
                async for batch in stream:
                    for part in numbered.converted(lambda part: with_types(part, types, decode=True), batch):
                        yield part
        return
    assert rows is not None
    is_csv = files.format == "csv"
    with TemporaryFolder("noetl-transfer-") as folder:
        copies: dict[str, str] = {}
        for number, path in enumerate(paths):
            copy = str(Path(folder, f"{number:06}.{files.format}"))
            copies[copy] = path
            await in_thread(partial(number_lines, path, copy, files.format, files.name(path), rows))
        pattern = str(Path(folder, f"*.{files.format}"))
        declared = {POSITION: "BIGINT"}
        if files.format == "jsonl":
            declared |= {name: "JSON" for name, each in types.items() if each.name != "json"}
        else:
            declared |= {name: each.duckdb for name, each in types.items()}
        numbered = NumberedRows(rows, pattern)
        stream = _duckdb_batches(pattern, files.format, None, types, declared, rows)
        try:
            async with aclosing(stream):
                async for batch in stream:
                    positions = batch.column(POSITION).to_pylist()
                    convert = lambda part: with_types(part, types, decode=not is_csv)  # noqa: E731
                    for part in numbered.converted(convert, without_positions(batch), positions):
                        yield part
        except (BadInput, DuckdbError) as failure:
            raise _renamed(failure, copies) from failure.__cause__


async def _document_batches(
    path: str, rows_path: str | None, types: dict[str, DeclaredType], read_as: Mapping[str, str] | None = None
) -> AsyncGenerator[Any, None]:
    """The rows of JSON documents; those of large ones are read from copies with a row in each line."""
    with TemporaryFolder("noetl-transfer-") as folder:
        lines = await in_thread(partial(_as_lines, path, rows_path, Path(folder)))
        place = (path, "json", rows_path) if lines is None else (lines, "jsonl", None)
        stream = _duckdb_batches(*place, types, read_as)
        try:
            async with aclosing(stream):
                async for batch in stream:
                    yield batch
        except DuckdbError as failure:
            if lines is None:
                raise
            raise type(failure)(f"{path}: {str(failure).replace(lines, 'its rows as lines')}") from failure


def _as_lines(path: str, rows_path: str | None, folder: Path) -> str | None:
    """A copy of the rows as JSON lines, or None if the documents are small or have no rows to copy."""
    several = any(mark in path for mark in "*?[")
    paths = sorted(glob.glob(path, recursive=True)) if several else [path]
    if max((Path(each).stat().st_size for each in paths if Path(each).is_file()), default=0) < LARGE_DOCUMENT:
        return None
    steps, keys = rows_path.split(".") if rows_path else [], () if several else duck_files.ROWS_KEYS
    for number, each in enumerate(paths):
        found = write_lines(each, steps, keys, folder / f"{number:06}")
        if found is None:
            return None
        found.path.rename(found.path.with_suffix(".jsonl"))
    return str(folder / ("*.jsonl" if several else "000000.jsonl"))


async def _duckdb_batches(
    path: str,
    format: str,
    rows_path: str | None,
    types: dict[str, DeclaredType],
    read_as: Mapping[str, str] | None = None,
    rows: SourceRows | None = None,
) -> AsyncGenerator[Any, None]:
    """The rows of CSV or JSON; DuckDB reads them and infers the types that are not declared.

    With `read_as`, columns are read in these types, and not converted to the declared ones."""
    declared = {name: kind.duckdb for name, kind in types.items()} if read_as is None else read_as
    database = duckdb.database(duckdb.MEMORY)
    async with database.cursor(writes=False) as cursor:

        def run_wide() -> Any:
            wide = WideCsv(cursor, path, declared)
            kinds, numbers = wide.plan()
            return _wide_batches(cursor, wide, kinds, rows), numbers

        def run() -> Any:
            set_options(cursor, OPTIONS)
            if format == "csv" and (rows is not None or is_wide(path) or duck_files.begins_blank(path)):
                return run_wide()
            size = duck_files.batch_rows(path, duckdb.BATCH)
            if format == "csv":
                cursor.execute(f"SET memory_limit = '{CSV_MEMORY}'")  # DuckDB would keep what it has read
                try:
                    query, numbers = duck_files.csv_query(cursor, path, declared)
                except InvalidInputException as failure:
                    if duck_files.misfit(path, str(failure)) is not None:
                        raise
                    return run_wide()  # DuckDB does not read files with two kinds of line ends
            else:
                steps = rows_path.split(".") if rows_path else []
                query, numbers = duck_files.json_query(cursor, path, format, steps, declared)
            return duckdb.run_statement(cursor, bind(query, None, "duckdb"), batch=size)[1], numbers

        try:
            parts, numbers = await in_thread(run, interrupt=cursor.interrupt)
            stream = duckdb.batches(cursor, parts)
            async with aclosing(stream):
                async for batch in stream:
                    if format != "csv" and not batch.num_rows and batch.schema.names == ["json"]:
                        continue  # a document without rows has no columns; DuckDB calls what it reads `json`
                    batch = _annotate(normalize_batch(batch), numbers, mixed=format in ("json", "jsonl"))
                    yield with_types(batch, types) if read_as is None else batch
        except RowError as failure:
            raise await asyncio.to_thread(_with_line, path, format, types, failure) from None
        except BinderException as failure:
            if format == "csv":
                await asyncio.to_thread(_check_types, path, types)
            if not rows_path:
                raise
            raise BadInput(f"{path} has no list of rows at {rows_path!r} (chunk.path): {failure}") from None
        except (InvalidInputException, ConversionException) as failure:
            wrong = await asyncio.to_thread(_wrong_text, path, format, str(failure))
            if wrong is None:
                raise
            raise (BadInput(wrong) if format == "csv" else type(failure)(wrong)) from None


def _wrong_text(path: str, format: str, failure: str) -> str | None:
    """What is wrong in CSV or JSON lines that DuckDB has refused."""
    if format == "csv":
        return duck_files.misfit(path, failure)
    found = map(wrong_json_line, duck_files.found_files(path)) if format == "jsonl" else ()
    return next((each for each in found if each is not None), None)


def _check_types(path: str, types: Mapping[str, DeclaredType]) -> None:
    """BadInput if CSV has no column of a declared type."""
    names = duck_files.first_line(duck_files.found_files(path)[0], duck_files.delimiter_of(path))
    for name in types:
        if name not in names:
            raise missing_type(name, names)


def _with_line(path: str, format: str, types: Mapping[str, DeclaredType], failure: RowError) -> RowError:
    """The error of a value that does not have its declared type, with the file and the line."""
    for file in duck_files.found_files(path) if format in ("csv", "jsonl") else ():
        for line, row in numbered_rows(str(file), format):
            for name, declared in types.items():
                try:
                    declared.value(row.get(name))
                except WrongValue as wrong:
                    return RowError(f"{file}: line {line}: the column {name!r}: {wrong} (declared in `types`)")
    return failure


def _wide_batches(cursor: Any, wide: WideCsv, kinds: Mapping[str, Kind], rows: SourceRows | None) -> Iterator[Any]:
    """The rows of wide CSV; those with values of another type are recorded, or raise an error."""
    import pyarrow as pa

    def select(query: str) -> Iterator[Any]:
        return duckdb.run_statement(cursor, bind(query, None, "duckdb"))[1]

    is_empty = True
    for path, first, batch in wide.texts():
        typed, wrong = wide.typed(batch, kinds, select)
        for index, reason in wrong.items():
            if rows is None:
                raise InvalidInputException(f"{path}: row {first + index}: {reason}")
            row = batch.slice(index, 1).to_pylist()[0]
            rows.reject(int(row.pop(POSITION)), row, reason)
        is_empty = False
        yield typed.filter(pa.array([index not in wrong for index in range(batch.num_rows)])) if wrong else typed
    if is_empty:
        yield wide.typed(wide.no_rows(), kinds, select)[0]


def _annotate(batch: Any, numbers: set[str], *, mixed: bool) -> Any:
    """The batch with metadata for columns that are numbers or JSON stored as text."""
    import pyarrow as pa

    fields = []
    for field in batch.schema:
        if field.name in numbers:
            field = field.with_metadata({"noetl": "number"})
        elif mixed and tables.meaning_of(field) == "json":
            field = field.with_metadata({"noetl": "json", "noetl_mixed": "true"})
        fields.append(field)
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def missing_type(name: str, columns: Iterable[str]) -> BadInput:
    """The error of a declared type without a column."""
    return BadInput(f"types.{name}: the source has no such column; columns: {', '.join(dict.fromkeys(columns))}")


def with_types(batch: Any, types: dict[str, DeclaredType], *, decode: bool = False) -> Any:
    """The batch with its declared types; `decode` if columns of declared types were read as JSON."""
    import pyarrow as pa

    if not types:
        return batch
    arrays, fields = [], []
    for array, field in zip(batch.columns, batch.schema, strict=True):
        declared = types.get(field.name)
        if declared is not None:
            wanted = declared.field(field.name)
            if array.type != wanted.type or tables.meaning_of(field) != tables.meaning_of(wanted):
                # What was read as text, or as a JSON list, is not decoded twice.
                is_text = pa.types.is_string(array.type) and not (decode and tables.meaning_of(field) == "json")
                is_json = declared.name == "json" and tables.meaning_of(field) != "json"
                parsed = declared.parsed(array) if is_text else None
                if parsed is not None:
                    array = parsed
                elif not is_json:
                    values = array.to_pylist() if is_text else tables.plain_column(array, field)
                    array = declared_column(values, declared, field.name, "the source")
            field = wanted
        arrays.append(array)
        fields.append(field)
    for name in types:
        if name not in batch.schema.names:
            raise missing_type(name, batch.schema.names)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


async def ranged_batches(payload: reading.Payload, format: str, name: str) -> AsyncGenerator[Any, None]:
    """The batches of a Parquet or Arrow payload, read in ranges; an error names it."""
    import pyarrow as pa

    file = reading.RangedFile(payload, asyncio.get_running_loop())
    try:
        if format == "parquet":
            opened = await in_thread(lambda: table_files.open_parquet(file))
            batches, schema = table_files.parquet_batches(opened, BATCH_ROWS), opened.schema_arrow
        else:
            reader = await in_thread(lambda: table_files.arrow_reader(file))
            batches, schema = iter(reader), reader.schema
        is_empty = True
        while (batch := await in_thread(lambda: next(batches, None))) is not None:
            is_empty = False
            yield normalize_batch(batch)
        if is_empty:
            yield normalize_batch(pa.RecordBatch.from_pylist([], schema=schema))
    except pa.ArrowInvalid as wrong:
        raise pa.ArrowInvalid(f"{name}: {wrong}") from None
    finally:
        file.close()


class LocalPayload:
    """A local file, readable as a stream or in ranges."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.size = Path(path).stat().st_size

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The whole file."""
        async for block in file_blocks(self._path):
            yield block

    async def read(self, start: int, count: int) -> bytes:
        """A range of the file."""

        def read() -> bytes:
            with Path(self._path).open("rb") as file:
                file.seek(start)
                return file.read(count)

        return await asyncio.to_thread(read)


class ReferenceSource:
    """A stored result."""

    def __init__(self, call: ToolCall, reference: Any, path: str | None, rows: SourceRows | None = None) -> None:
        self._call = call
        self._rows = rows
        self._reference = reference
        self._path = path

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows; the payload is verified before the first row is yielded."""
        format = formats.format_of(content_type=self._reference.meta.content_type)
        with TemporaryFolder("noetl-transfer-") as folder:
            local = str(Path(folder, f"payload.{format}"))
            await save(self._call.host.open_result(self._reference), local)
            stream = file_batches(Files(local, format, {local: "the stored result"}), self._path, rows=self._rows)
            async with aclosing(stream):
                async for batch in stream:
                    yield batch

    async def count(self) -> int | None:
        """The number of rows in the reference."""
        rows: int | None = self._reference.meta.rows
        return rows

    async def close(self) -> None:
        """No resources to release."""


def normalize_batch(batch: Any) -> Any:
    """The batch in types that every target supports: dictionaries decoded, others as text with a meaning."""
    import pyarrow as pa

    schema = batch.schema
    arrays, fields = [], []
    changed = False
    for array, field in zip(batch.columns, schema, strict=True):
        kind, metadata = field.type, field.metadata
        if pa.types.is_dictionary(kind):
            array, changed = array.cast(kind.value_type), True
        elif pa.types.is_decimal256(kind):
            array, metadata, changed = array.cast(pa.string()), {"noetl": "number"}, True
        elif tables.meaning_of(field) == "interval":  # text in Parquet, which has no type for it
            array, changed = declared_column(array.to_pylist(), INTERVAL, field.name, "the source"), True
            metadata = None
        elif isinstance(array, pa.ExtensionArray):
            meaning, changed = tables.meaning_of(field), True
            values = array.to_pylist() if meaning == "uuid" else ()
            array = (
                pa.array([value and str(value) for value in values], pa.string())
                if meaning == "uuid"
                else array.storage
            )
            metadata = {**(metadata or {}), b"noetl": meaning} if meaning else metadata
        arrays.append(array)
        fields.append(pa.field(field.name, array.type, metadata=metadata))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if changed else batch
