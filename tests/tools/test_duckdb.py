from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow.parquet as pq
import pytest

from noetl.connections import duckdb as driver
from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Timeout
from noetl.data.files.formats import CONTENT_TYPES
from noetl.data.files.table_files import encode_rows
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load
from tests.waiting import a_call_runs, until


def sql(command: Any, **input: Any) -> Outcome:
    others = {name: input.pop(name) for name in ("spec", "timeout", "host") if name in input}
    return run_tool("duckdb", {"command": command, **input}, **others)


def test_the_output_has_the_shape_of_postgres() -> None:
    outcome = sql("create table t (a int); insert into t values (1), (2); select a, a * 2 as b from t order by a")
    last = {"rows": [{"a": 1, "b": 2}, {"a": 2, "b": 4}], "row_count": 2, "columns": ["a", "b"]}
    nothing = {"rows": [], "row_count": 0, "columns": []}
    assert outcome.data == {**last, "command_0": nothing, "command_1": {**nothing, "row_count": 2}, "command_2": last}
    assert outcome.helpers == {"duckdb": {"exception_type": None}}
    assert sql("select 1 as a where false").data["columns"] == ["a"]


def test_values_are_converted_to_json_types() -> None:
    outcome = sql(
        """select 2.50::decimal(10,2) d, 5::hugeint h, timestamp '2024-01-02 03:04:05' t,
           timestamptz '2024-01-02 03:04:05+02' z, date '2024-01-02' as day, [1, null] l,
           {'a': 1, 'b': date '2024-01-02'} s,
           interval '14 months 3 days' i, '\\x00\\xff'::blob b, '{"a": [1]}'::json j, map {'k': 1} m,
           'a'::enum('a', 'b') e, null n,
           'nan'::double as nan, '0f8fad5b-d9cb-469f-a165-70867728950e'::uuid u, time '10:00' tm, 1 as dup, 2 as dup""",
    )
    assert outcome.data["rows"] == [
        {
            "d": 2.5, "h": 5, "t": "2024-01-02T03:04:05", "z": "2024-01-02T01:04:05+00:00", "day": "2024-01-02",
            "l": [1, None], "s": {"a": 1, "b": "2024-01-02"}, "i": "P1Y2M3D", "b": "AP8=",
            "j": {"a": [1]}, "m": {"k": 1}, "e": "a", "n": None, "nan": "NaN",
            "u": "0f8fad5b-d9cb-469f-a165-70867728950e", "tm": "10:00:00", "dup": 1, "dup_2": 2,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("select $a as a, :b as b, %(a)s as c", {"a": 1, "b": "x"}),
        ("select ? as a, ? as b, 1 as c", [1, "x"]),
        ("select $1 as a, $2 as b, $1 as c", [1, "x"]),
    ],
)
def test_parameters_are_bound(text: str, params: Any) -> None:
    assert sql(text, params=params).data["rows"] == [{"a": 1, "b": "x", "c": 1}]


def test_lists_and_mappings_are_parameters_too() -> None:
    data = sql("select list_sum(:l) as s, (:m).a as a", params={"l": [1, 2], "m": {"a": 5}}).data
    assert data["rows"] == [{"s": 3, "a": 5}]


