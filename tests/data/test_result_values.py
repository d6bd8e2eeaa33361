"""Results as tables of SQL: every value is exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from noetl.data.result_tables import ResultTables

TABLE = ("step", "a")


@pytest.fixture
def tables() -> Iterator[ResultTables]:
    found = ResultTables()
    yield found
    found.close()


@pytest.mark.parametrize(
    "rows",
    [
        [{"value": [1, 2]}, {"value": [3, "a"]}, {"value": []}],
        [{"value": 1}, {"value": "a"}, {"value": {"b": [True, None]}}],
        [{"value": {"k": [1, {"z": 2}]}}],
    ],
)
def test_mixed_values_inside_lists_and_objects_are_themselves(tables: ResultTables, rows: list[Any]) -> None:
    tables.add_value(TABLE, rows)
    assert tables.rows("select value from step.a", 10).rows == rows


def test_sums_keep_all_digits(tables: ResultTables) -> None:
    tables.add_value(TABLE, [{"n": 2**53}, {"n": 1}])
    found = tables.rows("select sum(n) as total, [sum(n)] as listed from step.a", 10)
    assert found.rows == [{"total": 2**53 + 1, "listed": [2**53 + 1]}]


def test_keys_that_differ_in_case_are_two_columns(tables: ResultTables) -> None:
    tables.add_value(TABLE, [{"Name": "a"}, {"name": 2**70, "NAME": "c"}])
    assert tables.rows("select * from step.a", 10).rows == [
        {"Name": "a", "name_1": None, "NAME_2": None},
        {"Name": None, "name_1": 2**70, "NAME_2": "c"},
    ]


def _queried(tables: ResultTables, value: Any) -> list[dict[str, Any]]:
    tables.add_value(TABLE, value)
    return tables.rows("select * from step.a", 100).rows


@pytest.mark.parametrize(
    "texts",
    [
        ["10-11-12"], ["epoch"], ["infinity"], ["1:2:3"], ["2026-1-5"], ["2026-01-01T10:00:00.123456789Z"],
        ["2026-01-01"], ["10:00:00"], ["2026-01-01T10:00:00"], [" 2026-01-01"],
    ],
)  # fmt: skip
def test_texts_that_resemble_dates_keep_their_characters(tables: ResultTables, texts: list[str]) -> None:
    rows = [{"v": text, "doc": {"v": [text]}} for text in texts]
    assert _queried(tables, rows) == rows


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([2**70, 0.5], [f"{2**70}.0", 0.5]),
        ([2**53 + 1, 0.5], [f"{2**53 + 1}.0", 0.5]),
        ([2**63, 123456789.12345679], [f"{2**63}.00000000", 123456789.12345679]),
        ([10**37, 1e300], [str(10**37), "1e+300"]),
        ([[2**53 + 1, 0.5]], [[2**53 + 1, 0.5]]),
    ],
)
def test_large_integers_beside_fractions_are_exact(tables: ResultTables, numbers: Any, found: Any) -> None:
    assert [row["n"] for row in _queried(tables, [{"n": number} for number in numbers])] == found


def test_rows_with_many_columns_that_few_rows_have_are_tables(tables: ResultTables) -> None:
    rows = [{f"k{n}": n} for n in range(30)]
    tables.add_value(("step", "wide"), [{f"k{n}": n for n in range(300)}])
    assert _queried(tables, rows) == [{f"k{n}": n if n == row else None for n in range(30)} for row in range(30)]
    assert tables.rows("select k299 from step.wide", 10).rows == [{"k299": 299}]


def test_names_that_duckdb_does_not_have(tables: ResultTables) -> None:
    tables.add_value(("step", "empty"), {"rows": [], "columns": ["a", "A"]})
    assert _queried(tables, [{"": 1, "a\0b": 2}]) == [{"_": 1, "ab": 2}]
    assert [each["name"] for each in tables.rows("select * from step.empty", 1).columns] == ["a", "A_1"]
