"""Kind `mysql` against a real server."""

from __future__ import annotations

import json
import threading
import time

import pytest

from noetl.testing import run_tool


@pytest.fixture
def run(host):
    def run(command, params=None, **others):
        given = {"auth": "shop", "command": command, "params": params}
        return run_tool("mysql", given, host=host, **others)

    return run


def test_a_query_returns_rows_and_columns(run):
    outcome = run("SELECT 1 AS a, 'ü\\'🎉' AS b, NULL AS c, 1.10 AS d")
    assert outcome.error is None
    assert outcome.data["columns"] == ["a", "b", "c", "d"]
    (row,) = outcome.data["rows"]
    assert (float(row.pop("d")), row) == (1.1, {"a": 1, "b": "ü'🎉", "c": None})


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("SELECT %(v)s AS v", {"v": "a'; DROP TABLE t; -- %"}),
        ("SELECT :v AS v", {"v": "a'; DROP TABLE t; -- %"}),
        ("SELECT %s AS v", ["a'; DROP TABLE t; -- %"]),
        ("SELECT ? AS v", ["a'; DROP TABLE t; -- %"]),
    ],
)
def test_parameters_are_quoted(run, text, params):
    assert run(text, params).data["rows"] == [{"v": "a'; DROP TABLE t; -- %"}]


def test_a_percent_sign_is_a_character(run):
    assert run("SELECT '5%' AS a, `%d` AS b, :x AS c FROM (SELECT 1 AS `%d`) AS s", {"x": 2}).data["rows"] == [
        {"a": "5%", "b": 1, "c": 2}
    ]


def test_statements_are_one_transaction(run, server):
    table = server.create_table([])
    failed = run(f"INSERT INTO {table} (id) VALUES (1); INSERT INTO {table} (nothing) VALUES (2)")
    assert failed.error.kind == "db.syntax"
    assert server.sql(f"SELECT * FROM {table}") == []
    done = run(f"INSERT INTO {table} (id) VALUES (1), (2); SELECT count(*) AS n FROM {table}")
    assert done.data["command_0"]["row_count"] == 2
    assert done.data["rows"] == [{"n": 2}]


ROUTINES = {
    "procedure": "CREATE OR REPLACE PROCEDURE {name}(a INT)\nBEGIN\n  DECLARE total INT DEFAULT 0;\n  WHILE a > 0 DO SET total = "
    "total + a; SET a = a - 1; END WHILE;\n  IF total > 5 THEN SELECT CASE WHEN total > 9 THEN 'much' ELSE 'more' END AS "
    "said; ELSE SELECT 'less' AS said; END IF;\nEND",
    "function": "CREATE OR REPLACE FUNCTION {name}(a INT) RETURNS INT DETERMINISTIC BEGIN SET a = a * 2; RETURN a; END",
}


@pytest.mark.parametrize("delimited", [False, True], ids=["plain", "with DELIMITER"])
def test_bodies_of_routines_are_one_statement(run, delimited):
    routines = [text.format(name=f"noetl_{kind}") for kind, text in ROUTINES.items()]
    created = "".join(f"{text};\n" for text in routines)
    if delimited:
        created = "DELIMITER //\n" + "".join(f"{text} //\n" for text in routines) + "DELIMITER ;\n"
    outcome = run(f"{created}SELECT noetl_function(21) AS n; CALL noetl_procedure(4)")
    assert outcome.error is None, outcome.error
    assert outcome.data["command_2"]["rows"] == [{"n": 42}]
    assert outcome.data["command_3"]["rows"] == [{"said": "much"}]


def test_a_large_result_is_stored(run, host):
    outcome = run("SELECT seq AS n FROM seq_1_to_20000", spec={"inline_rows": 100})
    assert (outcome.ref.meta.rows, outcome.extracts["row_count"]) == (20000, 20000)
    assert len(host.results) == 1


def test_types_as_json(run):
    row = run(
        "SELECT CAST('2024-02-29' AS DATE) AS d, CAST('2024-02-29 12:30:00.25' AS DATETIME(6)) AS m, "
        "CAST('23:59:59' AS TIME) AS t, x'00ff' AS b, 18446744073709551615 AS u, CAST(1.5 AS DOUBLE) AS f"
    ).data["rows"][0]
    assert (row["d"], row["f"], row["u"]) == ("2024-02-29", 1.5, 18446744073709551615)
    assert row["m"].startswith("2024-02-29T12:30:00.25")
    assert row["t"].startswith("23:59:59")


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"command": "SELEC 1"}, "db.syntax", "SQL syntax"),
        ({"command": "SELECT * FROM no_such_table"}, "not_found", "no_such_table"),
        ({"command": "SELECT %(a)s"}, "schema", "there are no `params`"),
        ({"command": "-- nothing"}, "schema", "no statement"),
        ({"command": "SELECT 1", "auth": "nothing"}, "auth", "nothing"),
        ({"command": "SELECT 1", "auth": "postgres://x"}, "schema", "mysql://"),
        ({"command": "SELECT 1", "auth": {"host": "127.0.0.1", "port": 1}}, "db.connection", "127.0.0.1"),
        ({"command": "SELECT 1", "user": "noetl", "password": "wrong"}, "auth", "Access denied"),
    ],
)
def test_an_error_says_what_is_wrong(host, given, kind, said):
    outcome = run_tool("mysql", {"auth": "shop", **given}, host=host)
    assert (outcome.error.kind, said in outcome.error.message) == (kind, True), outcome.error


