"""The process that executes the SQL of users over the tables of one database file (`noetl.data.query_process`).

`python -m noetl.data.query_child FOLDER` reads requests from stdin and writes replies to stdout, each a line of JSON.
The database is opened for reading. The memory of the process is bounded: DuckDB does not count all of what a query
allocates, such as the values of large lists and texts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import Struct

from noetl.data.arrow_tables import meaning_of, rows_of
from noetl.data.column_profiles import column_profiles
from noetl.data.duckdb_results import csv_columns, exact_parts
from noetl.data.files.duckdb_files import literal

DATABASE = "query.duckdb"
MAX_TEXT = 100_000  # characters of a statement
MAX_ANSWER = 64 << 20  # bytes of the rows of one reply; exports are files
BESIDE = 512 << 20  # bytes of memory beside the limit of DuckDB
_EXPORTS = {"csv": "FORMAT csv, HEADER", "parquet": "FORMAT parquet", "json": "FORMAT json, ARRAY true"}


class Limits(Struct):
    """What a query may use."""

    memory: str  # of DuckDB
    disk: str
    seconds: float


class Request(Struct):
    """A SELECT, and what becomes of its rows."""

    action: Literal["rows", "profile", "export"]
    sql: str
    limit: int = 0  # of `rows`
    format: str = ""  # of `export`
    path: str = ""


class Reply(Struct, omit_defaults=True):
    """The result of a request, or why there is none."""

    result: msgspec.Raw = msgspec.Raw()
    failed: str = ""


class Refused(Exception):
    """The statement is not allowed, wrong, or needs too much."""


class QueryServer:
    """Executes requests over the tables of a folder."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        import duckdb

        self._folder, self._limits = folder, limits
        self._errors = duckdb.Error
        self._select = duckdb.StatementType.SELECT
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": limits.memory,
            "threads": 1,  # with several, an export holds what comes before its turn
            "temp_directory": str(folder / "spill"),
            "max_temp_directory_size": limits.disk,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        self._db = duckdb.connect(str(folder / DATABASE), read_only=True, config=config)
        for setting in (
            "python_enable_replacements = false",
            "TimeZone = 'UTC'",
            f"allowed_directories = [{literal(f'{folder}/')}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._db.execute(f"SET {setting}")

    def reply(self, request: Request) -> Reply:
        """Execute a request."""
        try:
            self._check(request.sql)
            with self._bounded():
                data = msgspec.json.encode(getattr(self, f"_{request.action}")(request))
        except Refused as problem:
            return Reply(failed=str(problem).replace(f"{self._folder}/", ""))
        if len(data) > MAX_ANSWER:
            return Reply(
                failed=f"the rows have {len(data):,} bytes, the limit is {MAX_ANSWER:,}: select fewer rows or columns, "
                "or export them to a file"
            )
        return Reply(msgspec.Raw(data))

    def _rows(self, request: Request) -> dict[str, Any]:
        limit = request.limit
        schema, batches = exact_parts(self._db.sql(request.sql), max(1, min(limit + 1, 10_000)))
        columns = [{"name": field.name, "type": meaning_of(field) or str(field.type)} for field in schema]
        rows: list[dict[str, Any]] = []
        for batch in batches:
            rows += rows_of(batch.slice(0, limit + 1 - len(rows)))
            if len(rows) > limit:
                break
        return {"columns": columns, "rows": rows[:limit], "truncated": len(rows) > limit}

    def _profile(self, request: Request) -> list[dict[str, Any]]:
        return column_profiles(self._db, request.sql)

    def _export(self, request: Request) -> None:
        sql = request.sql
        if request.format == "csv":
            sql = f"SELECT {csv_columns(self._db.sql(sql))} FROM ({sql}\n)"
        self._db.execute(f"COPY ({sql}\n) TO {literal(request.path)} ({_EXPORTS[request.format]})")

    def _check(self, sql: str) -> None:
        if len(sql) > MAX_TEXT:
            raise Refused(f"the statement has more than {MAX_TEXT:,} characters")
        try:
            statements = self._db.extract_statements(sql)
        except self._errors as problem:
            raise Refused(f"the query: {problem}") from None
        if len(statements) != 1 or statements[0].type != self._select:
            raise Refused("write one SELECT statement: results cannot be changed")

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        timer = threading.Timer(self._limits.seconds, self._db.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (self._errors, MemoryError, OSError, ValueError) as problem:  # the last two of Arrow
            kind = type(problem).__name__
            if kind == "InterruptException":
                raise Refused(f"the query was stopped after {self._limits.seconds:g} s") from None
            if kind == "MemoryError" or "Out of Memory Error" in str(problem):  # Arrow wraps errors of DuckDB
                raise Refused(
                    f"the query needs more than {self._limits.memory} of memory, or {self._limits.disk} of disk: "
                    "select fewer rows or columns, or smaller values"
                ) from None
            raise Refused(f"the query: {problem}") from None
        finally:
            timer.cancel()


def bound_memory(more: int) -> None:
    """Let the process allocate only so many bytes more than it has, where the system can."""
    if sys.platform != "linux":
        return
    import resource

    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = used + more
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def bytes_of(size: str) -> int:
    """The bytes of a size of DuckDB (`512MB`)."""
    return int(size.removesuffix("MB")) * 1_000_000


def serve(folder: Path, source: BinaryIO, target: BinaryIO) -> None:
    """Reply to requests until there are no more."""
    import pyarrow  # noqa: F401 - before the memory is measured

    limits = msgspec.json.decode(source.readline(), type=Limits)
    server = QueryServer(folder, limits)
    bound_memory(bytes_of(limits.memory) + BESIDE)
    decoder = msgspec.json.Decoder(Request)
    for line in source:
        target.write(msgspec.json.encode(server.reply(decoder.decode(line))) + b"\n")
        target.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # the database was only read
