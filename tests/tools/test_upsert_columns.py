"""Upserts of pages and files with different columns: the table does not depend on how the rows are divided."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool

ROWS = [{"id": 1, "a": 1}, {"id": 2, "b": 2}, {"id": 3}]
DIVISIONS = [[ROWS], [[row] for row in ROWS], [[row] for row in reversed(ROWS)], [[ROWS[2], ROWS[0]], [ROWS[1]]]]
MERGED = [(1, 1, None, "kept"), (2, None, 2, "kept"), (3, None, None, "kept")]


class Place:
    """A table that three rows and four columns exist in."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self.kind, self.folder, self.dsn = kind, folder, dsn
        self._numbers = itertools.count()

    def query(self, text: str) -> list[tuple[Any, ...]]:
        if self.kind == "postgres":
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                cursor = connection.execute(text)  # type: ignore[call-overload]
                return cursor.fetchall() if cursor.description else []
        path = str(self.folder / f"t.{self.kind}")
        with duckdb.connect(path) if self.kind == "duckdb" else sqlite3.connect(path) as database:
            return database.execute(text).fetchall()

    def create(self, key: str, columns: str = "a int, b int, c text") -> None:
        self.query("drop table if exists t")
        self.query(f"create table t (id int {key}, {columns})")
        for number in (1, 2, 3):
            self.query(f"insert into t values ({number}, 9, 9, 'kept')")

    def upsert(self, parts: list[list[dict[str, Any]]], chunk: int = 1000, **others: Any) -> Outcome:
        folder = self.folder / f"in{next(self._numbers)}"
        folder.mkdir()
        for number, rows in enumerate(parts):
            names = dict.fromkeys(name for row in rows for name in row)
            columns = {name: pa.array([row.get(name) for row in rows], pa.int64()) for name in names}
            pq.write_table(pa.table(columns), folder / f"{number}.parquet")
        place = {"auth": self.dsn} if self.kind == "postgres" else {"file": f"t.{self.kind}"}
        target = {"kind": self.kind, "table": "t", **place, "mode": "upsert", "key": "id", "schema": "evolve"}
        fields = {
            "source": {"kind": "file", "path": f"{folder.name}/*.parquet"}, "targets": [{**target, **others}],
            "chunk": {"size": chunk},
        }  # fmt: skip
        return run_tool("transfer", fields, host=ToolHost(folder=self.folder))


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Place:
    return Place(request.param, tmp_path, database)


@pytest.mark.parametrize("key", ["", "primary key"])
@pytest.mark.parametrize("nested", ["json", "tables"])
def test_a_column_that_other_rows_have_is_null(place: Place, key: str, nested: str) -> None:
    for parts in DIVISIONS:
        place.create(key)
        outcome = place.upsert(parts, nested=nested)
        assert outcome.error is None, outcome.error
        assert place.query("select id, a, b, c from t order by id") == MERGED, parts


def test_the_last_row_of_a_key_is_complete(place: Place) -> None:
    place.create("primary key")
    for parts in (
        [[{"id": 1, "a": 1, "new": 1}, {"id": 1, "b": 2}]],
        [[{"id": 1, "a": 1, "new": 1}], [{"id": 1, "b": 2}]],
    ):
        assert place.upsert(parts, 1).error is None
        assert place.query("select a, b, c, new from t where id = 1") == [(None, 2, "kept", None)]


def test_rows_that_were_rejected_keep_their_values(place: Place) -> None:
    place.create("primary key", "a int check (a < 100), b int, c text")
    quarantine = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    outcome = place.upsert([[{"id": 1, "a": 500}, {"id": 2, "a": 5}], [{"id": 3, "a": 6, "b": 7}]], **quarantine)
    assert outcome.error is None, outcome.error
    assert place.query("select id, a, b from t order by id") == [(1, 9, 9), (2, 5, None), (3, 6, 7)]


def test_a_column_that_cannot_be_null_is_named(place: Place) -> None:
    place.create("primary key", "a int, b int not null default 0, c text")
    outcome = place.upsert([[{"id": 1, "a": 1}], [{"id": 2, "b": 2}]])
    assert outcome.error is not None and "have no b, which later rows have" in outcome.error.message
    assert place.query("select id, a, b from t order by id") == [(1, 9, 9), (2, 9, 9), (3, 9, 9)]
