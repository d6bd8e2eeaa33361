"""A transfer changes no value and loses no row, for all sources and targets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool


@pytest.fixture
def host(tmp_path: Path) -> ToolHost:
    return ToolHost(folder=tmp_path)


def move(host: ToolHost, source: Any, *targets: Any, **others: Any) -> Outcome:
    given = {"source": source} if isinstance(source, dict) else {"data": source}
    return run_tool("transfer", {**given, "targets": list(targets), **others}, host=host)


def good(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


def rows(host: ToolHost, place: dict[str, Any], query: str | None = None) -> list[dict[str, Any]]:
    """What is in a table, as its own kind says it."""
    known = {name: place[name] for name in ("auth", "file") if name in place}
    text = query or f"SELECT * FROM {place['table']} ORDER BY 1"
    found: list[dict[str, Any]] = good(run_tool(place["kind"], {**known, "command": text}, host=host))["rows"]
    return found


def sql(host: ToolHost, place: dict[str, Any], text: str) -> None:
    known = {name: place[name] for name in ("auth", "file") if name in place}
    good(run_tool(place["kind"], {**known, "command": text}, host=host))


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "postgres":
        return {"kind": "postgres", "auth": request.getfixturevalue("database"), "table": "t"}
    return {"kind": request.param, "file": str(tmp_path / f"x.{request.param}"), "table": "t"}


# ── merging ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("unique", [True, False])
def test_upsert_leaves_columns_alone_that_do_not_come(host: ToolHost, place: dict[str, Any], unique: bool) -> None:
    key = "primary key" if unique else ""
    sql(host, place, f"create table t (id int {key}, note text default 'new', v text)")
    sql(host, place, "insert into t values (1, 'mine', 'old')")
    target = {**place, "mode": "upsert", "key": "id"}
    good(move(host, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}], target))
    assert rows(host, place) == [{"id": 1, "note": "mine", "v": "c"}, {"id": 2, "note": "new", "v": "b"}]
    good(move(host, [{"id": 2}, {"id": 3}], target))
    assert [row["v"] for row in rows(host, place)] == ["c", "b", None]


def test_a_key_of_several_columns_is_merged_without_an_index(host: ToolHost, place: dict[str, Any]) -> None:
    sql(host, place, "create table t (a int, b text, v int)")
    sql(host, place, "insert into t values (1, 'x', 1), (1, 'y', 2)")
    good(
        move(
            host,
            [{"a": 1, "b": "y", "v": 9}, {"a": 2, "b": "x", "v": 3}],
            {**place, "mode": "upsert", "key": ["a", "b"]},
        )
    )
    assert sorted((row["a"], row["b"], row["v"]) for row in rows(host, place)) == [
        (1, "x", 1),
        (1, "y", 9),
        (2, "x", 3),
    ]


def test_a_row_without_its_key_is_rejected_and_nothing_is_written(host: ToolHost, place: dict[str, Any]) -> None:
    sql(host, place, "create table t (id int, v text)")
    target = {**place, "mode": "upsert", "key": "id"}
    for given, says in (
        ([{"id": 1, "v": "a"}, {"id": None, "v": "b"}], "no value for the key (id)"),
        ([{"v": "a"}], "the key 'id' is not a column of the rows; columns: v"),
    ):
        outcome = move(host, given, target)
        assert outcome.error is not None and outcome.error.kind == "schema", outcome
        assert says in outcome.error.message
    assert rows(host, place) == []


def test_rows_copied_between_postgres_tables_require_their_key(host: ToolHost, database: str) -> None:
    source = {"kind": "postgres", "auth": database, "query": "select 1 as id, 'x' as v union all select null, 'y'"}
    target = {"kind": "postgres", "auth": database, "table": "t", "mode": "upsert", "key": "id"}
    sql(host, target, "create table t (id int, v text)")
    for key, says in (("id", "no value for the key"), ("zz", "the key 'zz' is not a column")):
        outcome = move(host, source, {**target, "key": key})
        assert outcome.error is not None and says in outcome.error.message
    assert rows(host, target) == []


def test_an_index_with_more_than_the_key_is_not_taken_for_it(host: ToolHost, database: str) -> None:
    target = {"kind": "postgres", "auth": database, "table": "t", "mode": "upsert", "key": "id"}
    sql(host, target, "create table t (id int, v text); create unique index on t (id) include (v)")
    sql(host, target, "create unique index on t (lower(v), id)")
    good(move(host, [{"id": 1, "v": "a"}], target))
    good(move(host, [{"id": 1, "v": "b"}], target))
    assert rows(host, target) == [{"id": 1, "v": "b"}]


# ── replacing ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("beside", [False, True])
def test_a_table_can_be_replaced_by_a_query_of_itself(
    host: ToolHost, place: dict[str, Any], beside: bool, tmp_path: Path
) -> None:
    good(move(host, [{"id": number, "v": "x" * 50} for number in range(3000)], place))
    word = "float8" if place["kind"] == "postgres" else "double"
    source = {
        **{key: place[key] for key in place if key != "table"},
        "query": f"select id, v, cast(7 as {word}) as w from t where id < 2000",
    }
    sql(host, place, f"alter table t add column w {word}")
    others = [{"kind": "file", "path": str(tmp_path / "beside.csv")}] if beside else []
    good(move(host, source, {**place, "mode": "replace"}, *others, chunk={"size": 500}))
    [row] = rows(host, place, "select count(*) as n, min(w) as w from t")
    assert row == {"n": 2000, "w": 7.0}


def test_append_to_a_file_is_rejected(host: ToolHost, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n")
    for mode in ("append", "insert"):
        outcome = move(host, [{"a": 2}], {"kind": "file", "path": str(tmp_path / "x.csv"), "mode": mode})
        assert outcome.error is not None and "its only mode is replace" in outcome.error.message
    assert (tmp_path / "x.csv").read_text() == "a\n1\n"


# ── values ──────────────────────────────────────────────────────────────────────────────


def test_text_beside_other_values_stays_text(host: ToolHost, place: dict[str, Any]) -> None:
    mixed = [{"id": 1, "a": 1, "n": 7}, {"id": 2, "a": "abc", "n": "8"}, {"id": 3, "a": None, "n": None}]
    sql(host, place, "create table t (id int, a varchar(20), n int)")
    good(move(host, mixed, place))
    assert [(row["a"], row["n"]) for row in rows(host, place)] == [("1", 7), ("abc", 8), (None, None)]
    made = {**place, "table": "made"}
    good(move(host, mixed, made))
    assert [row["a"] for row in rows(host, made)] == [1, "abc", None]


def test_infinity_and_far_dates_are_the_same_everywhere(host: ToolHost, database: str, tmp_path: Path) -> None:
    origin = {"kind": "postgres", "auth": database, "table": "origin"}
    sql(host, origin, "create table origin (id int, d date, ts timestamp, tz timestamptz, f real)")
    sql(host, origin, "insert into origin values (1, 'infinity', 'infinity', '-infinity', 0.1), "
        "(2, '0044-03-15 BC', '0044-03-15 01:02:03.5 BC', null, 1e30), (3, '99999-01-01', '99999-01-01', '20000-01-01Z', null)")  # fmt: skip
    said = rows(host, origin)
    assert said[0] == {"id": 1, "d": "infinity", "ts": "infinity", "tz": "-infinity", "f": 0.1}
    places = [
        {"kind": "duckdb", "file": str(tmp_path / "x.duckdb"), "table": "t"},
        {"kind": "sqlite", "file": str(tmp_path / "x.db"), "table": "t"},
        {"kind": "postgres", "auth": database, "table": "t"},
        {"kind": "file", "path": str(tmp_path / "x.parquet")},
        {"kind": "file", "path": str(tmp_path / "x.json")},
    ]
    good(move(host, origin, *places))
    assert rows(host, places[0]) == rows(host, places[1]) == rows(host, places[2]) == said
    assert json.loads((tmp_path / "x.json").read_text()) == said
    assert good(run_tool("object", {"uri": str(tmp_path / "x.parquet")}, host=host))["rows"] == said
    with psycopg.connect(database) as connection:
        assert connection.execute(
            "select count(*) from (select * from t except select * from origin) x"
        ).fetchone() == (0,)


def test_multidimensional_arrays_are_rejected(host: ToolHost, database: str, tmp_path: Path) -> None:
    source = {
        "kind": "postgres",
        "auth": database,
        "query": "select 1 as id, array[[1,2],[3,4]] as grid, array[1] as flat",
    }
    target = {"kind": "file", "path": str(tmp_path / "x.json")}
    outcome = move(host, source, target)
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "the column grid has multidimensional arrays; select to_jsonb(...)" in outcome.error.message
    source["query"] = "select 1 as id, to_jsonb(array[[1,2],[3,4]]) as grid, array[1] as flat"
    good(move(host, source, target))
    assert json.loads((tmp_path / "x.json").read_text()) == [{"id": 1, "grid": [[1, 2], [3, 4]], "flat": [1]}]


def test_database_errors_have_the_databases_message(host: ToolHost, place: dict[str, Any]) -> None:
    takes_everything = place["kind"] == "sqlite"
    check = "check (d < '3')" if takes_everything else ""
    sql(host, place, f"create table t (id int not null, d date {check})")
    outcome = move(host, [{"id": 1, "d": "nope"}], place)
    assert outcome.error is not None
    assert outcome.error.kind == ("db.constraint" if takes_everything else "schema")
    assert ("CHECK" if takes_everything else "nope") in outcome.error.message
    outcome = move(host, [{"id": None, "d": "2020-01-01"}], place)
    assert outcome.error is not None and outcome.error.kind == "db.constraint"


# ── files ───────────────────────────────────────────────────────────────────────────────


def test_every_line_of_csv_is_a_row(host: ToolHost, tmp_path: Path) -> None:
    target = {"kind": "file", "path": str(tmp_path / "out.json")}
    for text, expected in (
        ("id,note\n#1,# no comment\n2,x\n", [{"id": "#1", "note": "# no comment"}, {"id": "2", "note": "x"}]),
        ("1,2\n3,4\n", [{"1": 3, "2": 4}]),
        ("a;b\n1;x,y\n", [{"a": 1, "b": "x,y"}]),
        ("zip\n007\n0123\n", [{"zip": "007"}, {"zip": "0123"}]),
    ):
        (tmp_path / "in.csv").write_text(text)
        good(move(host, {"kind": "file", "path": "in.csv"}, target))
        assert json.loads((tmp_path / "out.json").read_text()) == expected
    (tmp_path / "in.csv").write_text("a,b\n1,2\n3\n4,5,6\n")
    outcome = move(host, {"kind": "file", "path": "in.csv"}, target)
    assert outcome.error is not None and "line 3 has 1 values, the first line has 2" in outcome.error.message


def test_types_of_file_columns_can_be_declared(host: ToolHost, tmp_path: Path) -> None:
    exact = "12345678901234567890.55"
    (tmp_path / "in.csv").write_text(f"code,amount,on\n1,{exact},2020-01-01\n")
    (tmp_path / "in.json").write_text(json.dumps([{"code": 1, "amount": exact, "on": "2020-01-01"}]))
    for name in ("in.csv", "in.json"):
        source = {"kind": "file", "path": name, "types": {"code": "text", "amount": "numeric", "on": "text"}}
        good(move(host, source, {"kind": "file", "path": "out.json"}))
        assert json.loads((tmp_path / "out.json").read_text()) == [{"code": "1", "amount": exact, "on": "2020-01-01"}]
    outcome = move(
        host, {"kind": "file", "path": "in.csv", "types": {"code": "money"}}, {"kind": "file", "path": "o.json"}
    )
    assert outcome.error is not None and "types.code: 'money' is not one of" in outcome.error.message


def test_nested_json_objects_keep_their_keys(host: ToolHost, database: str, tmp_path: Path) -> None:
    items = [{"id": 1, "o": {"x": 1}, "l": [1, "a"], "m": 1}, {"id": 2, "o": {"y": {"z": 2}}, "l": [], "m": "t"}]
    late = [{"id": number, "o": {}, "l": [], "m": 1} for number in range(3, 25_000)] + [{"id": 25_000, "late": True}]
    postgres = {"kind": "postgres", "auth": database, "table": "t", "mode": "replace"}
    for document, path in ((items, None), ({"data": {"list": items}, "n": 1}, "data.list"), ({"items": items}, None)):
        (tmp_path / "in.json").write_text(json.dumps(document))
        chunk = {"chunk": {"path": path}} if path else {}
        good(move(host, {"kind": "file", "path": "in.json"}, {"kind": "file", "path": "out.json"}, postgres, **chunk))
        assert json.loads((tmp_path / "out.json").read_text()) == items
        assert rows(host, postgres) == items
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items + late))
    good(move(host, {"kind": "file", "path": "in.jsonl"}, {"kind": "file", "path": "out.json"}))
    assert json.loads((tmp_path / "out.json").read_text())[-1] == {
        "id": 25_000,
        "o": None,
        "l": None,
        "m": None,
        "late": True,
    }


@pytest.mark.parametrize(
    ("text", "path", "kind", "says"),
    [
        ('[{"a": 1}, {"a":', None, "parse", "Malformed JSON"),
        ('{"a": 1}', "nope", "schema", "no list of rows at 'nope'"),
    ],
)
def test_json_without_rows_is_a_clear_error(
    host: ToolHost, tmp_path: Path, text: str, path: str, kind: str, says: str
) -> None:
    (tmp_path / "in.json").write_text(text)
    outcome = move(host, {"kind": "file", "path": "in.json"}, {"kind": "file", "path": "o.json"}, chunk={"path": path})
    assert outcome.error is not None and outcome.error.kind == kind, outcome.error
    assert says in outcome.error.message


@pytest.mark.parametrize("line", [1, 2, 3000])
def test_malformed_json_is_named_by_its_line(host: ToolHost, tmp_path: Path, line: int) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n' * (line - 1) + "{bad\n" + '{"a": 1}\n')
    error = move(host, {"kind": "file", "path": "in.jsonl"}, {"kind": "file", "path": "o.json"}).error
    assert error is not None and f"in.jsonl: line {line:,} is not JSON: " in error.message


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a,b\n1,x\n2,\xe9\n", "line 3 is not UTF-8"),
        (b"a,b\n" + b"1,2\n" * 30_000 + b"1,x\n", "line 30002: the column 'b': 'x' is not BIGINT"),
        (b'a,b\n1,2\n1,"x\n2,3\n', "line 3 is not CSV: a quote is not closed"),
        (b'a,b\n1,"x"y\n2,3\n', "line 2 is not CSV: ',' expected after '\"'"),
    ],
    ids=["encoding", "type", "open quote", "quote inside"],
)
def test_wrong_csv_is_named_by_its_line(host: ToolHost, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    error = move(host, {"kind": "file", "path": name}, {"kind": "file", "path": "o.json"}).error
    assert error is not None and f"{name}: {says}" in error.message
    assert "ignore_errors" not in error.message


def test_duplicate_csv_columns_lose_no_value(host: ToolHost, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,a,b\n1,2,3\n4,5,6,7\n")
    whole = good(run_tool("object", {"uri": str(tmp_path / "x.csv")}, host=host))
    part = good(run_tool("object", {"uri": str(tmp_path / "x.csv"), "limit": 5}, host=host))
    assert whole["rows"] == part["rows"] == [
        {"a": "1", "a_2": "2", "b": "3"}, {"a": "4", "a_2": "5", "b": "6", "_rest": ["7"]},
    ]  # fmt: skip


def test_a_slip_in_a_target_is_not_passed_over(host: ToolHost) -> None:
    for target in ({"on_eror": "warn"}, {"mapings": {"a": "a"}}):
        outcome = move(host, [{"a": 1}], {"kind": "file", "path": "x.json", **target})
        assert outcome.error is not None and "did you mean" in outcome.error.message, target
    assert move(host, [{"a": 1}], {"kind": "file", "path": "x.json", "comment": "mine"}).error is None
