"""What kind `duckdb` does: one database, tables handed over through Arrow, results of any size."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import duckdb
from msgspec import ValidationError, convert

from noetl.connections import duckdb as driver
from noetl.connections import objects
from noetl.connections.auth import BadAuth, fields_of
from noetl.connections.duckdb import attach_statement, batches, to_error_info
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall
from noetl.data import duckdb_files as duck_files
from noetl.data.arrow_tables import batch_of_mappings, inferred_schema, rows_of
from noetl.data.formats import format_of
from noetl.data.sql import ParameterError, bind, bind_sets, quote_column, steers_transaction
from noetl.data.table_files import arrow_reader
from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable
from noetl.runtime.threads import in_thread
from noetl.tools._common.fields import DUCKDB_NULLS
from noetl.tools._common.sql_task import (
    BadInput,
    Limits,
    Result,
    Statement,
    answer,
    collect,
    flag,
    is_many,
    limits_of,
    statements_of,
)


async def perform(call: ToolCall) -> Outcome:
    """Run the statements and give their results."""
    try:
        async with asyncio.timeout(call.timeout.total):
            return await _Task(call).run()
    except (BadInput, BadAuth, ParameterError) as wrong:
        return _failed("schema", str(wrong))
    except SecretUnavailable as missing:
        return _failed(missing.kind, str(missing))
    except PayloadUnavailable as missing:
        return _failed(missing.kind, str(missing))
    except StoreUnavailable as missing:
        return _failed(missing.kind, str(missing))
    except TimeoutError:
        return _failed(
            "db.timeout", f"the query was interrupted: it ran longer than {call.timeout.total:g} s (spec.timeout)"
        )
    except duckdb.Error as failure:
        info = to_error_info(failure)
        return Outcome(status="error", error=info, helpers={"duckdb": {"exception_type": type(failure).__name__}})
    except objects.errors() as failure:
        return Outcome(
            status="error", error=objects.to_error_info(failure, "`tables`"), helpers={"duckdb": dict(DUCKDB_NULLS)}
        )


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call

    async def run(self) -> Outcome:
        """Open the database, hand the tables over, run everything."""
        call = self.call
        statements = await statements_of(call, "duckdb")
        limits = limits_of(call.spec)
        path = self._path()
        read_only = flag(call.input.get("read_only"), False)
        database = driver.database(path, read_only=read_only)
        writes = not read_only and driver.may_write([statement.text for statement in statements])
        wait = call.timeout.connect or driver.WAIT_FOR_FILE
        with tempfile.TemporaryDirectory(prefix="noetl-duckdb-") as folder:
            async with database.cursor(writes=writes, wait=wait) as cursor:
                await self._here(cursor)
                await self._attach(cursor)
                await self._secret(cursor, statements)
                await self._tables(cursor, folder)
                results = await self._all(cursor, statements, limits)
        return answer(results, duckdb=dict(DUCKDB_NULLS))

    def _path(self) -> str:
        given = self.call.input
        path = given.get("file")
        if path in (None, "", driver.MEMORY):
            return driver.MEMORY
        if not isinstance(path, str):
            raise BadInput("`file` is the path of a database file")
        return self.call.host.resolve_path(path.removeprefix("duckdb://"))

    async def _all(self, cursor: Any, statements: list[Statement], limits: Limits) -> list[Result]:
        steered = any(steers_transaction(statement.text) for statement in statements)
        one = len(statements) > 1 and flag(self.call.spec.get("transaction"), True) and not steered
        if not one:
            return await self._each(cursor, statements, limits)
        await self._do(cursor, lambda: cursor.execute("BEGIN TRANSACTION"))
        try:
            results = await self._each(cursor, statements, limits)
        except BaseException:
            await asyncio.to_thread(_undo, cursor)
            raise
        await self._do(cursor, lambda: cursor.execute("COMMIT"))
        return results

    def _written(self, path: str) -> str:
        """Where a statement writes to: beside the playbook, in a folder that is there."""
        place = self.call.host.resolve_path(path)
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        return place

    async def _each(self, cursor: Any, statements: list[Statement], limits: Limits) -> list[Result]:
        results: list[Result] = []
        used = 0
        for statement in statements:
            statement = statement._replace(text=driver.with_paths(statement.text, self._written))
            if is_many(statement, "duckdb"):
                text, sets = bind_sets(statement.text, statement.params, "duckdb")
                values = [_bound(one.values) for one in sets]
                if sets:
                    await self._do(cursor, lambda text=text, values=values: cursor.executemany(text, values))
                results.append(Result(row_count=len(sets)))
                continue
            bound = bind(statement.text, statement.params, "duckdb", used=used)
            used += len(bound.values)
            bound = bound._replace(values=_bound(bound.values))
            columns, parts, changed = await self._do(cursor, lambda bound=bound: driver.run_statement(cursor, bound))
            if not columns:
                results.append(Result(row_count=changed or 0))
                continue
            results.append(await collect(self.call.host, _chunks(cursor, parts, columns), limits))
        return results

    async def _do(self, cursor: Any, deed: Any) -> Any:
        return await in_thread(deed, interrupt=cursor.interrupt)

    async def _here(self, cursor: Any) -> None:
        """Let queries find files beside the playbook."""
        folder = self.call.host.resolve_path(".")
        await self._do(cursor, lambda: cursor.execute(f"SET file_search_path = '{_escaped(folder)}'"))

    async def _attach(self, cursor: Any) -> None:
        wanted = self.call.input.get("attach") or {}
        if isinstance(wanted, list):
            wanted = {str(one.get("name") or one.get("alias")): one for one in wanted if isinstance(one, Mapping)}
        if not isinstance(wanted, Mapping):
            raise BadInput("`attach` is a map: name -> file, or name -> {file, type, read_only}")
        for name, target in wanted.items():
            options = dict(target) if isinstance(target, Mapping) else {"file": target}
            file = options.get("file") or options.get("path") or options.get("database")
            if not isinstance(file, str):
                raise BadInput(f"attach.{name} needs the `file` of a database")
            if "://" not in file and "=" not in file and file != ":memory:":
                file = self.call.host.resolve_path(file)
            statement = attach_statement(name, file, options)
            wait = self.call.timeout.connect or driver.WAIT_FOR_FILE
            await driver.attach(cursor, statement, file, wait)

    async def _secret(self, cursor: Any, statements: list[Statement]) -> None:
        """Give SQL that names `s3://` the credential, if DuckDB has its extension for that."""
        auth = self.call.input.get("auth")
        if not auth or not any("s3://" in statement.text for statement in statements):
            return
        fields = await fields_of(auth, self.call.host, prefixes=objects.PREFIXES)
        config = objects.config_of(objects.parse_location("s3://x/y"), fields)
        endpoint = str(config.get("endpoint", ""))
        parts = {
            "KEY_ID": config.get("access_key_id"),
            "SECRET": config.get("secret_access_key"),
            "SESSION_TOKEN": config.get("session_token"),
            "REGION": config.get("region"),
            "ENDPOINT": endpoint.partition("://")[2] or None,
            "USE_SSL": "false" if endpoint.startswith("http://") else None,
            "URL_STYLE": "path" if endpoint else None,
        }
        options = ", ".join(f"{name} '{_escaped(value)}'" for name, value in parts.items() if value)
        await self._do(cursor, lambda: cursor.execute(f"CREATE OR REPLACE TEMPORARY SECRET noetl (TYPE s3, {options})"))

    async def _tables(self, cursor: Any, folder: str) -> None:
        wanted = self.call.input.get("tables") or {}
        if not isinstance(wanted, Mapping):
            raise BadInput("`tables` is a map: name -> rows, reference or address")
        for number, (name, source) in enumerate(wanted.items()):
            if isinstance(source, Mapping) and isinstance(source.get("rows"), list):
                source = source["rows"]
            if isinstance(source, list):
                table = _arrow_table(name, source)
                await self._do(cursor, lambda name=name, table=table: cursor.register(name, table))
            else:
                view = await self._file_view(str(name), source, f"{folder}/{number}")
                await self._do(cursor, lambda view=view: cursor.execute(view))

    async def _file_view(self, name: str, source: Any, place_for_it: str) -> str:
        """A view over a file that holds what a reference or an address leads to."""
        call = self.call
        if isinstance(source, Mapping) and "locator" in source:
            try:
                reference = convert(dict(source), Reference)
            except ValidationError as wrong:
                raise BadInput(f"tables.{name} is not a whole reference: {wrong}") from None
            format = format_of(content_type=reference.meta.content_type)
            stream = call.host.open_result(reference)
            path = await _saved(stream, Path(f"{place_for_it}.{format}"))
        elif isinstance(source, str):
            format = format_of(path=source)
            place = objects.parse_location(source) if "://" in source else None
            if place is None or place.scheme == "file":
                path = call.host.resolve_path(source.removeprefix("file://"))
            else:
                fields = await fields_of(call.input.get("auth"), call.host, prefixes=objects.PREFIXES)
                store = objects.shared_store(place, fields, connect=call.timeout.connect, total=call.timeout.total)
                path = await _saved(objects.download(store, place.key), Path(f"{place_for_it}.{format}"))
        else:
            raise BadInput(f"tables.{name} is a list of rows, a reference, or an address; not {type(source).__name__}")
        if format == "arrow":
            path, format = await asyncio.to_thread(_as_parquet, path), "parquet"
        if format not in ("parquet", "csv", "json", "jsonl"):
            raise BadInput(f"tables.{name} is {format}: use Parquet, Arrow, CSV, JSON or JSON lines")
        reader = f"{'read_parquet' if format == 'parquet' else 'read_json_auto'}({duck_files.literal(path)})"
        if format == "csv":
            reader = await asyncio.to_thread(duck_files.csv_call, path)
        return f"CREATE OR REPLACE TEMP VIEW {quote_column(name)} AS SELECT * FROM {reader}"


class _Batch:
    """A batch of a result."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.columns: list[str] = batch.schema.names

    def count(self) -> int:
        rows: int = self._batch.num_rows
        return rows

    def size(self) -> int:
        size: int = self._batch.nbytes
        return size

    def rows(self) -> list[dict[str, Any]]:
        return rows_of(self._batch)

    def batch(self) -> Any:
        return self._batch


