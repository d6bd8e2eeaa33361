"""Incremental transfers: cursors of every type and kind of source, boundaries, lag, and errors; then real kills."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from noetl.core.model.outcome import Outcome
from noetl.core.templates.deferred import DeferredTemplate
from noetl.testing.tools import ToolHost, run_tool
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.progress.cursor_start import earlier
from noetl.tools.transfer.progress.incremental import HASH_BYTES, _like
from tests.tools.test_transfer_web import Api, api  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[2]


class Pipeline:
    """Loads one table into another one, and keeps the state between loads as an engine does."""

    def __init__(self, folder: Path, source: dict[str, Any], target: dict[str, Any], **incremental: Any) -> None:
        self.host = ToolHost(folder=folder)
        self.source = {**source, "incremental": {"cursor": "seen", **incremental}}
        self.target = target
        self.state: dict[str, Any] = {}

    def load(self, **changes: Any) -> Outcome:
        given = {"source": {**self.source, **changes}, "targets": [self.target]}
        outcome = run_tool("transfer", given, host=self.host, state=self.state)
        if outcome.status == "ok":
            self.state = {**self.state, **outcome.state}
        return outcome


def execute(place: str, *statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    if place.startswith("postgresql:"):
        with psycopg.connect(place) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows
    if place.endswith(".duckdb"):
        with duckdb.connect(place) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows
    connection = sqlite3.connect(place)
    try:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        connection.commit()
    finally:
        connection.close()
    return rows


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """A table `orders` with rows, as a source, and where it is."""
    if request.param == "postgres":
        place = request.getfixturevalue("database")
        side = {"kind": "postgres", "auth": place, "table": "orders"}
    else:
        place = str(tmp_path / f"source.{request.param}")
        side = {"kind": request.param, "file": place, "table": "orders"}
    return side, place


def made(place: str, kind: str, *values: str) -> None:
    execute(place, f"create table orders (id int, seen {kind})")
    add(place, *values)


def add(place: str, *values: str) -> None:
    (first,) = execute(place, "select coalesce(max(id), 0) from orders")
    for number, value in enumerate(values, start=int(first[0]) + 1):
        execute(place, f"insert into orders values ({number}, {value})")


def loaded(target: Path) -> list[int]:
    return [row[0] for row in execute(str(target), "select id from orders order by id")]


TYPES = {
    "timestamp": ("timestamp", ["'2026-01-01 10:00:00'", "'2026-01-01 10:00:01.5'"], "'2026-01-01 10:00:01.5'"),
    "integer": ("bigint", ["5", "7"], "7"),
    "date": ("date", ["'2026-01-01'", "'2026-01-02'"], "'2026-01-02'"),
    "text": ("varchar(20)", ["'2026-01-01T10'", "'2026-01-01T11'"], "'2026-01-01T11'"),
    "decimal": ("decimal(12, 3)", ["1.250", "1.500"], "1.500"),
}


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("type_", TYPES)
def test_rows_at_the_boundary_are_neither_lost_nor_doubled(source, tmp_path, type_, mode):
    side, place = source
    kind, values, same = TYPES[type_]
    made(place, kind, *values)
    target = tmp_path / "target.duckdb"
    pipeline = Pipeline(
        tmp_path, side, {"kind": "duckdb", "file": str(target), "table": "orders", "mode": mode, "key": "id"}
    )
    first = pipeline.load()
    assert first.status == "ok", first.error
    assert first.data["rows"] == 2
    assert loaded(target) == [1, 2]
    nothing = pipeline.load()
    assert nothing.status == "ok", nothing.error
    assert nothing.data["rows"] == (0 if mode == "append" else 1)  # the boundary is read again
    add(place, same, same)  # late rows with the same value
    assert pipeline.load().status == "ok"
    assert loaded(target) == [1, 2, 3, 4]
    assert pipeline.load().status == "ok"
    assert loaded(target) == [1, 2, 3, 4]
    cursor = pipeline.load().data["cursor"]
    assert cursor["column"] == "seen" and cursor["from"] == cursor["to"]


@pytest.mark.parametrize("read", [{"table": "orders"}, {"query": "select * from orders -- all of them"}])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_first_load_without_rows_and_a_comment_in_the_query(source, tmp_path, mode, read):
    side, place = source
    made(place, "bigint")
    side = {name: each for name, each in side.items() if name != "table"} | read
    target = tmp_path / "target.duckdb"
    pipeline = Pipeline(
        tmp_path, side, {"kind": "duckdb", "file": str(target), "table": "orders", "mode": mode, "key": "id"}
    )
    for rows in ([], ["5", "6"], ["6", "7"]):
        add(place, *rows)
        outcome = pipeline.load()
        assert outcome.status == "ok", outcome.error
    assert execute(str(target), "select * from orders order by id") == [(1, 5), (2, 6), (3, 6), (4, 7)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_cursor_with_nanoseconds(tmp_path, mode):
    """Rows of one microsecond have the same cursor."""
    place, target = str(tmp_path / "source.duckdb"), tmp_path / "target.duckdb"
    made(place, "timestamp_ns", "'1969-12-31 23:59:59.123456788'", "'1969-12-31 23:59:59.123456789'")
    side = {"kind": "duckdb", "file": place, "table": "orders"}
    pipeline = Pipeline(
        tmp_path, side, {"kind": "duckdb", "file": str(target), "table": "orders", "mode": mode, "key": "id"}
    )
    for rows in ([], ["'1969-12-31 23:59:59.123456790'"], ["'2026-01-01 00:00:00.000000001'"], []):
        add(place, *rows)
        outcome = pipeline.load()
        assert outcome.status == "ok", outcome.error
    assert loaded(target) == [1, 2, 3, 4]
    assert pipeline.state["cursor"] == "2026-01-01T00:00:00"


CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {  # of the source and in its database; the error
    "another column": (
        {"incremental": {"cursor": "id"}},
        "",
        "is of the column 'seen', and `incremental.cursor` is now 'id'",
    ),
    "texts": (
        {"query": "select id, 'k' || seen as seen from orders"},
        "",
        "is a number, and the column 'seen' has texts",
    ),
    "no table": ({}, "drop table loaded", "the table does not exist, and rows up to the cursor 7 were loaded before"),
}


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_would_leave_out_or_repeat_rows_is_an_error(tmp_path, change, mode):
    changes, statement, message = CHANGES[change]
    place, target = str(tmp_path / "source.sqlite"), str(tmp_path / "target.sqlite")
    made(place, "int", "5", "7")
    side = {"kind": "sqlite", "file": place, "query": "select * from orders"}
    pipeline = Pipeline(
        tmp_path, side, {"kind": "sqlite", "file": target, "table": "loaded", "mode": mode, "key": "id"}
    )
    assert pipeline.load().status == "ok"
    add(place, "9")
    if statement:
        execute(target, statement)
    wrong = pipeline.load(**changes)
    assert wrong.status == "error" and message in wrong.error.message, wrong
    assert "`noetl state reset " in wrong.error.message
    pipeline.state = {}
    execute(target, "drop table if exists loaded")
    assert pipeline.load(**changes).status == "ok"
    assert execute(target, "select id from loaded order by id") == [(1,), (2,), (3,)]


def test_a_cursor_that_a_user_has_set_starts_a_first_load(tmp_path):
    place, target = str(tmp_path / "source.sqlite"), str(tmp_path / "target.sqlite")
    made(place, "int", "5", "7")
    side = {"kind": "sqlite", "file": place, "table": "orders"}
    pipeline = Pipeline(tmp_path, side, {"kind": "sqlite", "file": target, "table": "loaded"})
    pipeline.state = {"cursor": 6}
    assert pipeline.load().status == "ok"
    assert execute(target, "select id from loaded") == [(2,)]


def test_the_name_of_a_cursor_is_one_key_of_the_state(tmp_path):
    """A path of the state is written with dots."""
    place, target = str(tmp_path / "source.sqlite"), str(tmp_path / "target.sqlite")
    made(place, "int", "5", "7")
    side = {"kind": "sqlite", "file": place, "table": "orders"}
    target = {"kind": "sqlite", "file": target, "table": "loaded", "mode": "upsert", "key": "id"}
    pipeline = Pipeline(tmp_path, side, target, name="eu.west%2E")
    assert pipeline.load().data["rows"] == 2
    assert list(pipeline.state) == ["eu%2Ewest%252E"]
    assert pipeline.load().data["rows"] == 1
    pipeline.source["incremental"]["name"] = ""
    assert "`incremental.name` is empty" in pipeline.load().error.message


def test_rows_at_the_boundary_are_recognized_if_dates_become_times(tmp_path):
    place, target = str(tmp_path / "source.duckdb"), tmp_path / "target.duckdb"
    made(place, "date", "'2026-01-01'", "'2026-01-02'")
    side = {"kind": "duckdb", "file": place, "query": "select id, seen from orders"}
    pipeline = Pipeline(tmp_path, side, {"kind": "duckdb", "file": str(target), "table": "orders"})
    assert pipeline.load().status == "ok"
    execute(place, "alter table orders alter seen type timestamp")
    assert pipeline.load().data["rows"] == 0


def test_a_cursor_of_38_digits_is_not_rounded(tmp_path):
    place = str(tmp_path / "source.duckdb")
    made(place, "decimal(38, 0)", *(str(10**37 + number) for number in (1, 6, 7)))
    target = tmp_path / "target.duckdb"
    side = {"kind": "duckdb", "file": place, "table": "orders"}
    pipeline = Pipeline(tmp_path, side, {"kind": "duckdb", "file": str(target), "table": "orders"})
    for _ in range(2):
        assert pipeline.load().status == "ok"
        assert loaded(target) == [1, 2, 3]
    assert pipeline.state["cursor"] == str(10**37 + 7)


def test_initial_and_own_queries_with_the_cursor(source, tmp_path):
    side, place = source
    made(place, "timestamp", *(f"'2026-01-{day:02} 00:00:00'" for day in range(1, 11)))
    target = tmp_path / "target.duckdb"
    to = {"kind": "duckdb", "file": str(target), "table": "orders"}
    pipeline = Pipeline(tmp_path, side, to, initial="2026-01-04 00:00:00")
    assert pipeline.load().data["rows"] == 7
    assert loaded(target) == list(range(4, 11))
    for number, query in enumerate(
        [
            "select * from orders where seen > {{ cursor }} and id < 100",
            "select * from orders where seen > '{{ cursor }}'",
        ]
    ):
        add(place, f"'2026-02-0{number + 1} 00:00:00'")
        side = {name: each for name, each in pipeline.source.items() if name != "table"}
        pipeline.source = {**side, "query": DeferredTemplate(query)}
        outcome = pipeline.load()
        assert outcome.status == "ok", outcome.error
        assert outcome.data["rows"] == 1
    pipeline.source["query"] = "select id, seen from orders -- without the cursor"
    add(place, "'2026-03-01 00:00:00'")
    assert pipeline.load().data["rows"] == 1
    assert loaded(target) == list(range(4, 14))


def test_lag_reads_again_what_changed_late(source, tmp_path):
    side, place = source
    made(place, "timestamp", "'2026-01-01 10:00:00'", "'2026-01-01 10:10:00'")
    target = tmp_path / "target.duckdb"
    to = {"kind": "duckdb", "file": str(target), "table": "orders", "mode": "upsert", "key": "id"}
    pipeline = Pipeline(tmp_path, side, to, lag="5m")
    pipeline.load()
    add(place, "'2026-01-01 10:06:00'", "'2026-01-01 10:04:00'")  # one within the lag, one before it
    assert pipeline.load().data["rows"] == 2
    assert loaded(target) == [1, 2, 3]
    assert pipeline.state["cursor"].replace("T", " ").startswith("2026-01-01 10:10:00")


@pytest.mark.parametrize(
    ("value", "lag", "start"),
    [
        ("2026-01-01T10:00:00.000Z", "5m", "2026-01-01T09:55:00.000Z"),
        ("2026-01-01T10:00:00.25Z", "100ms", "2026-01-01T10:00:00.15Z"),
        ("2026-01-01T10:00:00.2", "250ms", "2026-01-01T09:59:59.9"),
        ("2026-01-01 10:00:00.123456789", "1ms", "2026-01-01 10:00:00.122456789"),
        ("2026-01-01T10:00:00+0200", "5m", "2026-01-01T09:55:00+0200"),
        ("2026-01-01 10:00:00 UTC", "5m", "2026-01-01 09:55:00 UTC"),
        ("2026-01-01 10:00", "90s", "2026-01-01 09:58"),
        ("2026-01-01 10", "5m", "2026-01-01 09"),
        ("20260101T100000", "5m", "20260101T095500"),
        ("2026-01-01", "5m", "2025-12-31"),
        ("2026-03-01", "5d", "2026-02-24"),
        ("20260301", "1d", "20260228"),
        ("0100-01-02", "1d", "0100-01-01"),
        (date(2026, 1, 1), "5m", date(2025, 12, 31)),
        (10, 1.5, 9),
        (10, "3", 7),
        (Decimal("9.25"), "0.5", Decimal("8.75")),
        (Decimal(10**37 + 5), 1, Decimal(10**37 + 4)),
    ],
)
def test_a_cursor_moved_back_has_the_form_of_the_cursor(value, lag, start):
    assert earlier(value, lag) == start


@pytest.mark.parametrize(
    ("value", "lag"),
    [("k17", "5m"), ("2026-13-01", "1d"), ("2026-W01-1", "1d"), ("0001-01-01", "1d"), (5, "5m"), (5, -1), (5.0, "-1")],
)
def test_a_lag_that_does_not_fit_is_explained(value, lag):
    with pytest.raises(BadInput, match="does not fit the cursor"):
        earlier(value, lag)


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%dT00:00:00.000Z", "%Y-%m-%d 00:00", "%Y%m%d"])
def test_texts_at_the_end_of_the_lag_are_read_again(tmp_path, form):
    place = str(tmp_path / "source.sqlite")
    day = {number: f"'{date(2026, 3, number).strftime(form)}'" for number in range(1, 10)}
    made(place, "text", day[9])
    to = {"kind": "sqlite", "file": "t.sqlite", "table": "orders", "mode": "upsert", "key": "id"}
    pipeline = Pipeline(tmp_path, {"kind": "sqlite", "file": place, "table": "orders"}, to, lag="5d")
    assert pipeline.load().status == "ok"
    add(place, day[3], day[4], day[5])
    assert pipeline.load().status == "ok"
    assert loaded(tmp_path / "t.sqlite") == [1, 3, 4]


@pytest.mark.parametrize(
    "fields", [{"table": "orders"}, {"query": DeferredTemplate("from orders where seen >= {{ cursor }}")}]
)
def test_an_initial_value_with_an_offset_needs_a_column_with_one(tmp_path, fields):
    place = str(tmp_path / "source.duckdb")
    made(place, "timestamp", "'2026-01-01 10:00:00'")
    side = {"kind": "duckdb", "file": place, **fields}
    target = {"kind": "duckdb", "file": "t.duckdb", "table": "orders"}
    error = Pipeline(tmp_path, side, target, initial="2026-01-01T10:00:00+02:00").load().error
    assert error is not None and "has no time zone, and its start '2026-01-01T10:00:00+02:00' has one" in error.message
    assert Pipeline(tmp_path, side, target, initial="2026-01-01T10:00:00Z").load().data["rows"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"incremental": {}}, "requires `cursor`"),
        ({"incremental": {"cursor": "nothing"}}, "'nothing' is not a column of the rows; columns: id, seen"),
        ({"incremental": {"cursor": "seen", "lag": "5m"}}, "`lag` reads rows again"),
        ({"incremental": {"cursor": "seen", "initial": "soon"}}, "soon"),
        ({"incremental": 5}, "must be a mapping"),
        ({"query": DeferredTemplate("select {{ cursor }} as seen")}, "set `incremental.initial`"),
    ],
)
def test_wrong_cursors_are_explained(tmp_path, changes, message):
    place = str(tmp_path / "source.duckdb")
    made(place, "timestamp", "'2026-01-01 10:00:00'")
    target = {"kind": "duckdb", "file": str(tmp_path / "t.duckdb"), "table": "orders"}
    outcome = Pipeline(tmp_path, {"kind": "duckdb", "file": place, "table": "orders"}, target).load(**changes)
    assert outcome.status == "error" and message in outcome.error.message, outcome.error
    assert not outcome.state


def test_a_null_cursor_and_mode_replace_are_errors(tmp_path):
    place = str(tmp_path / "source.duckdb")
    made(place, "timestamp", "'2026-01-01 10:00:00'", "null")
    side, target = (
        {"kind": "duckdb", "file": place, "table": "orders"},
        {"kind": "duckdb", "file": "t.duckdb", "table": "o"},
    )
    outcome = Pipeline(tmp_path, side, target).load()
    assert "a row has no value for the cursor 'seen'" in outcome.error.message
    outcome = Pipeline(tmp_path, side, {**target, "mode": "replace"}).load()
    assert "mode replace removes the rows of earlier loads" in outcome.error.message


def test_a_row_without_a_cursor_is_quarantined(source, tmp_path):
    side, place = source
    made(place, "integer", "1", "null", "3", "null")
    target = {"kind": "sqlite", "file": str(tmp_path / "t.sqlite"), "table": "orders", "mode": "append"}
    given = {"source": {**side, "incremental": {"cursor": "seen"}}, "targets": [target], "bad_rows": "quarantine"}
    outcome = run_tool("transfer", {**given, "quarantine": {"table": "bad"}}, host=ToolHost(folder=tmp_path))
    assert outcome.status == "ok", outcome.error
    assert (outcome.data["read"], outcome.data["rows"], outcome.data["quarantined"]) == (4, 2, 2)
    assert loaded(tmp_path / "t.sqlite") == [1, 3] and outcome.state["cursor"] == 3
    bad = execute(str(tmp_path / "t.sqlite"), "select row, reason, position from bad order by position")
    assert [(json.loads(row)["id"], position) for row, _, position in bad] == [(2, 2), (4, 4)]
    assert {reason for _, reason, _ in bad} == {"the row has no value for the cursor 'seen'"}


def test_rows_that_all_lack_a_cursor_are_quarantined(tmp_path):
    lines = Lines(tmp_path)
    given = {"bad_rows": "quarantine", "quarantine": {"table": "bad"}}
    lines.file.write_text('{"id": 1, "seen": null}\n{"id": 2}\n')
    outcome = run_tool("transfer", {"source": lines.source, "targets": [lines.target], **given}, host=lines.host)
    assert outcome.status == "ok", outcome.error
    assert outcome.data["quarantined"] == 2 and outcome.state == {}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_numbers_without_precision_are_compared_as_numbers(tmp_path, database, mode):
    execute(database, "create table orders (id serial, seen numeric)")
    target = {"kind": "duckdb", "file": "t.duckdb", "table": "t", "mode": mode}
    target |= {"key": "id"} if mode == "upsert" else {}
    load = Pipeline(tmp_path, {"kind": "postgres", "auth": database, "table": "orders"}, target)
    for values in (["9", "9.50"], ["9.5", "10"], ["100", "1000000000000000000000000.5"]):
        execute(database, *(f"insert into orders (seen) values ({value})" for value in values))
        assert load.load().status == "ok"
    assert load.state["cursor"] == "1000000000000000000000000.5"
    assert execute(str(tmp_path / "t.duckdb"), "select count(*), count(distinct id) from t") == [(6, 6)]


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        ("numeric", "NaN", "has NaN"),
        ("double precision", "NaN", "has the value NaN"),
        ("timestamp", "infinity", "a date that is infinite"),
        ("boolean", "true", "has the type bool and cannot be a cursor"),
        ("jsonb", "[1]", "has JSON or values of several types and cannot be a cursor"),
        ("interval", "1 day", "cannot be a cursor"),
    ],
)
def test_values_without_an_order_are_errors_that_name_the_cursor(tmp_path, database, type_, value, message):
    execute(database, f"create table orders (seen {type_})", f"insert into orders values ('{value}')")
    target = {"kind": "file", "path": "t.jsonl"}
    error = Pipeline(tmp_path, {"kind": "postgres", "auth": database, "table": "orders"}, target).load().error
    assert error is not None and message in error.message and "'seen'" in error.message


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        ("'b'", "'B'", "it compares texts in another order than by their characters"),
        ("2", "'10'", "the stored cursor 2 is a number, and the column 'seen' has texts"),
    ],
    ids=["collation", "type"],
)
def test_texts_that_the_database_orders_otherwise_are_not_lost(tmp_path, first, later, message):
    place = str(tmp_path / "s.sqlite")
    kind = "text collate nocase" if "b" in first else ""
    execute(place, f"create table orders (id integer primary key, seen {kind})")
    target = {"kind": "sqlite", "file": "t.sqlite", "table": "t", "mode": "upsert", "key": "id"}
    load = Pipeline(tmp_path, {"kind": "sqlite", "file": place, "table": "orders"}, target)
    execute(place, f"insert into orders (seen) values ({first})")
    assert load.load().status == "ok"
    execute(place, "delete from orders", f"insert into orders (seen) values ({later})")
    error = load.load().error
    assert error is not None and message in error.message


def test_a_load_that_fails_in_one_target_does_not_advance_the_cursor(tmp_path):
    place = str(tmp_path / "source.duckdb")
    made(place, "timestamp", "'2026-01-01 10:00:00'")
    good = {"kind": "duckdb", "file": str(tmp_path / "t.duckdb"), "table": "orders"}
    bad = {"kind": "http", "url": "http://127.0.0.1:1/", "on_error": "continue"}
    given = {"source": {"kind": "duckdb", "file": place, "table": "orders", "incremental": {"cursor": "seen"}}}
    outcome = run_tool("transfer", {**given, "targets": [good, bad]}, host=ToolHost(folder=tmp_path))
    assert outcome.status == "ok" and outcome.data["targets"][1]["status"] == "failed"
    assert outcome.state == {}


def test_an_api_sees_the_cursor_and_its_older_rows_are_dropped(tmp_path, api: Api):  # noqa: F811
    target = tmp_path / "target.duckdb"
    side = {"kind": "http", "url": f"{api.url}/counted", "rows_path": "data", "pages": {"param": "page", "start": 0}}
    side["params"] = {"since": DeferredTemplate("{{ cursor }}")}
    to = {"kind": "duckdb", "file": str(target), "table": "orders", "mapping": {"id": "id"}}
    pipeline = Pipeline(tmp_path, side, to, cursor="id", initial=3)
    outcome = pipeline.load()
    assert outcome.status == "ok", outcome.error
    assert loaded(target) == list(range(3, 26))
    assert "since=3" in api.requested[0]
    api.requested.clear()
    assert pipeline.load().data["rows"] == 0
    assert "since=25" in api.requested[0]
    assert loaded(target) == list(range(3, 26))


class Lines(Pipeline):
    """Loads lines of JSON, whose types are inferred in every load, into DuckDB."""

    def __init__(self, folder: Path, **incremental: Any) -> None:
        self.file, self.table = folder / "rows.jsonl", str(folder / "t.duckdb")
        schema = {"columns": "evolve", "types": "evolve"}
        target = {"kind": "duckdb", "file": self.table, "table": "orders", "mode": "append", "schema": schema}
        super().__init__(folder, {"kind": "file", "path": str(self.file)}, target, **incremental)

    def load_rows(self, *rows: dict[str, Any]) -> Outcome:
        self.file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.load()

    def count(self) -> int:
        return int(execute(self.table, "select count(*) from orders")[0][0])


@pytest.mark.parametrize(
    ("known", "new"),
    [
        ({"amount": 5}, {"amount": 2.5}),
        ({"amount": 5}, {"amount": 12345678901234567890.5}),
        ({"amount": 5}, {"amount": "five"}),
        ({}, {"note": "a column that the first load did not have"}),
        ({"doc": {"n": 1}}, {"doc": {"n": 1.5, "more": True}}),
        ({"doc": [1, 2]}, {"doc": "text"}),
    ],
)
def test_a_row_at_the_boundary_is_recognized_if_later_rows_change_the_types(tmp_path, known, new):
    lines = Lines(tmp_path)
    first, second = {"id": 1, "seen": "2026-01-01", **known}, {"id": 2, "seen": "2026-01-01", **new}
    for rows, total in (([first], 1), ([first, second], 2), ([first, second], 2)):
        outcome = lines.load_rows(*rows)
        assert outcome.status == "ok", outcome.error
        assert lines.count() == total


def test_equal_rows_at_the_boundary_are_counted(tmp_path):
    lines, row = Lines(tmp_path), {"seen": 1, "value": 3}
    for times, total in ((1, 1), (2, 2), (2, 2), (5, 5), (5, 5)):
        assert lines.load_rows(*[row] * times).status == "ok"
        assert lines.count() == total
    assert lines.load_rows(row, {"seen": 2, "value": 3}).status == "ok"
    assert lines.count() == 6 and len(b64decode(lines.state["boundary"])) == HASH_BYTES


def test_the_limit_of_rows_at_the_boundary_includes_those_of_earlier_loads(tmp_path, monkeypatch):
    monkeypatch.setattr("noetl.tools.transfer.progress.incremental.MAX_BOUNDARY", 10)
    lines = Lines(tmp_path)
    rows = [{"id": number, "seen": 1} for number in range(11)]
    assert lines.load_rows(*rows[:6]).status == "ok"
    assert lines.load_rows(*rows[:10]).status == "ok" and lines.count() == 10
    for read in (rows, rows[10:]):
        error = lines.load_rows(*read).error
        assert error is not None and "more than 10 rows have 1, the greatest value of the cursor" in error.message
        assert lines.count() == 10


def test_only_rows_with_the_greatest_value_of_all_count_for_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("noetl.tools.transfer.progress.incremental.MAX_BOUNDARY", 10)
    monkeypatch.setattr("noetl.tools.transfer.sources.BATCH_ROWS", 5)
    source, target = str(tmp_path / "s.sqlite"), str(tmp_path / "t.duckdb")
    values = ", ".join(f"({number}, {number // 30})" for number in range(65))
    execute(source, "create table orders(id integer, seen integer)", f"insert into orders values {values}")
    to = {"kind": "duckdb", "file": target, "table": "orders", "mode": "append"}
    pipeline = Pipeline(tmp_path, {"kind": "sqlite", "file": source, "table": "orders"}, to)
    for rows in (65, 65, 66):
        if rows == 66:
            execute(source, "insert into orders values (65, 2)")
        outcome = pipeline.load()
        assert outcome.status == "ok", outcome.error
        assert loaded(target) == list(range(rows))


def test_whole_numbers_before_a_cursor_with_a_fraction_are_not_loaded_again(tmp_path):
    lines = Lines(tmp_path)
    assert lines.load_rows({"seen": 7}, {"seen": 7.5}).status == "ok"
    assert lines.load_rows({"seen": 7}, {"seen": 8}).status == "ok"
    assert execute(lines.table, "select seen from orders order by seen") == [(7.0,), (7.5,), (8.0,)]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"cursor": "soon", "type": "timestamp"}, "the stored cursor 'soon' is not a timestamp"),
        ({"cursor": 5, "type": "date"}, "the stored cursor 5 is not a date"),
        ({"cursor": "x", "type": "decimal"}, "the stored cursor 'x' is not a decimal"),
        ({"cursor": None, "type": "decimal"}, "the stored cursor None is not a decimal"),
        (
            {"cursor": 1, "boundary": 5},
            "`boundary` beside the stored cursor must be the text of an earlier load, not 5",
        ),
        ({"cursor": 1, "boundary": [[1]]}, "`boundary` beside the stored cursor must be the text"),
    ],
)
def test_a_stored_cursor_that_a_user_has_damaged_is_explained(tmp_path, entry, message):
    lines = Lines(tmp_path)
    lines.state = entry
    error = lines.load_rows({"seen": 1}).error
    assert error is not None and error.kind == "schema" and message in error.message, error


@pytest.mark.parametrize(("before", "now"), [("b7", 9), (7, datetime(2026, 1, 1)), ("soon", date(2026, 1, 1))])
def test_a_cursor_whose_type_changes_between_two_parts_of_a_load_is_explained(before, now):
    with pytest.raises(BadInput, match="cannot be compared with"):
        _like(before, now)


PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: load, path: tests/load}
workflow:
  - step: orders
    tool:
      name: copy
      kind: transfer
      source: {kind: sqlite, file: source.sqlite, table: orders, incremental: {cursor: at, lag: 1}}
      targets: [{kind: sqlite, file: target.sqlite, table: orders, mode: upsert, key: id}]
      chunk: {size: 200}
"""


