"""Values as declared types: exact, or an error."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.data.types.column_types import WrongValue, declared_type


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "2024-01-01 10:00:00"),
        ("timestamp", "2024-01-01 25:00:00"),
        ("timestamp", "2024-01-01 24:00:01"),
        ("timestamp", "2024-01-01 10:61:00"),
        ("timestamp", "2024-01-01 10:00:61"),
        ("timestamptz", "2024-01-01 10:00:00+25"),
        ("timestamptz", "2024-01-01 10:00:00+02:75"),
        ("time", "10:00:00.1234567"),
        ("bigint", "1_000"),
        ("bigint", "\u0663"),
        ("double", "1e400"),
        ("double", "1_0.5"),
        ("numeric", "1_000"),
        ("numeric", "\uff17"),
        ("numeric", "sNaN"),
        ("decimal(8, 2)", "1_000"),
    ],
)
def test_a_value_that_would_change_is_wrong(kind: str, value: Any) -> None:
    declared = declared_type(kind)
    assert declared is not None
    with pytest.raises(WrongValue, match=r"is not a"):
        declared.column([value])


@pytest.mark.parametrize(
    ("kind", "value", "as_text"),
    [
        ("timestamp", "2024-01-01 24:00:00", "2024-01-02 00:00:00.000000"),
        ("timestamptz", "2024-01-01 10:00:00-14:30", "2024-01-02 00:30:00.000000Z"),
        ("time", "10:00:00.1230000", "10:00:00.123000"),
        ("double", "-Infinity", "-inf"),
        ("bigint", " 7 ", "7"),
    ],
)
def test_other_spellings_are_read(kind: str, value: str, as_text: str) -> None:
    import pyarrow as pa

    declared = declared_type(kind)
    assert declared is not None
    assert declared.column([value]).cast(pa.string()).to_pylist() == [as_text]
