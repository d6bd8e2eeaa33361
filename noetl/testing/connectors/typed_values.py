"""A value of every type, for a target and the source that reads it again."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

_MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "bigint": [-(2**63), 2**63 - 1, None],
    "numeric": [Decimal("12345678901234567890.123456789"), Decimal("-0.000000001"), None],
    "double": [0.1, -1e300, None],
    "text": [" Grüße ", "", None],
    "bytes": [b"\x00\xff'\\", b"", None],
    "date": [date(2024, 2, 29), date(1, 1, 1), None],
    "time": [time(23, 59, 59, 123456), time(0), None],
    "timestamp": [_MOMENT.replace(tzinfo=None), datetime.fromisoformat("1900-01-01"), None],
    "timestamptz": [_MOMENT, datetime(1970, 1, 1, tzinfo=UTC), None],
}
TYPES = tuple(VALUES)


def write_file(path: Path, types: tuple[str, ...]) -> None:
    """A Parquet file with a column `id`, and one of every type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = {
        "boolean": pa.bool_(), "bigint": pa.int64(), "numeric": pa.decimal128(38, 9), "double": pa.float64(),
        "text": pa.string(), "bytes": pa.binary(), "date": pa.date32(), "time": pa.time64("us"),
        "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    columns = {"id": pa.array([1, 2, 3], pa.int64())}
    columns |= {f"c_{name}": pa.array(VALUES[name], arrow[name]) for name in types}
    pq.write_table(pa.table(columns), path)


def differences(rows: list[dict[str, Any]], types: tuple[str, ...]) -> list[str]:
    """The values that are others than those of the file; an instant without a zone is in UTC."""
    ordered = sorted(rows, key=lambda row: row["id"])
    found = {name: [_instant(row[f"c_{name}"], name) for row in ordered] for name in types}
    return [f"{name}: {values}, not {VALUES[name]}" for name, values in found.items() if values != VALUES[name]]


def _instant(value: Any, type: str) -> Any:
    if type == "timestamptz" and isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
