"""Parameters of the SQL kinds: common behaviour of all databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from noetl.data import sql
from noetl.data.sql import sql_statements
from noetl.testing.tools import ToolHost, run_tool


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def do(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    kind = request.param
    place = {"auth": request.getfixturevalue("database")} if kind == "postgres" else {"file": str(tmp_path / "x.db")}
    host = ToolHost(folder=tmp_path)

    def run(command: Any, params: Any = None) -> Any:
        return run_tool(kind, {**place, "command": command, "params": params}, host=host)

    assert run("create table t (a int, b text)").error is None
    return run


def test_an_empty_list_of_parameter_sets_runs_nothing(do: Any) -> None:
    for text, params in (
        ("insert into t values (%(a)s, %(b)s)", []),
        ("insert into t values (%s, %s)", []),
    ):
        outcome = do(text, params)
        assert outcome.error is None and outcome.data["row_count"] == 0, outcome
    assert do("select count(*) as n from t").data["rows"] == [{"n": 0}]
    assert do("insert into t values (%(a)s, %(b)s)", [{"a": 1, "b": "x"}, {"b": None, "a": 2}]).error is None
    assert do("select a, b from t order by a").data["rows"] == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_parameter_sets_have_the_same_names(do: Any) -> None:
    outcome = do("insert into t values (:a, :b)", [{"a": 1, "b": "x"}, {"a": 2}])
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "parameter set 1" in outcome.error.message
    assert do("select count(*) as n from t").data["rows"] == [{"n": 0}]


def test_a_list_of_numbers_is_an_array_in_postgres(database: str) -> None:
    command = "create temp table t (n numeric[], f float8[]); insert into t values (%(n)s, %(n)s); select * from t"
    outcome = run_tool("postgres", {"auth": database, "command": command, "params": {"n": [1.5, 2, None]}})
    assert outcome.error is None, outcome.error
    assert outcome.data["rows"] == [{"n": [1.5, 2, None], "f": [1.5, 2.0, None]}]


@pytest.mark.parametrize(
    ("text", "params", "bound", "values"),
    [
        ("SELECT :a, :a", {"a": 1}, "SELECT %s, %s", [1, 1]),
        ("SELECT '5%', `%d`, %(a)s", {"a": 1}, "SELECT '5%%', `%%d`, %s", [1]),
        (r"SELECT 'it\'s :a', ?", [1], r"SELECT 'it\'s :a', %s", [1]),
        ("SELECT ? # :a; ?\n, ?", [1, 2], "SELECT %s # :a; ?\n, %s", [1, 2]),
        ("SELECT 1--:a", {"a": 1}, "SELECT 1--%s", [1]),  # without a blank it is no comment in MySQL
        ("SELECT '5%'", None, "SELECT '5%'", []),
    ],
)
def test_parameters_of_mysql(text, params, bound, values):
    found = sql.bind(text, params, "mysql")
    assert (found.text, found.values) == (bound, values)


def test_statements_of_mysql_end_at_semicolons_outside_of_names_and_strings():
    assert sql_statements.split("SELECT 1; SELECT '\\';' # a;\n; SELECT `;`", "mysql") == [
        "SELECT 1",
        "SELECT '\\';' # a;",
        "SELECT `;`",
    ]


def test_placeholders_of_other_drivers_are_question_marks():
    assert sql.bind("SELECT %(a)s, :a, '5%'", {"a": 1}, "ansi")[:2] == ("SELECT ?, ?, '5%'", [1, 1])
