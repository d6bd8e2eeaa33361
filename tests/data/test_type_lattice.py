"""Which type a column of a table needs for new values (schema contracts)."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from noetl.data.types.type_lattice import kind_in_database, needed_type

MOMENT = datetime.datetime(2024, 1, 1, 0, 0, 0, 500_000)


def needed(values: list[Any], stored: str, kind: Any = None, meaning: str = "") -> str | None:
    column = pa.chunked_array([pa.array(values, kind)])
    metadata = {"noetl": meaning} if meaning else None
    found = needed_type(column, pa.field("v", column.type, metadata=metadata), kind_in_database(stored))
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("stored", "fits", "outside", "wide"),
    [
        ("tinyint", [-128, 127], 128, "smallint"),
        ("tinyint(1)", [0, 1, 5], 300, "smallint"),
        ("utinyint", [0, 255], -1, "smallint"),
        ("usmallint", [65_535], 65_536, "integer"),
        ("mediumint", [-(2**23), 2**23 - 1], 2**23, "integer"),
        ("umediumint", [2**24 - 1], -1, "integer"),
        ("uinteger", [2**32 - 1], -1, "bigint"),
        ("smallint", [2**15 - 1], 2**15, "integer"),
        ("integer", [-(2**31)], 2**31, "bigint"),
        ("ubigint", [2**63 - 1], -1, "numeric(20, 0)"),
        ("numeric(5,-2)", [1200, -9_999_900], 1250, "numeric(7, 0)"),
        ("numeric(5,2)", [999], 1000, "numeric(6, 2)"),
    ],
)
def test_integers(stored: str, fits: list[int], outside: int, wide: str) -> None:
    assert needed(fits, stored) is None
    assert needed([*fits, outside], stored) == wide


def test_fractions_are_not_rounded_in_large_integers() -> None:
    assert needed([1.0, 2.0], "hugeint") is None
    assert needed([1.5], "hugeint") == "numeric"
    assert needed([1.5], "uinteger") == "double"


def test_booleans_fit_where_a_database_stores_them_as_small_numbers() -> None:
    assert needed([True, None], "tinyint(1)") is None
    assert needed([True], "smallint") == "text"


@pytest.mark.parametrize("stored", ["timestamp(0)", "timestamp(0) without time zone", "timestamp_s"])
def test_a_finer_time_widens_the_column(stored: str) -> None:
    assert needed([MOMENT.replace(microsecond=0)], stored) is None
    assert needed([MOMENT], stored) == "timestamp"
    assert needed([MOMENT], "timestamp(3) without time zone") is None
    assert needed(["2024-01-01T00:00:00"], stored) is None
    assert needed(["2024-01-01T00:00:00.5"], stored) == "timestamp"


def test_a_finer_time_of_day_zone_or_interval_widens_the_column() -> None:
    assert needed([datetime.time(1, 2, 3, 4)], "time(3) without time zone") == "time"
    assert needed([MOMENT], "timestamp(0) with time zone") == "timestamptz"
    assert needed([(0, 0, 500_000_000)], "interval(0)", pa.month_day_nano_interval()) == "interval"
    assert needed([(0, 0, 500_000_000)], "interval(3)", pa.month_day_nano_interval()) is None


@pytest.mark.parametrize("value", ["007", " 7", "+7", "7.0", "1e2", "1_000", "\uff17", "40000", "x", ""])
def test_text_that_is_not_its_number_does_not_fit_an_integer(value: str) -> None:
    assert needed([value], "smallint") == "text"


@pytest.mark.parametrize(
    ("stored", "value"),
    [("smallint", "-7"), ("numeric(5,2)", "1.50"), ("double", "1.5e10"), ("double", "NaN"), ("real", "0.1"),
     ("numeric", "12345678901234567890.5"), ("boolean", "true"), ("date", "2024-01-01")],
)  # fmt: skip
def test_text_that_spells_a_value_fits(stored: str, value: str) -> None:
    assert needed([value], stored) is None


@pytest.mark.parametrize(
    ("stored", "value"),
    [("numeric(5,2)", "1.234"), ("double", "0.12345678901234567890"), ("double", "1e400"), ("real", "16777217"),
     ("bytea", "abcd"), ("date", "2024-01-01 10:00:00"), ("timestamp", "2024-01-01 25:00:00")],
)  # fmt: skip
def test_text_that_would_change_does_not_fit(stored: str, value: str) -> None:
    assert needed([value], stored) == "text"


@pytest.mark.parametrize(
    ("stored", "fits", "long"),
    [("varchar(3)", [123], [1234]), ("varchar(4)", [True], [False]), ("character varying(3)", ["äöü"], ["abcd"]),
     ("text(4)", ["äö"], ["äöü"]), ("varchar(3)", [Decimal("1.5")], [Decimal("1.25")])],
)  # fmt: skip
def test_text_columns_have_a_limit_for_every_type(stored: str, fits: list[Any], long: list[Any]) -> None:
    assert needed(fits, stored) is None
    assert needed(long, stored) == "text"


def test_binary_columns_have_a_limit() -> None:
    assert needed([b"abc"], "blob(3)") is None
    assert needed([b"abcd"], "blob(3)") == "bytes"


def test_a_number_with_an_exponent_keeps_its_zeros() -> None:
    assert needed(["1.5E+10"], "numeric(5,2)", meaning="number") == "numeric(13, 2)"
    assert needed(["1.5E+10"], "smallint", meaning="number") is not None
