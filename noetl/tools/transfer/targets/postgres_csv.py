"""Rows as CSV for COPY of PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from noetl.data.arrow_tables import MAX_DIGITS, meaning_of, plain_column
from noetl.data.types import extended_dates as far_dates
from noetl.data.values import jsonable
from noetl.tools.transfer.targets import postgres_table as pg_table


def column_encodings(schema: Any, known: list[pg_table.PgColumn]) -> list[str]:
    """The encoding of each column: as Arrow writes it, as JSON, as an array, or as bytes."""
    import pyarrow as pa

    columns = {column.name: column for column in known}
    encodings = []
    for field in schema:
        column = columns.get(field.name)
        kind = field.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            encodings.append("bytes")
        elif pa.types.is_nested(kind):
            is_array = column is not None and column.category == "A"
            encodings.append(
                "array" if is_array and not (pa.types.is_struct(kind) or pa.types.is_map(kind)) else "json"
            )
        elif pa.types.is_duration(kind) or pa.types.is_null(kind) or pa.types.is_interval(kind):
            encodings.append("text")
        elif _may_have_fraction(field) and column is not None and column.type in ("int2", "int4", "int8"):
            encodings.append("whole")
        elif meaning_of(field) == "json" and column is not None and column.category == "A":
            encodings.append("documents" if column.type in ("_json", "_jsonb") else "array-of-json")
        else:
            encodings.append("plain")
    return encodings


def encode_csv(table: Any, encodings: list[str]) -> bytes:
    """The rows as CSV; nulls are empty and strings are quoted, so that they are distinct."""
    import pyarrow as pa
    from pyarrow import csv

    arrays = []
    for number, encoding in enumerate(encodings):
        column = table.column(number)
        if encoding == "plain":
            arrays.append(_printable(column, table.schema.field(number)))
            continue
        if encoding == "whole":
            arrays.append(_whole(column))
            continue
        field = table.schema.field(number)
        is_raw = _has_bytes(field.type) or encoding in ("array-of-json", "documents")
        values = column.to_pylist() if is_raw else plain_column(column, field)
        encode = _ENCODE[encoding]
        arrays.append(pa.array([None if value is None else encode(value) for value in values], pa.string()))
    plain = pa.table(arrays, names=[f"c{number}" for number in range(len(arrays))])
    sink = pa.BufferOutputStream()
    csv.write_csv(plain, sink, csv.WriteOptions(include_header=False, batch_size=10_000))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _may_have_fraction(field: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(field.type) or pa.types.is_decimal(field.type) or meaning_of(field) == "number")


def _whole(column: Any) -> Any:
    """Numbers without a fraction as integers, since 1e+10 and 3.0 are none; PostgreSQL rejects others."""
    import pyarrow as pa

    try:
        numbers = column.cast(pa.decimal128(MAX_DIGITS, 9)) if pa.types.is_string(column.type) else column
        return numbers.cast(pa.int64())
    except pa.ArrowInvalid:
        return column


def _printable(column: Any, field: Any) -> Any:
    """The column; as text if it contains dates or times that Python cannot represent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_time(column.type):
        last = pc.max(column.cast(pa.int64() if pa.types.is_time64(column.type) else pa.int32())).as_py()
        end = far_dates.ticks_per_day(column.type.unit)
        return column if last is None or last < end else pa.array(plain_column(column, field), pa.string())
    if not far_dates.is_calendar(column.type):
        return column
    ends = pc.min_max(column).values()
    try:
        for end in ends:
            end.as_py()
    except (OverflowError, ValueError):
        return pa.array([None if value is None else str(value) for value in far_dates.spelled(column)], pa.string())
    return column


def _has_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_bytes(kind.value_type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


_decode_exactly = msgspec.json.Decoder(float_hook=Decimal).decode


def _hex(value: bytes) -> str:
    return "\\x" + value.hex()


def _json(value: Any) -> str:
    return msgspec.json.encode(jsonable(value)).decode()


def _array_of_json(text: str) -> str:
    """A JSON list in PostgreSQL's array syntax; PostgreSQL rejects other values, or parses texts."""
    value = _decode_exactly(text)
    if isinstance(value, str):
        return value
    return _array(value) if isinstance(value, list) else text


def _documents(text: str) -> str:
    """A JSON list as an array of JSON documents, with all their digits."""
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        return _array_of_json(text)
    return _array([None if item == "null" else item for item in (bytes(raw).decode() for raw in items)])


def _array(value: Any) -> str:
    """A list in PostgreSQL's array syntax."""
    items = []
    for item in value:
        if item is None:
            items.append("NULL")
        elif isinstance(item, list):
            items.append(_array(item))
        elif isinstance(item, bool):
            items.append("t" if item else "f")
        elif isinstance(item, int | float):
            items.append(str(item))
        elif isinstance(item, bytes):
            items.append(f'"\\{_hex(item)}"')
        else:
            text = item if isinstance(item, str) else str(jsonable(item))
            items.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + ",".join(items) + "}"


_ENCODE: dict[str, Callable[[Any], str]] = {
    "bytes": _hex, "json": _json, "array": _array, "array-of-json": _array_of_json, "documents": _documents, "text": str
}  # fmt: skip
