"""Fast path from PostgreSQL to PostgreSQL: the output of one COPY is the input of another, rows are not decoded.

The binary format is used if both tables have the same types, otherwise the text format, which the target parses. It
applies to a single PostgreSQL target whose columns are only selected and renamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from noetl.connections import postgres
from noetl.core.model.tool import ToolCall
from noetl.data.sql import quote_column, quote_name, split_name
from noetl.tools._common.postgres_address import postgres_conninfo
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.mapping import ColumnMapping
from noetl.tools.transfer.sources import PostgresSource
from noetl.tools.transfer.sources.postgres_source import Query
from noetl.tools.transfer.targets import postgres_table as pg_table
from noetl.tools.transfer.transfer_plan import Plan, TargetPlan

MAX_BLOCKS = 16  # buffered between the two servers
_SUPPORTED_OPTIONS = {"host", "port", "user", "password", "dbname", "sslmode", "application_name", "connect_timeout"}
_FIRST_USER_OID = 16384  # types with a lower OID are the same in every database
_PSEUDO_TYPES = frozenset({705, 2249, 2278})  # unknown, record, void
# numeric: its binary format has no type modifier; aclitem, gtsvector and their arrays have no binary format
_TEXT_ONLY_TYPES = frozenset({1700, 1033, 1034, 3642, 3644})


def can_copy(plan: Plan, source: Any, columns: ColumnMapping) -> bool:
    """Whether the rows of this transfer need not be decoded."""
    target = plan.targets[0]
    return (
        isinstance(source, PostgresSource)
        and source.query.columns is not None
        and not source.types
        and len(plan.targets) == 1
        and target.kind == "postgres"
        and not target.warn_on_error
        and target.static is None
        and target.schema is None
        and target.bad_rows is None
        and target.nested == "json"
        and columns.is_simple
        and _asyncpg_options(source.info) is not None
    )


def _asyncpg_options(info: str) -> dict[str, Any] | None:
    """A connection string as arguments of asyncpg; None if asyncpg does not support its options."""
    from psycopg.conninfo import conninfo_to_dict

    options = conninfo_to_dict(info)
    if set(options) - _SUPPORTED_OPTIONS or "," in str(options.get("host", "")):
        return None
    return {
        "host": options.get("host"),
        "port": int(str(options.get("port") or 5432)),
        "user": options.get("user"),
        "password": options.get("password"),
        "database": options.get("dbname"),
        "ssl": options.get("sslmode") or "prefer",
        "server_settings": {
            "application_name": str(options.get("application_name") or "noetl"),
            **postgres.TEXT_SETTINGS,
        },
    }


async def copy_rows(call: ToolCall, plan: Plan, source: PostgresSource, columns: ColumnMapping) -> int | None:
    """Copy all rows and return their number; None if asyncpg cannot connect to the servers, then nothing was done."""
    import asyncpg

    target = plan.targets[0]
    target_options = _asyncpg_options(await postgres_conninfo(call.host, target.fields))
    source_options = _asyncpg_options(source.info)
    if target_options is None or source_options is None:
        return None
    timeout = call.timeout.connect or postgres.CONNECT_TIMEOUT
    reader = await asyncpg.connect(**source_options, timeout=timeout)
    try:
        writer = await asyncpg.connect(**target_options, timeout=timeout)
        try:
            async with writer.transaction():
                return await _DirectCopy(call, target, reader, writer).run(source.query, columns)
        finally:
            await _close(writer)
    finally:
        await _close(reader)


async def _close(connection: Any) -> None:
    try:
        await asyncio.wait_for(connection.close(), 5)
    except (TimeoutError, OSError):
        connection.terminate()


class _DirectCopy:
    """Copies one query into one table over two connections."""

    def __init__(self, call: ToolCall, target: TargetPlan, reader: Any, writer: Any) -> None:
        self.call = call
        self.plan = target
        self.reader = reader
        self.writer = writer
        self.table = str(target.fields["table"])

    async def run(self, query: Query, columns: ColumnMapping) -> int:
        assert query.columns is not None
        names = postgres.column_names(query.columns)
        wanted = columns.renames or {name: name for name in names}
        missing = [source for source in wanted.values() if source not in names]
        if missing:
            raise BadInput(
                f"{self.plan.label}: mapping: the source has no column {missing[0]!r}; columns: {', '.join(names)}. "
                f"For a constant use {{value: {missing[0]}}}"
            )
        if self.plan.mode == "upsert":
            self.plan.check_key(list(wanted))
        async with AsyncExitStack() as stack:
            if self.plan.mode == "replace":
                # The source may be the table that is replaced: the open transaction prevents its TRUNCATE.
                await stack.enter_async_context(self.reader.transaction())
                await self.reader.execute(f"SELECT * FROM ({query.text}) AS noetl_source LIMIT 0")
            await self.writer.execute(pg_table.LOCK_TIMEOUT)
            selected = {name: query.columns[names.index(source)] for name, source in wanted.items()}
            known = await self._prepare_table(selected)
            generated = {column.name for column in known if column.generated}.difference(self.plan.key)
            wanted = {name: source for name, source in wanted.items() if name not in generated}
            written = {name: selected[name] for name in wanted}
            return await self._transfer_rows(
                _select_query(query, names, wanted), written, {column.name: column.oid for column in known}
            )

    async def _transfer_rows(
        self, text: str, selected: dict[str, postgres.Column], target_types: dict[str, int]
    ) -> int:
        names = list(selected)
        is_binary = all(
            column.oid < _FIRST_USER_OID and column.oid not in _TEXT_ONLY_TYPES and target_types.get(name) == column.oid
            for name, column in selected.items()
        )
        into, has_unique = self.table, False
        if self.plan.mode == "upsert":
            for statement in pg_table.create_staging(self.table, names):
                await self.writer.execute(statement)
            found = await self.writer.fetch(pg_table.select_unique_keys(self.table))
            has_unique = any(sorted(self.plan.key) == list(row[0]) for row in found)
            into = pg_table.STAGING
        copied = await self._copy(text, into, names, "binary" if is_binary else "text")
        if self.plan.mode == "upsert":
            if await self.writer.fetchval(pg_table.select_missing_key(self.plan.key)):
                raise self.plan.missing_key_error()
            for statement in pg_table.merge(self.table, names, self.plan.key, has_unique=has_unique):
                await self.writer.execute(statement)
        return copied

    async def _prepare_table(self, selected: dict[str, postgres.Column]) -> list[pg_table.PgColumn]:
        """Create or empty the target table; returns its columns."""
        import asyncpg

        rows = await self.writer.fetch(pg_table.select_columns(self.table))
        if not rows:
            if not self.plan.create_table:
                raise self.plan.missing_table_error()
            types = {name: await self._type(column) for name, column in selected.items()}
            key = self.plan.key if self.plan.mode == "upsert" else ()
            rows = await self._create_table(pg_table.create_table(self.table, types, key))
        elif self.plan.mode == "replace":
            try:
                async with self.writer.transaction():
                    await self.writer.execute(pg_table.TRUNCATE_LOCK_TIMEOUT)
                    await self.writer.execute(f"TRUNCATE {quote_name(self.table)}")
                    await self.writer.execute(pg_table.LOCK_TIMEOUT)
            except (
                asyncpg.FeatureNotSupportedError,
                asyncpg.InsufficientPrivilegeError,
                asyncpg.LockNotAvailableError,
            ):
                await self.writer.execute(f"DELETE FROM {quote_name(self.table)}")
        return [pg_table.PgColumn(*row) for row in rows]

    async def _create_table(self, statements: list[str]) -> Any:
        """Create the table; if another session creates it concurrently, use that one after its commit."""
        import asyncpg

        rows: Any = []
        for remaining in reversed(range(pg_table.CREATE_ATTEMPTS)):
            try:
                async with self.writer.transaction():
                    for statement in statements:
                        await self.writer.execute(statement)
            except (
                asyncpg.UniqueViolationError,
                asyncpg.DuplicateTableError,
                asyncpg.DuplicateSchemaError,
                asyncpg.DuplicateObjectError,  # the row type of the table
            ):
                if not remaining:
                    raise
            rows = await self.writer.fetch(pg_table.select_columns(self.table))
            if rows:
                break
        return rows

    async def _type(self, column: postgres.Column) -> str:
        if column.oid >= _FIRST_USER_OID or column.oid in _PSEUDO_TYPES:
            return "text"  # a user-defined type of the source database, or not a column type
        name: str = await self.reader.fetchval("SELECT format_type($1::oid, $2)", column.oid, column.modifier)
        return name

    async def _copy(self, text: str, into: str, columns: list[str], format: str) -> int:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=MAX_BLOCKS)
        copied = 0

        async def put(block: bytes) -> None:
            nonlocal copied
            copied += len(block)
            self.call.host.progress(bytes=copied)
            await queue.put(bytes(block))

        async def read() -> None:
            try:
                await self.reader.copy_from_query(text, output=put, format=format)
            finally:
                await queue.put(None)

        async def blocks() -> AsyncGenerator[bytes, None]:
            while (block := await queue.get()) is not None:
                yield block
            await reading  # if the source failed, the COPY must fail and not end

        parts = split_name(into)
        reading = asyncio.create_task(read())
        try:
            status: str = await self.writer.copy_to_table(
                parts[-1],
                schema_name=parts[-2] if len(parts) > 1 else None,
                columns=columns,
                source=blocks(),
                format=format,
            )
        finally:
            reading.cancel()
            while not queue.empty():  # unblock a reader that waits for the queue, so that it is cancelled
                queue.get_nowait()
            await asyncio.wait([reading])
        if not reading.cancelled() and reading.exception() is not None:
            raise reading.exception()  # type: ignore[misc]
        return int(status.rpartition(" ")[2])


def _select_query(query: Query, names: list[str], wanted: dict[str, str]) -> str:
    assert query.columns is not None
    if list(wanted.values()) == names == [column.name for column in query.columns]:
        return query.text
    inner = {name: f"c{number}" for number, name in enumerate(names)}
    selected = ", ".join(f"{inner[source]} AS {quote_column(name)}" for name, source in wanted.items())
    return f"SELECT {selected} FROM ({query.text}) AS noetl_source({', '.join(inner.values())})"
