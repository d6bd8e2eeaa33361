"""A table with child tables for lists (`nested: tables`), all written in one transaction; a file with child files.

With mode upsert, the child rows of a row that is loaded again are replaced, so loading the same rows twice gives the
same tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import meaning_of, rows_of, text_values
from noetl.data.types.type_lattice import ColumnKind
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.nested_rows import (
    INDEX,
    ROOT,
    Path,
    clash,
    divide,
    is_member,
    is_nested,
)
from noetl.tools.transfer.schema_contract import ContractChecker, SchemaContract
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder
from noetl.tools.transfer.targets import Target, open_target
from noetl.tools.transfer.transfer_plan import TargetPlan

ROW_ID = "_noetl_id"  # of rows without a key
_NUMBER = "_noetl_number"  # of a row in its chunk
MAX_TABLES = 200
Rows = list[dict[str, Any]]


class _RootContract(ContractChecker):
    """The contract of the root table. With mode upsert, members that objects do not have any more become null.

    That includes objects that no row of a chunk has: the result does not depend on how rows are divided into chunks."""

    members: Collection[str] = ()  # of the rows that are merged, before they are divided
    admitted: Any = None  # the numbers of the rows of the last chunk that were not discarded

    async def admit(self, table: Any, known: Mapping[str, ColumnKind]) -> Any:
        """The rows and columns that the contract lets through, and all columns of the members of their objects."""
        import pyarrow as pa

        empty = [
            name for name in table.schema.names if name not in known and table.column(name).null_count == len(table)
        ]
        table = table.drop_columns(empty)  # objects and lists that no row has
        given, members = set(table.schema.names), self.members
        for name in known if members else ():
            if name not in given and (is_member(name) or name in members):
                table = table.append_column(name, pa.nulls(len(table)))
        self.admitted = pa.array(range(len(table)), pa.int64())
        if not given & {*known}:
            return await super().admit(table, known)
        numbered = table.append_column(_NUMBER, self.admitted)
        table = await super().admit(numbered, {**known, _NUMBER: ColumnKind("other")})
        self.admitted = table.column(_NUMBER)
        return table.drop_columns([_NUMBER])


class _ChildContract(ContractChecker):
    """The contract of a child table, which has lists of one depth."""

    def __init__(self, contract: SchemaContract, child: Target, root: ContractChecker) -> None:
        super().__init__(contract, child.plan.label)
        self.discarded = root.discarded
        self.prefix = f"{child.plan.location}."
        self._child = child

    async def admit(self, table: Any, known: Mapping[str, ColumnKind]) -> Any:
        """The rows and columns that the contract lets through; BadInput if the table has other positions."""
        key = self._child.plan.key
        deeper = f"{INDEX}{sum(name.startswith(INDEX) for name in key) + 1}"
        if any(name not in known for name in key) or (deeper in known and deeper not in table.schema.names):
            raise BadInput(
                f"{self._child.plan.label}: the rows have the positions {', '.join(key)}, and the table has others: "
                "it is the table of another list"
            )
        return await super().admit(table, known)


class NestedTarget(Target):
    """The root table and its child tables."""

    CHUNK_BYTES = 2 << 20  # the rows are plain data, which take many times the memory

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        super().__init__(call, plan._replace(schema=None), peers)
        contract = plan.schema or SchemaContract()
        self._plain = plan._replace(nested="json", mapping=None, schema=contract, bad_rows=None)
        self._contract = contract
        self._root = open_target(call, self._plain, peers)
        self.remembers = self._root.remembers
        self.contract = self._root.contract = self._merged = _RootContract(contract, plan.label)
        self._children: dict[str, Target] = {}
        self._builders: dict[Path, BatchBuilder] = {}
        self._paths: dict[str, Path] = {}  # of the lists in child tables
        self._existing: list[str] | None = None
        self._count = 0

    @property
    def tables(self) -> dict[str, int]:
        """Rows written to child tables."""
        return {name: child.rows for name, child in self._children.items() if child.begun}

    @property
    def datasets(self) -> list[tuple[str, int, dict[str, str]]]:
        """The root table and the child tables."""
        children = ((name, child.rows, child.recorded) for name, child in self._children.items() if child.begun)
        return [(self.plan.location, self.rows, self._root.recorded), *children]

    async def write_chunk(self, chunk: Chunk) -> None:
        """Write a chunk to all tables."""
        table = self._with_ids(self.columns.apply(chunk))
        self.plan.check_key(table.schema.names)
        table = self._latest(table)
        if self.plan.mode == "upsert":
            self._merged.members = set(table.schema.names)
        root, children = self._divided(table)
        await self._root.write_chunk(Chunk(chunk.index, root, last=chunk.last))
        await self._root.end_chunk()
        await self._clear(table.take(self._merged.admitted))
        for path, rows in self._admitted(children, table.num_rows).items():
            child = self._child_of(path)
            await child.write_chunk(Chunk(chunk.index, self._child_rows(path, rows, table), last=chunk.last))
            await child.end_chunk()
        self.begun = True
        self.rows += chunk.size - (table.num_rows - len(self._merged.admitted))
        self.chunks += 1 if chunk.size else 0

    @property
    def _key(self) -> tuple[str, ...]:
        return self.plan.key or (ROW_ID,)

    def _with_ids(self, table: Any) -> Any:
        """Rows without a key get an id that is the same in every attempt of the task."""
        import pyarrow as pa

        if self.plan.key:
            return table
        if ROW_ID in table.schema.names:
            raise BadInput(f"{self.plan.label}: the rows have the column {ROW_ID}; set `key: {ROW_ID}`")
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

    def _divided(self, table: Any) -> tuple[Any, dict[Path, Rows]]:
        """The root rows, and the rows of child tables, whose keys are the numbers of their root rows."""
        nested = [field.name for field in table.schema if is_nested(field)]
        if not nested:
            return table, {}
        numbers = [dict.fromkeys(self._key, number) for number in range(table.num_rows)]
        flat, children = divide(rows_of(table.select(nested)), numbers)
        root = table.drop_columns(nested)
        if any(flat):
            members = self._built((), flat)
            for number, field in enumerate(members.schema):
                root = root.append_column(field, members.column(number))
        self._check_names(root)
        return root, children

    def _admitted(self, children: dict[Path, Rows], count: int) -> dict[Path, Rows]:
        """The rows of child tables without those of root rows that the contract discards."""
        if len(self._merged.admitted) == count:
            return {path: rows for path, rows in children.items() if rows}
        kept, number = set(self._merged.admitted.to_pylist()), f"{ROOT}{self._key[0]}"
        found = {path: [row for row in rows if row[number] in kept] for path, rows in children.items()}
        return {path: rows for path, rows in found.items() if rows}

    def _child_rows(self, path: Path, rows: Rows, table: Any) -> Any:
        """The rows of a child table; the key, given as the number of the root row, is that of the root table."""
        found = self._built(path, rows)
        self._check_names(found)
        for name in self._key:
            number = found.schema.get_field_index(f"{ROOT}{name}")
            field = table.schema.field(name).with_name(f"{ROOT}{name}")
            found = found.set_column(number, field, table.column(name).take(found.column(number)))
        return found

    def _built(self, path: Path, rows: Rows) -> Any:
        """The rows of a table; values of several types are text, as if they had come in several chunks."""
        import pyarrow as pa

        table = pa.Table.from_batches([self._builder(path).batch(rows)])
        for number, field in enumerate(table.schema):
            if meaning_of(field) == "json":
                texts = text_values(table.column(number), field)
                table = table.set_column(number, pa.field(field.name, pa.string()), texts)
        return table

    def _builder(self, path: Path) -> BatchBuilder:
        if path not in self._builders:
            if len(self._builders) >= MAX_TABLES:
                raise BadInput(f"{self.plan.label}: `nested: tables` makes more than {MAX_TABLES} tables")
            self._builders[path] = BatchBuilder(None, self.plan.label, evolves=True)
        return self._builders[path]

    def _check_names(self, table: Any) -> None:
        """The columns of a table have different names, as the database compares them."""
        names: set[str] = set()
        for name in table.schema.names:
            if self._root.identifier(name) in names:
                raise clash(name)
            names.add(self._root.identifier(name))

    def _child_of(self, path: Path) -> Target:
        """The table of a list, with its key."""
        name = self._root.child_place(path)
        if self._paths.setdefault(name, path) != path:
            raise clash(name)
        child = self._child(name)
        indexes = (f"{INDEX}{number}" for number in range(1, len(path) + 1))
        child.plan = child.plan._replace(key=(*(f"{ROOT}{each}" for each in self._key), *indexes))
        return child

    def _child(self, name: str) -> Target:
        if name not in self._children:
            fields = {**self._plain.fields, self._plain.place: name}
            child = open_target(self.call, self._plain._replace(fields=fields), self.peers)
            child.contract = _ChildContract(self._contract, child, self._merged)
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
                await self._child(name).fit_keys(keys)
                await self._child(name).delete_rows(keys)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    async def write_empty(self) -> None:
        """Empty all tables in mode replace."""
        await self._root.write_empty()
        for name in await self._root.child_tables() if self.plan.mode == "replace" else ():
            await self._child(name).write_empty()

    async def prepare(self) -> None:
        """Complete all tables; with mode replace, empty the child tables of lists that no row has."""
        for table in (self._root, *self._children.values()):
            await table.prepare()
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

    def release(self) -> None:
        """Remove temporary files."""
        for table in (self._root, *self._children.values()):
            table.release()

    # ── what was loaded before: beside the root table ────────────────────────────────────────

    def require_table(self, reason: str) -> None:
        """The root table must exist."""
        self._root.require_table(reason)

    async def open_ledger(self, name: str, create: str) -> bool:
        """Open the database, and create a table of the transfers there."""
        return await self._root.open_ledger(name, create)

    async def run_sql(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Run a statement in the transaction of the rows."""
        return await self._root.run_sql(statement, values)

    async def has_rows(self) -> bool:
        """Whether the root table exists and has rows."""
        return await self._root.has_rows()

    async def loaded_objects(self) -> dict[str, str]:
        """The objects in the ledger of the root table."""
        return await self._root.loaded_objects()

    async def record_objects(self, found: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Add objects to the ledger, in the transaction of the rows."""
        await self._root.record_objects(found, known)

    def explain(self, failure: Exception) -> Any:
        """The error of the database."""
        return self._root.explain(failure)
