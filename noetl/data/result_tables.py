"""Results of an execution as tables of an isolated DuckDB: read-only SQL over them, and exports.

The database lives in a temporary folder. Its statements can read the results there and nothing else: no other file, no
network, no extension. Only one SELECT is executed; memory, threads and time are bounded.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from noetl.data.arrow_tables import rows_of
from noetl.data.duckdb_files import ROWS_KEYS, csv_call, literal
from noetl.data.sql import quote_column
from noetl.errors import RequestRefused

MEMORY = "512MB"
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
    """A DuckDB with results as tables; used in one thread at a time."""

    def __init__(self) -> None:
        import duckdb

        self.folder = Path(tempfile.mkdtemp(prefix="noetl-query-"))
        self._files = 0
        self._db = duckdb.connect(
            str(self.folder / "query.duckdb"),
            config={
                "memory_limit": MEMORY,
                "threads": 2,
                "temp_directory": str(self.folder / "spill"),
                "max_temp_directory_size": DISK,
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            },
        )
        self._errors: type[Exception] = duckdb.Error
        self._select = duckdb.StatementType.SELECT

    def close(self) -> None:
        """Remove the database and its files."""
        self._db.close()
        shutil.rmtree(self.folder, ignore_errors=True)

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
        path = self._new_file("jsonl")
        empty = True
        with path.open("wb") as file:
            async for row in rows:
                file.write(_line(row))
                empty = False
        if empty:
            self.add_value(table, [])
        else:
            await asyncio.to_thread(self._add_file, table, path, "jsonl")

    def add_value(self, table: tuple[str, str], value: Any) -> None:
        """Add a value as a table: a list of rows, a document with `rows`, or one row."""
        rows, names = _rows_in(value)
        if not rows:
            columns = ", ".join(f"{quote_column(name)} VARCHAR" for name in names or ["value"])
            self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_column(table[0])}")
            self._db.execute(f"CREATE TABLE {quote_column(table[0])}.{quote_column(table[1])} ({columns})")
            return
        path = self._new_file("jsonl")
        with path.open("wb") as file:
            file.writelines(map(_line, rows))
        self._add_file(table, path, "jsonl")

    def lock(self) -> None:
        """Forbid access to everything but the files of the results, for good."""
        self._db.execute(f"SET allowed_directories = [{literal(str(self.folder) + '/')}]")
        self._db.execute("SET enable_external_access = false")
        self._db.execute("SET lock_configuration = true")

    def _new_file(self, suffix: str) -> Path:
        self._files += 1
        return self.folder / f"r{self._files}.{suffix}"

    def _add_file(self, table: tuple[str, str], path: Path, format: str) -> None:
        """Parquet is read where it is; other formats are read once, which also finds their types."""
        schema, name = map(quote_column, table)
        try:
            self._db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            if format in ("parquet", "arrow"):
                place = path if format == "parquet" else _as_parquet(path)
                self._db.execute(f"CREATE VIEW {schema}.{name} AS SELECT * FROM read_parquet({literal(str(place))})")
                return
            source = csv_call(str(path)) if format == "csv" else f"read_json_auto({literal(str(path))}, {_JSON_LINES})"
            self._db.execute(f"CREATE TABLE {schema}.{name} AS SELECT * FROM {source}")
            path.unlink()
        except self._errors as problem:
            raise QueryFailed(f"{'.'.join(table)} cannot be read as a table: {problem}") from None

    # ── queries ─────────────────────────────────────────────────────────────────────────

    def rows(self, sql: str, limit: int) -> QueryRows:
        """The first rows of a SELECT."""
        self._check(sql)
        with self._bounded():
            reader = self._db.sql(sql).to_arrow_reader(max(1, min(limit + 1, 10_000)))
            columns = [{"name": field.name, "type": str(field.type)} for field in reader.schema]
            rows: list[dict[str, Any]] = []
            for batch in reader:
                rows += rows_of(batch.slice(0, limit + 1 - len(rows)))
                if len(rows) > limit:
                    break
        return QueryRows(columns, rows[:limit], len(rows) > limit)

    def export(self, sql: str, format: Export) -> Path:
        """Write all rows of a SELECT to a file in the folder."""
        self._check(sql)
        path = self._new_file(f"out.{format}")
        with self._bounded():
            self._db.execute(f"COPY ({sql.strip().rstrip(';')}\n) TO {literal(str(path))} ({_EXPORTS[format]})")
        return path

    def _check(self, sql: str) -> None:
        if len(sql) > MAX_TEXT:
            raise QueryFailed(f"the statement has more than {MAX_TEXT:,} characters")
        try:
            statements = self._db.extract_statements(sql)
        except self._errors as problem:
            raise QueryFailed(str(problem)) from None
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
            raise QueryFailed(str(problem).replace(f"{self.folder}/", "")) from None
        finally:
            timer.cancel()


def _line(row: Any) -> bytes:
    return _encode(row if isinstance(row, Mapping) else {"value": row}) + b"\n"


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
