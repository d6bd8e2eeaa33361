"""Schema contracts: what a target does with columns and types that it does not have."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool


class Place:
    """A database with a table, read with its own driver."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self.kind = kind
        self.folder = folder
        self.dsn = dsn

    def target(self, **others: Any) -> dict[str, Any]:
        """The fields of a target."""
        place = {"auth": self.dsn} if self.kind == "postgres" else {"file": "t.duckdb"}
        return {"kind": self.kind, "table": "t", **place, **others}

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a query; none for a statement."""
        if self.kind == "postgres":
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                cursor = connection.execute(text)  # type: ignore[call-overload]
                return cursor.fetchall() if cursor.description else []
        with duckdb.connect(str(self.folder / "t.duckdb")) as database:
            database.execute("SET TimeZone = 'UTC'")
            return database.execute(text).fetchall()

    def type_of(self, column: str) -> str:
        """The type of a column of the table, in lower case."""
        found = self.query(
            f"SELECT data_type FROM information_schema.columns WHERE table_name = 't' AND column_name = '{column}'"
        )
        return str(found[0][0]).lower()


@pytest.fixture(params=["postgres", "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Place:
    return Place(request.param, tmp_path, database)


def move(folder: Path, source: Any, *targets: Any, **others: Any) -> Outcome:
    given = {"source": source} if isinstance(source, dict) else {"data": source}
    return run_tool("transfer", {**given, "targets": list(targets), **others}, host=ToolHost(folder=folder))


def good(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


# ── columns ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
def test_evolve_adds_the_columns_that_the_table_does_not_have(place: Place, mode: str) -> None:
    place.query("create table t (id int primary key, name text)")
    place.query("insert into t values (1, 'old')")
    target = place.target(schema="evolve", mode=mode, **({"key": "id"} if mode == "upsert" else {}))
    good(move(place.folder, [{"id": 2, "name": "b", "tags": ["x"], "price": 1.5}, {"id": 3, "seen": True}], target))
    rows = place.query("select id, name, price, seen from t order by id")
    assert rows[-2:] == [(2, "b", 1.5, None), (3, None, None, True)]
    assert len(rows) == (2 if mode == "replace" else 3)
    assert place.type_of("tags") in ("jsonb", "json")


def test_freeze_rejects_a_new_column_and_writes_nothing(place: Place) -> None:
    place.query("create table t (id int)")
    outcome = move(place.folder, [{"id": 1, "extra": 2}], place.target(schema={"columns": "freeze"}))
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "the column extra" in outcome.error.message and "schema.columns: freeze" in outcome.error.message
    assert place.query("select * from t") == []


@pytest.mark.parametrize(("policy", "ids", "rows"), [("discard_value", [1, 2, 3], 0), ("discard_row", [1, 3], 1)])
def test_discarded_values_and_rows_are_counted(place: Place, policy: str, ids: list[int], rows: int) -> None:
    place.query("create table t (id int)")
    data = [{"id": 1, "extra": None}, {"id": 2, "extra": "x"}, {"id": 3}]
    summary = good(move(place.folder, data, place.target(schema=policy)))["targets"][0]
    assert [row[0] for row in place.query("select id from t order by id")] == ids
    assert summary["rows"] == len(ids)
    assert summary["discarded"] == {"rows": rows, "values": 1, "columns": {"extra": 1}}


def test_a_table_without_any_column_of_the_rows_is_an_error(place: Place) -> None:
    place.query("create table t (id int)")
    outcome = move(place.folder, [{"a": 1}], place.target(schema="discard_value"))
    assert outcome.error is not None and "none of the columns a" in outcome.error.message


# ── types ────────────────────────────────────────────────────────────────────────────────────

WIDER = [  # the column, a value in it, the new value, the type in Postgres and in DuckDB, the values then
    ("smallint", "5", 70_000, "integer", "integer", [5, 70_000]),
    ("integer", "5", 2**40, "bigint", "bigint", [5, 2**40]),
    ("bigint", "5", 2**70, "numeric", "decimal(22,0)", [5, 2**70]),
    ("integer", "5", 1.25, "double precision", "double", [5.0, 1.25]),
    ("bigint", "9007199254740993", 1.25, "numeric", "decimal(21,2)", [Decimal("9007199254740993"), Decimal("1.25")]),
    ("numeric(5,2)", "1.25", 1234.5, "numeric", "decimal(6,2)", [Decimal("1.25"), Decimal("1234.5")]),
    ("integer", "5", "many", "text", "varchar", ["5", "many"]),
    ("boolean", "true", "maybe", "text", "varchar", ["true", "maybe"]),
    ("date", "'2024-01-01'", "soon", "text", "varchar", ["2024-01-01", "soon"]),
    ("varchar(3)", "'abc'", "longer", "text", "varchar", ["abc", "longer"]),
]


@pytest.mark.parametrize(("kind", "before", "value", "in_postgres", "in_duckdb", "after"), WIDER)
def test_types_become_wider_as_far_as_the_values_need(
    place: Place, kind: str, before: str, value: Any, in_postgres: str, in_duckdb: str, after: list[Any]
) -> None:
    place.query(f"create table t (n int, v {kind})")
    place.query(f"insert into t values (1, {before})")
    good(move(place.folder, [{"n": 2, "v": value}], place.target(schema="evolve")))
    assert place.type_of("v").removesuffix("(0)") == (in_postgres if place.kind == "postgres" else in_duckdb)
    assert [row[0] for row in place.query("select v from t order by n")] == after


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", 5), ("double precision", 5), ("numeric(10,2)", 1.25), ("timestamptz", "2024-01-01T00:00:00Z"),
        ("uuid", "0b5b3a78-2250-4f7f-8c2c-a3487551801c"), ("date", "2024-01-01"), ("text", 5), ("integer", None),
    ],
)  # fmt: skip
def test_values_that_fit_leave_the_type(place: Place, kind: str, value: Any) -> None:
    kind = "double" if kind == "double precision" and place.kind == "duckdb" else kind
    place.query(f"create table t (v {kind})")
    before = place.type_of("v")
    for types in ("evolve", "freeze"):
        good(move(place.folder, [{"v": value}], place.target(schema={"columns": "evolve", "types": types})))
    assert place.type_of("v") == before
    assert place.query("select count(*) from t") == [(2,)]


def test_frozen_types_reject_a_wider_value(place: Place) -> None:
    place.query("create table t (v integer)")
    contract = {"columns": "evolve", "types": "freeze"}
    outcome = move(place.folder, [{"v": 2**40}], place.target(schema=contract))
    assert outcome.error is not None
    assert "the column 'v' is integer, and the rows need bigint (schema.types: freeze)" in outcome.error.message


# ── columns that appear in the middle of a transfer ──────────────────────────────────────────

PAGES: list[list[dict[str, Any]]] = [
    [{"id": 1, "v": 1}, {"id": 2, "v": 2}],
    [{"id": 3, "v": 2.5, "name": "c"}],
    [{"id": 4, "v": "text", "tags": [1]}, {"id": 1, "v": 7, "name": "again"}],
]


@pytest.fixture
def api() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.partition("page=")[2] or 1)
            body = json.dumps(PAGES[number - 1] if number <= len(PAGES) else []).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_later_pages_add_columns_and_widen_types(place: Place, api: str, mode: str) -> None:
    source = {"kind": "http", "url": api, "pages": {"param": "page"}}
    good(move(place.folder, source, place.target(schema="evolve", mode=mode, key="id")))
    rows = place.query("select id, replace(v, '.0', ''), name from t order by id, v")
    assert rows[-4:] == [(1, "7", "again"), (2, "2", None), (3, "2.5", "c"), (4, "text", None)]
    assert len(rows) == (5 if mode == "append" else 4)


def test_without_a_contract_a_later_column_is_an_error_that_names_it(place: Place, api: str) -> None:
    source = {"kind": "http", "url": api, "pages": {"param": "page"}}
    outcome = move(place.folder, source, place.target())
    assert outcome.error is not None and "name" in outcome.error.message and "schema" in outcome.error.message


# ── columns without values ───────────────────────────────────────────────────────────────────


def paged(api: str, monkeypatch: pytest.MonkeyPatch, *pages: list[dict[str, Any]]) -> dict[str, Any]:
    """A source with these pages."""
    monkeypatch.setattr(f"{__name__}.PAGES", pages)
    return {"kind": "http", "url": api, "pages": {"param": "page"}}


@pytest.mark.parametrize("loads", [1, 2])
def test_a_column_gets_its_type_with_its_first_value(
    place: Place, api: str, monkeypatch: pytest.MonkeyPatch, loads: int
) -> None:
    pages = [[{"id": 1, "n": None, "t": None, "s": None}], [{"id": 2, "n": 5, "t": None}], [{"id": 3, "n": None}]]
    later = [{"id": 4, "n": 2**40, "t": "x", "s": [1]}]
    for some in [[*pages, later]] if loads == 1 else [pages, [later]]:
        source = paged(api, monkeypatch, *some)
        good(move(place.folder, source, place.target(schema="evolve", mode="upsert", key="id")))
    assert place.query("select id, n, t from t order by id") == [
        (1, None, None), (2, 5, None), (3, None, None), (4, 2**40, "x"),
    ]  # fmt: skip
    assert place.type_of("n") == "bigint" and place.type_of("s") in ("jsonb", "json")


def test_a_column_without_values_that_others_have_filled_stays_text(place: Place) -> None:
    good(move(place.folder, [{"id": 1, "n": None}], place.target(schema="evolve")))
    place.query("update t set n = 'mine'")
    good(move(place.folder, [{"id": 2, "n": 5}], place.target(schema="evolve")))
    assert place.query("select id, n from t order by id") == [(1, "mine"), (2, "5")]


@pytest.mark.parametrize("path", ["in.csv", "in.json", "in.jsonl"])
def test_a_column_of_a_file_without_types_gets_its_type_with_its_first_value(place: Place, path: str) -> None:
    empty = {"in.csv": "id,n\n1,\n", "in.json": '[{"id": 1, "n": null}]', "in.jsonl": '{"id": 1, "n": null}\n'}[path]
    for text in (empty, empty.replace("null", "7").replace("1,\n", "1,7\n")):
        (place.folder / path).write_text(text)
        good(move(place.folder, {"kind": "file", "path": path}, place.target(schema="evolve")))
    assert place.query("select n from t order by n") in ([(7,), (None,)], [(None,), (7,)])
    assert place.type_of("n") == "bigint"


def test_a_page_without_values_does_not_make_numbers_text(
    tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = paged(api, monkeypatch, [{"id": 1, "n": 1}], [{"id": 2, "n": None}], [{"id": 3}], [{"id": 4, "n": 4}])
    good(move(tmp_path, source, {"kind": "file", "path": "o.parquet", "schema": "evolve"}))
    table = pq.read_table(tmp_path / "o.parquet")
    assert table.schema.field("n").type == pa.int64() and table["n"].to_pylist() == [1, None, None, 4]


def test_rows_without_a_contract_beside_one_with_a_contract(
    tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = paged(api, monkeypatch, [{"id": 1, "n": None}], [{"id": 2, "n": 5}])
    targets = [{"kind": "duckdb", "file": "t.duckdb", "table": name} for name in ("a", "b")]
    good(move(tmp_path, source, {**targets[0], "schema": "evolve"}, targets[1]))
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        assert database.execute("select n from a order by id").fetchall() == [(None,), (5,)]
        assert database.execute("select n from b order by id").fetchall() == [(None,), ("5",)]


# ── files ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("values", "kind"),
    [([5, -3], "bigint"), ([2**63 - 1, -(2**63)], "bigint"), ([2**62 + 1, 1.5], "numeric"), ([1e300, 2.5], "double")],
)
def test_integers_of_json_files_are_exact(place: Place, values: list[Any], kind: str) -> None:
    """DuckDB detects HUGEINT for negative and positive ones, and DOUBLE for those beside a fraction."""
    (place.folder / "in.jsonl").write_text("".join(json.dumps({"v": value}) + "\n" for value in values))
    good(move(place.folder, {"kind": "file", "path": "in.jsonl"}, place.target()))
    assert [row[0] for row in place.query("select v from t order by v desc")] == values
    assert kind in place.type_of("v").replace("decimal", "numeric")


@pytest.mark.parametrize("path", ["o.parquet", "o.csv", "o.jsonl", "o.arrow"])
def test_a_file_has_all_columns_of_all_pages(tmp_path: Path, api: str, path: str) -> None:
    source = {"kind": "http", "url": api, "pages": {"param": "page"}}
    good(move(tmp_path, source, {"kind": "file", "path": path, "schema": "evolve"}))
    assert sorted(each.name for each in tmp_path.iterdir()) == [path]
    back = good(run_tool("object", {"action": "get", "uri": str(tmp_path / path)}, host=ToolHost(folder=tmp_path)))
    rows = back["rows"]
    assert [str(row["v"]).removesuffix(".0") for row in rows] == ["1", "2", "2.5", "text", "7"]
    missing = "" if path == "o.csv" else None
    assert [row.get("name") for row in rows] == [missing, missing, "c", missing, "again"]


def test_the_contract_of_a_file_is_the_file_that_exists(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "o.parquet")
    target = {"kind": "file", "path": "o.parquet"}
    rows = [{"id": 2, "extra": 5}]
    frozen = move(tmp_path, rows, {**target, "schema": "freeze"})
    assert frozen.error is not None and "extra" in frozen.error.message
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == [{"id": 1}]
    good(move(tmp_path, rows, {**target, "schema": "discard_value"}))
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == [{"id": 2}]
    good(move(tmp_path, rows, {**target, "schema": "evolve"}))
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == [{"id": 2, "extra": 5}]


# ── wrong contracts ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        ("evolv", "schema.columns 'evolv' is not one of evolve, freeze, discard_value, discard_row"),
        ({"types": "discard_row"}, "schema.types 'discard_row' is not one of evolve, freeze"),
        ({"column": "evolve"}, "`schema` has no `column`"),
        ([1], "`schema` is {columns: evolve|freeze|discard_value|discard_row, types: evolve|freeze}"),
    ],
)
def test_a_wrong_contract_is_an_error(tmp_path: Path, contract: Any, message: str) -> None:
    target = {"kind": "duckdb", "file": "x.duckdb", "table": "t", "schema": contract}
    outcome = move(tmp_path, [{"a": 1}], target)
    assert outcome.error is not None and message in outcome.error.message


@pytest.mark.parametrize("contract", ["evolve", "freeze", {"columns": "discard_value"}])
@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_names_that_differ_in_case_are_the_same_column_where_the_database_says_so(
    tmp_path: Path, kind: str, contract: Any
) -> None:
    target = {"kind": kind, "file": "t.db", "table": "t", "schema": contract}
    for row in ({"id": 1, "Name": "a"}, {"ID": 2, "name": "b"}):
        good(move(tmp_path, [row], target))
    move(tmp_path, {"kind": kind, "file": "t.db", "table": "t"}, {"kind": "file", "path": "o.jsonl"})
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows == [{"id": 1, "Name": "a"}, {"id": 2, "Name": "b"}]


def test_a_column_of_json_becomes_text_for_text_that_is_no_json(place: Place) -> None:
    good(move(place.folder, [{"id": 1, "a": {"x": 1}}], place.target(schema="evolve")))
    good(move(place.folder, [{"id": 2, "a": "[1]"}], place.target(schema="evolve")))
    assert place.type_of("a") in ("jsonb", "json")
    good(move(place.folder, [{"id": 3, "a": "plain"}], place.target(schema="evolve")))
    found = place.query("SELECT a FROM t ORDER BY id")
    assert [json.loads(found[0][0]), json.loads(found[1][0]), found[2][0]] == [{"x": 1}, [1], "plain"]


# ── numbers and names at their limits ────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "value"), [("bigint", 2**63 + 5), ("smallint", 40000), ("integer", 2**31)])
def test_a_number_with_as_many_digits_as_the_limit_widens_the_type(place: Place, kind: str, value: int) -> None:
    place.query(f"create table t (id int, v {kind})")
    source = place.folder / "numbers.csv"
    source.write_text(f"id,v\n1,{value}\n")
    given = {"kind": "file", "path": str(source), "types": {"v": "numeric"}}
    good(move(place.folder, given, place.target(schema="evolve")))
    assert place.query("select v from t") == [(Decimal(value),)]


def test_a_column_of_json_becomes_text_for_times(place: Place) -> None:
    good(move(place.folder, [{"v": {"a": 1}}], place.target(schema="evolve")))
    source = place.folder / "times.csv"
    source.write_text("v\n2026-01-01 10:00:00\n")
    given = {"kind": "file", "path": str(source), "types": {"v": "timestamp"}}
    good(move(place.folder, given, place.target(schema="evolve")))
    (first,), (second,) = place.query("select v from t")
    assert json.loads(first) == {"a": 1} and second.startswith("2026-01-01 10:00:00")


def test_names_longer_than_postgres_keeps_are_found_again(tmp_path: Path, database: str) -> None:
    place, name = Place("postgres", tmp_path, database), "n" * 70
    for number in (1, 2):
        good(move(tmp_path, [{"id": number, name: number}], place.target(schema="evolve")))
    assert place.query("select * from t order by id") == [(1, 1), (2, 2)]


def test_letters_that_only_unicode_folds_are_other_columns(tmp_path: Path) -> None:
    place = Place("duckdb", tmp_path, "")
    good(move(tmp_path, [{"straße": 1}], place.target(schema="evolve")))
    good(move(tmp_path, [{"STRASSE": 2}], place.target(schema="evolve")))
    assert place.query("select * from t") == [(1, None), (None, 2)]


def test_a_key_that_duckdb_cannot_widen_is_an_error_that_says_so(tmp_path: Path) -> None:
    target = Place("duckdb", tmp_path, "").target(schema="evolve", mode="upsert", key="id")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    good(move(tmp_path, [{"id": 1}], target))
    error = move(tmp_path, [{"id": "x"}], target).error
    assert error is not None and error.kind == "schema"
    assert 'needs ALTER COLUMN "id" TYPE VARCHAR, which DuckDB refuses' in error.message


def test_a_file_whose_rows_were_all_discarded_has_no_other_columns(tmp_path: Path) -> None:
    target = {"kind": "file", "path": "t.parquet"}
    good(move(tmp_path, [{"id": 1}], target))
    good(move(tmp_path, [{"id": 2, "new": 1}], {**target, "schema": "discard_row"}))
    assert pq.read_table(tmp_path / "t.parquet").schema.names == ["id"]


@pytest.mark.parametrize(
    ("first", "value"),
    [(1, 2**63 + 5), (0.5, 2**60 + 1)],
    ids=["unsigned in INTEGER", "integer in REAL"],
)
def test_a_number_that_a_column_of_sqlite_would_round_is_an_error(tmp_path: Path, first: Any, value: int) -> None:
    target = {"kind": "sqlite", "file": "t.sqlite", "table": "t"}
    good(move(tmp_path, [{"v": first}], target))
    error = move(tmp_path, [{"v": value}], target).error
    assert error is not None and f"which would round {value}; make it TEXT" in error.message
    quarantine = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    summary = good(move(tmp_path, [{"v": value}, {"v": first}], target, **quarantine))
    assert (summary["targets"][0]["rows"], summary["quarantined"]) == (1, 1)


def test_a_double_in_a_text_column_of_sqlite_keeps_its_digits(tmp_path: Path) -> None:
    target = {"kind": "sqlite", "file": "t.sqlite", "table": "t"}
    good(move(tmp_path, [{"v": None}], target))
    good(move(tmp_path, [{"v": 0.1 + 0.2}], target))
    with sqlite3.connect(tmp_path / "t.sqlite") as connection:
        assert connection.execute("select v from t").fetchall() == [(None,), ("0.30000000000000004",)]


def test_doubles_keep_all_digits_when_their_column_becomes_wider(place: Place) -> None:
    """Postgres rounds a double to 15 digits when it is cast to numeric."""
    place.query("create table t (id int, v double precision)")
    place.query("insert into t values (1, 0.1234567890123456)")
    good(move(place.folder, [{"id": 2, "v": 2**60 + 1}], place.target(schema="evolve")))
    rows = place.query("select cast(v as varchar) from t order by id")
    assert rows == [("0.1234567890123456",), ("1152921504606846977",)]


@pytest.mark.parametrize("settings", [("DateStyle", "German"), ("IntervalStyle", "sql_standard")])
def test_what_becomes_text_does_not_depend_on_settings(
    database: str, tmp_path: Path, settings: tuple[str, str]
) -> None:
    place = Place("postgres", tmp_path, database)
    place.query("create table t (d date, i interval)")
    place.query("insert into t values ('2024-02-01', '1 mon 2 days')")
    name, value = settings
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET {name} = {value}')  # type: ignore[arg-type]
    good(move(tmp_path, [{"d": "x", "i": "y"}], place.target(schema="evolve")))
    assert place.query("select d, i from t") == [("2024-02-01", "1 mon 2 days"), ("x", "y")]


def test_one_text_among_numbers_is_the_only_row_that_freeze_rejects(place: Place) -> None:
    place.query("create table t (id int, v int)")
    rows = [{"id": 1, "v": 1}, {"id": 2, "v": "x"}, {"id": 3, "v": "7"}, {"id": 4, "v": None}]
    bad = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    good(move(place.folder, rows, place.target(schema="freeze"), **bad))
    assert place.query("select id, v from t order by id") == [(1, 1), (3, 7), (4, None)]
    assert [json.loads(line)["position"] for line in (place.folder / "bad.jsonl").read_text().splitlines()] == [2]


def test_texts_that_are_numbers_do_not_change_a_column_of_numbers(place: Place) -> None:
    place.query("create table t (id int, v int)")
    good(move(place.folder, [{"id": 1, "v": 1}, {"id": 2, "v": "7"}], place.target(schema="evolve")))
    assert place.query("select v from t order by id") == [(1,), (7,)]
    assert place.type_of("v") == "integer"


def check_wider(place: Place, kind: str, fits: Any, rounded: Any, needed: str) -> Any:
    """The value that was stored after the column has become wider."""
    place.query(f"create table t (id integer, v {kind})")
    good(move(place.folder, [{"id": 1, "v": fits}], place.target(schema="freeze")))
    frozen = move(place.folder, [{"id": 2, "v": rounded}], place.target(schema="freeze"))
    assert frozen.error is not None and f"the rows need {needed}" in frozen.error.message, frozen.error
    good(move(place.folder, [{"id": 2, "v": rounded}], place.target(schema="evolve")))
    return place.query("select v from t order by id")[1][0]


@pytest.mark.parametrize(
    ("fits", "rounded", "needed"),
    [
        ([1.25, None], [1.255], "numeric(6, 3)[]"),
        ([], [1, 2000], "numeric(6, 2)[]"),
        (["1.50"], ["1.505", None], "numeric(6, 3)[]"),
    ],
)
def test_arrays_of_numbers_that_would_be_rounded(place: Place, fits: Any, rounded: Any, needed: str) -> None:
    found = check_wider(place, "numeric(5,2)[]", fits, rounded, needed)
    assert found == [None if each is None else Decimal(str(each)) for each in rounded]


@pytest.mark.parametrize(("fits", "rounded"), [(1.25, 1.255), ("$7.50", "1.005"), (7, 0.001)])
def test_money_that_would_be_rounded(tmp_path: Path, database: str, fits: Any, rounded: Any) -> None:
    found = check_wider(Place("postgres", tmp_path, database), "money", fits, rounded, "numeric(20, 3)")
    assert found == Decimal(str(rounded))


def test_arrays_of_lists_in_a_file_keep_their_digits(place: Place) -> None:
    place.query("create table t (id integer, v numeric(5,2)[])")
    table = pa.table({"id": [1], "v": pa.array([[Decimal("1.2345"), None]], pa.list_(pa.decimal128(10, 4)))})
    pq.write_table(table, place.folder / "a.parquet")
    source = {"kind": "file", "path": "a.parquet"}
    frozen = move(place.folder, source, {**place.target(), "schema": "freeze"})
    assert frozen.error is not None and "numeric(7, 4)[]" in frozen.error.message
    good(move(place.folder, source, {**place.target(), "schema": "evolve"}))
    assert place.query("select v from t") == [([Decimal("1.2345"), None],)]


def test_texts_of_json_have_no_quotes_in_a_column_that_becomes_text(place: Place) -> None:
    target = place.target(schema="evolve")
    good(move(place.folder, [{"v": "a b"}, {"v": 7}, {"v": {"x": "y"}}, {"v": None}], target))
    good(move(place.folder, [{"v": "c"}], target))
    assert place.type_of("v") in ("text", "varchar")
    found = {None if row[0] is None else row[0].replace(" ", "") for row in place.query("select v from t")}
    assert found == {"ab", "7", '{"x":"y"}', None, "c"}


@pytest.mark.parametrize("declared", ["numeric", "decimal(30, 2)"])
@pytest.mark.parametrize("schema", ["freeze", "evolve", None])
def test_decimals_without_a_fraction_fit_integers(place: Place, schema: str | None, declared: str) -> None:
    place.query("create table t (v bigint)")
    source = {"kind": "data", "data": [{"v": "9007199254740993.0"}, {"v": "3.00"}, {"v": "1e3"}, {"v": None}]}
    good(move(place.folder, {**source, "types": {"v": declared}}, place.target(schema=schema)))
    assert place.query("select v from t where v is not null order by v") == [(3,), (1000,), (2**53 + 1,)]
    assert place.type_of("v") == "bigint"


def test_null_in_json_is_a_text_of_a_column_that_becomes_text(place: Place) -> None:
    place.query("create table t (id int, v json)")
    place.query("""insert into t values (1, 'null'), (2, null), (3, '"x"'), (4, '[1]')""")
    good(move(place.folder, [{"id": 5, "v": "not json"}], place.target(schema="evolve")))
    assert [row[0] for row in place.query("select v from t order by id")] == ["null", None, "x", "[1]", "not json"]


def test_large_numbers_without_a_fraction_fit_integers(place: Place) -> None:
    place.query("create table t (v bigint)")
    pq.write_table(pa.table({"v": [1e10, None, 2.0]}), place.folder / "in.parquet")
    good(move(place.folder, {"kind": "file", "path": "in.parquet"}, place.target(schema="evolve")))
    assert place.query("select v from t where v is not null order by v") == [(2,), (10**10,)]


@pytest.mark.parametrize(
    ("column", "first", "value"),
    [
        ("REAL", 1.5, "007"), ("INTEGER", 1, "007"), ("INTEGER", 1, " 7"), ("REAL", 1.5, 2**62 + 1),
        ("INTEGER", 1, Decimal("1.2345678901234567890")), ("TEXT", "a", True), ("INTEGER", 1, Decimal("1" + "0" * 37)),
    ],
)  # fmt: skip
def test_evolve_keeps_values_that_a_column_of_sqlite_would_change(
    tmp_path: Path, column: str, first: Any, value: Any
) -> None:
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        database.execute(f"create table t (id integer primary key, v {column}, w text)")
        database.execute("insert into t values (1, ?, 'x')", [first])
    target = {"kind": "sqlite", "file": "t.sqlite", "table": "t", "schema": "evolve", "mode": "upsert", "key": "id"}
    types = {"types": {"v": "numeric"}} if isinstance(value, Decimal) else {}
    given = str(value) if types else value
    good(move(tmp_path, {"kind": "data", "data": [{"id": 2, "v": given}], **types}, target))
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        found = database.execute("select v, w from t order by id").fetchall()
    assert found == [(first, "x"), ("true" if value is True else given, None)]


@pytest.mark.parametrize("size", [1, 100])
def test_values_beside_texts_are_the_same_text_in_sqlite_for_every_chunk_size(tmp_path: Path, size: int) -> None:
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        database.execute("create table t (v text)")
    target = {"kind": "sqlite", "file": "t.sqlite", "table": "t", "schema": "evolve"}
    rows = [{"v": value} for value in (True, 0.1234567890123456, "x", False, 5)]
    good(move(tmp_path, rows, target, chunk={"size": size}))
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        found = [value for (value,) in database.execute("select v from t")]
    assert found == ["true", "0.1234567890123456", "x", "false", "5"]


def test_sqlite_refuses_to_replace_a_column_with_an_index(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        database.executescript("create table t (v real); create index i on t (v)")
    outcome = move(tmp_path, [{"v": "007"}], {"kind": "sqlite", "file": "t.sqlite", "table": "t", "schema": "evolve"})
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "the column 'v'" in outcome.error.message and "make it TEXT" in outcome.error.message


def test_later_rows_of_sqlite_may_have_other_types(place: Place) -> None:
    """Its columns have no fixed types; the first batch has 10,000 rows."""
    with sqlite3.connect(place.folder / "in.sqlite") as database:
        database.execute("create table s (v)")
        database.executemany("insert into s values (?)", [*((number,) for number in range(10_000)), ("x",)])
    source = {"kind": "sqlite", "file": "in.sqlite", "table": "s"}
    good(move(place.folder, source, place.target(schema="evolve")))
    assert place.query("select count(*), max(v) from t") == [(10_001, "x")]


@pytest.mark.parametrize("values", [[[1], "x"], [True, 0, "x"], ["x", [1]], ["x", 1], [1, True, "x"]])
def test_texts_in_a_later_page_have_no_quotes(
    place: Place, api: str, monkeypatch: pytest.MonkeyPatch, values: list[Any]
) -> None:
    place.query("create table t (id int, v text)")
    source = paged(api, monkeypatch, *([{"id": number, "v": value}] for number, value in enumerate(values)))
    good(move(place.folder, source, place.target(schema="evolve")))
    found = [row[0] for row in place.query("select v from t order by id")]
    assert found == [value if isinstance(value, str) else json.dumps(value) for value in values]


@pytest.mark.parametrize("size", [1, 100])
def test_numbers_beside_booleans_are_rejected_one_by_one(place: Place, size: int) -> None:
    place.query("create table t (id int, v bigint)")
    rows = [{"id": 1, "v": 5}, {"id": 2, "v": True}, {"id": 3, "v": {"k": 1}}, {"id": 4, "v": 7}]
    others = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}, "chunk": {"size": size}}
    good(move(place.folder, rows, place.target(schema="freeze"), **others))
    assert place.query("select id, v from t order by id") == [(1, 5), (4, 7)]
    bad = [json.loads(line) for line in (place.folder / "bad.jsonl").read_text().splitlines()]
    assert [(row["position"], row["row"]["v"]) for row in bad] == [(2, True), (3, {"k": 1})]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_type_becomes_wider_in_a_later_chunk_with_a_quarantine(place: Place, mode: str) -> None:
    place.query("create table t (id int, v bigint)")
    others = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}, "chunk": {"size": 1}}
    target = place.target(schema="evolve", mode=mode, key="id")
    found = good(move(place.folder, [{"id": 1, "v": 5}, {"id": 2, "v": "x"}], target, **others))
    assert found["quarantined"] == 0
    assert [row[0] for row in place.query("select v from t order by id")] == ["5", "x"]
