from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Timeout
from noetl.runtime import threads
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load
from tests.waiting import a_call_runs, until


def sql(command: Any, **input: Any) -> Outcome:
    others = {name: input.pop(name) for name in ("spec", "timeout", "host") if name in input}
    return run_tool("sqlite", {"command": command, **input}, **others)


def test_the_output_has_the_shape_of_postgres() -> None:
    outcome = sql("create table t (a, b); insert into t values (1, 'x'), (2, null); select a, b, a as a from t")
    last = {
        "rows": [{"a": 1, "b": "x", "a_2": 1}, {"a": 2, "b": None, "a_2": 2}],
        "row_count": 2,
        "columns": ["a", "b", "a_2"],
    }
    nothing = {"rows": [], "row_count": 0, "columns": []}
    assert outcome.data == {**last, "command_0": nothing, "command_1": {**nothing, "row_count": 2}, "command_2": last}
    assert sql("select 1 as a where 0").data["columns"] == ["a"]


def test_parameters_are_bound_and_structures_are_json_text() -> None:
    outcome = sql(
        "select :a as a, %(b)s as b, json_extract($c, '$.x[1]') as c, x'00ff' as d, :yes as yes",
        params={"a": 1.5, "b": "';", "c": {"x": [1, 2]}, "yes": True},
    )
    assert outcome.data["rows"] == [{"a": 1.5, "b": "';", "c": 2, "d": "AP8=", "yes": 1}]
    assert sql("select ? as a, ? as b", params=[1, None]).data["rows"] == [{"a": 1, "b": None}]


def test_a_file_is_beside_the_playbook(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t (a int)", file="d/x.db", host=host)
    outcome = sql("insert into t values (:a)", params=[{"a": 1}, {"a": 2}], file="d/x.db", host=host)
    assert outcome.data["row_count"] == 2
    with sqlite3.connect(tmp_path / "d" / "x.db") as connection:
        assert connection.execute("select sum(a) from t").fetchone() == (3,)
    connection.close()
    attached = sql("select count(*) as n from o.t", attach={"o": "d/x.db"}, host=host)
    assert attached.data["rows"] == [{"n": 2}]


def test_statements_of_one_task_are_one_transaction(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t (a int primary key)", file="x.db", host=host)
    outcome = sql(["insert into t values (1)", "insert into t values (1)"], file="x.db", host=host)
    assert outcome.error is not None and outcome.error.kind == "db.constraint"
    assert outcome.helpers["sqlite"]["code"] == "SQLITE_CONSTRAINT_PRIMARYKEY"
    assert sql("select * from t", file="x.db", host=host).data["rows"] == []
    sql(["insert into t values (1)", "insert into t values (1)"], file="x.db", host=host, spec={"transaction": False})
    assert sql("select * from t", file="x.db", host=host).data["rows"] == [{"a": 1}]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("selec 1", "db.syntax"),
        ("select * from nowhere", "db.syntax"),
        ("create table t (a int not null); insert into t values (null)", "db.constraint"),
        ("select %(x)s", "schema"),
        ("", "schema"),
    ],
)
def test_errors_have_a_kind(command: str, kind: str) -> None:
    outcome = sql(command)
    assert outcome.error is not None and outcome.error.kind == kind


def test_a_file_that_is_no_database_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("not a database, but long enough to be looked at" * 20)
    outcome = sql("select * from t", file="x.db", host=ToolHost(folder=tmp_path))
    assert outcome.error is not None and outcome.error.kind == "storage.access"


def test_a_lock_is_waited_for_and_then_an_error_that_may_be_retried(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t (a int)", file="x.db", host=host)
    holder = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    holder.execute("begin immediate")
    outcome = sql("insert into t values (1)", file="x.db", host=host, timeout=Timeout(connect=0.1))
    holder.close()
    assert outcome.error is not None and outcome.error.kind == "db.deadlock" and outcome.error.retryable


def test_a_statement_that_takes_too_long_is_interrupted() -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    started = time.monotonic()
    outcome = sql(endless, timeout=0.2)
    assert outcome.error is not None and outcome.error.kind == "db.timeout"
    assert time.monotonic() - started < 5

    async def cancelled() -> None:
        task = asyncio.create_task(load("sqlite")(tool_call("sqlite", {"command": endless})))
        await until(a_call_runs)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await close_loop_resources()

    asyncio.run(cancelled())


def test_a_large_result_is_streamed_to_the_store() -> None:
    host = ToolHost()
    many = """with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000)
              select i, 'n' || i as name from n"""
    outcome = sql(many, spec={"inline_rows": 100}, host=host)
    assert outcome.ref is not None and outcome.ref.meta.content_type == "application/x-ndjson"
    assert (outcome.extracts["row_count"], outcome.extracts["columns"]) == (5000, ["i", "name"])
    resolved = run_tool("resolve", {"ref": msgspec.to_builtins(outcome.ref), "offset": 4999}, host=host)
    assert resolved.data["rows"] == [{"i": 5000, "name": "n5000"}]


def test_unsupported_sqlite_values_are_text_or_errors() -> None:
    assert run_tool("sqlite", {"command": "select :n as n", "params": {"n": 2**70}}).data["rows"] == [{"n": str(2**70)}]
    outcome = run_tool("sqlite", {"command": "select cast(x'ff41' as text) as t"})
    assert outcome.error.kind == "parse" and "AS BLOB" in outcome.error.message


def test_many_tasks_that_write_one_file_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that waited for the lock of the file occupied the threads that the others needed, until all had failed."""
    monkeypatch.setattr(threads, "MAX_THREADS", 4)
    commands = ["create table if not exists t (a)", *["insert into t values (1)"] * 5]

    async def one() -> Any:
        fields = {"file": "a.sqlite", "commands": commands}
        call = tool_call(
            "sqlite", fields, host=ToolHost(folder=tmp_path), spec={"transaction": True}, timeout=Timeout(connect=0.5)
        )
        return await load("sqlite")(call)

    async def scenario() -> list[Any]:
        try:
            return await asyncio.gather(*(one() for _ in range(24)))
        finally:
            await close_loop_resources()

    assert [outcome.error for outcome in asyncio.run(scenario())] == [None] * 24