def test_a_constraint_is_an_error_of_its_kind(run, server):
    table = server.create_table([], "id INT PRIMARY KEY")
    outcome = run(f"INSERT INTO {table} VALUES (1); INSERT INTO {table} VALUES (1)")
    assert (outcome.error.kind, outcome.error.details) == ("db.constraint", {"code": 1062})


def test_a_value_that_does_not_fit_is_an_error_and_not_cut(run, server):
    table = server.create_table([], "v VARCHAR(3)")
    assert run(f"INSERT INTO {table} VALUES ('abcd')").error.kind == "db.constraint"


def test_a_statement_that_runs_too_long_is_killed_on_the_server(run, server):
    started = time.monotonic()
    outcome = run("SELECT SLEEP(60)", timeout=0.5)
    assert outcome.error.kind == "db.timeout"
    assert time.monotonic() - started < 20
    running = "SELECT count(*) AS n FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP(60)%'"
    assert server.sql(running) == [{"n": 0}]


def test_a_deadlock_is_retryable(run, server):
    table = server.create_table([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], "id INT PRIMARY KEY, name TEXT")
    outcomes = []

    def update(first: int, second: int) -> None:
        change = f"UPDATE {table} SET name = 'x' WHERE id ="
        outcomes.append(
            run_tool("mysql", {"auth": server.auth, "command": f"{change} {first}; SELECT SLEEP(1); {change} {second}"})
        )

    threads = [threading.Thread(target=update, args=ids) for ids in ((1, 2), (2, 1))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    failed = [outcome.error for outcome in outcomes if outcome.error]
    assert [(info.kind, info.retryable) for info in failed] == [("db.deadlock", True)]


def test_a_url_is_a_connection(server):
    from urllib.parse import quote

    auth = server.auth
    url = f"mysql://{auth['user']}:{quote(auth['password'])}@127.0.0.1:{auth['port']}/noetl"
    outcome = run_tool("mariadb", {"auth": url, "command": "SELECT DATABASE() AS d"})
    assert outcome.data["rows"] == [{"d": "noetl"}]


@pytest.mark.parametrize("value", [[1, "a'b"], {"a": ["ü", None]}, []])
def test_lists_and_mappings_are_bound_as_json(server, value):
    rows = server.sql("SELECT %(value)s AS value", {"value": value})
    assert json.loads(rows[0]["value"]) == value


def test_an_error_of_the_server_is_no_lost_connection(server):
    from noetl_mysql.connection import errors, explain

    outcome = run_tool("mysql", {"auth": server.auth, "command": "CREATE TABLE `t😀` (a INT)"})
    assert outcome.error.kind == "db.syntax", outcome.error
    assert explain(errors.OperationalError(1153, "Got a packet bigger than allowed")).kind == "limit"
    assert explain(errors.OperationalError(2013, "Lost connection")).kind == "db.connection"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"port": "many"}, "`auth.port` must be a number"),
        ({"ca": "/no/such/file.pem"}, "No such file or directory: /no/such/file.pem"),
        ({"tls": "perhaps"}, "`tls` of the connection must be true or false"),
    ],
)
def test_a_wrong_connection_is_explained(server, wrong, said):
    outcome = run_tool("mysql", {"auth": {**server.auth, **wrong}, "command": "SELECT 1"})
    assert outcome.error.kind == "schema"
    assert said in outcome.error.message


@pytest.mark.parametrize(
    ("host", "fields", "reason"),
    [
        ("127.0.0.1", {"ca": "FILE"}, None),
        ("127.0.0.1", {"ca": "TEXT", "tls": True}, None),
        ("127.0.0.1", {"tls": True, "verify": False}, None),
        ("127.0.0.1", {"tls": True}, "certificate verify failed"),
        ("127.0.0.1", {"tls": "yes"}, "certificate verify failed"),
        ("localhost", {"ca": "FILE"}, "certificate is not valid for 'localhost'"),
        ("localhost", {"ca": "TEXT"}, "certificate is not valid for 'localhost'"),
        ("127.0.0.1", {"ca": "/no/such/file"}, "No such file"),
        ("127.0.0.1", {"ca": "-----BEGIN CERTIFICATE-----"}, "not a certificate in PEM format"),
    ],
)
def test_the_certificate_of_the_server_is_checked(server, host, fields, reason):
    given = {"FILE": str(server.authority), "TEXT": server.authority.read_text()}
    tls = {name: given.get(value, value) for name, value in fields.items()}
    auth = {**server.auth, "host": host, **tls}
    outcome = run_tool("mysql", {"auth": auth, "command": "SHOW STATUS LIKE 'Ssl_cipher'"})
    if reason is None:
        assert outcome.error is None, outcome.error
        assert outcome.data["rows"][0]["Value"]
    else:
        assert reason in outcome.error.message
        assert outcome.error.kind in ("db.connection", "schema")
