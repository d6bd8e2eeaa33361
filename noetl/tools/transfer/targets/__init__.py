"""Targets of a transfer: the base class, and the factory for the kinds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import record_columns
from noetl.data.types.type_lattice import ColumnKind
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk, TemplateRenderer
from noetl.tools.transfer.mapping import ColumnMapping
from noetl.tools.transfer.nested_rows import Path, child_name
from noetl.tools.transfer.quarantine.bad_rows import ROW, RowError
from noetl.tools.transfer.quarantine.rejected_rows import RejectedRows, plain
from noetl.tools.transfer.schema_contract import Changes, ContractChecker
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder
from noetl.tools.transfer.targets.earlier_rows import EarlierRows
from noetl.tools.transfer.targets.first_columns import as_first
from noetl.tools.transfer.transfer_plan import DATABASES, TargetPlan, is_deferred

FIXED = "the type cannot be changed"


class Target:
    """One target of a transfer.

    The engine calls `begin` with the first chunk, `write` for every chunk, then `prepare` and `commit`, or `abort`.
    After a failed chunk with `on_error: warn`, `can_continue` is true if more chunks can be written."""

    CHUNK_BYTES = 8 << 20  # of the rows of a chunk, unless their number is visible to a target

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        self.call = call
        self.plan = plan
        self.peers = peers  # state shared by the targets of one transfer that write to the same file, by path
        self.templates = TemplateRenderer(call)
        self.columns = ColumnMapping(plan.mapping, self.templates, plan.label)
        self.contract = ContractChecker(plan.schema, plan.label) if plan.schema is not None else None
        self.bad_rows: RejectedRows | None = None  # if bad rows do not fail the transfer
        self.rows = 0
        self.chunks = 0
        self.begun = False
        self.recorded: dict[str, str] = {}  # columns of the rows and their types, for the lineage
        self._known: dict[str, ColumnKind] | None = None  # the columns of the table, if there is a contract
        self._earlier: EarlierRows | None = None  # of mode upsert, if there is a contract
        self.first: Any = None  # the columns that this transfer has created, if later rows cannot change them

    @property
    def tables(self) -> dict[str, int]:
        """The rows of further tables that this target writes."""
        return {}

    @property
    def datasets(self) -> list[tuple[str, int, dict[str, str]]]:
        """Places, rows and columns of the data that was written, for the lineage; that of this target is first."""
        return [(self.plan.location, self.rows, self.recorded)]

    @property
    def can_continue(self) -> bool:
        """Whether more chunks can be written after one has failed."""
        return self.begun

    async def write_chunk(self, chunk: Chunk) -> None:
        """Write a chunk; if it fails, none of its rows is written."""
        if self.bad_rows is not None:
            await self._write_good_rows(chunk, self.bad_rows)
            return
        table = await self.fitted(self.columns.apply(chunk))
        if chunk.size:
            if table.num_rows:
                await self.write_fitting(table, chunk)
            self.rows += table.num_rows
            self.chunks += 1

    async def _write_good_rows(self, chunk: Chunk, rejected: RejectedRows) -> None:
        """Write the rows of a chunk that can be written; the others are rejected one by one."""
        rejected.begin(chunk)
        table = rejected.mapped(self.columns)
        if table.num_rows or not chunk.size:
            table = await self.fitted(table, rejected)
            if table.num_rows:
                table = await rejected.without(table, await self.rejected(plain(table)))
            if chunk.size:
                self.rows += await rejected.write(table, self)
                self.chunks += 1
        await rejected.flush()

    async def fitted(self, table: Any, rejected: RejectedRows | None = None) -> Any:
        """The rows in the columns and types of the target, which is created or changed for them.

        Rows without a key, and those that the contract does not let through, are rejected."""
        table = self.adapt(self._typed(table))
        if self.plan.mode == "upsert":
            self.plan.check_key(plain(table).schema.names)
            if rejected is not None:
                table = await rejected.with_key(table, self.plan)
            elif any(table.column(name).null_count for name in self.plan.key):
                raise self.plan.missing_key_error()
        if not self.begun:
            await self.begin(plain(table).schema)
            self.begun = True
        if self.contract is not None:
            self.contract.quarantine = None if rejected is None else rejected.add
            table = await self._conform(self.contract, table)
        record_columns(self.recorded, plain(table).schema)
        return table

    defines_types = True  # whether a column can be created without a type, and gets one with its first value

    def _typed(self, table: Any) -> Any:
        """The rows with columns without a type as text, unless they get a type with their first value."""
        import pyarrow as pa

        if self.defines_types and self.contract is not None and self.contract.defines_types:
            return table
        for number, field in enumerate(table.schema):
            if pa.types.is_null(field.type):
                table = table.set_column(number, field.with_type(pa.string()), pa.nulls(len(table), pa.string()))
        return table

    async def _conform(self, contract: ContractChecker, table: Any) -> Any:
        """The rows that the schema contract lets through; the table is changed as far as the contract allows it."""
        if self._known is None:
            self._known = await self.known_columns()
            if self.plan.mode == "upsert" and self.clears_columns:
                self._earlier = EarlierRows(self.plan.key, self._known)
        table = self._as_stored(table, self._known)
        if contract.quarantine is not None:
            contract.fixed |= await self.fixed_columns()
        table = await contract.admit(table, self._known_in(table))
        while True:
            known = self._known_in(table)
            table = await contract.fitting(table, known)
            changes = contract.changes(table, known)
            if not any(changes) or await self._altered(contract, changes):
                return table

    def _known_in(self, table: Any) -> dict[str, ColumnKind]:
        """The columns of the target, and that of the numbers of rows if the table has it."""
        known = self._known or {}
        return {**known, ROW: ColumnKind("other")} if ROW in table.schema.names else known

    async def _altered(self, contract: ContractChecker, changes: Changes) -> bool:
        """Change the table; with a quarantine, false if it does not allow the type that some rows need."""
        if contract.quarantine is None or not self.can_undo or not changes.widen:
            await self.alter(changes)
        else:
            if changes.add or changes.define:
                await self.alter(changes._replace(widen={}))
            for name, kind in changes.widen.items():
                try:
                    async with self.savepoint():
                        await self.alter(Changes([], {name: kind}, []))
                except Exception as failure:
                    if not self.is_refused(failure):
                        raise
                    info = self.explain(failure)
                    contract.fixed[name] = f"{FIXED}: {failure if info is None else info.message}"
        self._known = await self.known_columns()
        return not contract.fixed.keys() & changes.widen.keys()

    async def fixed_columns(self) -> dict[str, str]:
        """Columns of the table whose types cannot be changed, with the reason, if that is known before."""
        return {}

    def is_refused(self, failure: Exception) -> bool:
        """Whether `alter` failed because the column cannot have another type."""
        return False

    def _as_stored(self, table: Any, known: Mapping[str, ColumnKind]) -> Any:
        """The table with the names of columns as they are written in the database."""
        stored = {self.identifier(name): name for name in known}
        key = self.plan.key
        names = [name if name in key else stored.get(self.identifier(name), name) for name in table.schema.names]
        return table.rename_columns(names) if len({*names}) == len(names) else table

    def identifier(self, name: str) -> str:
        """The name of a column as the target compares it with others."""
        return name

    async def write_static(self, data: Any) -> None:
        """Write the static data of this target."""
        import pyarrow as pa

        rows = [data] if isinstance(data, Mapping) else data
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise BadInput(f"{self.plan.label}: `data` must be a row (a mapping) or a list of rows")
        if not rows:
            await self.write_empty()
            return
        batch = BatchBuilder(None, self.plan.label).batch(rows)
        await self.write_chunk(Chunk(0, pa.Table.from_batches([batch]), last=True, total=1))

    def adapt(self, table: Any) -> Any:
        """The rows in the types that this target can store."""
        return table

    async def begin(self, schema: Any) -> None:
        """Prepare the target for rows of this schema."""

    async def loaded_objects(self) -> dict[str, str]:
        """The objects that were loaded into this table; other transfers into it wait until this one ends."""
        raise BadInput(
            f"{self.plan.label}: `only_new` needs a target that remembers the objects: a table of postgres, duckdb or "
            "sqlite"
        )

    async def record_objects(self, found: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Remember objects and their versions, in the transaction of the rows; `known` is what was loaded before."""

    remembers = False  # whether the progress of a load can be kept in the database of this target
    has_checkpoints = False  # whether some of the rows can be committed before the others

    def require_table(self, reason: str) -> None:
        """Do not create the table, if there is a reason."""
        if reason and self.plan.kind in DATABASES and self.plan.nested == "json" and self.plan.static is None:
            self.plan = self.plan._replace(create_table=False, must_exist=reason)

    async def open_ledger(self, name: str, create: str) -> bool:
        """Open the database, and create a table of the transfers there; False if the user may not."""
        raise NotImplementedError

    async def run_sql(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for its values, in the transaction of the rows."""
        raise NotImplementedError

    async def has_rows(self) -> bool:
        """Whether the table exists and has rows."""
        raise NotImplementedError

    async def checkpoint(self, record: Callable[[], Awaitable[None]]) -> None:
        """Commit the rows so far, with what `record` writes, and begin the next transaction."""
        raise NotImplementedError

    def join(self, root: Target) -> None:
        """Write in the transaction of another target, which commits or aborts it."""

    def child_place(self, path: Path) -> str:
        """The table of a list (`nested: tables`)."""
        return child_name(self.plan.location, path, self.plan.quote)

    async def child_tables(self) -> list[str]:
        """The existing tables of lists (`nested: tables`)."""
        raise NotImplementedError

    async def fit_keys(self, keys: Any) -> None:
        """Give columns of an existing child table the types of these keys, which are those of the root table."""
        assert self.contract is not None
        if self._known is None:
            self._known = await self.known_columns()
        changes = self.contract.changes(keys, self._known)
        if changes.add:
            raise BadInput(
                f"{self.plan.label}: the table has no column {changes.add[0].name}: it is the table of another list, "
                "or was loaded with another `key`"
            )
        if any(changes):
            await self.alter(changes)
            self._known = await self.known_columns()

    async def delete_rows(self, keys: Any) -> None:
        """Delete the rows with these values in these columns."""
        raise NotImplementedError

    clears_columns = True  # whether rows that a load has written can get null in other columns

    async def clear_columns(self, keys: Any, columns: Sequence[str]) -> None:
        """Set columns to null in the rows with these keys."""
        raise NotImplementedError

    async def known_columns(self) -> dict[str, ColumnKind]:
        """The columns of the table and their types."""
        raise NotImplementedError

    async def alter(self, changes: Changes) -> None:
        """Add columns to the table, and change the types of others."""
        raise NotImplementedError

    async def write_fitting(self, table: Any, chunk: Chunk) -> None:
        """Write rows of one chunk."""
        table = await self.completed(plain(table))
        await self.write(table, chunk)
        await self.remember(table)

    async def completed(self, table: Any) -> Any:
        """The rows in the columns that this transfer has created, and with those that earlier rows had."""
        if self.first is not None:
            table = as_first(table, self.first, self.plan.label, complete=not self.plan.commits)
        if self._earlier is not None:
            table = self._earlier.completed(table)
            await self._clear_earlier(self._earlier, self._earlier.appearing(table.schema.names))
        return table

    async def remember(self, table: Any) -> None:
        """Note rows that were written."""
        if self._earlier is not None:
            await in_thread(partial(self._earlier.add, table))

    async def _clear_earlier(self, earlier: EarlierRows, columns: list[str]) -> None:
        try:
            for keys in earlier.written() if columns else ():
                await self.clear_columns(keys, columns)
        except Exception as failure:
            info = self.explain(failure)
            if info is None:
                raise
            raise BadInput(
                f"{self.plan.label}: the first rows of this load have no {', '.join(columns)}, which later rows have, "
                f"and it cannot become null in them: {info.message}"
            ) from failure

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Write the rows of one chunk."""
        raise NotImplementedError

    @property
    def keeps_going(self) -> bool:
        """Whether rows are written after a failure, so that every `write` succeeds or fails as a whole."""
        return self.plan.warn_on_error or self.bad_rows is not None

    async def rejected(self, table: Any) -> dict[int, str]:
        """The rows that the target would not accept, with the reason, if it can know them before `write`."""
        return {}

    def is_row_error(self, failure: Exception) -> bool:
        """Whether `write` failed because of a row, and has written nothing."""
        return isinstance(failure, RowError)

    def failed_row(self, failure: Exception, table: Any) -> int | None:
        """The number of the row that made `write` of this table fail, if the error says it."""
        return None

    async def write_empty(self) -> None:
        """Handle a source without rows and columns: mode replace empties the target."""

    async def end_chunk(self) -> None:
        """Complete the write of a chunk, so that other tables of the transaction can be written."""

    can_undo = False  # whether `savepoint` undoes writes

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None, None]:
        """Undo what is written to all tables of the transaction meanwhile, if it fails."""
        yield

    async def prepare(self) -> None:
        """Complete the writes, so that errors are found while all targets can still be rolled back."""

    async def commit(self) -> None:
        """Commit the rows."""

    async def abort(self) -> None:
        """Roll back as far as possible, and release resources."""

    def release(self) -> None:
        """Remove temporary files, after a commit or an abort."""
        if self._earlier is not None:
            self._earlier.close()

    def explain(self, failure: Exception) -> Any:
        """The error for an exception of this target's driver; None for other exceptions."""
        return None


