"""A target that a plug-in adds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from noetl.core.model.connector import ConnectorError, RowTarget, TargetCall
from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import plain_column
from noetl.data.sql import split_name
from noetl.data.types.type_lattice import ColumnKind, kind_in_database
from noetl.tools._common.plugin_addresses import check_addresses
from noetl.tools._common.plugin_fields import field_problem
from noetl.tools.transfer.chunks import Chunk, reads_name
from noetl.tools.transfer.failures import roll_back
from noetl.tools.transfer.nested_rows import INDEX, beginning, list_tables
from noetl.tools.transfer.schema_contract import Changes
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.transfer_plan import TargetPlan, is_deferred

_ROW_ERRORS = ("db.constraint", "schema", "parse")


class PluginTarget(Target):
    """Passes the rows on to the `RowTarget` of a plug-in.

    A target whose fields read `chunk` is opened, written and committed once for each chunk."""

    defines_types = False
    clears_columns = False
    CHUNK_BYTES = 4 << 20  # drivers hold the rows as plain data, and several times as what they send

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        super().__init__(call, plan, peers)
        self._schema: Any = None
        self._root: PluginTarget | None = None  # of a child table

    @cached_property
    def _target(self) -> RowTarget | None:
        target = None if is_deferred(self.plan.fields) else self._open(self.plan.fields)
        if target is not None and self._root is not None:
            assert self._root._target is not None
            target.join(self._root._target)
        return target

    def join(self, root: Target) -> None:
        """Write in the transaction of another table."""
        assert isinstance(root, PluginTarget)
        self._root = root

    async def child_tables(self) -> list[str]:
        """The tables of lists, which have positions."""
        assert self._target is not None
        table, quote = self.plan.location, self.plan.quote
        found = await self._target.tables(beginning(split_name(table, quote)[-1]))
        return list_tables(table, ((name, f"{INDEX}1" in columns) for name, columns in found.items()), quote)

    async def fit_keys(self, keys: Any) -> None:
        """Change the types of keys; what `delete` needs is created before a savepoint."""
        await super().fit_keys(keys)
        await self.delete_rows(keys.slice(0, 0))

    async def delete_rows(self, keys: Any) -> None:
        """Delete rows by key."""
        assert self._target is not None
        await self._target.delete(keys)

    def adapt(self, table: Any) -> Any:
        """Intervals as text, such as P1Y2M: drivers have no type for them, and would write what Python prints."""
        import pyarrow as pa

        for number, field in enumerate(table.schema):
            if pa.types.is_interval(field.type):
                text = pa.array(plain_column(table.column(number), field), pa.string())
                table = table.set_column(
                    number, pa.field(field.name, pa.string(), metadata={"noetl": "interval"}), text
                )
        return table

    async def begin(self, schema: Any) -> None:
        """Prepare the target for rows of this schema."""
        self._schema = schema
        if self._target is not None:
            await self._check(self.plan.fields)
            self._target.call = replace(self._target.call, key=self.plan.key)  # the depth of a list is known here
            await self._target.begin(schema)

    def is_row_error(self, failure: Exception) -> bool:
        """What the plug-in explains as an error of values or constraints."""
        if self._target is None:
            return False  # every chunk is a target of its own
        info = self.explain(failure)
        return super().is_row_error(failure) or (info is not None and info.kind in _ROW_ERRORS)

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Write the rows of one chunk."""
        if self._target is not None:
            await self._target.write(table)
            return
        values = chunk.template_values(data=reads_name(self.plan.fields, "chunk.data"))
        fields = self.templates.render(self.plan.fields, chunk=values)
        await self._check(fields)
        target = self._open(fields, chunk.index)
        try:
            await target.begin(self._schema)
            await target.write(table)
            await target.prepare()
            await target.commit()
        except BaseException:
            await roll_back(self.call, self.plan.label, target.abort())
            raise

    async def known_columns(self) -> dict[str, ColumnKind]:
        """The columns of the existing table."""
        await self._check({} if self._target is None else self.plan.fields)
        columns = {} if self._target is None else await self._target.columns()
        return {name: kind_in_database(kind) for name, kind in columns.items()}

    def identifier(self, name: str) -> str:
        """The name as the plug-in compares it."""
        return name if self._target is None else self._target.identifier(name)

    async def alter(self, changes: Changes) -> None:
        """Add columns and change types."""
        if self._target is not None:
            await self._target.alter(changes.add, {name: str(kind) for name, kind in changes.widen.items()})

    async def write_empty(self) -> None:
        """Empty the target in mode replace."""
        if self._target is not None:
            await self._check(self.plan.fields)
            await self._target.write_empty()

    async def prepare(self) -> None:
        """Complete the writes."""
        if self._target is not None:
            await self._target.prepare()

    @property
    def can_undo(self) -> bool:  # type: ignore[override]
        """Whether the plug-in has savepoints."""
        return self._target is not None and type(self._target).savepoint is not RowTarget.savepoint

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None, None]:
        """A savepoint of the plug-in, if it has them."""
        if self._target is None or not self.can_undo:
            yield
            return
        await self._target.savepoint()
        try:
            yield
        except BaseException:
            await self._target.undo()
            raise

    async def commit(self) -> None:
        """Commit the rows."""
        if self._target is not None:
            await self._target.commit()

    async def abort(self) -> None:
        """Roll back as far as possible."""
        if self._target is not None:
            await self._target.abort()

    def explain(self, failure: Exception) -> Any:
        """The error that the plug-in gives for an exception of its driver."""
        plugin = self.plan.plugin
        return None if plugin is None or plugin.explain is None else plugin.explain(failure)

    async def _check(self, fields: dict[str, Any]) -> None:
        assert self.plan.plugin is not None
        problem = field_problem(self.plan.plugin.fields, fields)
        if problem is not None:
            raise ConnectorError(f"{self.plan.label}: {problem}")
        await check_addresses(fields, self.call.host)

    def _open(self, fields: dict[str, Any], chunk: int | None = None) -> RowTarget:
        plan = self.plan
        assert plan.plugin is not None
        # Names of staging tables are made of the key: targets and chunks of one transfer have their own.
        parts = [str(plan.number)] if plan.number else []
        parts += [] if chunk is None else [f"chunk {chunk}"]
        parts += [] if self._root is None else [plan.location]
        return plan.plugin.open(
            TargetCall(
                kind=plan.kind,
                fields=fields,
                host=self.call.host,
                mode="append" if plan.mode == "insert" else plan.mode,
                key=plan.key,
                create=plan.create_table,
                keeps_going=self.keeps_going,
                label=plan.label,
                idempotency_key=":".join([self.call.idempotency_key, *parts]),
                timeout=self.call.timeout,
                contract=plan.schema is not None,
            )
        )
