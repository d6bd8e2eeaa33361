"""Tables: Arrow batches and the rows of plain data that playbooks read.

A row is a mapping of plain JSON data. Where Arrow has no type for a value, the column is text and
its field's metadata says what the text means: `noetl: json` for structures, `noetl: number` for
decimals of any size. So a table gives the same rows whether it went through a file or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from noetl.data import extended_dates as far_dates
from noetl.data.values import duration, jsonable

_encode = msgspec.json.Encoder().encode
_TEXTS = {str, type(None)}


class ColumnType(NamedTuple):
    """An Arrow type, and what its text means when it stands for something else (`json`, `number`).

    A `mixed` column is one of plain data in which texts stand beside other values; it is no column of documents, so
    where it is not kept as JSON its texts are just texts."""

    type: Any
    meaning: str | None = None
    mixed: bool = False


def schema_of(names: Sequence[str], types: Sequence[ColumnType]) -> Any:
    """An Arrow schema whose fields remember what their text means."""
    import pyarrow as pa

    fields = []
    for name, column in zip(names, types, strict=True):
        metadata = {"noetl": column.meaning} if column.meaning else {}
        if column.mixed:
            metadata["noetl_mixed"] = "true"
        fields.append(pa.field(name, column.type, metadata=metadata or None))
    return pa.schema(fields)


def batch_of_columns(columns: Sequence[Sequence[Any]], schema: Any, *, plain: bool = False) -> Any:
    """A batch of a driver's values, column by column; `plain` if they are JSON data already."""
    import pyarrow as pa

    arrays = []
    for values, field in zip(columns, schema, strict=True):
        meaning = meaning_of(field)
        if meaning == "json":
            said = values if plain else [jsonable(value) for value in values]
            values = [None if value is None else _encode(value).decode() for value in said]
        elif (meaning == "number" or pa.types.is_string(field.type)) and not set(map(type, values)) <= _TEXTS:
            values = [value if value is None or isinstance(value, str) else text_of(value) for value in values]
        elif far_dates.is_calendar(field.type):
            values = far_dates.numbered(values, field.type)
        try:
            arrays.append(pa.array(values, type=field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as wrong:
            raise pa.ArrowInvalid(f"the column {field.name!r} is {field.type}: {wrong}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_of_rows(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    """A batch of a driver's rows."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return batch_of_columns(columns, schema)


def inferred_schema(rows: Sequence[Mapping[str, Any]], known: Sequence[str] = ()) -> Any:
    """The schema of rows of plain JSON data: all their keys, each with the widest type it needs."""
    import pyarrow as pa

    names = list(dict.fromkeys([*known, *(key for row in rows for key in row)]))
    types = []
    for name in names:
        kinds = {type(row.get(name)) for row in rows} - {type(None)}
        if kinds <= {bool} and kinds:
            types.append(ColumnType(pa.bool_()))
        elif kinds <= {int} and kinds:
            values = [row[name] for row in rows if row.get(name) is not None]
            fits = min(values) >= -(2**63) and max(values) < 2**63
            types.append(ColumnType(pa.int64()) if fits else ColumnType(pa.string(), "number"))
        elif kinds <= {int, float} and kinds:
            types.append(ColumnType(pa.float64()))
        elif kinds <= {bytes, bytearray, memoryview} and kinds:
            types.append(ColumnType(pa.binary()))
        elif kinds <= {str}:
            types.append(ColumnType(pa.string()))
        elif any(issubclass(kind, Mapping | list | tuple) for kind in kinds) or len(kinds) > 1:
            types.append(ColumnType(pa.string(), "json", mixed=str in kinds))
        else:
            types.append(ColumnType(pa.infer_type([row.get(name) for row in rows])))
    return schema_of(names, types)


def batch_of_mappings(rows: Sequence[Mapping[str, Any]], schema: Any, *, plain: bool = False) -> Any:
    """A batch of mappings; what the schema does not have is left out, what a row does not have is null."""
    return batch_of_columns([[row.get(name) for row in rows] for name in schema.names], schema, plain=plain)


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch (or table) as plain JSON data."""
    names = batch.schema.names
    columns = [plain_column(batch.column(number), field) for number, field in enumerate(batch.schema)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def meaning_of(field: Any) -> str | None:
    """What the text of a column means."""
    metadata = field.metadata or {}
    meaning = metadata.get(b"noetl")
    return meaning.decode() if meaning else None


def plain_column(column: Any, field: Any) -> list[Any]:
    """The values of a column as plain JSON data."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_float32(kind):  # the shortest form: 0.1, not the digits of the nearest double
        return [None if value is None else jsonable(float(value)) for value in column.cast(pa.string()).to_pylist()]
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        if not far_dates.is_calendar(kind):
            raise
        values = far_dates.spelled(column)
    meaning = meaning_of(field)
    if meaning == "json":
        return [None if value is None else msgspec.json.decode(value) for value in values]
    if meaning == "number":
        from decimal import Decimal

        return [None if value is None else jsonable(Decimal(value)) for value in values]
    if (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return values
    if pa.types.is_interval(kind):
        return [None if value is None else _calendar(*value) for value in values]
    return [jsonable(value) for value in values]


def _calendar(months: int, days: int, nanoseconds: int) -> str:
    """An interval of months, days and time as an ISO 8601 duration."""
    from datetime import timedelta

    rest = duration(timedelta(days=days, microseconds=nanoseconds // 1000))
    if not months:
        return rest
    return f"P{months}M" + ("" if rest == "PT0S" else rest.removeprefix("P"))


def text_of(value: Any) -> str:
    """A value as text: texts unchanged, everything else as JSON."""
    plain = jsonable(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
