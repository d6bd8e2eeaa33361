"""Runs the statements of kind `duckdb`: one database, tables registered through Arrow, streamed results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from pathlib import Path
from typing import Any

import duckdb
from msgspec import ValidationError, convert

from noetl.connections import duckdb as driver
from noetl.connections import objects
from noetl.connections.auth import BadAuth, fields_of
from noetl.connections.duckdb import attach_statement, batches, to_error_info
from noetl.connections.duckdb_gate import apply_policy, changes_instance
from noetl.connections.gate_proxy import trusting_proxy
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import batch_of_mappings, inferred_schema, rows_of
from noetl.data.files import duckdb_files as duck_files
from noetl.data.files.formats import format_of
from noetl.data.files.table_files import arrow_reader
from noetl.data.sql import ParameterError, bind, bind_sets, quote_column
from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable
from noetl.runtime.temporary_folders import TemporaryFolder
from noetl.runtime.threads import in_thread
from noetl.tools._common import sql_task as sql
from noetl.tools._common.sql_task import BadInput, Limits, Result, Statement, flag
from noetl.tools.duckdb.spec import NULLS


async def run(call: ToolCall) -> Outcome:
    """Execute the statements and return their results."""
    try:
        async with asyncio.timeout(call.timeout.total):
            return await _Task(call).run()
    except (BadInput, BadAuth, ParameterError) as wrong:
        return _failure("schema", str(wrong))
    except (SecretUnavailable, PayloadUnavailable, StoreUnavailable) as missing:
        return _failure(missing.kind, str(missing))
    except TimeoutError:
        return _failure(
            "db.timeout", f"the query was interrupted: it ran longer than {call.timeout.total:g} s (spec.timeout)"
        )
    except duckdb.Error as failure:
        info = to_error_info(failure)
        return Outcome(status="error", error=info, helpers={"duckdb": {"exception_type": type(failure).__name__}})
    except objects.errors() as failure:
        return Outcome(
            status="error", error=objects.to_error_info(failure, "`tables`"), helpers={"duckdb": dict(NULLS)}
        )


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call

    async def run(self) -> Outcome:
        """Open the database, register the tables, and execute the statements."""
        call = self.call
        statements = await sql.read_statements(call, "duckdb")
        limits = sql.read_limits(call.spec)
        read_only = flag(call.input.get("read_only"), False)
        database = driver.database(self._database_path(), read_only=read_only)
        writes = not read_only and driver.may_write([statement.text for statement in statements])
        wait = call.timeout.connect or driver.WAIT_FOR_FILE
        config = await self._store_config(statements)
        is_alone = config is not None or any(changes_instance(statement.text) for statement in statements)
        shared = object() if is_alone else tuple(statement for _, _, statement in self._attached()) or None
        with TemporaryFolder("noetl-duckdb-") as folder:
            async with (
                self._proxy(config) as proxy,
                database.cursor(writes=writes, wait=wait, shared=shared) as cursor,
            ):
                await self._set_search_path(cursor)
                await self._apply_policy(cursor, statements, proxy)
                await self._attach(cursor)
                await self._create_secret(cursor, config)
                await self._register_tables(cursor, folder)
                results = await self._execute(cursor, statements, limits)
        return sql.success(results, duckdb=dict(NULLS))

    def _database_path(self) -> str:
        path = self.call.input.get("file")
        if path in (None, "", driver.MEMORY):
            return driver.MEMORY
        if not isinstance(path, str):
            raise BadInput("`file` must be the path of a database file")
        return self.call.host.resolve_path(path.removeprefix("duckdb://"))

    async def _execute(self, cursor: Any, statements: list[Statement], limits: Limits) -> list[Result]:
        if not sql.needs_transaction(statements, self.call.spec):
            return await self._execute_each(cursor, statements, limits)
        await _in_thread(cursor, cursor.execute, "BEGIN TRANSACTION")
        try:
            results = await self._execute_each(cursor, statements, limits)
        except BaseException:
            await asyncio.to_thread(_roll_back, cursor)
            raise
        await _in_thread(cursor, cursor.execute, "COMMIT")
        return results

    def _output_path(self, path: str) -> str:
        """Path of a file that a statement writes, relative to the playbook; creates its folder."""
        resolved = self.call.host.resolve_path(path)
        Path(resolved).parent.mkdir(parents=True, exist_ok=True)
        return resolved

    async def _execute_each(self, cursor: Any, statements: list[Statement], limits: Limits) -> list[Result]:
        results: list[Result] = []
        used = 0
        for statement in statements:
            statement = statement._replace(text=driver.with_paths(statement.text, self._output_path))
            if sql.has_parameter_sets(statement, "duckdb"):
                text, sets = bind_sets(statement.text, statement.params, "duckdb")
                if sets:
                    await _in_thread(cursor, cursor.executemany, text, [_bindable(bound.values) for bound in sets])
                results.append(Result(row_count=len(sets)))
                continue
            bound = bind(statement.text, statement.params, "duckdb", used=used)
            used += len(bound.values)
            bound = bound._replace(values=_bindable(bound.values))
            columns, parts, changed = await _in_thread(cursor, driver.run_statement, cursor, bound)
            if not columns:
                results.append(Result(row_count=changed or 0))
                continue
            results.append(await sql.collect(self.call.host, _chunks(cursor, parts), limits))
        return results

    async def _set_search_path(self, cursor: Any) -> None:
        """Let queries find files relative to the playbook."""
        folder = self.call.host.resolve_path(".")
        await _in_thread(cursor, cursor.execute, f"SET file_search_path = '{_escape(folder)}'")

    async def _apply_policy(self, cursor: Any, statements: list[Statement], proxy: str | None) -> None:
        """Check the addresses of the statements by the network policy."""
        allows = self.call.host.address_check()
        if allows is None:
            return
        attached = [(statement, None) for _, _, statement in self._attached()]
        given = [(statement.text, statement.params) for statement in statements]
        await apply_policy(cursor, [*attached, *given], allows, proxy)

    def _attached(self) -> Iterator[tuple[str, str, str]]:
        """Names, files and statements of `attach`."""
        attach = self.call.input.get("attach") or {}
        if isinstance(attach, list):
            attach = {str(one.get("name") or one.get("alias")): one for one in attach if isinstance(one, Mapping)}
        if not isinstance(attach, Mapping):
            raise BadInput("`attach` must be a mapping: name -> file, or name -> {file, type, read_only}")
        for name, target in attach.items():
            options = dict(target) if isinstance(target, Mapping) else {"file": target}
            file = options.get("file") or options.get("path") or options.get("database")
            if not isinstance(file, str):
                raise BadInput(f"attach.{name} requires the `file` of a database")
            if "://" not in file and "=" not in file and file != ":memory:":
                file = self.call.host.resolve_path(file)
            yield str(name), file, attach_statement(name, file, options)

    async def _attach(self, cursor: Any) -> None:
        wait = self.call.timeout.connect or driver.WAIT_FOR_FILE
        for _, file, statement in self._attached():
            await driver.attach(cursor, statement, file, wait)

    async def _store_config(self, statements: list[Statement]) -> dict[str, Any] | None:
        """The configuration of the object store by the credential, for SQL that contains `s3://`; else None."""
        auth = self.call.input.get("auth")
        if not auth or not any("s3://" in statement.text for statement in statements):
            return None
        fields = await fields_of(auth, self.call.host, prefixes=objects.PREFIXES)
        place = objects.parse_location("s3://x/y")
        is_checked = await objects.check_endpoint(place, fields, self.call.host.address_check) is not None
        return {**objects.config_of(place, fields), "is_checked": is_checked}

    def _proxy(self, config: Mapping[str, Any] | None) -> AbstractAsyncContextManager[str | None]:
        """The proxy of a call to an endpoint that is not checked because a stored credential names it."""
        policy = self.call.host.address_check()
        if policy is None or config is None or config["is_checked"] or not config.get("endpoint"):
            return nullcontext()
        return trusting_proxy(policy, str(config["endpoint"]))

    async def _create_secret(self, cursor: Any, config: Mapping[str, Any] | None) -> None:
        """Create a DuckDB secret with the credential."""
        if config is None:
            return
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
        options = ", ".join(f"{name} '{_escape(value)}'" for name, value in parts.items() if value)
        await _in_thread(cursor, cursor.execute, f"CREATE OR REPLACE TEMPORARY SECRET noetl (TYPE s3, {options})")

    async def _register_tables(self, cursor: Any, folder: str) -> None:
        tables = self.call.input.get("tables") or {}
        if not isinstance(tables, Mapping):
            raise BadInput("`tables` must be a mapping: name -> rows, reference or address")
        for number, (name, source) in enumerate(tables.items()):
            if isinstance(source, Mapping) and isinstance(source.get("rows"), list):
                source = source["rows"]
            if isinstance(source, list):
                await _in_thread(cursor, cursor.register, name, _arrow_table(name, source))
            else:
                path, format = await self._local_file(str(name), source, f"{folder}/{number}")
                await _in_thread(cursor, cursor.execute, await asyncio.to_thread(_file_view, name, path, format))

    async def _local_file(self, name: str, source: Any, stem: str) -> tuple[str, str]:
        """A local file with the content of a reference or an address, and its format."""
        call = self.call
        if isinstance(source, Mapping) and "locator" in source:
            try:
                reference = convert(dict(source), Reference)
            except ValidationError as wrong:
                raise BadInput(f"tables.{name} is not a valid reference: {wrong}") from None
            format = format_of(content_type=reference.meta.content_type)
            return await _save(call.host.open_result(reference), Path(f"{stem}.{format}")), format
        if not isinstance(source, str):
            raise BadInput(
                f"tables.{name} must be a list of rows, a reference or an address, not {type(source).__name__}"
            )
        format = format_of(path=source)
        try:
            place = objects.parse_location(source) if "://" in source else None
        except ValueError as wrong:
            raise BadInput(f"tables.{name} is not a valid address: {wrong}") from None
        if place is None or place.scheme == "file":
            return call.host.resolve_path(source.removeprefix("file://")), format
        fields = await fields_of(call.input.get("auth"), call.host, prefixes=objects.PREFIXES)
        store = await objects.checked_store(place, fields, call.host.address_check, call.timeout)
        return await _save(objects.download(store, place.key), Path(f"{stem}.{format}")), format


def _file_view(name: str, path: str, format: str) -> str:
    """The statement that creates a view over a file."""
    if format == "arrow":
        path, format = _convert_to_parquet(path), "parquet"
    if format not in ("parquet", "csv", "json", "jsonl"):
        raise BadInput(f"tables.{name} has the format {format}: use Parquet, Arrow, CSV, JSON or JSON lines")
    if format == "csv":
        reader = duck_files.csv_call(path, by_name=duck_files.has_other_order(path))
    else:
        reader = f"{'read_parquet' if format == 'parquet' else 'read_json_auto'}({duck_files.literal(path)})"
    return f"CREATE OR REPLACE TEMP VIEW {quote_column(str(name))} AS SELECT * FROM {reader}"


class _BatchChunk:
    """An Arrow batch of a result."""

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


async def _in_thread(cursor: Any, function: Callable[..., Any], *args: Any) -> Any:
    return await in_thread(lambda: function(*args), interrupt=cursor.interrupt)


async def _chunks(cursor: Any, parts: Any) -> AsyncGenerator[Any, None]:
    stream = batches(cursor, parts)
    async with aclosing(stream):
        async for batch in stream:
            yield _BatchChunk(batch)


async def _save(stream: Any, path: Path) -> str:
    file = await asyncio.to_thread(path.open, "wb")
    with file:
        async for chunk in stream:
            await asyncio.to_thread(file.write, chunk)
    return str(path)


def _convert_to_parquet(path: str) -> str:
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
        raise BadInput(f"tables.{name}: rows must be mappings")
    if not rows:
        raise BadInput(f"tables.{name} is empty: its columns are unknown")
    names = list(dict.fromkeys(str(key) for row in rows for key in row))
    try:
        return pa.table({each: [row.get(each) for row in rows] for each in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # a column with values of several types is JSON text
        return pa.Table.from_batches([batch_of_mappings(rows, inferred_schema(rows))])


def _bindable(values: list[Any]) -> list[Any]:
    """Parameters in types that DuckDB can bind."""
    return [dict(value) if isinstance(value, Mapping) else value for value in values]


def _roll_back(cursor: Any) -> None:
    try:
        cursor.execute("ROLLBACK")
    except duckdb.Error:
        return  # the original failure has already ended the transaction


def _escape(value: Any) -> str:
    return str(value).replace("'", "''")


def _failure(kind: str, message: str) -> Outcome:
    return error(kind, message, duckdb=dict(NULLS))
