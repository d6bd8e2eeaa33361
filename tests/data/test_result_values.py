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