def run_killed_loads(folder: Path, kills: int, seed: int) -> int:
    """Load while rows arrive, and kill the process at random points; return how many were killed while they ran."""
    chance = random.Random(seed)
    source, target = folder / "source.sqlite", folder / "target.sqlite"
    execute(
        str(source), "create table orders (id integer, at integer, note text)", "insert into orders values (0, 0, '')"
    )
    (folder / "load.yaml").write_text(PLAYBOOK)
    environ = {
        "NOETL_HOME": str(folder / "home"),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
    }
    command = [sys.executable, "-m", "noetl.clictl", "run", "load.yaml", "--quiet"]
    number = killed = 0

    def run() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    began = time.monotonic()
    process = run()
    assert process.communicate(timeout=60) and process.returncode == 0
    duration = time.monotonic() - began
    for _ in range(kills):
        connection = sqlite3.connect(source)
        with connection:
            for _ in range(chance.randrange(400)):
                number += 1
                row = (number, number // 3, f"n{number}")  # three rows with each value, also over two loads
                connection.execute("insert into orders values (?, ?, ?)", row)
        connection.close()
        process = run()
        time.sleep(chance.uniform(0.2, 0.9) * duration)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
    for _ in range(20):  # a load that the next process continues may conflict with its own
        process = run()
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert b"state.conflict" in errors, errors
    wanted = execute(str(source), "select id, at, note from orders order by id")
    assert execute(str(target), "select id, at, note from orders order by id") == wanted
    return killed


def test_killed_loads_leave_the_rows_of_a_full_load(tmp_path):
    assert run_killed_loads(tmp_path, 6, seed=7) >= 1
