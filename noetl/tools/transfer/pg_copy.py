"""From Postgres to Postgres without looking at the rows: one COPY feeds the other.

Rows travel in Postgres's binary form when both tables have the same types, else as text, which the target's
own types read. It is the short cut for one target in Postgres whose columns are at most renamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any

from noetl.connections import postgres
from noetl.core.model.tool import ToolCall
from noetl.data.sql import quote_column, quote_name, split_name
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.mapping import Columns
from noetl.tools.transfer.sources import PostgresSource, postgres_info
from noetl.tools.transfer.sources.postgres_source import Query
from noetl.tools.transfer.targets import postgres_table as pg_table
from noetl.tools.transfer.transfer_plan import Plan, TargetPlan

BLOCKS = 16  # on their way between the two servers
_SIMPLE = {"host", "port", "user", "password", "dbname", "sslmode", "application_name", "connect_timeout"}
_BUILT_IN = 16384  # types below this number are the same in every database
_PSEUDO = frozenset({705, 2249, 2278})  # unknown, record, void
_BY_TEXT = frozenset({1700})  # its binary form knows no modifier


def can_pipe(plan: Plan, source: Any, columns: Columns) -> bool:
    """Whether this transfer is one that needs no look at its rows."""
    target = plan.targets[0]
    return (
        isinstance(source, PostgresSource)
        and source.query.columns is not None
        and len(plan.targets) == 1
        and target.kind == "postgres"
        and not target.warns
        and target.own is None
        and columns.is_simple
        and find_spec("asyncpg") is not None
        and _reachable(source.info) is not None
    )


def _reachable(info: str) -> dict[str, Any] | None:
    """The other driver's words for a connection string; None when it has no words for it."""
    from psycopg.conninfo import conninfo_to_dict

    known = conninfo_to_dict(info)
    if set(known) - _SIMPLE or "," in str(known.get("host", "")):
        return None
    return {
        "host": known.get("host"),
        "port": int(str(known.get("port") or 5432)),
        "user": known.get("user"),
        "password": known.get("password"),
        "database": known.get("dbname"),
        "ssl": known.get("sslmode") or "prefer",
        "server_settings": {"application_name": str(known.get("application_name") or "noetl")},
    }


async def pipe(call: ToolCall, plan: Plan, source: PostgresSource, columns: Columns) -> int | None:
    """Move everything; how many rows. None when the target cannot be reached this way: nothing was done then."""
    import asyncpg

    target = plan.targets[0]
    there = _reachable(await postgres_info(call, target.fields))
    here = _reachable(source.info)
    if there is None or here is None:
        return None
    timeout = call.timeout.connect or postgres.CONNECT_TIMEOUT
    reader = await asyncpg.connect(**here, timeout=timeout)
    try:
        writer = await asyncpg.connect(**there, timeout=timeout)
        try:
            async with writer.transaction():
                return await _Pipe(call, target, reader, writer).run(source.query, columns)
        finally:
            await _close(writer)
    finally:
        await _close(reader)


async def _close(connection: Any) -> None:
    try:
        await asyncio.wait_for(connection.close(), 5)
    except (TimeoutError, OSError):
        connection.terminate()


