"""A table with child tables for lists (`nested: tables`), all written in one transaction; a file with child files.

With mode upsert, the child rows of a row that is loaded again are replaced, so loading the same rows twice gives the
same tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import nullcontext
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
from noetl.tools.transfer.quarantine.bad_rows import ROW
from noetl.tools.transfer.quarantine.rejected_rows import RejectedRows, plain
from noetl.tools.transfer.schema_contract import ContractChecker, SchemaContract
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder
from noetl.tools.transfer.targets import Target, open_target
from noetl.tools.transfer.transfer_plan import TargetPlan

ROW_ID = "_noetl_id"  # of rows without a key
MAX_TABLES = 200
Rows = list[dict[str, Any]]


class _RootContract(ContractChecker):
    """The contract of the root table. With mode upsert, members that objects do not have any more become null.

    That includes objects that no row of a chunk has: the result does not depend on how rows are divided into chunks."""

    members: Collection[str] = ()  # of the rows that are merged, before they are divided

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
        return await super().admit(table, known)


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

    CHUNK_BYTES = 1 << 20  # the rows are plain data, which take many times the memory

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
        self._keys: Any = None  # of the root rows of a chunk, with their numbers
        self._child_tables: list[tuple[Target, Any]] = []  # and their rows in a chunk

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
        """Write a chunk to all tables: they are created and changed, then each row is written to all, or rejected."""
        import pyarrow as pa

        rejected = self.bad_rows
        if rejected is None:
            table = self.columns.apply(chunk).append_column(ROW, pa.array(range(chunk.size), pa.int32()))
        else:
            rejected.table = ""
            rejected.begin(chunk)
            table = rejected.mapped(self.columns)
        if table.num_rows or not chunk.size:
            root = await self._fit_tables(self._with_ids(table))
            if rejected is not None:
                root = await self._accepted(root, rejected)
                self.rows += await rejected.write(root, self)
            else:
                await self.write_fitting(root, chunk)
                self.rows += root.num_rows
            self.begun = True
            self.chunks += 1 if chunk.size else 0
        if rejected is not None:
            await rejected.flush()

    async def _fit_tables(self, table: Any) -> Any:
        """Create and change the tables for some rows; returns the root rows, those of child tables are kept."""
        self.plan.check_key(plain(table).schema.names)
        if self.plan.mode == "upsert":
            self._merged.members = set(plain(table).schema.names)
        divided, children = self._divided(table)
        root = await self._fit(self._root, divided)
        self._keys = table.select([*self._key, ROW])
        if self._existing is None:
            self._existing = await self._root.child_tables()
        await self._fit_keys(self._all_children, root)
        self._child_tables = []
        for path, rows in self._admitted(children, table, root).items():
            child = self._child_of(path)
            self._child_tables.append((child, await self._fit(child, self._child_rows(path, rows, table))))
        await self._fit_keys({child.plan.location for child, _ in self._child_tables}, root)
        return root

    async def _fit_keys(self, children: Collection[str], root: Any) -> None:
        """With mode upsert, the child rows of root rows are deleted by their keys."""
        if self.plan.mode == "upsert" and root.num_rows:
            for name in children:
                await self._child(name).fit_keys(self._root_keys(root))

    @property
    def _all_children(self) -> set[str]:
        return {*(self._existing or ()), *self.tables}

    async def _fit(self, target: Target, rows: Any) -> Any:
        if self.bad_rows is not None:
            target.bad_rows = self.bad_rows
            self.bad_rows.table = target.plan.location
        return await target.completed(await target.fitted(rows, self.bad_rows))

    async def _accepted(self, root: Any, rejected: RejectedRows) -> Any:
        """The root rows that no table rejects, as far as the database knows that before they are written."""
        while True:
            before = rejected.count
            # The root table last: a row whose child rows are rejected has no values that others cannot have.
            own, *children = self._family(rejected.kept(root))
            for target, rows in (*children, own):
                rejected.table = target.plan.location
                rows = rejected.kept(rows)
                if rows.num_rows:
                    await rejected.without(rows, await target.rejected(plain(rows)))
            if rejected.count == before:  # otherwise others are the last ones with their keys
                return rejected.kept(root)

    async def write_fitting(self, table: Any, chunk: Chunk) -> None:
        """Write root rows, and the rows of their child tables; if it fails, none of them if they can be undone."""
        tables = self._family(table)
        try:
            async with self._root.savepoint() if self.bad_rows is not None else nullcontext():
                for target, rows in tables:
                    await self._write_rows(target, rows, chunk)
        except BaseException:
            for target, _ in tables if self.can_undo else ():
                await target.end_chunk()
            raise
        for target, rows in tables:
            await target.remember(plain(rows))
            target.rows += rows.num_rows

    async def _write_rows(self, target: Target, rows: Any, chunk: Chunk) -> None:
        if self.bad_rows is not None:
            self.bad_rows.table = target.plan.location
        if rows.num_rows:
            await target.write(plain(rows), chunk)
        await target.end_chunk()
        if target is self._root and self.plan.mode == "upsert" and rows.num_rows:
            keys = self._root_keys(rows)
            for name in self._all_children:
                await self._child(name).delete_rows(keys)

    def _family(self, table: Any) -> list[tuple[Target, Any]]:
        """The last root row with each key, and the rows of its child tables."""
        table = self._latest(table)
        kept = table.column(ROW)
        children = ((child, _with_numbers(rows, kept)) for child, rows in self._child_tables)
        return [(self._root, table), *((child, rows) for child, rows in children if rows.num_rows)]

    def _root_keys(self, table: Any) -> Any:
        """The keys of root rows, with the names that they have in child tables."""
        keys = plain(_with_numbers(self._keys, table.column(ROW)))
        return keys.rename_columns([f"{ROOT}{name}" for name in self._key])

    @property
    def can_undo(self) -> bool:  # type: ignore[override]
        """Whether rows of all tables can be undone."""
        return self.bad_rows is not None and self._root.can_undo

    def is_row_error(self, failure: Exception) -> bool:
        """Whether a table does not accept a row, and the rows of the other tables are undone."""
        return self.can_undo and self._root.is_row_error(failure)

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
        own = self._root_keys(table)
        keys = list(zip(*(column.to_pylist() for column in own.columns), strict=True))
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

    def _admitted(self, children: dict[Path, Rows], table: Any, root: Any) -> dict[Path, Rows]:
        """The rows of child tables without those of root rows that are discarded or rejected."""
        if root.num_rows < table.num_rows:
            kept, number = set(root.column(ROW).to_pylist()), f"{ROOT}{self._key[0]}"
            numbers = table.column(ROW).to_pylist()
            children = {path: [row for row in rows if numbers[row[number]] in kept] for path, rows in children.items()}
        return {path: rows for path, rows in children.items() if rows}

    def _child_rows(self, path: Path, rows: Rows, table: Any) -> Any:
        """The rows of a child table; the key, given as the number of the root row, is that of the root table."""
        found = self._built(path, rows)
        self._check_names(found)
        root = found.column(f"{ROOT}{self._key[0]}")
        found = found.append_column(ROW, table.column(ROW).take(root))
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
            child.bad_rows = self.bad_rows
            child.join(self._root)
            self._children[name] = child
        return self._children[name]

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


def _with_numbers(table: Any, numbers: Any) -> Any:
    """The rows of a table that have these numbers."""
    import pyarrow.compute as pc

    return table.filter(pc.is_in(table.column(ROW), numbers))
