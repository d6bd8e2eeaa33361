"""Types: columns of a result as Arrow, and Arrow columns as columns of a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from asyncmy.constants import FIELD_TYPE as T
from asyncmy.constants import FLAG

from noetl.tool import ConnectorError, jsonable, mixed_as_text

BINARY_CHARSET = 63
MAX_PRECISION = 38  # of decimal128
_TEXT = (T.VAR_STRING, T.STRING, T.VARCHAR, T.BLOB, T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB)
_JSON = {"noetl": "json"}
FIRST_DAY = date(1, 1, 1)  # that Python can express; MySQL knows the year 0


class BatchBuilder:
    """Builds Arrow batches from the columns of a result."""

    def __init__(self, cursor: Any) -> None:
        self.schema = pa.schema([_field(column) for column in cursor._result.fields])

    def batch(self, columns: list[Any]) -> Any:
        """The columns, given as the server sends them, as a batch of their types; an empty batch if there are none."""
        if not columns:
            return pa.RecordBatch.from_pylist([], self.schema)
        arrays = [_typed(values, field) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _field(column: Any) -> Any:
    code, unsigned = column.type_code, bool(column.flags & FLAG.UNSIGNED)
    if code in (T.TINY, T.SHORT, T.INT24, T.LONG, T.YEAR):
        return pa.field(column.name, pa.int64())
    if code == T.LONGLONG:
        return pa.field(column.name, pa.uint64() if unsigned else pa.int64())
    if code in (T.DECIMAL, T.NEWDECIMAL):
        # The length contains the sign and the decimal point.
        precision = column.length - (0 if unsigned else 1) - (1 if column.scale else 0)
        if precision > MAX_PRECISION:
            return pa.field(column.name, pa.decimal256(min(precision, 76), column.scale))
        return pa.field(column.name, pa.decimal128(max(precision, column.scale, 1), column.scale))
    if code in (T.FLOAT, T.DOUBLE):
        return pa.field(column.name, pa.float64())
    if code in (T.DATE, T.NEWDATE):
        return pa.field(column.name, pa.date32())
    if code == T.DATETIME:
        return pa.field(column.name, pa.timestamp("us"))
    if code == T.TIMESTAMP:
        return pa.field(column.name, pa.timestamp("us", tz="UTC"))
    if code == T.TIME:
        return pa.field(column.name, pa.time64("us"))
    if code == T.JSON:
        return pa.field(column.name, pa.string(), metadata=_JSON)
    if code in (T.BIT, T.GEOMETRY) or (code in _TEXT and column.charsetnr == BINARY_CHARSET):
        return pa.field(column.name, pa.binary())
    return pa.field(column.name, pa.string())


def _typed(values: Any, field: Any) -> Any:
    """The values of a column, which the server sends as text, cast at once."""
    try:
        return _cast(values, field.type)
    except pa.ArrowInvalid:
        for value in values:
            try:
                _cast(pa.array([value.as_py()], pa.binary()), field.type)
            except pa.ArrowInvalid as failure:
                raise ConnectorError(_refusal(field, value.as_py().decode(errors="replace"))) from failure
        raise


def _cast(values: Any, type: Any) -> Any:
    if pa.types.is_binary(type):
        return values
    if pa.types.is_time(type):
        moments = _cast(pc.binary_join_element_wise(b"1970-01-01", values, b" "), pa.timestamp("us"))
        return moments.cast(pa.int64()).cast(type)
    if not pa.types.is_temporal(type):
        return values.cast(type)
    found = values.cast(pa.string()).cast(pa.timestamp("us") if pa.types.is_timestamp(type) else type)
    if pc.any(pc.less(found, pa.scalar(FIRST_DAY).cast(found.type))).as_py():
        raise pa.ArrowInvalid("the year is 0")
    return found.cast(type)  # to UTC


def _refusal(field: Any, value: str) -> str:
    if pa.types.is_time(field.type):
        return (
            f"column {field.name!r} has the TIME value {value}, which is not a time of day; use TIME_TO_SEC, or "
            "CAST(... AS CHAR), in the query"
        )
    if pa.types.is_temporal(field.type):  # such as 0000-00-00
        return f"column {field.name!r} has the value {value!r}, which is not a date; use NULLIF in the query"
    return f"column {field.name!r} has the value {value!r}, which is not of type {field.type}"


# ── targets ─────────────────────────────────────────────────────────────────────────────

KEY_TEXT = "VARCHAR(255)"


def column_type(field: Any, *, key: bool = False) -> str:
    """The type of a column for an Arrow field; a key column must be one that can be indexed."""
    type, meaning = field.type, (field.metadata or {}).get(b"noetl")
    if pa.types.is_boolean(type):
        return "BOOLEAN"
    if pa.types.is_integer(type):
        return "BIGINT UNSIGNED" if pa.types.is_uint64(type) else "BIGINT"
    if pa.types.is_floating(type):
        return "DOUBLE"
    if pa.types.is_decimal(type):
        if type.precision > 65 or type.scale > 30:
            return "LONGTEXT"
        return f"DECIMAL({type.precision}, {max(type.scale, 0)})"
    if pa.types.is_date(type):
        return "DATE"
    if pa.types.is_timestamp(type):
        return "DATETIME(6)"
    if pa.types.is_time(type) or pa.types.is_duration(type):
        return "TIME(6)"
    if pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        return "VARBINARY(255)" if key else "LONGBLOB"
    if meaning == b"json" or pa.types.is_nested(type):
        return "JSON"
    return KEY_TEXT if key else "LONGTEXT"


def values_of(table: Any, kind_of: Callable[[str], str]) -> list[tuple[Any, ...]]:
    """The rows of a table as values that the driver can send; `kind_of` gives the portable type of a column.

    A text beside other JSON is JSON in JSON columns."""
    table = mixed_as_text(table, lambda name: kind_of(name) == "json")
    columns = [_sendable(table.column(index), field, kind_of(field.name)) for index, field in enumerate(table.schema)]
    return list(zip(*columns, strict=True)) if columns else []


def _sendable(column: Any, field: Any, kind: str) -> list[Any]:
    if pa.types.is_boolean(field.type) and kind.startswith(("json", "text", "varchar", "char")):
        column = column.cast(pa.string())  # true, not 1
    if pa.types.is_nested(field.type):
        return [None if value is None else json.dumps(jsonable(value)) for value in column.to_pylist()]
    if pa.types.is_timestamp(field.type):
        column = column.cast(pa.timestamp("us", tz=field.type.tz), safe=False).cast(pa.timestamp("us"))
    values: list[Any] = column.to_pylist()
    return values
