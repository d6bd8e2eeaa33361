"""Settings of the server that must not change what is stored: sql_mode, AUTO_INCREMENT, max_allowed_packet."""

from __future__ import annotations

import pytest

from noetl.testing import run_tool

MODES = {"append": {}, "replace": {}, "upsert": {"key": "id"}}


@pytest.fixture
def setting(server):
    """Changes a global variable until the end of the test."""
    before = {}

    def change(name, value):
        before.setdefault(name, server.sql(f"SELECT @@GLOBAL.{name} AS v")[0]["v"])
        server.sql(f"SET GLOBAL {name} = %(v)s", {"v": value})

    yield change
    for name, value in before.items():
        server.sql(f"SET GLOBAL {name} = %(v)s", {"v": value})


def write(server, name, mode, rows, **others):
    target = {"kind": "mysql", "auth": server.auth, "table": name, "mode": mode, **MODES[mode], **others}
    return run_tool("transfer", {"data": rows, "targets": [target], "chunk": {"size": 7}})


@pytest.mark.parametrize("contract", [{}, {"schema": "evolve"}])
@pytest.mark.parametrize("mode", MODES)
def test_zero_stays_zero_in_an_auto_increment_column(server, mode, contract):
    name = server.create_table([], "id INT PRIMARY KEY AUTO_INCREMENT, v TEXT")
    rows = [{"id": number, "v": str(number)} for number in range(3)]
    assert write(server, name, mode, rows, **contract).error is None
    assert server.sql(f"SELECT * FROM {name} ORDER BY id") == rows


@pytest.mark.parametrize("sql_mode", ["ORACLE", "EMPTY_STRING_IS_NULL", "ANSI,NO_BACKSLASH_ESCAPES", "TRADITIONAL", ""])
@pytest.mark.parametrize("mode", MODES)
def test_rows_do_not_depend_on_the_sql_mode(server, setting, sql_mode, mode):
    name = server.create_table([], "id INT, v VARCHAR(50)")
    setting("sql_mode", sql_mode)
    rows = [{"id": number, "v": f"'\\\"{number}" * (number % 2)} for number in range(30)]
    assert write(server, name, mode, rows).error is None
    assert server.sql(f"SELECT * FROM {name} ORDER BY id") == rows
    given = {"auth": server.auth, "command": [f"DELETE FROM {name} WHERE id > 0", f"SELECT id FROM {name}"]}
    assert run_tool("mysql", given).data["rows"] == [{"id": 0}]


def test_rows_are_sent_in_statements_that_the_server_accepts(server, setting):
    setting("max_allowed_packet", 65536)
    rows = [{"id": number, "v": "x" * 500} for number in range(1000)]
    name = server.new_name()
    assert write(server, name, "append", rows).error is None
    assert server.sql(f"SELECT count(*) AS n, sum(length(v)) AS bytes FROM {name}") == [{"n": 1000, "bytes": 500_000}]
    problem = write(server, name, "append", [{"id": 1, "v": "x" * 70_000}]).error
    assert (problem.kind, problem.retryable) == ("limit", False)
    assert "max_allowed_packet of the server" in problem.message
