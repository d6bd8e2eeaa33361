"""DuckDB target: all chunks are written in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import duckdb

from noetl.connections import duckdb as duck
from noetl.connections.duckdb_memory import VECTOR
from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import meaning_of
from noetl.data.sql import column_list, quote_column, split_name
from noetl.data.types.type_lattice import NUMERIC, TEXT, UNTYPED, UNTYPED_COMMENT, ColumnKind, kind_in_database
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.nested_rows import ROOT, beginning, list_tables
from noetl.tools.transfer.schema_contract import Changes
from noetl.tools.transfer.sources import database_file
from noetl.tools.transfer.targets import FIXED, Target
from noetl.tools.transfer.targets.database_file_target import DatabaseFileTarget
from noetl.tools.transfer.targets.duckdb_checks import TableChecks
from noetl.tools.transfer.targets.duckdb_limits import WriteLimits
from noetl.tools.transfer.targets.duckdb_merge import StagedRows
from noetl.tools.transfer.targets.merge_statements import update_and_insert
from noetl.tools.transfer.targets.mixed_columns import mixed_as_text
from noetl.tools.transfer.targets.number_columns import NumberColumns
from noetl.tools.transfer.transfer_plan import TargetPlan

VIEW = "noetl_chunk"
STAGING = "noetl_incoming"
_SAME_TABLE = "schema_name = ? AND table_name = ? AND database_name = current_database()"
UNIQUE_KEYS_QUERY = (
    f"SELECT constraint_column_names FROM duckdb_constraints() WHERE {_SAME_TABLE} "
    "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
)
GENERATED_QUERY = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ? "
    "AND table_catalog = current_database() AND is_generated = 'ALWAYS'"
)
# A row group is in memory until it is complete, so wide tables have smaller ones.
ROW_GROUP, GROUP_VALUES = 122_880, 8_000_000


def _same_keys(keys: Any) -> str:
    return " AND ".join(f"t.{quote_column(name)} = k.{quote_column(name)}" for name in keys.schema.names)


def _qualified_name(parts: Any) -> str:
    return ".".join(quote_column(part) for part in parts)


class DuckdbTarget(DatabaseFileTarget):
    """A DuckDB table."""

    BEGIN = "BEGIN TRANSACTION"
    _cursor: Any = None
    _created = False
    _root: DuckdbTarget | None = None
    _staged: StagedRows | None = None  # of mode upsert, if the table has no index
    _small_groups = False

    def join(self, root: Target) -> None:
        """Write with the cursor of another table."""
        assert isinstance(root, DuckdbTarget)
        self._root = root

    async def child_tables(self) -> list[str]:
        """The tables of lists, which have positions."""
        await self._open()
        table = str(self.plan.fields["table"])
        query = (
            "SELECT table_name, bool_or(column_name = '_index_1') FROM duckdb_columns() WHERE database_name = "
            "current_database() AND schema_name = ? AND starts_with(table_name, ?) GROUP BY 1 ORDER BY 1"
        )
        place = (self._place[0], beginning(split_name(table)[-1]))
        found = await self._run_in_thread(lambda: self._cursor.execute(query, place).fetchall())
        return list_tables(table, found)

    async def delete_rows(self, keys: Any) -> None:
        """Delete rows by key."""
        await self._open()
        same = _same_keys(keys)

        def delete() -> None:
            self._cursor.register(VIEW, keys)
            self._cursor.execute(f"DELETE FROM {self._table} AS t USING {VIEW} AS k WHERE {same}")
            if self._staged is not None:
                self._staged.delete(VIEW, same)
            self._cursor.unregister(VIEW)

        await self._run_in_thread(delete)

    async def clear_columns(self, keys: Any, columns: Sequence[str]) -> None:
        """Set columns to null by key."""
        nulls = ", ".join(f"{quote_column(name)} = NULL" for name in columns)

        def clear() -> None:
            self._merge_staged()
            self._cursor.register(VIEW, keys)
            self._cursor.execute(f"UPDATE {self._table} AS t SET {nulls} FROM {VIEW} AS k WHERE {_same_keys(keys)}")
            self._cursor.unregister(VIEW)

        await self._run_in_thread(clear)

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        super().__init__(call, plan, peers)
        self._numbers = NumberColumns()
        self._limits = WriteLimits()

    def adapt(self, table: Any) -> Any:
        """Numbers of any size as decimals that fit, or as text."""
        return self._numbers.apply(table)

    async def begin(self, schema: Any) -> None:
        """Create or empty the table."""
        await self._open(len(schema))
        await self._run_in_thread(lambda: self._prepare_table(schema))
        if self.plan.warn_on_error:  # from here on each chunk has its own transaction
            await self._run_in_thread(lambda: self._cursor.execute("COMMIT"))

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Insert or merge a chunk, passed as an Arrow table."""
        if not self.plan.warn_on_error:
            await self._run_in_thread(lambda: self._insert(table))
            return
        await self._run_in_thread(lambda: self._cursor.execute(self.BEGIN))
        try:
            await self._run_in_thread(lambda: self._insert(table))
            await self._run_in_thread(lambda: self._cursor.execute("COMMIT"))
        except BaseException:
            with suppress(duckdb.Error):
                await in_thread(lambda: self._cursor.execute("ROLLBACK"))
            raise

    async def rejected(self, table: Any) -> dict[int, str]:
        """The rows that do not fit the types and constraints of the table."""
        schema, name = self._place
        key = self.plan.key if self.plan.mode == "upsert" else ()
        mixed = mixed_as_text(table, self._is_structured)
        # Child rows of the same root row are deleted before these are inserted.
        replaced = key if self._root is None else tuple(name for name in key if name.startswith(ROOT))
        root = "" if self._root is None else self._root._place[1]
        checks = TableChecks(self._cursor, self._table, (schema, name), self._types, key, replaced, root)
        found: dict[int, str] = await self._run_in_thread(lambda: checks.rejected(mixed))
        return found

    async def known_columns(self) -> dict[str, ColumnKind]:
        """The columns of the table and their types."""
        await self._open()
        self._types: dict[str, str] = await self._run_in_thread(self._columns)
        untyped = await self._run_in_thread(self._untyped)
        return {name: UNTYPED if name in untyped else kind_in_database(kind) for name, kind in self._types.items()}

    def _untyped(self) -> set[str]:
        """The columns that have no value yet."""
        query = f"SELECT column_name FROM duckdb_columns() WHERE {_SAME_TABLE} AND comment = ?"
        return {name for (name,) in self._cursor.execute(query, [*self._place, UNTYPED_COMMENT]).fetchall()}

    def _has_value(self, name: str) -> bool:
        """Whether others have filled a column that had no value: it stays text."""
        query = f"SELECT 1 FROM {self._table} WHERE {quote_column(name)} IS NOT NULL LIMIT 1"
        return bool(self._cursor.execute(query).fetchall())

    def _comment(self, name: str, comment: str) -> None:
        self._cursor.execute(f"COMMENT ON COLUMN {self._table}.{quote_column(name)} IS {comment}")

    def _mark_untyped(self, fields: Iterable[Any]) -> None:
        import pyarrow as pa

        for field in fields:
            if pa.types.is_null(field.type):
                self._comment(field.name, f"'{UNTYPED_COMMENT}'")

    async def fixed_columns(self) -> dict[str, str]:
        """Those with a constraint, and all of a table with an index: a change that DuckDB refuses ends everything."""
        found: dict[str, str] = await self._run_in_thread(self._fixed_columns)
        return found

    def _fixed_columns(self) -> dict[str, str]:
        execute = self._cursor.execute
        indexes = execute(f"SELECT index_name FROM duckdb_indexes() WHERE {_SAME_TABLE}", self._place).fetchall()
        if indexes:
            return dict.fromkeys(self._types, f"{FIXED}: the table has the index {indexes[0][0]}")
        query = (
            "SELECT unnest(constraint_column_names), constraint_text FROM duckdb_constraints() "
            f"WHERE {_SAME_TABLE} AND constraint_type <> 'NOT NULL'"
        )
        return {name: f"{FIXED}: it has the constraint {text}" for name, text in execute(query, self._place).fetchall()}

    async def alter(self, changes: Changes) -> None:
        """Add columns and change types."""
        await self._run_in_thread(lambda: self._alter(changes))

    def _alter(self, changes: Changes) -> None:
        self._merge_staged()
        actions = [f"ADD COLUMN {name} {kind}" for name, kind in self._new_columns(changes.add)]
        define = [field for field in changes.define if not self._has_value(field.name)]
        actions += [f"ALTER COLUMN {name} TYPE {kind}" for name, kind in self._new_columns(define)]
        for name, kind in changes.widen.items():
            wide = "VARCHAR" if kind in (TEXT, NUMERIC) else str(kind).replace("numeric[]", "VARCHAR[]")
            column = quote_column(name)
            # A text without quotes; null of JSON is a value.
            value = f" USING coalesce({column}->>'$', {column}::VARCHAR)" if self._is_structured(name) else ""
            actions.append(f"ALTER COLUMN {column} TYPE {wide}{value}")
        for field in changes.define:
            self._comment(field.name, "NULL")
        for action in actions:
            try:
                self._cursor.execute(f"ALTER TABLE {self._table} {action}")
            except duckdb.Error as refused:  # columns with a key or an index cannot be changed
                raise BadInput(
                    f"{self.plan.label}: the schema contract needs {action}, which DuckDB refuses: "
                    f"{duck.to_error_info(refused).message}; load into a new table, or set `types: freeze`"
                ) from None
        self._mark_untyped(changes.add)

    def _new_columns(self, fields: Sequence[Any]) -> list[tuple[str, str]]:
        """The quoted names and the types of columns for Arrow fields."""
        kinds = self._arrow_types(fields)
        return [(quote_column(each.name), _duckdb_type(each, kind)) for each, kind in zip(fields, kinds, strict=True)]

    def _arrow_types(self, fields: Any) -> list[Any]:
        """The types that DuckDB gives Arrow columns."""
        import pyarrow as pa

        if not fields:
            return []
        self._cursor.register(VIEW, pa.schema(fields).empty_table())
        kinds: list[Any] = self._cursor.sql(f"SELECT * FROM {VIEW}").types
        self._cursor.unregister(VIEW)
        return kinds

    async def prepare(self) -> None:
        """Merge the rows."""
        if self._cursor is not None:
            await self._run_in_thread(self._merge_staged)

    async def checkpoint(self, record: Callable[[], Awaitable[None]]) -> None:
        """Merge the rows, commit, and begin the next transaction."""
        await self.prepare()
        await super().checkpoint(record)

    def _merge_staged(self) -> None:
        if self._staged is not None:
            self._staged.merge()

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._root is not None:
            self._cursor = None
        elif self._cursor is not None:
            await self._run_in_thread(lambda: self._limits.allow_commit(self._cursor, self._owner))
            if not (self.plan.warn_on_error and self.begun):
                await self._run_in_thread(lambda: self._cursor.execute("COMMIT"))
            await self._close()

    async def abort(self) -> None:
        """Roll back everything except chunks with their own transaction."""
        if self._root is not None:
            self._cursor = None
        elif self._cursor is not None:
            with suppress(duckdb.Error):  # the original failure may have ended the transaction
                await in_thread(lambda: self._cursor.execute("ROLLBACK"))
            await self._close()

    def explain(self, failure: Exception) -> Any:
        """The error of DuckDB."""
        return duck.to_error_info(failure) if isinstance(failure, duckdb.Error) else None

    async def _open(self, width: int = 1) -> None:
        if self._cursor is not None:
            return
        if self._root is not None:
            await self._root._open()
            self._cursor, self._limits = self._root._cursor, self._root._limits
            await self._run_in_thread(self._qualify)
            return
        path = await database_file(self.call, self.plan.fields, self.plan.label)
        self._limits = self.peers.setdefault(f"{path} limits", WriteLimits())
        # Targets in the same file share the writer lock: the first acquires it, the others open after it in turn.
        before: asyncio.Future[None] | None = self.peers.get(path)
        opened = self.peers[path] = asyncio.get_running_loop().create_future()
        try:
            if before is not None:
                await asyncio.wait([before])
            self._stack = AsyncExitStack()
            wait = self.call.timeout.connect or duck.WAIT_FOR_FILE
            database, rows = duck.database(path), max(GROUP_VALUES // width // VECTOR, 1) * VECTOR
            cursor = database.cursor(
                writes=before is None, wait=wait, row_group=rows if rows < ROW_GROUP and self._appends else None
            )
            self._cursor = await self._stack.enter_async_context(cursor)
            self._small_groups = self._appends and database.row_group is not None
            await self._run_in_thread(self._begin)
        finally:
            opened.set_result(None)

    def _begin(self) -> None:
        """Find the table, and begin the transaction."""
        self._qualify()
        self._cursor.execute(self.BEGIN)

    def _qualify(self) -> None:
        """Qualify the table name, as a file can have the name of a schema; create the schema."""
        parts = split_name(str(self.plan.fields["table"]))
        if len(parts) == 2:
            catalog = self._cursor.execute("SELECT current_database()").fetchone()[0]
            parts = [catalog, *parts]
            if self.plan.create_table and not self._has_schema(parts[1]):
                self._cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {_qualified_name(parts[:2])}")
        self._table = _qualified_name(parts)

    def _has_schema(self, name: str) -> bool:
        query = "SELECT 1 FROM duckdb_schemas() WHERE schema_name = ? AND database_name = current_database()"
        return bool(self._cursor.execute(query, [name]).fetchall())

    async def _close(self) -> None:
        cursor, self._cursor = self._cursor, None
        try:
            await asyncio.to_thread(self._limits.end, cursor, self._owner)
        finally:
            await self._stack.aclose()

    @property
    def _owner(self) -> int:
        """The target that has the transaction."""
        return id(self._root or self)

    @property
    def _appends(self) -> bool:
        """Whether rows are only added: updates and child tables need the memory of larger row groups."""
        return self.plan.mode != "upsert" and self.plan.nested == "json"

    @property
    def _session(self) -> Any:
        return self._cursor

    async def _run_in_thread(self, function: Any) -> Any:
        return await in_thread(function, interrupt=self._cursor.interrupt)

    def _columns(self) -> dict[str, str]:
        """The columns of the table and their types; none when it does not exist."""
        # The catalog is queried because selecting from a missing table would abort the transaction.
        found = self._cursor.execute(
            f"SELECT column_name, data_type FROM duckdb_columns() WHERE {_SAME_TABLE} ORDER BY column_index",
            self._place,
        )
        return dict(found.fetchall())

    @property
    def _place(self) -> list[str]:
        """Schema and name of the table."""
        return (["main", *split_name(str(self.plan.fields["table"]))])[-2:]

    def _prepare_table(self, schema: Any) -> None:
        plan, cursor = self.plan, self._cursor
        if not self._columns():
            if not plan.create_table:
                raise plan.missing_table_error()
            columns = [f"{name} {kind}" for name, kind in self._new_columns(list(schema))]
            cursor.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
            self._mark_untyped(schema)
            self._created = True
            self.first = schema if self.contract is None else None
        elif plan.mode == "replace":
            cursor.execute(f"DELETE FROM {self._table}")
        self._types = self._columns()
        self._generated = [name for (name,) in cursor.execute(GENERATED_QUERY, self._place).fetchall()]
        keys = cursor.execute(UNIQUE_KEYS_QUERY, self._place).fetchall()
        self._unique = any(sorted(row[0]) == sorted(plan.key) for row in keys)
        has_index = f"SELECT 1 FROM duckdb_indexes() WHERE {_SAME_TABLE}"
        if keys or cursor.execute(has_index, self._place).fetchall():
            self._limits.lift(cursor, self._owner)
            return
        if plan.mode == "upsert":
            self._staged = StagedRows(cursor, self._table, plan.key)
        if self._staged is not None and self._root is None and len(schema) < len(self._types):
            self._limits.lift(cursor, self._owner)
        else:
            self._limits.add_table(cursor, self._owner, len(self._types), small_groups=self._small_groups)

    def _insert(self, table: Any) -> None:
        cursor, plan = self._cursor, self.plan
        table = self.writable(table, self._generated)
        columns = column_list(table.schema.names)
        self._limits.count(cursor, self._owner, table)
        for name, kind in self._numbers.take_widened().items() if self._created and self.contract is None else ():
            self._merge_staged()
            cursor.execute(f"ALTER TABLE {self._table} ALTER COLUMN {quote_column(name)} TYPE {kind}")
        cursor.register(VIEW, _consuming_reader(mixed_as_text(table, self._is_structured)))
        try:
            if self._staged is not None:
                self._staged.add(VIEW, table)
                if self.keeps_going:
                    self._staged.merge()
            elif plan.mode == "upsert":
                self._merge(columns, table.schema.names)
            else:
                cursor.execute(f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {VIEW}")
        except BaseException:
            with suppress(duckdb.Error):  # keep the original failure
                cursor.unregister(VIEW)
            raise
        cursor.unregister(VIEW)

    def _is_structured(self, name: str) -> bool:
        return self._types.get(name) == "JSON"

    def _merge(self, columns: str, names: list[str]) -> None:
        cursor, keys = self._cursor, column_list(self.plan.key)
        # The last row with a key wins, also within a chunk.
        cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE {STAGING} AS SELECT {columns} FROM "
            f"(SELECT *, row_number() OVER () AS noetl_order FROM {VIEW}) "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY noetl_order DESC) = 1"
        )
        insert = f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {STAGING}"
        if self._unique:
            others = [quote_column(name) for name in names if name not in self.plan.key]
            update = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            cursor.execute(f"{insert} ON CONFLICT ({keys}) DO {f'UPDATE SET {update}' if others else 'NOTHING'}")
        else:
            for statement in update_and_insert(self._table, names, self.plan.key, STAGING):
                cursor.execute(statement)
        cursor.execute(f"DROP TABLE {STAGING}")


def _consuming_reader(table: Any) -> Any:
    """The table as a stream that releases each batch when it is read.

    DuckDB keeps a reference to a registered table until the transaction ends, so with tables all rows of the transfer
    would stay in memory."""
    import pyarrow as pa

    batches = table.to_batches()

    def consume() -> Iterator[Any]:
        while batches:
            yield batches.pop(0)

    return pa.RecordBatchReader.from_batches(table.schema, consume())


_MEANINGS = {"json": "JSON", "uuid": "UUID"}
_POSTGRES = {"uuid[]": "UUID[]", "timetz": "TIMETZ"}


def _duckdb_type(field: Any, kind: Any) -> str:
    meaning, origin = meaning_of(field), (field.metadata or {}).get(b"postgres", b"").decode()
    if meaning in _MEANINGS:
        return _MEANINGS[meaning]
    return _POSTGRES.get(origin) or ("VARCHAR" if str(kind) in ('"NULL"', "NULL") else str(kind))
