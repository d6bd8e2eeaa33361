"""The ADBC interface, with the drivers of SQLite and DuckDB behind it."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from pathlib import Path

import duckdb
import pytest
from noetl_adbc import connection

from noetl.testing import SourceConformance, TargetConformance, run_tool

numbers = itertools.count()
COLUMNS = "id BIGINT, name TEXT, price DOUBLE PRECISION, note TEXT"


@pytest.fixture(params=["sqlite", "duckdb"])
def database(request, tmp_path):
    """The fields of a connection, and a function that runs SQL outside of ADBC."""
    file = str(tmp_path / f"data.{request.param}")

    def sql(text, rows=None):
        if request.param == "sqlite":
            opened = sqlite3.connect(file)
            try:
                cursor = opened.executemany(text, rows) if rows else opened.execute(text)
                names = [column[0] for column in cursor.description or ()]
                found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()] if names else []
                opened.commit()
                return found
            finally:
                opened.close()
        with duckdb.connect(file) as opened:
            if rows:
                opened.executemany(text, rows)
                return []
            cursor = opened.execute(text)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    option = "uri" if request.param == "sqlite" else "path"
    return {"kind": "adbc", "driver": request.param, "options": {option: file}}, sql


class TestSource(SourceConformance):
    @pytest.fixture
    def place(self, database):
        fields, sql = database

        def store(rows):
            table = f"s{next(numbers)}"
            sql(f"CREATE TABLE {table} ({COLUMNS})")
            if rows:
                sql(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", [list(row.values()) for row in rows])
            return {**fields, "table": table}

        return store

    @pytest.fixture
    def missing(self, database):
        return lambda: {**database[0], "table": "none"}


class TestTarget(TargetConformance):
    @pytest.fixture
    def place(self, database):
        return lambda: {**database[0], "table": f"t{next(numbers)}"}

    @pytest.fixture
    def read(self, database):
        return lambda fields: database[1](f"SELECT * FROM {fields['table']}")


def test_no_staging_table_remains(database):
    fields, sql = database
    good = {**fields, "table": "good"}
    for rows in ([{"id": 1}], [{"id": 1, "extra": 2}]):
        run_tool("transfer", {"data": rows, "targets": [good]})
    tables = (
        "SELECT name FROM sqlite_master"
        if fields["driver"] == "sqlite"
        else "SELECT table_name AS name FROM information_schema.tables"
    )
    assert [row["name"] for row in sql(tables)] == ["good"]


def test_a_column_that_the_table_lacks_is_named(database):
    target = {**database[0], "table": "t"}
    assert run_tool("transfer", {"data": [{"id": 1, "v": "x"}], "targets": [target]}).error is None
    problem = run_tool("transfer", {"data": [{"id": 2, "w": "x"}], "targets": [target]}).error
    assert (problem.kind, problem.retryable) == ("schema", False)
    assert "the table has no column 'w'; columns: id, v" in problem.message


def test_two_connections_to_a_duckdb_file_are_refused(tmp_path):
    """The driver would open the file twice, and the last one to close it would overwrite the rows of the other."""
    target = {"kind": "adbc", "driver": "duckdb", "options": {"path": str(tmp_path / "x.duckdb")}, "table": "t"}
    outcome = run_tool("transfer", {"data": [{"id": 1}], "targets": [target, {**target, "table": "u"}]})
    assert (outcome.error.kind, "use kind duckdb" in outcome.error.message) == ("db.connection", True)
    assert run_tool("transfer", {"data": [{"id": 1}], "targets": [target]}).error is None


def run(database, command, params=None, **others):
    given = {name: value for name, value in database[0].items() if name != "kind"}
    return run_tool("adbc", {**given, "command": command, "params": params}, **others)


def test_statements_with_parameters(database):
    outcome = run(
        database,
        "CREATE TABLE k (id BIGINT, name TEXT); INSERT INTO k VALUES (:id, :name); SELECT * FROM k WHERE id = :id",
        {"id": 7, "name": "a'; --"},
    )
    assert outcome.error is None
    assert outcome.data["rows"] == [{"id": 7, "name": "a'; --"}]


def test_statements_are_one_transaction(database):
    run(database, "CREATE TABLE x (id BIGINT)")
    assert run(database, "INSERT INTO x VALUES (1); INSERT INTO nowhere VALUES (1)").error is not None
    assert run(database, "SELECT * FROM x").data["rows"] == []


def test_errors_of_the_interface(database):
    outcome = run(database, "SELEC 1")
    assert outcome.error.kind == "db.syntax"
    fields = {**database[0], "table": "nowhere"}
    outcome = run_tool("transfer", {"source": fields, "targets": [{"kind": "file", "path": "x.csv"}]})
    assert outcome.error.kind in ("db.syntax", "not_found")
    assert "nowhere" in outcome.error.message


@pytest.mark.parametrize("driver", ["no_such_driver", "../evil", "/tmp/evil.so"])
def test_a_driver_is_the_name_of_a_package(driver):
    outcome = run_tool("adbc", {"driver": driver, "command": "SELECT 1"})
    assert (outcome.error.kind, driver in outcome.error.message) == ("schema", True)


# ── the two warehouses ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "fields", "options"),
    [
        (
            "snowflake",
            {"account": "a-b", "user": "u", "password": "p", "warehouse": "w", "database": "d", "schema": "s", "role": "r"},
            {
                "adbc.snowflake.sql.account": "a-b", "username": "u", "password": "p", "adbc.snowflake.sql.warehouse": "w",
                "adbc.snowflake.sql.db": "d", "adbc.snowflake.sql.schema": "s", "adbc.snowflake.sql.role": "r",
            },
        ),
        (
            "snowflake",
            {"account": "a", "username": "u", "private_key": "KEY", "passphrase": "x"},
            {
                "adbc.snowflake.sql.account": "a", "username": "u", "adbc.snowflake.sql.auth_type": "auth_jwt",
                "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_value": "KEY",
                "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_password": "x",
            },
        ),
        (
            "bigquery",
            {"project": "p", "dataset": "d", "credentials": "{}"},
            {
                "adbc.bigquery.sql.project_id": "p", "adbc.bigquery.sql.dataset_id": "d",
                "adbc.bigquery.sql.auth_credentials": "{}",
                "adbc.bigquery.sql.auth_type": "adbc.bigquery.sql.auth_type.json_credential_string",
            },
        ),
        (
            "bigquery",
            {"project": "p", "location": "EU", "credentials": {"type": "service_account", "private_key": "a\nb"}},
            {
                "adbc.bigquery.sql.project_id": "p", "adbc.bigquery.sql.location": "EU",
                "adbc.bigquery.sql.auth_credentials": '{"type": "service_account", "private_key": "a\\nb"}',
                "adbc.bigquery.sql.auth_type": "adbc.bigquery.sql.auth_type.json_credential_string",
            },
        ),
        (
            "snowflake",
            {"account": "a", "user": "u", "token": "T", "auth_type": "pat"},
            {
                "adbc.snowflake.sql.account": "a", "username": "u", "adbc.snowflake.sql.auth_type": "auth_pat",
                "adbc.snowflake.sql.client_option.auth_token": "T",
            },
        ),
        ("adbc", {"uri": "x", "adbc.read_only": True}, {"uri": "x", "adbc.read_only": "true"}),
    ],
)  # fmt: skip
def test_a_credential_becomes_options_of_the_driver(kind, fields, options):
    assert connection.driver_options(kind, fields) == options


def test_the_options_are_those_of_the_installed_drivers():
    import adbc_driver_bigquery
    import adbc_driver_snowflake

    known = {each.value for each in (*adbc_driver_snowflake.DatabaseOptions, *adbc_driver_bigquery.DatabaseOptions)}
    used = {*connection._SNOWFLAKE.values(), *connection._BIGQUERY.values()} - {"username", "password"}
    assert used <= known


@pytest.mark.parametrize(("kind", "missing"), [("snowflake", "account"), ("bigquery", "project")])
def test_a_credential_without_its_account_is_an_error(kind, missing):
    outcome = run_tool(kind, {"auth": {"user": "x"}, "command": "SELECT 1"})
    assert (outcome.error.kind, missing in outcome.error.message) == ("schema", True)


def test_snowflake_that_cannot_be_reached_is_retryable():
    """With the real driver of Snowflake, against an address without a server."""
    auth = {"account": "x", "user": "u", "password": "p", "host": "127.0.0.1"}
    options = {"adbc.snowflake.sql.uri.port": "1", "adbc.snowflake.sql.client_option.login_timeout": "1s"}
    outcome = run_tool("snowflake", {"auth": auth, "options": options, "command": "SELECT 1"})
    assert (outcome.error.kind, outcome.error.retryable) == ("db.connection", True)


@pytest.mark.parametrize(("kind", "mark"), [("snowflake", '"'), ("bigquery", "`")])
def test_names_are_quoted_as_the_warehouse_does(kind, mark):
    assert connection.quoting(kind).table("p.d.t") == f"{mark}p{mark}.{mark}d{mark}.{mark}t{mark}"


def test_the_kinds_use_the_interface(monkeypatch, tmp_path):
    """`snowflake` and `bigquery` with the driver of SQLite behind them."""
    opened = connection._open
    file = str(tmp_path / "w.sqlite")
    monkeypatch.setattr(connection, "_open", lambda name, options: opened("sqlite", {"uri": file}))
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    auths = {"snowflake": {"account": "a"}, "bigquery": {"project": "p"}}
    for kind, auth in auths.items():
        target = {"kind": kind, "auth": auth, "table": f"{kind}_orders", "mode": "upsert", "key": "id"}
        assert run_tool("transfer", {"data": rows, "targets": [target]}).error is None
        found = run_tool(kind, {"auth": auth, "command": f"SELECT * FROM {kind}_orders ORDER BY id"})
        assert found.data["rows"] == rows


def test_every_type_keeps_its_value_from_every_source(tmp_path):
    from type_page import Missing, check, json_text, matrix

    missing = {"json": Missing("ADBC has no JSON: the driver of DuckDB gives text", json_text)}
    file = str(tmp_path / "types.duckdb")
    fields = {"kind": "adbc", "driver": "duckdb", "options": {"path": file}}

    def read(target):
        with duckdb.connect(file) as opened:
            names = [row[0] for row in opened.execute(f"DESCRIBE {target['table']}").fetchall() if row[0] != "id"]
            return [matrix.read_duckdb_column(opened, target["table"], name) for name in names]

    def place():
        return {**fields, "table": f"t{next(numbers)}"}

    def source(target):
        return {**fields, "query": f"SELECT * FROM {target['table']} ORDER BY id"}

    page = Path(__file__).parents[1] / "types.md"
    check(page, tmp_path, {"adbc": (place, read)}, source=source, exceptions=missing)


def test_a_statement_that_the_driver_does_not_cancel_ends_with_its_timeout(monkeypatch):

    monkeypatch.setattr(connection, "CANCEL_SECONDS", 0.5)
    endless = (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 40000000) SELECT count(*) FROM c"
    )
    began = time.monotonic()
    outcome = run_tool("adbc", {"driver": "sqlite", "auth": {"uri": ":memory:"}, "command": endless}, timeout=0.5)
    assert outcome.error.kind == "db.timeout"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("value", [[1, "x"], {"a": None}])
def test_lists_and_mappings_are_bound_as_json(value):
    given = {"driver": "sqlite", "auth": {"uri": ":memory:"}, "command": "SELECT :v AS v", "params": {"v": value}}
    assert json.loads(run_tool("adbc", given).data["rows"][0]["v"]) == value


def test_a_value_that_is_too_large_is_explained():
    given = {"driver": "sqlite", "auth": {"uri": ":memory:"}, "command": "SELECT :v AS v", "params": {"v": 10**30}}
    outcome = run_tool("adbc", given)
    assert outcome.error.kind == "schema", outcome.error


def test_texts_beside_other_values_have_quotes_in_columns_of_json_only(database):
    fields, sql = database
    if fields["driver"] == "duckdb":
        sql("CREATE SCHEMA other")
        sql("CREATE TABLE other.documents (id BIGINT, v VARCHAR)")  # of the same name
    sql("CREATE TABLE documents (id BIGINT, v JSON)")
    rows = [{"id": number, "v": value} for number, value in enumerate(["text", 1, {"a": None}, '"quoted"', None, ""])]
    plain = ["text", "1", '{"a":null}', '"quoted"', None, ""]
    for table, values in (("created", plain), ("created", plain * 2), ("documents", list(map(quoted, rows)))):
        outcome = run_tool("transfer", {"data": rows, "targets": [{**fields, "table": table}]})
        assert outcome.error is None, outcome.error
        found = [row["v"] for row in sql(f"SELECT v FROM {table}")]
        assert [value if value is None else str(value) for value in found] == values


def quoted(row):
    return None if row["v"] is None else json.dumps(row["v"], separators=(",", ":"))
