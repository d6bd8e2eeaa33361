"""Sources of a transfer: each yields its rows as Arrow batches."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, Protocol

from noetl.connections import duckdb, postgres, sqlite
from noetl.connections.auth import fields_of
from noetl.connections.duckdb_gate import apply_policy
from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import SeenColumns
from noetl.data.content import reference_in
from noetl.data.sql import bind, quote_name
from noetl.data.sql.sql_statements import split
from noetl.data.types.column_types import DeclaredType
from noetl.runtime.threads import in_thread, open_in_thread
from noetl.tools._common.postgres_address import postgres_conninfo
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.quarantine.bad_rows import NumberedRows, SourceRows
from noetl.tools.transfer.sources import postgres_source as pg_source
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder, RowsSource, declared_types, find_values
from noetl.tools.transfer.sources.file_source import ReferenceSource, normalize_batch, with_types
from noetl.tools.transfer.transfer_plan import Plan, SourcePlan

BATCH_ROWS, BATCH_BYTES = 10_000, 4 << 20
FETCHED_ROWS = 64


class Source(Protocol):
    """A source that can be read once."""

    def batches(self) -> AsyncGenerator[Any, None]:
        """The rows as Arrow batches; one empty batch if there are columns but no rows."""

    async def count(self) -> int | None:
        """The number of rows; None if it is not known in advance."""

    async def close(self) -> None:
        """Release resources."""


async def open_source(call: ToolCall, plan: Plan, source: SourcePlan, rows: SourceRows | None = None) -> Source:
    """Open the source of a transfer; `rows` takes those that cannot be read, and the positions of all."""
    kind, fields = source.kind, source.fields
    if source.plugin is not None:
        from noetl.tools.transfer.sources.plugin_source import PluginSource

        return PluginSource(call, source.plugin, fields, plan, rows)
    if kind == "postgres":
        return await PostgresSource.open(call, fields, rows)
    if kind == "duckdb":
        return DuckdbSource(call, fields, rows)
    if kind == "sqlite":
        return SqliteSource(call, fields, rows, evolves=plan.evolves)
    if kind == "http":
        from noetl.tools.transfer.sources.http_source import HttpSource

        return HttpSource(call, fields, plan, rows)
    if kind == "object":
        from noetl.tools.transfer.sources.object_source import ObjectSource

        return ObjectSource(call, fields, plan, rows)
    return await data_source(call, fields, plan.path, rows, evolves=plan.evolves)


class PostgresSource:
    """A query or table of PostgreSQL."""

    def __init__(
        self,
        info: str,
        connection: Any,
        query: pg_source.Query,
        types: dict[str, DeclaredType],
        rows: NumberedRows,
    ) -> None:
        self.info = info
        self.query = query
        self.types = types
        self._connection = connection
        self._rows = rows

    @classmethod
    async def open(cls, call: ToolCall, fields: dict[str, Any], rows: SourceRows | None) -> PostgresSource:
        """Connect and describe the query."""
        info = await postgres_conninfo(call.host, fields)
        connection = await postgres.open_connection(info, timeout=call.timeout.connect)
        try:
            types = declared_types(fields.get("types"))
            numbered = NumberedRows(rows, query_name(fields, "postgres"))
            return cls(info, connection, await pg_source.read_query(connection, fields), types, numbered)
        except BaseException:
            await connection.close()
            raise

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        stream = pg_source.batches(self.info, self.query)
        async with aclosing(stream):
            async for batch in stream:
                for part in self._rows.converted(lambda each: with_types(each, self.types), batch):
                    yield part

    async def count(self) -> int | None:
        """The number of rows, from `SELECT count(*)`."""
        return await pg_source.count(self._connection, self.query)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


async def database_file(call: ToolCall, fields: Mapping[str, Any], what: str) -> str:
    """The database file of a DuckDB or SQLite source or target."""
    path, auth = fields.get("file"), fields.get("auth")
    if (
        not path
        and isinstance(auth, str)
        and "://" not in auth
        and auth.endswith((".duckdb", ".db", ".ddb", ".sqlite"))
    ):
        path = auth  # `auth` is the file itself
    if not path and auth:
        credential = await fields_of(auth, call.host, prefixes=("db_", "duckdb_", "sqlite_"))
        path = next((credential[name] for name in ("file", "database", "path", "dsn") if credential.get(name)), None)
    if not path or path == ":memory:":
        raise BadInput(f"{what} requires the `file` of the database")
    return call.host.resolve_path(str(path).removeprefix("duckdb://").removeprefix("sqlite://"))


def _statement(fields: Mapping[str, Any], dialect: Any) -> Any:
    if fields.get("table") and not fields.get("query"):
        return bind(f"SELECT * FROM {quote_name(str(fields['table']))}", None, dialect)
    statements = split(str(fields.get("query") or ""), dialect)
    if len(statements) != 1:
        raise BadInput("the source requires `query` with one statement, or `table`")
    return bind(statements[0], fields.get("params"), dialect)


class DuckdbSource:
    """A query or table of DuckDB; without a database, a query over files."""

    def __init__(self, call: ToolCall, fields: dict[str, Any], rows: SourceRows | None) -> None:
        self._call = call
        self._fields = fields
        self._rows = NumberedRows(rows, query_name(fields, "duckdb"))
        self._bound = _statement(fields, "duckdb")
        self._types = declared_types(fields.get("types"))

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        has_file = bool(self._fields.get("file") or self._fields.get("auth"))
        path = await database_file(self._call, self._fields, "the source") if has_file else duckdb.MEMORY
        database = duckdb.database(path)
        async with database.cursor(writes=False, wait=self._call.timeout.connect or duckdb.WAIT_FOR_FILE) as cursor:
            folder = self._call.host.resolve_path(".").replace("'", "''")
            await in_thread(lambda: cursor.execute(f"SET file_search_path = '{folder}'"))
            allows = self._call.host.address_check()
            if allows is not None:
                await apply_policy(cursor, [(self._bound.text, self._bound.values)], allows)

            def run() -> Any:
                database.limit_memory(cursor, self._bound)
                return duckdb.run_statement(cursor, self._bound)

            columns, parts, _ = await in_thread(run, interrupt=cursor.interrupt)
            if not columns:
                raise BadInput("the source's statement returns no rows")
            stream = duckdb.batches(cursor, parts)
            async with aclosing(stream):
                async for batch in stream:
                    for part in self._rows.converted(self._typed, normalize_batch(batch)):
                        yield part

    def _typed(self, batch: Any) -> Any:
        return with_types(batch, self._types)

    async def count(self) -> int | None:
        """Not known in advance."""
        return None

    async def close(self) -> None:
        """No resources to release."""


class SqliteSource:
    """A query or table of SQLite."""

    def __init__(
        self, call: ToolCall, fields: dict[str, Any], rows: SourceRows | None, *, evolves: bool = False
    ) -> None:
        self._call = call
        self._fields = fields
        self._evolves = evolves
        self._rows = NumberedRows(rows, query_name(fields, "sqlite"))
        self._bound = _statement(fields, "sqlite")

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        path = await database_file(self._call, self._fields, "the source")
        connection = await open_in_thread(partial(sqlite.connect, path), sqlite3.Connection.close)
        try:
            values = [sqlite.adapted(value) for value in self._bound.values]
            cursor = await in_thread(
                lambda: connection.execute(self._bound.text, values), interrupt=connection.interrupt
            )
            names = sqlite.columns_of(cursor)
            types = self._fields.get("types")
            builder = BatchBuilder(types, "the source", names, json_text=True, evolves=self._evolves)
            fetcher = _RowFetcher(cursor)
            while rows := await in_thread(fetcher.next, interrupt=connection.interrupt):
                if builder.schema is None and len(rows) < BATCH_ROWS and fetcher.has_more:
                    look = partial(_first_columns, connection.execute(self._bound.text, values), names)
                    builder.learn(await in_thread(look, interrupt=connection.interrupt))
                for batch in self._rows.built(builder.batch, [dict(zip(names, row, strict=True)) for row in rows]):
                    yield batch
                del rows
            if builder.schema is None:
                declared = partial(_declared_numbers, connection, self._bound.text, values, names)
                types = {**await in_thread(declared), **(self._fields.get("types") or {})}
                yield BatchBuilder(types, "the source", names).batch([])
        finally:
            await in_thread(connection.close)

    async def count(self) -> int | None:
        """Not known in advance."""
        return None

    async def close(self) -> None:
        """No resources to release."""


class _RowFetcher:
    """Fetches rows of SQLite until they are many, or have many bytes."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._step = FETCHED_ROWS
        self.has_more = True

    def next(self) -> list[tuple[Any, ...]]:
        """The next rows; none at the end."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        while len(rows) < BATCH_ROWS and size < BATCH_BYTES:
            some = self._cursor.fetchmany(min(self._step, BATCH_ROWS - len(rows)))
            if not some:
                self.has_more = False
                break
            rows += some
            more = sum(len(value) for row in some for value in row if type(value) is str or type(value) is bytes)
            size += more
            self._step = max(1, min(FETCHED_ROWS, BATCH_BYTES * len(some) // (more or 1)))
        return rows


def _first_columns(cursor: Any, names: list[str]) -> SeenColumns:
    """The columns of as many rows as the first batch has if they are short."""
    seen = SeenColumns()
    for row in islice(cursor, BATCH_ROWS):
        seen.add([dict(zip(names, row, strict=True))])
    return seen


def _declared_numbers(connection: Any, query: str, values: list[Any], names: list[str]) -> dict[str, str]:
    """The types of the columns that are declared as numbers, for a result without rows."""
    try:
        connection.execute(f"CREATE TEMP TABLE noetl_columns AS SELECT * FROM ({query}\n) LIMIT 0", values)
    except sqlite3.OperationalError:
        return {}  # a PRAGMA, or a statement that changes data
    found = connection.execute("SELECT type FROM pragma_table_info('noetl_columns', 'temp')").fetchall()
    types = {"INT": "bigint", "REAL": "double"}
    return {name: types[each] for name, (each,) in zip(names, found, strict=True) if each in types}


def query_name(fields: Mapping[str, Any], kind: str) -> str:
    """What the rows of a database are called in a quarantine; a query may contain secrets, and is not shown."""
    return f"{kind} query" if fields.get("query") else f"{kind} {fields.get('table')}"


async def data_source(
    call: ToolCall,
    fields: Mapping[str, Any],
    path: str | None,
    rows: SourceRows | None = None,
    *,
    evolves: bool = False,
) -> Source:
    """Rows in the task's fields, or a stored result."""
    data = fields.get("data") if fields.get("data") is not None else fields.get("ref")
    reference = reference_in(data)
    if reference is not None:
        return ReferenceSource(call, reference, path, rows)
    values = find_values(data, path, "`data`")
    return RowsSource(values, fields.get("types"), rows, evolves=evolves)