def open_target(call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> Target:
    """The target that a plan describes; it does not connect yet."""
    if plan.commits and is_deferred(plan.fields):
        raise BadInput(f"{plan.label}: a table cannot depend on the chunk")
    if plan.nested == "tables":
        from noetl.tools.transfer.targets.nested_target import NestedTarget

        return NestedTarget(call, plan, peers)
    if plan.plugin is not None:
        from noetl.tools.transfer.targets.plugin_target import PluginTarget

        return PluginTarget(call, plan, peers)
    if plan.kind == "postgres":
        from noetl.tools.transfer.targets.postgres_target import PostgresTarget

        return PostgresTarget(call, plan, peers)
    if plan.kind == "duckdb":
        from noetl.tools.transfer.targets.duckdb_target import DuckdbTarget

        return DuckdbTarget(call, plan, peers)
    if plan.kind == "sqlite":
        from noetl.tools.transfer.targets.sqlite_target import SqliteTarget

        return SqliteTarget(call, plan, peers)
    if plan.kind == "http":
        from noetl.tools.transfer.targets.http_target import HttpTarget

        return HttpTarget(call, plan, peers)
    if plan.fields.get("partition_by"):
        from noetl.tools.transfer.targets.files.partitioned_target import PartitionedTarget

        return PartitionedTarget(call, plan, peers)
    from noetl.tools.transfer.targets.files.object_target import ObjectTarget

    return ObjectTarget(call, plan, peers)