def test_a_list_of_parameter_sets_runs_the_statement_for_each(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t (a int)", file="x.duckdb", host=host)
    outcome = sql("insert into t values (:a)", params=[{"a": 1}, {"a": 2}], file="x.duckdb", host=host)
    assert outcome.data["row_count"] == 2
    assert sql("select sum(a) as s from t", database="x.duckdb", host=host).data["rows"] == [{"s": 3}]


def test_a_file_is_persistent_and_memory_is_private(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t as select 1 as a", file="data/x.duckdb", host=host)
    assert (tmp_path / "data" / "x.duckdb").exists()
    assert sql("select * from t", file="data/x.duckdb", host=host).data["rows"] == [{"a": 1}]
    sql("create table t (a int)")
    assert sql("select * from t").error.kind == "db.syntax"  # type: ignore[union-attr]


def test_statements_of_one_task_are_one_transaction(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t (a int primary key)", file="x.db", host=host)
    outcome = sql(["insert into t values (1)", "insert into t values (1)"], file="x.db", host=host)
    assert outcome.error is not None and outcome.error.kind == "db.constraint"
    assert sql("from t", file="x.db", host=host).data["rows"] == []
    spec = {"transaction": False}
    sql(["insert into t values (1)", "insert into t values (1)"], file="x.db", host=host, spec=spec)
    assert sql("from t", file="x.db", host=host).data["rows"] == [{"a": 1}]
    sql("begin; insert into t values (2); commit", file="x.db", host=host)
    assert sql("from t", file="x.db", host=host).data["row_count"] == 2


def test_files_are_read_and_written_beside_the_playbook(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    (tmp_path / "in.csv").write_text("a,b\n1,x\n2,y\n")
    (tmp_path / "in.json").write_text('[{"c": 5}]')
    assert sql("select sum(a) as s from 'in.csv'", host=host).data["rows"] == [{"s": 3}]
    assert sql("from read_json_auto('in.json')", host=host).data["rows"] == [{"c": 5}]
    outcome = sql("copy (from 'in.csv') to 'out.parquet'", host=host)
    assert outcome.data["row_count"] == 2
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 2


def test_other_databases_can_be_attached(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t as select 7 as a", file="other.db", host=host)
    assert sql("select a from o.t", attach={"o": "other.db"}, host=host).data["rows"] == [{"a": 7}]
    attach = [{"name": "o", "file": "other.db", "read_only": True}]
    assert sql("insert into o.t values (1)", attach=attach, host=host).status == "error"
    assert sql("attach 'other.db' as p; select a from p.t", host=host).data["rows"] == [{"a": 7}]


def test_rows_references_and_addresses_become_tables(tmp_path: Path, s3: dict[str, Any], bucket: str) -> None:
    host = ToolHost(folder=tmp_path, credentials={"s3": s3})
    rows = [{"id": 1, "tags": {"x": 1}}, {"id": 2, "tags": None}]

    async def prepare() -> dict[str, Any]:
        async def chunks(data: bytes) -> Any:
            yield data

        references = {}
        for format in ("parquet", "arrow", "jsonl", "csv"):
            data = encode_rows([{"id": 3}], format)
            references[format] = await host.put_result(chunks(data), content_type=CONTENT_TYPES[format])
        put = {"action": "put", "uri": f"s3://{bucket}/t.parquet", "data": [{"id": 4}], "auth": "s3"}
        await load("artifact")(tool_call("artifact", put, host=host))
        await close_loop_resources()
        return references

    references = asyncio.run(prepare())
    (tmp_path / "f.csv").write_text("id\n5\n")
    tables = {
        "a": rows,
        "b": {"rows": rows, "row_count": 2},
        "s": f"s3://{bucket}/t.parquet",
        "f": "f.csv",
        **{name: msgspec.to_builtins(reference) for name, reference in references.items()},
    }
    union = " union all ".join(f'select id from "{name}"' for name in tables)
    outcome = sql(f"select sum(id) as s, count(*) as n from ({union})", tables=tables, host=host, auth="s3")
    assert outcome.error is None
    assert outcome.data["rows"] == [{"s": 27, "n": 10}]
    assert sql("select tags.x as x from a where id = 1", tables={"a": rows}).data["rows"] == [{"x": 1}]
    mixed = [{"v": 1}, {"v": "x"}]
    assert sql("select count(*) as n from a", tables={"a": mixed}).data["rows"] == [{"n": 2}]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ('Failed to commit: Could not write file "t.duckdb.wal": No space left on device', "storage.quota"),
        ('Failed to commit: Could not write file "t.duckdb.wal": Input/output error', "storage.access"),
        ("Transaction conflict: cannot update a table that has been altered", "db.deadlock"),
        ("cannot start a transaction within a transaction", "db.syntax"),
    ],
)
def test_a_commit_on_a_full_or_broken_disk_is_an_error_of_the_disk(reason: str, kind: str) -> None:
    import duckdb

    from noetl.connections.duckdb import to_error_info

    assert to_error_info(duckdb.TransactionException(f"TransactionContext Error: {reason}")).kind == kind


def test_a_memory_limit_that_is_reached_is_not_a_locked_file() -> None:
    import duckdb

    from noetl.connections.duckdb import to_error_info

    full = duckdb.OutOfMemoryException("Out of Memory Error: failed to pin block of size 256.0 KiB")
    assert to_error_info(full).kind == "limit"
    locked = duckdb.IOException('IO Error: Could not set lock on file "t.duckdb": Conflicting lock is held')
    assert to_error_info(locked).kind == "db.connection"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("selec 1", "db.syntax"),
        ("select * from nowhere", "db.syntax"),
        ("select nothing", "db.syntax"),
        ("select 'x'::int", "schema"),
        ("from 'no/such/file.parquet'", "not_found"),
        ("create table t (a int check (a > 0)); insert into t values (0)", "db.constraint"),
    ],
)
def test_errors_have_a_kind(command: str, kind: str) -> None:
    outcome = sql(command)
    assert outcome.error is not None and outcome.error.kind == kind
    assert outcome.helpers["duckdb"]["exception_type"]


@pytest.mark.parametrize(
    "input",
    [
        {"command": 5},
        {"command": "select %(x)s", "params": {"y": 1}},
        {"command": "select 1", "tables": {"a": []}},
        {"command": "select 1", "tables": {"a": [1]}},
        {"command": "select 1", "tables": {"a": 5}},
        {"command": "select 1", "attach": 5},
        {"command": "select 1", "file": 5},
    ],
)
def test_bad_input_is_a_clear_error(input: dict[str, Any]) -> None:
    outcome = run_tool("duckdb", input)
    assert outcome.error is not None and outcome.error.kind == "schema"


def test_a_query_that_takes_too_long_is_interrupted() -> None:
    started = time.monotonic()
    outcome = sql("select count(*) from range(10000000000) a, range(1000) b where a.range + b.range = 7", timeout=0.3)
    assert outcome.error is not None and outcome.error.kind == "db.timeout"
    assert time.monotonic() - started < 5


def test_cancellation_stops_the_query() -> None:
    async def cancelled() -> float:
        endless = "select count(*) from range(10000000000) a, range(1000) b where a.range + b.range = 7"
        task = asyncio.create_task(load("duckdb")(tool_call("duckdb", {"command": endless})))
        await until(a_call_runs)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await close_loop_resources()  # waits for the thread: it would not end if the query still ran
        return time.monotonic() - started

    assert asyncio.run(cancelled()) < 5


def test_writers_of_one_file_come_one_after_the_other(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    sql("create table t (id int primary key, n int); insert into t values (1, 0)", file="x.db", host=host)

    async def many() -> list[Outcome]:
        run = load("duckdb")
        call = {"file": "x.db", "command": "update t set n = n + 1; select n from t"}
        outcomes = await asyncio.gather(*(run(tool_call("duckdb", call, host=host)) for _ in range(20)))
        await close_loop_resources()
        return list(outcomes)

    assert [outcome.status for outcome in asyncio.run(many())] == ["ok"] * 20
    assert sql("select n from t", file="x.db", host=host).data["rows"] == [{"n": 20}]


def test_a_file_that_another_process_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    duckdb.connect(str(path)).close()
    code = (
        f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('held', flush=True); sys.stdin.read(); c.close()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    host = ToolHost(folder=tmp_path)
    refused = sql("select 1", file="x.db", host=host, timeout=Timeout(connect=0.2, total=10))
    assert refused.error is not None and refused.error.kind == "db.connection" and refused.error.retryable

    refusals: list[Exception] = []
    is_locked = driver._is_locked
    monkeypatch.setattr(driver, "_is_locked", lambda problem: refusals.append(problem) or is_locked(problem))

    async def wait() -> Outcome:
        task = asyncio.create_task(
            load("duckdb")(tool_call("duckdb", {"file": "x.db", "command": "select 1 as a"}, host=host))
        )
        await until(lambda: refusals)
        await asyncio.to_thread(holder.communicate)
        outcome = await task
        await close_loop_resources()
        return outcome

    assert asyncio.run(wait()).data["rows"] == [{"a": 1}]


def test_an_unused_file_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = ToolHost(folder=tmp_path)
        await load("duckdb")(tool_call("duckdb", {"file": "x.db", "command": "select 1"}, host=host))
        code = f"import duckdb; duckdb.connect({str(tmp_path / 'x.db')!r}).close()"

        async def can_be_opened_elsewhere() -> bool:
            other = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True)
            return other.returncode == 0

        await until(can_be_opened_elsewhere)
        await close_loop_resources()

    asyncio.run(scenario())


def test_a_large_result_is_streamed_to_the_store_as_a_table() -> None:
    host = ToolHost()
    command = "select i as id, 'n' || i as name, [i] as l, '{\"i\": 1}'::json as j from range(120000) t(i)"
    outcome = sql(command, spec={"inline_rows": 1000}, host=host)
    assert outcome.ref is not None and outcome.ref.meta.rows == 120_000
    assert outcome.data is None
    assert (outcome.extracts["row_count"], outcome.extracts["columns"]) == (120_000, ["id", "name", "l", "j"])
    file = pq.ParquetFile(io.BytesIO(next(iter(host.results.values()))))
    assert file.metadata.num_row_groups == 2
    resolved = run_tool("resolve", {"ref": msgspec.to_builtins(outcome.ref), "limit": 2, "offset": 119_998}, host=host)
    assert resolved.data["rows"] == sql(command + " order by id offset 119998").data["rows"]


def test_a_copy_creates_its_target_folder(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    assert sql("copy (select 1 as a) to 'new/folder/x.parquet'", host=host).error is None
    assert sql("select * from 'new/folder/x.parquet'", host=host).data["rows"] == [{"a": 1}]


def test_rows_of_a_table_may_have_different_keys() -> None:
    rows = [{"a": 1}, {"a": 2, "c": [1]}, {"b": "x"}]
    outcome = run_tool("duckdb", {"tables": {"t": rows}, "command": "select * from t"})
    assert outcome.data["rows"] == [
        {"a": 1, "c": None, "b": None}, {"a": 2, "c": [1], "b": None}, {"a": None, "c": None, "b": "x"},
    ]  # fmt: skip


def test_a_file_may_be_attached_right_after_it_was_used(tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)

    async def all_of_it() -> list[Any]:
        def call(**given: Any) -> Any:
            return load("duckdb")(tool_call("duckdb", given, host=host))

        first = await call(file="x.duckdb", command="create table t as select 1 as a")
        calls = []
        for number in range(3):
            calls.append(call(attach={"other": "x.duckdb"}, command="select a from other.t"))
            calls.append(call(file="x.duckdb", command=f"insert into t values ({number})"))
        return [first, *await asyncio.gather(*calls)]

    outcomes = asyncio.run(all_of_it())
    assert [outcome.error for outcome in outcomes] == [None] * 7


def test_nanoseconds_are_preserved() -> None:
    outcome = run_tool("duckdb", {"command": "select timestamp_ns '2020-01-01 01:02:03.123456789' as t"})
    assert outcome.data["rows"] == [{"t": "2020-01-01T01:02:03.123456789"}]


def test_calls_attach_databases_and_change_settings_only_for_themselves(tmp_path: Path) -> None:
    """They use one file, and what they attach has the same name, or is the same file with another name."""
    for name in "ab":
        with duckdb.connect(str(tmp_path / f"{name}.db")) as instance:
            instance.execute(f"CREATE TABLE t AS SELECT '{name}' AS v")
    host = ToolHost(folder=tmp_path)
    slow = "SELECT v, (SELECT count(*) FROM range(1000000)) AS n FROM other.t"
    calls: list[tuple[dict[str, Any], Any]] = [
        ({"query": slow, "attach": {"other": "a.db"}}, "a"),
        ({"query": slow, "attach": {"other": "b.db"}}, "b"),
        ({"query": slow, "attach": {"other": "a.db"}}, "a"),
        ({"query": "SELECT v FROM same.t", "attach": {"same": "a.db"}}, "a"),
        ({"query": "SET threads = 1; SELECT current_setting('threads') AS v"}, 1),
        ({"query": "SELECT count(*) FILTER (database_name IN ('other', 'same')) AS v FROM duckdb_databases()"}, 0),
        ({"query": f"ATTACH '{tmp_path}/b.db' AS x; SELECT v FROM x.t"}, "b"),
        ({"query": "SELECT current_setting('threads') > 1 AS v"}, True),
    ]

    async def scenario() -> None:
        async def value(fields: dict[str, Any]) -> Any:
            outcome = await load("duckdb")(tool_call("duckdb", {"file": "main.db", **fields}, host=host))
            assert outcome.status == "ok", (fields, outcome.error)
            return outcome.data["rows"][-1]["v"]

        await value({"query": "CREATE TABLE z AS SELECT 1 AS v; SELECT 1 AS v"})
        found = await asyncio.gather(*(value(fields) for fields, _ in calls))
        assert found == [expected for _, expected in calls]
        await close_loop_resources()

    asyncio.run(scenario())
