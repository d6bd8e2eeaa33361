"""Results of an execution as tables of an isolated DuckDB: read-only SQL over them, and exports.

The database lives in a temporary folder. It is filled here; SQL is executed by another process. Its statements can read
the results and nothing else: no other file, no network, no extension. Only one SELECT is executed; memory, threads and
time are bounded.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from noetl.data.files.duckdb_files import ROWS_KEYS, csv_query, literal
from noetl.data.query_child import DATABASE, Limits, Request
from noetl.data.query_process import QueryFailed, QueryProcess
from noetl.data.row_columns import RowColumns
from noetl.data.sql import quote_column
from noetl.errors import StoreUnavailable
from noetl.runtime.temporary_folders import TemporaryFolder

LOAD_MEMORY, MEMORY = "128MB", "512MB"  # while tables are filled, and of a query
LONG_LINE = 8 << 20  # bytes of a row that is not read with the memory of other tables
DISK = "4GB"  # for what does not fit into memory
SECONDS = 60.0
Export = Literal["csv", "parquet", "json"]
_SUFFIXES = {"parquet": "parquet", "arrow": "arrow", "csv": "csv"}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class QueryRows(NamedTuple):
    """Rows of a query; `truncated` if there are more."""

    columns: list[dict[str, str]]  # name, type
    rows: list[dict[str, Any]]
    truncated: bool


class ResultTables:
    """A DuckDB with results as tables, for one thread at a time. `only_objects` refuses rows that are no objects."""

    def __init__(self, *, only_objects: bool = False) -> None:
        import duckdb

        self._only_objects = only_objects
        self._temporary = TemporaryFolder("noetl-query-")
        self.folder = Path(self._temporary.name)
        self._files = 0
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": LOAD_MEMORY,
            "threads": 1,  # with several, an export holds what comes before its turn
            "temp_directory": str(self.folder / "spill"),
            "max_temp_directory_size": DISK,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        try:
            self._db = duckdb.connect(str(self.folder / DATABASE), config=config)
        except duckdb.IOException as problem:
            self._temporary.cleanup()
            raise StoreUnavailable(f"the query needs a file in {self.folder.parent}: {problem}") from None
        self._errors: type[Exception] = duckdb.Error
        self._process: QueryProcess | None = None

    def close(self) -> None:
        """Remove the database and its files."""
        self._db.close()
        if self._process is not None:
            self._process.close()
        self._temporary.cleanup()

    # ── tables ──────────────────────────────────────────────────────────────────────────

    async def add_payload(self, table: tuple[str, str], format: str, chunks: AsyncIterator[bytes]) -> None:
        """Add a stored payload as a table (schema, name)."""
        if format not in _SUFFIXES:
            raise QueryFailed(f"{'.'.join(table)} is a payload of format {format}, which has no rows")
        path = self._new_file(_SUFFIXES[format])
        with path.open("wb") as file:
            async for chunk in chunks:
                file.write(chunk)
        await asyncio.to_thread(self._add_file, table, path, format)

    async def add_rows(self, table: tuple[str, str], rows: AsyncIterator[Any], names: Sequence[str] = ()) -> None:
        """Add rows as a table; `names` are its columns if there are none."""
        path, columns = self._new_file("jsonl"), RowColumns()
        with path.open("wb") as file:
            async for row in rows:
                file.write(self._line(row, columns))
        if path.stat().st_size:
            await asyncio.to_thread(self._add_lines, table, path, columns)
        else:
            await asyncio.to_thread(self._add_empty, table, names)

    def add_value(self, table: tuple[str, str], value: Any) -> None:
        """Add a value as a table: a list of rows, a document with `rows`, or one row."""
        rows, names = _rows_in(value)
        if not rows:
            self._add_empty(table, names)
            return
        path, columns = self._new_file("jsonl"), RowColumns()
        with path.open("wb") as file:
            file.writelines(self._line(row, columns) for row in rows)
        self._add_lines(table, path, columns)

    def _line(self, row: Any, columns: RowColumns) -> bytes:
        if not isinstance(row, Mapping):
            if self._only_objects:
                raise QueryFailed("the result is not a list of objects; only tables are sorted and queried")
            row = {"value": row}
        line: bytes = _encode(columns.seen(row)) + b"\n"
        columns.longest = max(columns.longest, len(line))
        return line

    def _add_empty(self, table: tuple[str, str], names: Sequence[str]) -> None:
        columns = ", ".join(f"{quote_column(name)} VARCHAR" for name in RowColumns(names or ["value"]).names)
        with self._creating(table) as place:
            self._db.execute(f"CREATE TABLE {place} ({columns})")

    def _add_lines(self, table: tuple[str, str], path: Path, columns: RowColumns) -> None:
        with self._creating(table) as place:
            if columns.longest > LONG_LINE:
                self._db.execute(f"SET memory_limit = '{MEMORY}'")
            self._db.execute(f"CREATE TABLE {place} AS {columns.query(self._db, path)}")
        path.unlink()

    def _add_file(self, table: tuple[str, str], path: Path, format: str) -> None:
        """Parquet is read where it is; CSV is read once, which also finds its types."""
        with self._creating(table) as place:
            if format == "csv":
                self._db.execute(f"CREATE TABLE {place} AS {csv_query(self._db, str(path))[0]}")
                path.unlink()
            else:
                file = path if format == "parquet" else _as_parquet(path)
                self._db.execute(f"CREATE VIEW {place} AS SELECT * FROM read_parquet({literal(str(file))})")

    @contextmanager
    def _creating(self, table: tuple[str, str]) -> Iterator[str]:
        """The name of a new table in SQL; QueryFailed if it cannot be created."""
        schema, name = map(quote_column, table)
        try:
            self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            yield f"{schema}.{name}"
        except self._errors as problem:
            raise QueryFailed(f"{'.'.join(table)} cannot be read as a table: {self._told(problem)}") from None

    def _told(self, problem: Exception) -> str:
        """The message of DuckDB without the places of files and the options of their readers."""
        text = str(problem).partition("\nTry setting 'auto_detect'")[0].partition("\n\nLINE 1:")[0]
        return text.replace(f"{self.folder}/", "")

    def lock(self) -> None:
        """End filling the tables: the database is only read from now on."""
        if self._process is None:
            self._db.close()
            self._process = QueryProcess(self.folder, Limits(MEMORY, DISK, SECONDS))

    def _new_file(self, suffix: str) -> Path:
        self._files += 1
        return self.folder / f"r{self._files}.{suffix}"

    # ── queries ─────────────────────────────────────────────────────────────────────────

    def rows(self, sql: str, limit: int) -> QueryRows:
        """The first rows of a SELECT."""
        return QueryRows(**self._execute(Request("rows", sql, limit)))

    def profile(self, sql: str) -> list[dict[str, Any]]:
        """The profile of each column of a SELECT."""
        found: list[dict[str, Any]] = self._execute(Request("profile", sql))
        return found

    def export(self, sql: str, format: Export) -> Path:
        """Write all rows of a SELECT to a temporary file, which the caller removes."""
        path = self._new_file(f"out.{format}")
        self._execute(Request("export", sql, format=format, path=str(path)))
        number, name = tempfile.mkstemp(prefix="noetl-export-", suffix=f".{format}")
        os.close(number)
        return path.replace(name)

    def _execute(self, request: Request) -> Any:
        self.lock()
        assert self._process is not None
        return self._process.execute(request)


def named_tables(sql: str, known: Sequence[str]) -> list[str]:
    """The tables (`step.fetch`) among `known` that a statement may read: their names occur in its text."""
    text = sql.lower()
    return [name for name in known if name.partition(".")[2].lower() in text]


def _rows_in(value: Any) -> tuple[Sequence[Any], list[str]]:
    """The rows of a value, and the names of its columns if it lists them."""
    if isinstance(value, Mapping):
        names = value.get("columns")
        known = [str(name) for name in names] if isinstance(names, list) else []
        for key in ROWS_KEYS:
            if isinstance(value.get(key), list):
                return value[key], known
        return [value], []
    return (value, []) if isinstance(value, list | tuple) else ([value], [])


def _as_parquet(path: Path) -> Path:
    import pyarrow.parquet as pq

    from noetl.data.files.table_files import arrow_reader

    target = path.with_suffix(".parquet")
    with path.open("rb") as file:
        reader = arrow_reader(file)
        with pq.ParquetWriter(target, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    return target
