"""The columns of Parquet and Arrow files: their own types for UUIDs and JSON, decimals for numbers of any size.

CSV and JSON have no types: their encoders write plain data.
"""

from __future__ import annotations

import uuid
from typing import Any

from noetl.data.arrow_tables import meaning_of, plain_column
from noetl.tools.transfer.quarantine.bad_rows import RowError
from noetl.tools.transfer.targets.number_columns import NumberColumns


class FileColumns:
    """Converts the chunks of a transfer to what a file format stores."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._numbers = NumberColumns()

    def has_numbers(self, schema: Any) -> bool:
        """Whether there are numbers of any size among the columns."""
        return any(meaning_of(field) == "number" for field in schema)

    def learn(self, table: Any) -> None:
        """Take the digits of numbers before they are stored."""
        self._numbers.apply(table)
        self._numbers.take_widened()

    def stored(self, table: Any, format: str, *, fixed: bool = False) -> Any:
        """The table in the types of the format; `fixed` if its columns can no longer change."""
        if format not in ("parquet", "arrow"):
            return table
        known = self._numbers.digits
        table = self._numbers.apply(table)
        widened = self._numbers.take_widened()
        if fixed and widened:
            self._numbers.digits = known
            name, kind = next(iter(widened.items()))
            raise RowError(
                f"{self._label}: a later value of the column {name!r} needs {kind.replace('VARCHAR', 'text')}, and the "
                f"first rows were written with fewer digits; declare it in the source: types: {{{name}: "
                f"{'text' if kind == 'VARCHAR' else kind.lower()}}}"
            )
        for number, field in enumerate(table.schema):
            column, kept = _stored(table.column(number), field, format)
            if kept is not field:
                table = table.set_column(number, kept, column)
        return table


def _stored(column: Any, field: Any, format: str) -> tuple[Any, Any]:
    import pyarrow as pa

    meaning = meaning_of(field)
    if meaning == "uuid":
        values = [None if value is None else uuid.UUID(value).bytes for value in column.to_pylist()]
        storage = pa.array(values, pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), storage), pa.field(field.name, pa.uuid())
    if meaning == "json" and pa.types.is_string(field.type):
        chunks = [pa.ExtensionArray.from_storage(pa.json_(), chunk) for chunk in column.chunks]
        kept = pa.field(field.name, pa.json_(), metadata=field.metadata)
        return pa.chunked_array(chunks, type=pa.json_()), kept
    if pa.types.is_interval(field.type) and format == "parquet":
        texts = pa.array(plain_column(column, field), pa.string())
        return texts, pa.field(field.name, pa.string(), metadata={"noetl": "interval"})
    return column, field
