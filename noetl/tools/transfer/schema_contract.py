"""The schema contract of a target: what happens to columns and types that its table does not have.

    schema: {columns: evolve|freeze|discard_value|discard_row, types: evolve|freeze}

`evolve` adds columns and widens types, `freeze` rejects them, `discard_value` writes the row without the value, and
`discard_row` leaves the row out. Discarded values and rows are counted in the summary. With a quarantine, rows that the
contract rejects or leaves out are written there instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.data.types.type_lattice import TEXT, UNTYPED, ColumnKind, needed_type
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.quarantine.bad_rows import ROW, RowError, isolate, taken
from noetl.tools.transfer.side_fields import COLUMNS, TYPES

Quarantine = Callable[[Any, str], Awaitable[None]]  # the rows (an Arrow table), the reason


class SchemaContract(NamedTuple):
    """What a target does with new columns and wider types."""

    columns: str = "evolve"
    types: str = "evolve"


def read_contract(given: Any, what: str) -> SchemaContract | None:
    """The contract in the fields of a target; BadInput if it is invalid."""
    if given in (None, ""):
        return None
    if isinstance(given, str):
        given = {"columns": given, "types": "evolve" if given == "evolve" else "freeze"}
    if not isinstance(given, Mapping):
        raise BadInput(f"{what}: `schema` is {{columns: {'|'.join(COLUMNS)}, types: {'|'.join(TYPES)}}}")
    unknown = [str(key) for key in given if key not in ("columns", "types")]
    if unknown:
        raise BadInput(f"{what}: `schema` has no `{unknown[0]}`: use `columns` and `types`")
    columns = str(given.get("columns") or "evolve")
    types = str(given.get("types") or ("evolve" if columns == "evolve" else "freeze"))
    for key, value, choices in (("columns", columns, COLUMNS), ("types", types, TYPES)):
        if value not in choices:
            raise BadInput(f"{what}: schema.{key} {value!r} is not one of {', '.join(choices)}")
    return SchemaContract(columns, types)


class Discarded:
    """What a contract has left out."""

    def __init__(self) -> None:
        self.rows = 0
        self.values: dict[str, int] = {}

    def summary(self) -> dict[str, Any]:
        """The part of the target's summary; empty if nothing was left out."""
        if not self.rows and not self.values:
            return {}
        return {"discarded": {"rows": self.rows, "values": sum(self.values.values()), "columns": dict(self.values)}}


class Changes(NamedTuple):
    """What a table needs for a chunk."""

    add: list[Any]  # Arrow fields
    widen: dict[str, ColumnKind]
    define: list[Any]  # Arrow fields of columns that had no value before, and so no type


class ContractChecker:
    """Applies the contract of one target to its chunks."""

    def __init__(self, contract: SchemaContract, label: str) -> None:
        self._contract = contract
        self._label = label
        self.discarded = Discarded()
        self.prefix = ""  # of the names of columns whose values are counted
        self.quarantine: Quarantine | None = None
        self.fixed: dict[str, str] = {}  # columns whose types cannot be changed, and why

    @property
    def defines_types(self) -> bool:
        """Whether a new column has no type until it has a value."""
        return self._contract == SchemaContract()

    async def admit(self, table: Any, known: Mapping[str, ColumnKind]) -> Any:
        """The rows and columns of a chunk that the contract lets through.

        With a quarantine, rows that the contract rejects or discards go there, and only they."""
        import pyarrow.compute as pc

        unknown = [name for name in table.schema.names if name not in known]
        policy = self._contract.columns
        if not unknown or policy == "evolve":
            return table
        if policy == "freeze" and self.quarantine is None:
            raise BadInput(
                f"{self._label}: the rows have the column {', '.join(unknown)}, which the table does not have "
                "(schema.columns: freeze)"
            )
        has_extra = pc.is_valid(table.column(unknown[0]))
        for name in unknown[1:]:
            has_extra = pc.or_(has_extra, pc.is_valid(table.column(name)))
        affected = table.filter(has_extra)
        if affected.num_rows:
            await self._discard(table, affected, unknown)
        if policy != "discard_value":
            table = table.filter(pc.invert(has_extra))
        if {*table.schema.names} <= {*unknown, ROW}:
            raise BadInput(f"{self._label}: the table has none of the columns {', '.join(unknown)}")
        return table.drop_columns(unknown)

    async def _discard(self, table: Any, affected: Any, unknown: list[str]) -> None:
        is_row = self._contract.columns != "discard_value"
        if is_row and self.quarantine is not None:
            reason = f"the table has no column {', '.join(unknown)} (schema.columns: {self._contract.columns})"
            await self.quarantine(affected, reason)
            return
        for name in unknown:
            count = len(table) - table.column(name).null_count
            if count:
                counted = f"{self.prefix}{name}"
                self.discarded.values[counted] = self.discarded.values.get(counted, 0) + count
        self.discarded.rows += affected.num_rows if is_row else 0

    async def fitting(self, table: Any, known: Mapping[str, ColumnKind]) -> Any:
        """The rows whose types the contract accepts; without a quarantine, `changes` rejects the others."""
        if self.quarantine is None or not (self.fixed or self._contract.types == "freeze"):
            return table
        import pyarrow as pa

        def attempt(numbers: Sequence[int]) -> Any:
            part = taken(table, numbers)
            self.changes(part, known)
            return part

        parts, wrong = isolate(len(table), attempt)
        for index, reason in wrong:
            await self.quarantine(table.slice(index, 1), reason.removeprefix(f"{self._label}: "))
        return table if not wrong else pa.concat_tables(parts) if parts else table.slice(0, 0)

    def changes(self, table: Any, known: Mapping[str, ColumnKind]) -> Changes:
        """The columns to add and the types to widen; BadInput if the contract forbids them."""
        add = [field for field in table.schema if field.name not in known]
        widen, define = {}, []
        for number, field in enumerate(table.schema):
            existing = known.get(field.name)
            if existing == UNTYPED and self.defines_types:
                define += [] if len(table) == table.column(number).null_count else [field]
            elif existing is not None:
                needed = needed_type(table.column(number), field, TEXT if existing == UNTYPED else existing)
                if needed is not None:
                    widen[field.name] = needed
        for name, needed in widen.items():
            why = "schema.types: freeze" if self._contract.types == "freeze" else self.fixed.get(name)
            if why is not None:
                kinds = f"the column {name!r} is {known[name]}, and the rows need {needed}"
                raise RowError(f"{self._label}: {kinds} ({why})")
        return Changes(add, widen, define)
