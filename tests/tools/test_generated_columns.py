"""Columns of a table whose values the database computes: a transfer writes the others."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from noetl.testing.tools import ToolHost, run_tool

MODES = [{"mode": "append"}, {"mode": "replace"}, {"mode": "upsert", "key": "id"}]
CONTRACTS = [{}, {"schema": "evolve"}]
ROWS = [{"id": 1, "v": 5, "w": 10}, {"id": 2, "v": 6, "w": 12}]
LOADED = [(1, 5, 10), (2, 6, 12)]


def query(kind: str, place: str, text: str) -> list[tuple[Any, ...]]:
    if kind == "postgres":
        with psycopg.connect(place, autocommit=True) as connection:
            cursor = connection.execute(text)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []
    with duckdb.connect(place) if kind == "duckdb" else sqlite3.connect(place) as database:
        return database.execute(text).fetchall()


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_a_generated_column_is_left_to_the_database(
    kind: str, mode: dict[str, Any], contract: dict[str, Any], tmp_path: Path, database: str
) -> None:
    stored = "" if kind == "duckdb" else "stored"
    place = database if kind == "postgres" else str(tmp_path / f"t.{kind}")
    query(kind, place, f"create table t (id int primary key, w int generated always as (v * 2) {stored}, v int)")
    target = {"kind": kind, "auth" if kind == "postgres" else "file": place, "table": "t", **mode, **contract}
    outcome = run_tool("transfer", {"data": ROWS, "targets": [target]}, host=ToolHost(folder=tmp_path))
    assert outcome.error is None, outcome.error
    assert query(kind, place, "select id, v, w from t order by id") == LOADED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [{}, {"on_error": "warn"}])
def test_a_copy_of_a_table_with_a_generated_column(mode: dict[str, Any], chunk: dict[str, Any], database: str) -> None:
    columns = "id int primary key, w int generated always as (v * 2) stored, v int"
    for table in ("s", "t"):
        query("postgres", database, f"create table {table} ({columns})")
    query("postgres", database, "insert into s (id, v) values (1, 5), (2, 6)")
    target = {"kind": "postgres", "auth": database, "table": "t", **mode, **chunk}
    outcome = run_tool(
        "transfer", {"source": {"kind": "postgres", "auth": database, "table": "s"}, "targets": [target]}
    )
    assert outcome.error is None, outcome.error
    assert query("postgres", database, "select id, v, w from t order by id") == LOADED


@pytest.mark.parametrize("key", ["primary key", ""])
@pytest.mark.parametrize("chunk", [{}, {"on_error": "warn"}])
@pytest.mark.parametrize("mode", MODES)
def test_an_identity_column_gets_the_values_of_the_source(
    mode: dict[str, Any], chunk: dict[str, Any], key: str, database: str
) -> None:
    query("postgres", database, f"create table t (id int generated always as identity {key}, v int)")
    source = {"kind": "postgres", "auth": database, "query": "select * from (values (7, 1), (9, 2)) as t (id, v)"}
    target = {"kind": "postgres", "auth": database, "table": "t", **mode, **chunk}
    outcome = run_tool("transfer", {"source": source, "targets": [target]})
    assert outcome.error is None, outcome.error
    assert query("postgres", database, "select id, v from t order by id") == [(7, 1), (9, 2)]


def test_an_error_of_a_copy_has_its_detail_once(database: str) -> None:
    query("postgres", database, "create table t (id int primary key)")
    source = {"kind": "postgres", "auth": database, "query": "select 7 as id from generate_series(1, 2)"}
    target = {"kind": "postgres", "auth": database, "table": "t", "mode": "append"}
    outcome = run_tool("transfer", {"source": source, "targets": [target]})
    assert outcome.error is not None
    assert outcome.error.message.count("Key (id)=(7) already exists") == 1, outcome.error.message
    assert "DETAIL" not in outcome.error.message
