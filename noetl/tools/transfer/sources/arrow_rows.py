"""Converts rows of plain data to Arrow batches with one schema."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from noetl.core.model.outcome import elements_of
from noetl.data import arrow_tables as tables
from noetl.data.duckdb_files import ROWS_KEYS
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.mapping import conform_rows

BATCH_ROWS = 10_000


class RowsSource:
    """Rows in memory."""

    def __init__(self, values: list[Any], types: Any) -> None:
        self._rows = as_rows(values)
        self.values = values if any(not isinstance(value, Mapping) for value in values) else None
        self._types = types

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        if not self._rows:
            return
        builder = BatchBuilder(self._types, "the source", (), sample=self._rows)
        for start in range(0, len(self._rows), BATCH_ROWS):
            yield builder.batch(self._rows[start : start + BATCH_ROWS])

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


_TYPES = {
    "text": "string", "string": "string", "varchar": "string", "integer": "int64", "int": "int64", "bigint": "int64",
    "number": "float64", "double": "float64", "float": "float64", "real": "float64",
    "boolean": "bool_", "bool": "bool_", "date": "date32",
}  # fmt: skip


JSON_TYPES, NUMERIC_TYPES = ("json", "jsonb"), ("numeric", "decimal")


def arrow_type_name(column: str, type_name: str) -> str:
    """The Arrow type of a name in `types`; a number of arbitrary precision is a string."""
    if type_name in NUMERIC_TYPES:
        return "string"
    if type_name not in _TYPES:
        choices = ", ".join(sorted({*_TYPES, "json", "numeric"}))
        raise BadInput(f"types.{column}: {type_name!r} is not one of {choices}")
    return _TYPES[type_name]


class BatchBuilder:
    """Builds batches with one schema: inferred from the first rows, or declared with `types`."""

    def __init__(
        self, types: Any, label: str, columns: Any = (), *, sample: list[dict[str, Any]] | None = None
    ) -> None:
        self._types = dict(types) if isinstance(types, Mapping) else {}
        self._label = label
        self._columns = list(columns)
        self._sample = sample
        self.schema: Any = None

    def batch(self, rows: list[dict[str, Any]]) -> Any:
        """The rows as a batch."""
        if self.schema is None:
            self.schema = self._infer_schema(self._sample or rows)
            self._names: set[Any] = set(self.schema.names)
        extra = set().union(*rows) - self._names
        if extra:
            raise BadInput(
                f"{self._label}: a row has the column {', '.join(sorted(map(str, extra)))}, which is not in the first "
                "rows; declare all columns with `types` in the source ({column: type})"
            )
        return conform_rows(rows, self.schema, self._label)

    def _infer_schema(self, rows: list[dict[str, Any]]) -> Any:
        import pyarrow as pa

        schema = tables.inferred_schema(rows, [*self._columns, *self._types])
        fields = []
        for field in schema:
            declared = str(self._types.get(field.name, "")).lower()
            if declared in JSON_TYPES:
                field = pa.field(field.name, pa.string(), metadata={"noetl": "json"})
            elif declared in NUMERIC_TYPES:
                field = pa.field(field.name, pa.string(), metadata={"noetl": "number"})
            elif declared:
                field = pa.field(field.name, getattr(pa, arrow_type_name(field.name, declared))())
            fields.append(field)
        return pa.schema(fields)
