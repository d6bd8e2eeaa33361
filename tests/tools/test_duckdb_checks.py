"""Rows with values that must be unique in a DuckDB table, with a quarantine: the others are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from noetl.testing.tools import ToolHost, run_tool

TABLE = (
    "create table t (id bigint primary key, code varchar unique, mail varchar unique, amount int check (amount > 0))"
)


def load(folder: Path, rows: list[tuple[Any, ...]], **others: Any) -> tuple[list[Any], list[int]]:
    """The rows of the table, which had one, and the numbers of the bad rows."""
    with duckdb.connect(str(folder / "o.duckdb")) as database:
        for statement in others.pop("create", [TABLE]):
            database.execute(statement)
        database.execute("insert into t values (100, 'used', 'used', 1)")
    data = [dict(zip(("id", "code", "mail", "amount"), row, strict=True)) for row in rows]
    size = others.pop("size", None)
    fields = {
        "data": data,
        "targets": [{"kind": "duckdb", "file": "o.duckdb", "table": "t", **others}],
        "bad_rows": "quarantine",
        "quarantine": {"kind": "file", "path": "bad.jsonl"},
        **({"chunk": {"size": size}} if size else {}),
    }
    outcome = run_tool("transfer", fields, host=ToolHost(folder=folder))
    assert outcome.error is None, outcome.error
    bad = [json.loads(line) for line in (folder / "bad.jsonl").read_text().splitlines()]
    assert all("constraint" in row["reason"] or "unique index" in row["reason"] for row in bad)
    with duckdb.connect(str(folder / "o.duckdb")) as database:
        found = database.execute("select * from t where id <> 100 or code <> 'used' order by id").fetchall()
    return found, sorted(row["position"] for row in bad)


@pytest.mark.parametrize("size", [None, 1, 2])
def test_a_row_is_not_bad_because_of_a_bad_row_before_it(tmp_path: Path, size: int | None) -> None:
    rows = [
        (1, "a", "m1", -1),  # violates the check
        (2, "a", "m2", 1),
        (3, "used", "m3", 1),  # of a row of the table
        (3, "b", "m3", 1),
        (4, "a", "m4", 1),  # of row 2
        (4, "c", "m4", 1),
        (5, None, "m5", 1),
        (6, None, "m5", 1),  # of row 7
        (6, None, "m6", 1),
    ]
    found, bad = load(tmp_path, rows, size=size)
    assert bad == [1, 3, 5, 8]
    assert found == [rows[1], rows[3], rows[5], rows[6], rows[8]]


@pytest.mark.parametrize("size", [None, 1, 2])
def test_an_upsert_finds_values_that_another_key_has(tmp_path: Path, size: int | None) -> None:
    rows = [
        (1, "a", "m1", 1),
        (2, "used", "m2", 1),  # of a row of the table
        (3, "a", "m3", 1),  # of row 1
        (1, "a", "m4", 2),  # the same key
        (100, "used", "m5", 2),
        (4, "b", "m6", 1),
    ]
    found, bad = load(tmp_path, rows, mode="upsert", key="id", size=size)
    assert bad == [2, 3]
    assert found == [(1, "a", "m4", 2), (4, "b", "m6", 1)]


@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "key": "id"}])
def test_unique_indexes_are_checked(tmp_path: Path, mode: dict[str, Any]) -> None:
    create = [
        "create table t (id bigint, code varchar, mail varchar, amount int)",
        "create unique index one on t (code, amount)",
        "create unique index two on t (lower(mail))",
    ]
    rows = [(1, "a", "m1", 1), (2, "a", "M1", 2), (3, "a", "m3", 1), (4, "a", "USED", 4), (5, "a", "m5", 2)]
    found, bad = load(tmp_path, rows, create=create, **mode)
    assert bad == [2, 3, 4]
    assert found == [rows[0], rows[4]]
