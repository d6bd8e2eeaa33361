"""The column of a cursor: values that can be compared, with each other and with the stored cursor."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from noetl.data.arrow_tables import digits_of, meaning_of, rows_of
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.quarantine.bad_rows import POSITION, SourceRows

DIGITS, SCALE = 76, 38  # of decimals


def with_cursor(batch: Any, column: str, bad: SourceRows) -> Any:
    """The rows that have a value for the cursor; the others are recorded as bad rows."""
    import pyarrow as pa

    missing = batch.column(column).is_null()
    if not batch.column(column).null_count or POSITION not in batch.schema.names:
        return batch
    for row in rows_of(pa.Table.from_batches([batch.filter(missing)])):
        bad.reject(row.pop(POSITION), row, f"the row has no value for the cursor {column!r}")
    return batch.filter(batch.column(column).is_valid())


def cursor_values(batch: Any, column: str) -> Any:
    """The values of the cursor, of which none is null or has no order; decimals all in one type, times without
    nanoseconds: rows of one microsecond have the same cursor."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values, field = batch.column(column), batch.schema.field(column)
    if values.null_count:
        raise BadInput(f"a row has no value for the cursor {column!r}; filter such rows in the source")
    kind, meaning = values.type, meaning_of(field)
    if meaning == "number" or pa.types.is_decimal(kind):
        digits = digits_of(values.cast(pa.string()))
        if not digits.finite or digits.whole > DIGITS - SCALE or digits.scale > SCALE:
            raise BadInput(
                f"the cursor {column!r} has NaN or a number of more than {SCALE} digits, and cannot be compared"
            )
        return values.cast(pa.decimal256(DIGITS, SCALE))
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        raise BadInput(f"the cursor {column!r} has the value NaN, which has no order; filter such rows in the source")
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_date, pa.types.is_timestamp, pa.types.is_string)
    if meaning not in (None, "uuid") or not (pa.types.is_large_string(kind) or any(test(kind) for test in tests)):
        what = "JSON or values of several types" if meaning == "json" else f"the type {meaning or kind}"
        raise BadInput(f"the column {column!r} has {what} and cannot be a cursor; use numbers, texts or timestamps")
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pc.floor_temporal(values, unit="microsecond").cast(pa.timestamp("us", kind.tz))
    return values


def from_start(values: Any, start: Any, column: str, *, selected: bool) -> Any:
    """Which values are not before the start; an error if a database has `selected` texts that are, by its order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.greater_equal(values, start)
    if selected and pa.types.is_string(values.type) and not pc.all(found).as_py():
        first = values.filter(pc.invert(found))[0].as_py()
        raise BadInput(
            f"the source has selected {first!r} as a cursor {column!r} from {start.as_py()!r} on: it compares texts in "
            "another order than by their characters, or the type has changed; select the column in a `query`, with a "
            'binary collation such as COLLATE "C"'
        )
    return found


def greatest_of(values: Any, column: str) -> Any:
    """The greatest value, as Python has it."""
    import pyarrow.compute as pc

    try:
        found = pc.max(values).as_py()
    except (OverflowError, ValueError):
        raise BadInput(
            f"the cursor {column!r} has a date that is infinite or after the year 9999; filter such rows in the source"
        ) from None
    if isinstance(found, Decimal):
        text = format(found, "f")  # `normalize` would round to 28 digits
        return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)
    return found