class _Pipe:
    def __init__(self, call: ToolCall, target: TargetPlan, reader: Any, writer: Any) -> None:
        self.call = call
        self.plan = target
        self.reader = reader
        self.writer = writer
        self.table = str(target.fields["table"])

    async def run(self, query: Query, columns: Columns) -> int:
        assert query.columns is not None
        names = postgres.column_names(query.columns)
        wanted = columns.renames_only or {name: name for name in names}
        missing = [source for source in wanted.values() if source not in names]
        if missing:
            raise BadInput(
                f"{self.plan.label}: mapping: the source has no column {missing[0]!r}, it has {', '.join(names)}; "
                f"for a fixed value write {{value: {missing[0]}}}"
            )
        self.plan.check_key(list(wanted))
        chosen = {name: query.columns[names.index(source)] for name, source in wanted.items()}
        text = _selected(query, names, wanted)
        async with AsyncExitStack() as held:
            if self.plan.mode == "replace":
                # Whoever reads the very table that is replaced reads it first: then it is not emptied under the query.
                await held.enter_async_context(self.reader.transaction())
                await self.reader.execute(f"SELECT * FROM ({query.text}\n) AS noetl_source LIMIT 0")
            return await self._moved(text, chosen)

    async def _moved(self, text: str, chosen: dict[str, postgres.Column]) -> int:
        wanted = list(chosen)
        await self.writer.execute(pg_table.LOCK_TIMEOUT)
        known = await self._ready(chosen)
        same = all(
            column.oid < _BUILT_IN and column.oid not in _BY_TEXT and known.get(name) == column.oid
            for name, column in chosen.items()
        )
        into, unique = self.table, False
        if self.plan.mode == "upsert":
            for statement in pg_table.incoming(self.table, wanted):
                await self.writer.execute(statement)
            found = await self.writer.fetch(pg_table.unique(self.table))
            unique = any(sorted(self.plan.key) == list(row[0]) for row in found)
            into = pg_table.INCOMING
        moved = await self._copy(text, into, wanted, "binary" if same else "text")
        if self.plan.mode == "upsert":
            if await self.writer.fetchval(pg_table.without_key(self.plan.key)):
                raise self.plan.no_key()
            for statement in pg_table.merge(self.table, wanted, self.plan.key, has_unique=unique):
                await self.writer.execute(statement)
        return moved

    async def _ready(self, chosen: dict[str, postgres.Column]) -> dict[str, int]:
        """The target's columns and their types, after it was made or emptied."""
        import asyncpg

        rows = await self.writer.fetch(pg_table.look(self.table))
        if not rows:
            if not self.plan.creates:
                raise BadInput(f"{self.plan.label}: there is no such table, and `create: false` forbids to make it")
            types = {name: await self._type(column) for name, column in chosen.items()}
            key = self.plan.key if self.plan.mode == "upsert" else ()
            rows = await self._make(pg_table.create(self.table, types, key))
        elif self.plan.mode == "replace":
            try:
                async with self.writer.transaction():
                    await self.writer.execute(pg_table.EMPTY_AT_ONCE)
                    await self.writer.execute(f"TRUNCATE {quote_name(self.table)}")
                    await self.writer.execute(pg_table.LOCK_TIMEOUT)
            except (
                asyncpg.FeatureNotSupportedError,
                asyncpg.InsufficientPrivilegeError,
                asyncpg.LockNotAvailableError,
            ):
                await self.writer.execute(f"DELETE FROM {quote_name(self.table)}")
        return {row[0]: row[3] for row in rows}

    async def _make(self, statements: list[str]) -> Any:
        """Make the table; if somebody else makes it at the same time, theirs is used when they have committed."""
        import asyncpg

        rows: Any = []
        for left in reversed(range(pg_table.TRIES)):
            try:
                async with self.writer.transaction():
                    for statement in statements:
                        await self.writer.execute(statement)
            except (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateSchemaError):
                if not left:
                    raise
            rows = await self.writer.fetch(pg_table.look(self.table))
            if rows:
                break
        return rows

    async def _type(self, column: postgres.Column) -> str:
        if column.oid >= _BUILT_IN or column.oid in _PSEUDO:
            return "text"  # a type of the source's own database, or none that a table can have
        name: str = await self.reader.fetchval("SELECT format_type($1::oid, $2)", column.oid, column.modifier)
        return name

    async def _copy(self, text: str, into: str, columns: list[str], format: str) -> int:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=BLOCKS)
        moved = 0

        async def put(block: bytes) -> None:
            nonlocal moved
            moved += len(block)
            self.call.host.progress(bytes=moved)
            await queue.put(bytes(block))

        async def read() -> None:
            try:
                await self.reader.copy_from_query(text, output=put, format=format)
            finally:
                await queue.put(None)

        async def blocks() -> AsyncGenerator[bytes, None]:
            while (block := await queue.get()) is not None:
                yield block
            await reading  # a source that failed must fail the COPY, not end it

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
            while not queue.empty():  # let a reader that waits for room see that it is cancelled
                queue.get_nowait()
            await asyncio.wait([reading])
        if not reading.cancelled() and reading.exception() is not None:
            raise reading.exception()  # type: ignore[misc]
        return int(status.rpartition(" ")[2])


def _selected(query: Query, names: list[str], wanted: dict[str, str]) -> str:
    assert query.columns is not None
    if list(wanted.values()) == names == [column.name for column in query.columns]:
        return query.text
    inner = {name: f"c{number}" for number, name in enumerate(names)}
    chosen = ", ".join(f"{inner[source]} AS {quote_column(name)}" for name, source in wanted.items())
    return f"SELECT {chosen} FROM ({query.text}\n) AS noetl_source({', '.join(inner.values())})"