async def _chunks(cursor: Any, parts: Any, _: list[str]) -> AsyncGenerator[Any, None]:
    stream = batches(cursor, parts)
    async with aclosing(stream):
        async for batch in stream:
            yield _Batch(batch)


async def _saved(stream: Any, path: Any) -> str:
    file = await asyncio.to_thread(path.open, "wb")
    with file:
        async for chunk in stream:
            await asyncio.to_thread(file.write, chunk)
    return str(path)


def _as_parquet(path: str) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = path + ".parquet"
    with pa.memory_map(path) as file:
        reader = arrow_reader(file)
        with pq.ParquetWriter(target, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    return target


def _arrow_table(name: Any, rows: list[Any]) -> Any:
    import pyarrow as pa

    if not all(isinstance(row, Mapping) for row in rows):
        raise BadInput(f"tables.{name} needs rows that are mappings")
    if not rows:
        raise BadInput(f"tables.{name} is empty: its columns are not known")
    names = list(dict.fromkeys(str(key) for row in rows for key in row))
    try:
        return pa.table({each: [row.get(each) for row in rows] for each in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # values of several types in one column: as JSON text
        return pa.Table.from_batches([batch_of_mappings(rows, inferred_schema(rows))])


def _bound(values: list[Any]) -> list[Any]:
    """Parameters as DuckDB can bind them."""
    return [dict(value) if isinstance(value, Mapping) else value for value in values]


def _undo(cursor: Any) -> None:
    try:
        cursor.execute("ROLLBACK")
    except duckdb.Error:
        return  # the failure that led here ended the transaction already


def _escaped(value: Any) -> str:
    return str(value).replace("'", "''")


def _failed(kind: str, message: str) -> Outcome:
    return error(kind, message, duckdb=dict(DUCKDB_NULLS))
