"""Rows of plain data on their way into Arrow: found in a value, and shaped into batches of one schema."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from noetl.data import arrow_tables as tables
from noetl.data.duckdb_files import ROWS_KEYS
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.mapping import conforming

ROWS = 10_000  # of a batch


class RowsSource:
    """Rows in memory."""

    def __init__(self, rows: list[dict[str, Any]], types: Any) -> None:
        self._rows = rows
        self._types = types

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        if not self._rows:
            return
        shaper = Shaper(self._types, "the source", (), sample=self._rows)
        for start in range(0, len(self._rows), ROWS):
            yield shaper.batch(self._rows[start : start + ROWS])

    async def count(self) -> int | None:
        """How many there are."""
        return len(self._rows)

    async def close(self) -> None:
        """Nothing is held."""


def rows_at(data: Any, path: str | None, what: str) -> list[dict[str, Any]]:
    """The list of rows in a value: at a dotted path, or itself, or under `rows` or `data`."""
    value = data
    for step in path.split(".") if path else ():
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise BadInput(f"{what} has nothing at {path!r} (no {step!r})")
    if path is None and isinstance(value, Mapping):
        found = next((value[name] for name in ROWS_KEYS if isinstance(value.get(name), list)), None)
        value = [value] if found is None else found
    if not isinstance(value, list):
        raise BadInput(f"{what} is no list of rows: say where it is with `chunk: {{path: ...}}`")
    return [row if type(row) is dict or isinstance(row, Mapping) else {"value": row} for row in value]  # type: ignore[misc]


_TYPES = {
    "text": "string", "string": "string", "varchar": "string", "integer": "int64", "int": "int64", "bigint": "int64",
    "number": "float64", "double": "float64", "float": "float64", "real": "float64",
    "boolean": "bool_", "bool": "bool_", "date": "date32",
}  # fmt: skip


JSONS, NUMERICS = ("json", "jsonb"), ("numeric", "decimal")


def word_type(column: str, word: str) -> str:
    """The type that a word of `types` names; of one that does not fit Arrow, text."""
    if word in NUMERICS:
        return "string"
    if word not in _TYPES:
        known = ", ".join(sorted({*_TYPES, "json", "numeric"}))
        raise BadInput(f"types.{column}: {word!r} is not one of {known}")
    return _TYPES[word]


class Shaper:
    """Rows of plain data as batches of one schema: that of the first rows, or what `types` says."""

    def __init__(
        self,
        types: Any,
        label: str,
        known: Any = (),
        *,
        sample: list[dict[str, Any]] | None = None,
        grows: bool = False,
    ) -> None:
        self._types = dict(types) if isinstance(types, Mapping) else {}
        self._label = label
        self._known = list(known)
        self._sample = sample
        self.schema: Any = None

    def batch(self, rows: list[dict[str, Any]]) -> Any:
        """The rows as a batch."""
        if self.schema is None:
            self.schema = self._first(self._sample or rows)
            self._names: set[Any] = set(self.schema.names)
        extra = set().union(*rows) - self._names
        if extra:
            raise BadInput(
                f"{self._label}: a row has {', '.join(sorted(map(str, extra)))}, which the first rows did not have; "
                "name all columns with `types` in the source ({column: type})"
            )
        return conforming(rows, self.schema, self._label)

    def _first(self, rows: list[dict[str, Any]]) -> Any:
        import pyarrow as pa

        schema = tables.inferred_schema(rows, [*self._known, *self._types])
        fields = []
        for field in schema:
            wanted = str(self._types.get(field.name, "")).lower()
            if wanted in JSONS:
                field = pa.field(field.name, pa.string(), metadata={"noetl": "json"})
            elif wanted in NUMERICS:
                field = pa.field(field.name, pa.string(), metadata={"noetl": "number"})
            elif wanted:
                field = pa.field(field.name, getattr(pa, word_type(field.name, wanted))())
            fields.append(field)
        return pa.schema(fields)
