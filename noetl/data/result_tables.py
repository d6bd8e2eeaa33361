"""Results of an execution as tables of an isolated DuckDB: read-only SQL over them, and exports.

The database lives in a temporary folder. Its statements can read the results there and nothing else: no other file, no
network, no extension. Only one SELECT is executed; memory, threads and time are bounded.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from noetl.data.arrow_tables import meaning_of, rows_of
from noetl.data.column_profiles import column_profiles
from noetl.data.duckdb_files import ROWS_KEYS, csv_call, literal
from noetl.data.duckdb_results import csv_columns, exact_parts
from noetl.data.sql import quote_column
from noetl.errors import RequestRefused, StoreUnavailable
from noetl.runtime.temporary_folders import TemporaryFolder

LOAD_MEMORY, MEMORY = "128MB", "512MB"  # while tables are filled, and of a query
DISK = "4GB"  # for what does not fit into memory
SECONDS = 60.0
MAX_TEXT = 100_000  # characters of a statement
Export = Literal["csv", "parquet", "json"]
_EXPORTS = {"csv": "FORMAT csv, HEADER", "parquet": "FORMAT parquet", "json": "FORMAT json, ARRAY true"}
_SUFFIXES = {"parquet": "parquet", "arrow": "arrow", "csv": "csv", "jsonl": "jsonl"}
_JSON_LINES = "format='newline_delimited', sample_size=-1, maximum_object_size=33554432"
_encode = msgspec.json.Encoder(enc_hook=str).encode


class QueryFailed(RequestRefused):
    """The statement is not allowed, wrong, or took too long."""


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
            self._db = duckdb.connect(str(self.folder / "query.duckdb"), config=config)
        except duckdb.IOException as problem:
            self._temporary.cleanup()
            raise StoreUnavailable(f"the query needs a file in {self.folder.parent}: {problem}") from None
        self._errors: type[Exception] = duckdb.Error
        self._select = duckdb.StatementType.SELECT

    def close(self) -> None:
        """Remove the database and its files."""
        self._db.close()
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

    async def add_rows(self, table: tuple[str, str], rows: AsyncIterator[Any]) -> None:
        """Add rows as a table."""
        path, wide = self._new_file("jsonl"), _WideIntegers()
        empty = True
        with path.open("wb") as file:
            async for row in rows:
                file.write(self._line(row, wide))
                empty = False
        if empty:
            self.add_value(table, [])
        else:
            await asyncio.to_thread(self._add_file, table, path, "jsonl", wide)

    def add_value(self, table: tuple[str, str], value: Any) -> None:
        """Add a value as a table: a list of rows, a document with `rows`, or one row."""
        rows, names = _rows_in(value)
        if not rows:
            columns = ", ".join(f"{quote_column(name)} VARCHAR" for name in names or ["value"])
            self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_column(table[0])}")
            self._db.execute(f"CREATE TABLE {quote_column(table[0])}.{quote_column(table[1])} ({columns})")
            return
        path, wide = self._new_file("jsonl"), _WideIntegers()
        with path.open("wb") as file:
            file.writelines(self._line(row, wide) for row in rows)
        self._add_file(table, path, "jsonl", wide)

    def _line(self, row: Any, wide: _WideIntegers) -> bytes:
        if not isinstance(row, Mapping):
            if self._only_objects:
                raise QueryFailed("the result is not a list of objects; only tables are sorted and queried")
            row = {"value": row}
        return _encode(wide.seen(row)) + b"\n"

    def lock(self) -> None:
        """Forbid access to everything but the files of the results, for good."""
        self._db.execute(f"SET memory_limit = '{MEMORY}'")
        self._db.execute("SET python_enable_replacements = false")
        self._db.execute("SET TimeZone = 'UTC'")
        self._db.execute(f"SET allowed_directories = [{literal(str(self.folder) + '/')}]")
        self._db.execute("SET enable_external_access = false")
        self._db.execute("SET lock_configuration = true")

    def _new_file(self, suffix: str) -> Path:
        self._files += 1
        return self.folder / f"r{self._files}.{suffix}"

    def _add_file(self, table: tuple[str, str], path: Path, format: str, wide: _WideIntegers | None = None) -> None:
        """Parquet is read where it is; other formats are read once, which also finds their types."""
        schema, name = map(quote_column, table)
        try:
            self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            if format in ("parquet", "arrow"):
                place = path if format == "parquet" else _as_parquet(path)
                self._db.execute(f"CREATE VIEW {schema}.{name} AS SELECT * FROM read_parquet({literal(str(place))})")
                return
            source = csv_call(str(path)) if format == "csv" else self._json_call(path, wide)
            self._db.execute(f"CREATE TABLE {schema}.{name} AS SELECT * FROM {source}")
            path.unlink()
        except self._errors as problem:
            raise QueryFailed(f"{'.'.join(table)} cannot be read as a table: {problem}") from None

    def _json_call(self, path: Path, wide: _WideIntegers | None) -> str:
        """The table function of a file of JSON lines; integers that DuckDB reads as doubles keep their digits."""
        call = f"read_json_auto({literal(str(path))}, {_JSON_LINES}"
        try:
            found = self._db.execute(f"DESCRIBE SELECT * FROM {call})").fetchall()
        except self._errors as problem:
            if "Duplicate name" not in str(problem):
                raise
            call += ", maximum_depth=1"  # objects whose keys differ only in case are no structures, but JSON
            found = self._db.execute(f"DESCRIBE SELECT * FROM {call})").fetchall()
        known = wide.types if wide else {}
        if not known:
            return f"{call})"
        types = (
            (name, known.get(name, kind) if kind == "DOUBLE" or kind[-1] in "])" else kind) for name, kind, *_ in found
        )
        return f"{call}, columns={{{', '.join(f'{quote_column(name)}: {literal(kind)}' for name, kind in types)}}})"

    # ── queries ─────────────────────────────────────────────────────────────────────────

    def rows(self, sql: str, limit: int) -> QueryRows:
        """The first rows of a SELECT."""
        self._check(sql)
        with self._bounded():
            schema, batches = exact_parts(self._db.sql(sql), max(1, min(limit + 1, 10_000)))
            columns = [{"name": field.name, "type": meaning_of(field) or str(field.type)} for field in schema]
            rows: list[dict[str, Any]] = []
            for batch in batches:
                rows += rows_of(batch.slice(0, limit + 1 - len(rows)))
                if len(rows) > limit:
                    break
        return QueryRows(columns, rows[:limit], len(rows) > limit)

    def profile(self, sql: str) -> list[dict[str, Any]]:
        """The profile of each column of a SELECT."""
        self._check(sql)
        with self._bounded():
            return column_profiles(self._db, sql)

    def export(self, sql: str, format: Export) -> Path:
        """Write all rows of a SELECT to a temporary file, which the caller removes."""
        self._check(sql)
        path = self._new_file(f"out.{format}")
        with self._bounded():
            if format == "csv":
                sql = f"SELECT {csv_columns(self._db.sql(sql))} FROM ({sql}\n)"
            self._db.execute(f"COPY ({sql}\n) TO {literal(str(path))} ({_EXPORTS[format]})")
        number, name = tempfile.mkstemp(prefix="noetl-export-", suffix=f".{format}")
        os.close(number)
        return path.replace(name)

    def _check(self, sql: str) -> None:
        if len(sql) > MAX_TEXT:
            raise QueryFailed(f"the statement has more than {MAX_TEXT:,} characters")
        try:
            statements = self._db.extract_statements(sql)
        except self._errors as problem:
            raise QueryFailed(f"the query: {problem}") from None
        if len(statements) != 1 or statements[0].type != self._select:
            raise QueryFailed("write one SELECT statement: results cannot be changed")

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        timer = threading.Timer(SECONDS, self._db.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except self._errors as problem:
            if type(problem).__name__ == "InterruptException":
                raise QueryFailed(f"the query was stopped after {SECONDS:g} s") from None
            raise QueryFailed(f"the query: {problem}".replace(f"{self.folder}/", "")) from None
        finally:
            timer.cancel()


class _WideIntegers:
    """Columns with integers that do not fit into 64 bits, and the types that hold them; names that differ in case."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of keys, as columns: DuckDB does not distinguish Name and name
        self._taken: set[str] = set()
        self._renamed = False

    def seen(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row, with other names for keys that differ from earlier ones only in case."""
        for name, value in row.items():
            if name not in self._names:
                self._add(name)
            if type(value) is int and not -(2**63) <= value < 2**63:
                column = self._names[name]
                exact = abs(value) < 10**38 and self.types.get(column) != "VARCHAR"
                self.types[column] = "DECIMAL(38,0)" if exact else "VARCHAR"
            elif isinstance(value, list | Mapping) and _has_wide_integer(value):
                self.types[self._names[name]] = "JSON"
        return {self._names[name]: value for name, value in row.items()} if self._renamed else row

    def _add(self, name: str) -> None:
        column, number = name, 0
        while column.lower() in self._taken:
            number += 1
            column = f"{name}_{number}"
        self._names[name] = column
        self._taken.add(column.lower())
        self._renamed |= number > 0


def _has_wide_integer(value: Any) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is int and not -(2**63) <= each < 2**63:
            return True
        if isinstance(each, list | Mapping):
            waiting += each.values() if isinstance(each, Mapping) else each
    return False


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

    from noetl.data.table_files import arrow_reader

    target = path.with_suffix(".parquet")
    with path.open("rb") as file:
        reader = arrow_reader(file)
        with pq.ParquetWriter(target, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    return target
