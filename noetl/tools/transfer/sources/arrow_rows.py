"""Converts rows of plain data to Arrow batches with one schema."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from noetl.core.model.excerpt import excerpt
from noetl.core.model.outcome import elements_of
from noetl.data import arrow_tables as tables
from noetl.data.files.duckdb_files import ROWS_KEYS
from noetl.data.types.column_types import DeclaredType, WrongValue, declared_type
from noetl.data.types.type_names import CHOICES
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.mapping import conform_rows
from noetl.tools.transfer.quarantine.bad_rows import NumberedRows, RowError, SourceRows

BATCH_ROWS = 10_000


class RowsSource:
    """Rows in memory."""

    def __init__(self, values: list[Any], types: Any, rows: SourceRows | None = None, *, evolves: bool = False) -> None:
        self._rows = as_rows(values)
        self._evolves = evolves
        self._numbered = NumberedRows(rows, "data")
        self.values = values if any(not isinstance(value, Mapping) for value in values) else None
        self._types = types

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        if not self._rows:
            return
        builder = BatchBuilder(self._types, "the source", evolves=self._evolves)
        builder.learn(self._rows)
        for start in range(0, len(self._rows), BATCH_ROWS):
            for batch in self._numbered.built(builder.fitted, self._rows[start : start + BATCH_ROWS]):
                yield batch

    async def count(self) -> int | None:
        """The number of rows."""
        return len(self._rows)

    async def close(self) -> None:
        """No resources to release."""


def find_rows(data: Any, path: str | None, what: str) -> list[dict[str, Any]]:
    """The list of rows in a value, those that are no mappings in a column of their own."""
    return as_rows(find_values(data, path, what))


def as_rows(values: list[Any]) -> list[dict[str, Any]]:
    """Values as rows."""
    return [row if type(row) is dict or isinstance(row, Mapping) else {"value": row} for row in values]  # type: ignore[misc]


def find_values(data: Any, path: str | None, what: str) -> list[Any]:
    """The list of values in data: at a dotted path, the data itself, or under `rows` or `data`.

    A whole http result stands for its body, a whole loop result for its results."""
    value = elements_of(data)
    if path:
        found, missing = _at_path(value, path)
        if missing and value is not data:
            found, missing = _at_path(data, path)
        if missing:
            raise BadInput(f"{what}: path {path!r} not found (no {missing!r})")
        value = found
    if path is None and isinstance(value, Mapping):
        found = next((value[name] for name in ROWS_KEYS if isinstance(value.get(name), list)), None)
        value = [value] if found is None else found
    if not isinstance(value, list):
        raise BadInput(f"{what} is not a list of rows: set its path with `chunk: {{path: ...}}`")
    return value


def declared_types(types: Any) -> dict[str, DeclaredType]:
    """The types in `types` of a source; BadInput if one does not exist."""
    if types is None:
        return {}
    if not isinstance(types, Mapping):
        raise BadInput("`types` of the source must be a mapping: column -> type")
    declared = {}
    for name, written in types.items():
        found = declared_type(str(written))
        if found is None:
            raise BadInput(f"types.{name}: {written!r} is not one of {CHOICES}")
        declared[str(name)] = found
    return declared


def _at_path(value: Any, path: str) -> tuple[Any, str]:
    """The value at a dotted path, or None and the part of the path that does not exist."""
    for step in path.split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None, step
    return value, ""


class BatchBuilder:
    """Builds batches with one schema: inferred from the first rows, or declared with `types`."""

    def __init__(
        self,
        types: Any,
        label: str,
        columns: Any = (),
        *,
        json_text: bool = False,
        evolves: bool = False,
    ) -> None:
        self._types = declared_types(types)
        self._evolves = evolves  # later rows may have other columns and types
        self._json_text = json_text  # declared JSON is text, as in a database or file without that type
        self._label = label
        self._columns = list(columns)
        self.schema: Any = None

    def batch(self, rows: list[dict[str, Any]]) -> Any:
        """The rows as a batch."""
        self.learn(rows)
        return self.fitted(rows)

    def learn(self, rows: list[dict[str, Any]] | tables.SeenColumns) -> None:
        """Take the columns and types of these rows, if they are the first ones or may have others."""
        import pyarrow as pa

        if self.schema is not None and not self._evolves:
            return
        if isinstance(rows, tables.SeenColumns):
            seen = rows
        else:
            seen = tables.SeenColumns()
            seen.add(rows)
        first = self._columns if self.schema is None else self.schema.names
        schema = seen.schema(first, list(self._types), untyped=self._evolves)
        given = {
            field.name: self._types[field.name].field(field.name) if field.name in self._types else field
            for field in schema
        }
        fields = [tables.joined_field(field, given.pop(field.name)) for field in self.schema or ()]
        learned = pa.schema([*fields, *given.values()])
        if self.schema is None or not learned.equals(self.schema, check_metadata=True):
            self.schema = learned
            self._names: set[Any] = set(self.schema.names)

    def fitted(self, rows: list[dict[str, Any]]) -> Any:
        """The rows as a batch with the columns that are known."""
        extra = set().union(*rows) - self._names
        if extra:
            raise RowError(
                f"{self._label}: a row has the column {', '.join(sorted(map(str, extra)))}, which is not in the first "
                "rows; declare all columns with `types` in the source ({column: type}), or set `schema: evolve` in "
                "the target"
            )
        if not self._types:
            return conform_rows(rows, self.schema, self._label)
        return self._declared_batch(rows)

    def _declared_batch(self, rows: list[dict[str, Any]]) -> Any:
        import pyarrow as pa

        others = pa.schema([field for field in self.schema if field.name not in self._types])
        inferred = conform_rows(rows, others, self._label)
        arrays = [
            self._declared_column(rows, name) if name in self._types else inferred.column(name)
            for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _declared_column(self, rows: list[dict[str, Any]], name: str) -> Any:
        values, declared = [row.get(name) for row in rows], self._types[name]
        if self._json_text and declared.name == "json":
            values = [json_value(value, name, self._label) for value in values]
        return declared_column(values, declared, name, self._label)


class UntypedColumns:
    """The columns of a source that infers types, without a type until they have a value."""

    def __init__(self, declared: Iterable[str]) -> None:
        self._typed = set(declared)

    def apply(self, batch: Any) -> Any:
        """The batch in which columns that had no value so far have no type."""
        import pyarrow as pa

        for number, field in enumerate(batch.schema):
            if field.name in self._typed or not batch.num_rows:
                continue
            if batch.column(number).null_count < batch.num_rows or not pa.types.is_string(field.type):
                self._typed.add(field.name)
            else:
                batch = batch.set_column(number, pa.field(field.name, pa.null()), pa.nulls(batch.num_rows))
        return batch


def declared_column(values: Sequence[Any], declared: DeclaredType, name: str, label: str) -> Any:
    """Plain values of a column as its declared type."""

    def reason(wrong: WrongValue) -> str:
        return f"{label}: the column {name!r}: {wrong} (declared in `types`)"

    try:
        return declared.column(values)
    except WrongValue as wrong:
        raise RowError(reason(wrong), {index: reason(each) for index, each in declared.wrong(values)}) from None


def json_value(value: Any, name: str, label: str) -> Any:
    """JSON text as it is, with all digits of its numbers."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value, type=msgspec.Raw)
    except msgspec.DecodeError:
        raise RowError(f"{label}: the column {name!r}: {excerpt(value)} is not JSON (declared in `types`)") from None
