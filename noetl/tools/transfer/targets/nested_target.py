"""A table with child tables for lists (`nested: tables`), all written in one transaction.

With mode upsert, the child rows of a row that is loaded again are replaced, so loading the same rows twice gives the
same tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import rows_of
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.nested_rows import INDEX, ROOT, Path, child_name, divide, is_nested
from noetl.tools.transfer.schema_contract import SchemaContract
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder
from noetl.tools.transfer.targets import Target, open_target
from noetl.tools.transfer.transfer_plan import TargetPlan

ROW_ID = "_noetl_id"  # of rows without a key
MAX_TABLES = 200


class NestedTarget(Target):
    """The root table and its child tables."""

    CHUNK_BYTES = 2 << 20  # the rows are plain data, which take many times the memory

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        super().__init__(call, plan._replace(schema=None), peers)
        contract = plan.schema or SchemaContract()
        self._plain = plan._replace(nested="json", mapping=None, schema=contract, bad_rows=None)
        self._root = open_target(call, self._plain, peers)
        self.contract = self._root.contract
        self._table = str(plan.fields["table"])
        self._children: dict[str, Target] = {}
        self._builders: dict[Path, BatchBuilder] = {}
        self._existing: list[str] | None = None
        self._count = 0

    @property
    def tables(self) -> dict[str, int]:
        """Rows written to child tables."""
        return {name: child.rows for name, child in self._children.items() if child.begun}

    async def write_chunk(self, chunk: Chunk) -> None:
        """Write a chunk to all tables."""
        table = self._with_ids(self.columns.apply(chunk))
        self.plan.check_key(table.schema.names)
        table = self._latest(table)
        root, children = self._divided(table)
        await self._root.write_chunk(Chunk(chunk.index, root, last=chunk.last))
        await self._root.prepare()
        await self._clear(table)
        for path, rows in children.items():
            child = self._child(child_name(self._table, path))
            await child.write_chunk(Chunk(chunk.index, rows, last=chunk.last))
            await child.prepare()
        self.begun = True
        self.rows += chunk.size
        self.chunks += 1 if chunk.size else 0

    @property
    def _key(self) -> tuple[str, ...]:
        return self.plan.key or (ROW_ID,)

    def _with_ids(self, table: Any) -> Any:
        """Rows without a key get an id that is the same in every attempt of the task."""
        import pyarrow as pa

        if self.plan.key:
            return table
        start, self._count = self._count, self._count + table.num_rows
        prefix = f"{self.call.idempotency_key} {self.plan.number} "
        ids = [
            hashlib.sha256(f"{prefix}{number}".encode()).hexdigest()[:32]
            for number in range(start, start + table.num_rows)
        ]
        return table.append_column(ROW_ID, pa.array(ids, pa.string()))

    def _latest(self, table: Any) -> Any:
        """With mode upsert, the last row with each key."""
        import pyarrow as pa

        if self.plan.mode != "upsert":
            return table
        keys = list(zip(*(table.column(name).to_pylist() for name in self._key), strict=True))
        last = {key: number for number, key in enumerate(keys)}
        return table if len(last) == len(keys) else table.take(pa.array(sorted(last.values())))

    def _divided(self, table: Any) -> tuple[Any, dict[Path, Any]]:
        import pyarrow as pa

        nested = [field.name for field in table.schema if is_nested(field)]
        if not nested:
            return table, {}
        flat, children = divide(rows_of(table.select(nested)), rows_of(table.select(list(self._key))))
        root = table.drop_columns(nested)
        if any(flat):
            batch = self._builder(()).batch(flat)
            for number, field in enumerate(batch.schema):
                root = root.append_column(field, pa.chunked_array([batch.column(number)]))
        tables = {path: self._child_rows(path, rows, table) for path, rows in children.items() if rows}
        return root, tables

    def _child_rows(self, path: Path, rows: list[dict[str, Any]], table: Any) -> Any:
        """The rows of a child table; the key has the types of the root table."""
        import pyarrow as pa

        found = pa.Table.from_batches([self._builder(path).batch(rows)])
        for name in self._key:
            number = found.schema.get_field_index(f"{ROOT}{name}")
            field = table.schema.field(name)
            if found.schema.field(number).type != field.type:
                cast = found.column(number).cast(field.type)
                found = found.set_column(number, field.with_name(f"{ROOT}{name}"), cast)
        return found

    def _builder(self, path: Path) -> BatchBuilder:
        if path not in self._builders:
            if len(self._builders) >= MAX_TABLES:
                raise BadInput(f"{self.plan.label}: `nested: tables` makes more than {MAX_TABLES} tables")
            self._builders[path] = BatchBuilder(None, self.plan.label, evolves=True)
        return self._builders[path]

    def _child(self, name: str) -> Target:
        if name not in self._children:
            depths = [len(path) for path in self._builders if path and child_name(self._table, path) == name]
            indexes = range(1, max(depths, default=1) + 1)
            key = (*(f"{ROOT}{each}" for each in self._key), *(f"{INDEX}{number}" for number in indexes))
            fields = {**self._plain.fields, "table": name}
            child = open_target(self.call, self._plain._replace(fields=fields, key=key), self.peers)
            child.join(self._root)
            self._children[name] = child
        return self._children[name]

    async def _clear(self, table: Any) -> None:
        """Remove the child rows of rows that are loaded again."""
        if self._existing is None:
            self._existing = await self._root.child_tables()
        if self.plan.mode == "upsert" and table.num_rows:
            keys = table.select(list(self._key)).rename_columns([f"{ROOT}{name}" for name in self._key])
            for name in {*self._existing, *self.tables}:
                await self._child(name).delete_rows(keys)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    async def write_empty(self) -> None:
        """Empty all tables in mode replace."""
        await self._root.write_empty()
        for name in await self._root.child_tables() if self.plan.mode == "replace" else ():
            await self._child(name).write_empty()

    async def prepare(self) -> None:
        """With mode replace, empty the child tables of lists that no row has."""
        if self.plan.mode == "replace":
            for name in self._existing or ():
                if not self._child(name).begun:
                    await self._child(name).write_empty()

    async def commit(self) -> None:
        """Commit the transaction of all tables."""
        for child in self._children.values():
            await child.commit()
        await self._root.commit()

    async def abort(self) -> None:
        """Roll back the transaction."""
        for child in self._children.values():
            await child.abort()
        await self._root.abort()

    async def loaded_objects(self) -> dict[str, str]:
        """The objects in the ledger of the root table."""
        return await self._root.loaded_objects()

    async def record_objects(self, found: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Add objects to the ledger, in the transaction of the rows."""
        await self._root.record_objects(found, known)

    def explain(self, failure: Exception) -> Any:
        """The error of the database."""
        return self._root.explain(failure)
