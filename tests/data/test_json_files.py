"""JSON files as rows: DuckDB detects types, and no value is changed by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from noetl.data.files.duckdb_files import json_query

WIDE = {f"k{n}": n for n in range(300)}


@pytest.mark.parametrize("steps", [[], ["rows"]])
@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{"v": "10-11-12"}], [("10-11-12",)]),
        ([{"v": "epoch"}], [("epoch",)]),
        ([{"v": "2026-01-01T00:00:00.123456789Z"}], [("2026-01-01T00:00:00.123456789Z",)]),
        ([{"v": 2**53 + 1}, {"v": 0.5}], [("9007199254740993",), ("0.5",)]),
        ([{"v": 1e20}, {"v": 0.5}], [(1e20,), (0.5,)]),
        ([{"a": 1}] + [{f"k{n}": n} for n in range(20)], None),
        ([WIDE], [tuple(WIDE.values())]),
    ],
)
def test_values_are_not_changed(tmp_path: Path, steps: list[str], rows: list[Any], found: Any) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"rows": rows} if steps else rows))
    with duckdb.connect() as cursor:
        result = cursor.execute(json_query(cursor, str(file), "json", steps)[0])
        names = [column[0] for column in result.description]
        assert result.fetchall() == (found or [tuple(row.get(name) for name in names) for row in rows])
