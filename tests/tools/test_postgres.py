from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest

from devcluster import services
from noetl.core.model.outcome import Outcome
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load
from tests.waiting import until

ACTIVE = """select query from pg_stat_activity
            where query like '%{}%' and state = 'active' and pid <> pg_backend_pid()"""


def sql(database: str, command: Any, **others: Any) -> Outcome:
    spec = others.pop("spec", None)
    timeout = others.pop("timeout", None)
    host = others.pop("host", None)
    return run_tool("postgres", {"auth": database, "command": command, **others}, spec=spec, timeout=timeout, host=host)


def rows(database: str, command: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(command).fetchall()


@pytest.fixture
def table(database: str) -> str:
    with psycopg.connect(database) as connection:
        connection.execute("create table t (id int primary key, name text check (name <> 'bad'))")
    return database


# ── answers ─────────────────────────────────────────────────────────────────────────────


def test_rows_are_mappings_and_every_statement_has_its_answer(table: str) -> None:
    outcome = sql(table, "insert into t values (1, 'a'), (2, 'b'); select id, name from t order by id")
    assert outcome.status == "ok"
    last = {"rows": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], "row_count": 2, "columns": ["id", "name"]}
    first = {"rows": [], "row_count": 2, "columns": []}
    assert outcome.data == {**last, "command_0": first, "command_1": last}
    assert outcome.helpers["pg"]["code"] is None


def test_an_empty_result_still_has_its_columns(table: str) -> None:
    assert sql(table, "select id, name from t").data["columns"] == ["id", "name"]


@pytest.mark.parametrize("spelling", ["command", "commands", "query", "queries", "sql", "statement"])
def test_every_spelling_of_the_statement_works(database: str, spelling: str) -> None:
    assert run_tool("postgres", {"auth": database, spelling: "select 1 as a"}).data["rows"] == [{"a": 1}]
    assert run_tool("postgres", {"auth": database, spelling: ["select 1 as a", "select 2 as a"]}).data["rows"] == [
        {"a": 2}
    ]


def test_statements_may_bring_their_own_parameters(database: str) -> None:
    commands = [{"sql": "select %(a)s::int as a", "params": {"a": 1}}, {"sql": "select :b as b", "params": {"b": "x"}}]
    data = sql(database, commands).data
    assert data["command_0"]["rows"] == [{"a": 1}]
    assert data["rows"] == [{"b": "x"}]


def test_statements_may_come_from_a_file(database: str, tmp_path: Path) -> None:
    (tmp_path / "report.sql").write_text("-- a report; of sorts\nselect 'ä' as a;")
    outcome = run_tool("postgres", {"auth": database, "script": {"uri": "report.sql"}}, host=ToolHost(folder=tmp_path))
    assert outcome.data["rows"] == [{"a": "ä"}]
    missing = run_tool("postgres", {"auth": database, "script": {"uri": "gone.sql"}}, host=ToolHost(folder=tmp_path))
    assert missing.error is not None and missing.error.kind == "schema" and "gone.sql" in missing.error.message


def test_values_are_converted_to_json_types(database: str) -> None:
    outcome = sql(
        database,
        """select 1.50::numeric as d, 12::numeric as i, 12345678901234567.891::numeric as exact, 'NaN'::numeric as dn,
           'NaN'::float8 as n, '-infinity'::float8 as f, timestamp '2024-02-03 04:05:06.5' as t,
           timestamptz '2024-02-03 04:05:06+02' at time zone 'UTC' as tz, date '2024-02-03' as day,
           'infinity'::date as never,
           interval '1 day 2 hours' as span, '0f8fad5b-d9cb-469f-a165-70867728950e'::uuid as u, '\\x00ff'::bytea as b,
           '{"a": [1, null]}'::jsonb as j, array[1, null, 3] as l, array[1.5, 2] as dl, null as nothing, true as yes,
           int4range(1, 5) as r, '10.0.0.1'::inet as ip""",
    )
    assert outcome.data["rows"] == [
        {
            "d": 1.5, "i": 12, "exact": "12345678901234567.891", "dn": "NaN", "n": "NaN", "f": "-Infinity",
            "t": "2024-02-03T04:05:06.500000", "tz": "2024-02-03T02:05:06", "day": "2024-02-03", "never": "infinity",
            "span": "P1DT2H", "u": "0f8fad5b-d9cb-469f-a165-70867728950e", "b": "AP8=", "j": {"a": [1, None]},
            "l": [1, None, 3], "dl": [1.5, 2], "nothing": None, "yes": True, "r": "[1,5)", "ip": "10.0.0.1",
        }
    ]  # fmt: skip


def test_duplicate_column_names_are_numbered(database: str) -> None:
    assert sql(database, "select 1 as a, 2 as a").data["rows"] == [{"a": 1, "a_2": 2}]


# ── parameters ──────────────────────────────────────────────────────────────────────────


def test_parameters_are_bound_not_pasted(table: str) -> None:
    evil = "'); drop table t; --"
    sql(table, "insert into t values (%(id)s, %(name)s)", params={"id": 1, "name": evil})
    assert rows(table, "select * from t") == [(1, evil)]


def test_parameters_of_every_shape_find_their_type(database: str) -> None:
    outcome = sql(
        database,
        "select :ids::int[] as ids, 2 = any(:ids) as has, :map as map, :list as list, :empty::jsonb as empty, "
        ":text::date as day, :none::int as none, :big::bigint + 1 as big, 'a%' || :text as text",
        params={"ids": [1, 2], "map": {"a": 1}, "list": [{"a": 1}], "empty": [], "text": "2024-01-02", "none": None,
                "big": 2**40},
    )  # fmt: skip
    assert outcome.data["rows"] == [
        {"ids": [1, 2], "has": True, "map": {"a": 1}, "list": [{"a": 1}], "empty": [], "day": "2024-01-02",
         "none": None, "big": 2**40 + 1, "text": "a%2024-01-02"}
    ]  # fmt: skip


def test_a_list_of_parameter_sets_runs_the_statement_for_each(table: str) -> None:
    many = [{"id": number, "name": f"n{number}"} for number in range(500)]
    assert sql(table, "insert into t values (%(id)s, :name)", params=many).data["row_count"] == 500
    assert rows(table, "select count(*), max(name) from t") == [(500, "n99")]


def test_a_missing_parameter_is_named_and_nothing_runs(table: str) -> None:
    outcome = sql(table, "insert into t values (1, 'a'); select %(x)s", params={"y": 1})
    assert outcome.error is not None and outcome.error.kind == "schema" and "%(x)s" in outcome.error.message
    assert rows(table, "select * from t") == []


# ── transactions ────────────────────────────────────────────────────────────────────────


def test_statements_of_one_task_are_one_transaction(table: str) -> None:
    outcome = sql(table, ["insert into t values (1, 'a')", "insert into t values (1, 'again')"])
    assert outcome.error is not None and outcome.error.kind == "db.constraint"
    assert rows(table, "select * from t") == []


def test_without_a_transaction_each_statement_commits(table: str) -> None:
    sql(table, ["insert into t values (1, 'a')", "insert into t values (1, 'again')"], spec={"transaction": False})
    assert rows(table, "select * from t") == [(1, "a")]


def test_a_transaction_the_author_steers_is_left_to_the_author(table: str) -> None:
    assert sql(table, "begin; insert into t values (1, 'a'); commit; insert into t values (2, 'b')").status == "ok"
    assert len(rows(table, "select * from t")) == 2


def test_a_transaction_the_author_forgot_to_end_is_undone(table: str) -> None:
    async def both() -> list[Outcome]:
        run = load("postgres")
        first = await run(tool_call("postgres", {"auth": table, "command": "begin; insert into t values (1, 'a')"}))
        second = await run(tool_call("postgres", {"auth": table, "command": "select count(*) as n from t"}))
        await close_loop_resources()
        return [first, second]

    assert [outcome.status for outcome in asyncio.run(both())] == ["ok", "ok"]
    assert rows(table, "select * from t") == []


def test_a_single_statement_runs_outside_a_transaction(table: str) -> None:
    assert sql(table, "vacuum t").status == "ok"


def test_the_isolation_level_can_be_set(database: str) -> None:
    outcome = sql(database, "show transaction_isolation", spec={"isolation": "serializable"})
    assert outcome.data["rows"] == [{"transaction_isolation": "serializable"}]
    assert sql(database, "select 1", spec={"isolation": "none; drop"}).error.kind == "schema"  # type: ignore[union-attr]


def test_session_state_is_reset_between_tasks(database: str) -> None:
    async def both() -> tuple[Outcome, Outcome]:
        run = load("postgres")
        await run(
            tool_call("postgres", {"auth": database, "command": "set search_path to nowhere; select pg_backend_pid()"})
        )
        command = "select current_setting('search_path') as path, pg_backend_pid() as pid"
        first = await run(tool_call("postgres", {"auth": database, "command": command}))
        await run(tool_call("postgres", {"auth": database, "command": "select 1"}))
        second = await run(tool_call("postgres", {"auth": database, "command": command}))
        await close_loop_resources()
        return first, second

    first, second = asyncio.run(both())
    assert first.data["rows"][0]["path"] == '"$user", public'
    assert second.data["rows"][0]["path"] == '"$user", public'


# ── exactly once ────────────────────────────────────────────────────────────────────────


def test_an_attempt_that_is_repeated_has_its_effect_once(table: str) -> None:
    command = "insert into t (id, name) select count(*), 'x' from t returning id"
    first = sql(table, command, spec={"exactly_once": True})
    again = sql(table, command, spec={"exactly_once": True})
    assert rows(table, "select count(*) from t") == [(1,)]
    assert again.data == first.data
    assert (first.helpers["pg"]["repeated"], again.helpers["pg"]["repeated"]) == (False, True)


def test_an_attempt_that_failed_does_not_use_up_the_key(table: str) -> None:
    spec = {"exactly_once": True}
    assert sql(table, "insert into t values (1, 'bad')", spec=spec).status == "error"
    assert sql(table, "insert into t values (1, 'good')", spec=spec).status == "ok"
    assert rows(table, "select name from t") == [("good",)]


def test_concurrent_attempts_have_one_effect(table: str) -> None:
    async def both() -> list[Outcome]:
        run = load("postgres")
        command = "select pg_sleep(0.1); insert into t (id, name) select count(*), 'x' from t returning id"
        calls = [
            tool_call("postgres", {"auth": table, "command": command}, spec={"exactly_once": True}) for _ in range(4)
        ]
        outcomes = await asyncio.gather(*(run(call) for call in calls))
        await close_loop_resources()
        return list(outcomes)

    outcomes = asyncio.run(both())
    assert [outcome.data["rows"] for outcome in outcomes] == [[{"id": 0}]] * 4
    assert rows(table, "select count(*) from t") == [(1,)]


# ── errors ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "kind", "sqlstate", "retryable"),
    [
        ("selec 1", "db.syntax", "42601", False),
        ("select * from nowhere", "db.syntax", "42P01", False),
        ("insert into t values (1, 'bad')", "db.constraint", "23514", False),
        ("insert into t values (null, 'a')", "db.constraint", "23502", False),
        ("select 1/0", "schema", "22012", False),
        ("select 'x'::int", "schema", "22P02", False),
        (
            "do $$ begin raise exception 'no such customer' using hint = 'ask sales'; end $$",
            "db.constraint",
            "P0001",
            False,
        ),
        ("do $$ begin raise exception 'd' using errcode = '40P01'; end $$", "db.deadlock", "40P01", True),
        ("do $$ begin raise exception 's' using errcode = '40001'; end $$", "db.deadlock", "40001", True),
        ("do $$ begin raise exception 'f' using errcode = '53100'; end $$", "storage.quota", "53100", False),
    ],
)
def test_errors_have_a_kind_and_the_servers_message(
    table: str, command: str, kind: str, sqlstate: str, retryable: bool
) -> None:
    outcome = sql(table, command)
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == (kind, retryable)
    assert outcome.helpers["pg"]["code"] == outcome.helpers["pg"]["sqlstate"] == sqlstate
    assert outcome.helpers["pg"]["message"] in outcome.error.message


def test_a_constraint_names_itself(table: str) -> None:
    pg = sql(table, "insert into t values (1, 'a'), (1, 'b')").helpers["pg"]
    assert (pg["table"], pg["constraint"]) == ("t", "t_pkey")
    assert "(id)=(1)" in pg["detail"]


def test_wrong_credentials_are_not_repeated_in_the_message(postgres: dict[str, Any], database: str) -> None:
    wrong = database.replace(postgres["password"], "hush-hush")
    outcome = sql(wrong, "select 1")
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("auth", False)
    assert "hush-hush" not in str(outcome)


def test_a_database_that_does_not_exist_is_not_found(database: str) -> None:
    assert sql(database + "x", "select 1").error.kind == "not_found"  # type: ignore[union-attr]


def test_an_unreachable_server_is_a_connection_error() -> None:
    outcome = sql(f"postgresql://a:b@127.0.0.1:{services.free_port()}/x", "select 1")
    assert outcome.error is not None and outcome.error.kind == "db.connection" and outcome.error.retryable


@pytest.mark.parametrize(
    ("input", "says"),
    [
        ({"auth": "mysql://a:b@c/d", "command": "select 1"}, "mysql://"),
        ({"command": "select 1"}, "no host"),
        ({"auth": "postgresql://u:sesame@[bad", "command": "select 1"}, "cannot be read"),
        ({"auth": "postgresql://a:b@c/d"}, "no SQL"),
        ({"auth": "postgresql://a:b@c/d", "command": "-- nothing"}, "no statement"),
        ({"auth": "postgresql://a:b@c/d", "command": 5}, "no SQL"),
        ({"auth": 5, "command": "select 1"}, "auth must be the name of a credential"),
    ],
)
def test_bad_input_is_a_clear_error(input: dict[str, Any], says: str) -> None:
    outcome = run_tool("postgres", input)
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert says in outcome.error.message
    assert "sesame" not in str(outcome)


def test_an_unknown_credential_is_named() -> None:
    outcome = run_tool("postgres", {"auth": "nope", "command": "select 1"})
    assert outcome.error is not None and outcome.error.kind == "auth" and '"nope"' in outcome.error.message


def test_two_transactions_that_wait_for_each_other_end_as_deadlock_and_one_retry_helps(table: str) -> None:
    sql(table, "insert into t values (1, 'a'), (2, 'b')")

    async def update(first: int, second: int) -> Outcome:
        run = load("postgres")
        command = f"""update t set name = 'x' where id = {first}; select pg_sleep(0.3);
                      update t set name = 'y' where id = {second}"""
        return await run(tool_call("postgres", {"auth": table, "command": command}))

    async def deadlock() -> tuple[list[Outcome], Outcome]:
        outcomes = list(await asyncio.gather(update(1, 2), update(2, 1)))
        again = await update(1, 2)
        await close_loop_resources()
        return outcomes, again

    outcomes, again = asyncio.run(deadlock())
    assert sorted(outcome.status for outcome in outcomes) == ["error", "ok"]
    failed = next(outcome for outcome in outcomes if outcome.error)
    assert failed.error is not None and failed.error.kind == "db.deadlock" and failed.error.retryable
    assert failed.helpers["pg"]["code"] == "40P01"
    assert again.status == "ok"


# ── connections ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("prefix", ["", "db_"])
def test_a_credentials_fields_are_read_with_and_without_prefix(postgres: dict, database: str, prefix: str) -> None:
    name = "name" if prefix else "database"
    fields = {prefix + key: postgres[key] for key in ("host", "port", "user", "password")}
    host = ToolHost(credentials={"pg": {**fields, prefix + name: database.rpartition("/")[2]}})
    for auth in ("pg", {"credential": "pg"}, {"key": "pg"}, {"source": "credential", "type": "postgres", "key": "pg"}):
        outcome = run_tool("postgres", {"auth": auth, "command": "select current_database() as d"}, host=host)
        assert outcome.data["rows"] == [{"d": database.rpartition("/")[2]}]
    outcome = run_tool("postgres", {"credential": "pg", "command": "select 1 as a"}, host=host)
    assert outcome.data["rows"] == [{"a": 1}]


def test_a_credential_may_be_a_dsn(database: str) -> None:
    for value in (database, {"dsn": database}, {"value": database}, {"connection_string": database}):
        outcome = run_tool(
            "postgres", {"auth": "pg", "command": "select 1 as a"}, host=ToolHost(credentials={"pg": value})
        )
        assert outcome.data["rows"] == [{"a": 1}]


def test_fields_of_the_task_override_the_credential(database: str) -> None:
    outcome = run_tool(
        "postgres", {"auth": database, "database": "postgres", "command": "select current_database() as d"}
    )
    assert outcome.data["rows"] == [{"d": "postgres"}]


def test_connections_are_shared_and_bounded(database: str) -> None:
    async def many() -> list[Outcome]:
        run = load("postgres")
        call = {"auth": database, "command": "select pg_backend_pid() as pid, pg_sleep(0.02)"}
        outcomes = await asyncio.gather(*(run(tool_call("postgres", call, spec={"pool_size": 3})) for _ in range(12)))
        await close_loop_resources()
        return list(outcomes)

    assert len({outcome.data["rows"][0]["pid"] for outcome in asyncio.run(many())}) == 3


def test_an_exhausted_pool_is_a_clear_error(database: str) -> None:
    from noetl.core.model.tool import Timeout

    async def both() -> Outcome:
        run = load("postgres")
        slow = {"auth": database, "command": "select pg_sleep(5)"}
        spec, timeout = {"pool_size": 1}, Timeout(connect=0.2, total=10)
        first = asyncio.create_task(run(tool_call("postgres", slow, spec=spec)))
        await until(lambda: rows(database, ACTIVE.format("pg_sleep(5)")))
        second = await run(tool_call("postgres", slow, spec=spec, timeout=timeout))
        first.cancel()
        await asyncio.wait([first])
        await close_loop_resources()
        return second

    outcome = asyncio.run(both())
    assert outcome.error is not None and outcome.error.kind == "db.connection" and "pool_size" in outcome.error.message


def test_a_statement_that_takes_too_long_is_cancelled_on_the_server(database: str) -> None:
    for command in ("select pg_sleep(30)", "select 1; select pg_sleep(30)"):
        started = time.monotonic()
        outcome = sql(database, command, timeout=0.3)
        assert outcome.error is not None and outcome.error.kind == "db.timeout" and outcome.error.retryable
        assert time.monotonic() - started < 5
    assert rows(database, ACTIVE.format("pg_sleep(30)")) == []


def test_cancellation_stops_the_statement_and_keeps_the_connection(database: str) -> None:
    async def cancelled() -> tuple[int, int, list[Any]]:
        run = load("postgres")
        pid = (await run(tool_call("postgres", {"auth": database, "command": "select pg_backend_pid() as p"}))).data
        task = asyncio.create_task(run(tool_call("postgres", {"auth": database, "command": "select pg_sleep(60)"})))
        await until(lambda: rows(database, ACTIVE.format("pg_sleep(60)")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = (await run(tool_call("postgres", {"auth": database, "command": "select pg_backend_pid() as p"}))).data
        active = ACTIVE.format("pg_sleep(60)")
        left = (await run(tool_call("postgres", {"auth": database, "command": active}))).data
        await close_loop_resources()
        return pid["rows"][0]["p"], after["rows"][0]["p"], left["rows"]

    before, after, active = asyncio.run(cancelled())
    assert before == after
    assert active == []


def test_a_server_that_dies_in_the_middle_is_a_connection_error_and_its_return_is_noticed(tmp_path: Path) -> None:
    with services.Postgres(tmp_path / "pg") as server:

        async def crash() -> tuple[Outcome, Outcome, Outcome]:
            run = load("postgres")
            call = {"auth": server.dsn(), "command": "select pg_sleep(60)"}
            task = asyncio.create_task(run(tool_call("postgres", call)))
            await until(lambda: rows(server.dsn(), ACTIVE.format("pg_sleep(60)")))
            await run(tool_call("postgres", {**call, "command": "select 1"}))  # a second connection, idle from now on
            await asyncio.to_thread(server.kill)
            during = await task
            gone = await run(tool_call("postgres", {**call, "command": "select 1"}))
            await asyncio.to_thread(server.start)
            back = await run(tool_call("postgres", {**call, "command": "select 1 as a"}))
            await close_loop_resources()
            return during, gone, back

        during, gone, back = asyncio.run(crash())
    assert during.error is not None and (during.error.kind, during.error.retryable) == ("db.connection", True)
    assert gone.error is not None and gone.error.kind == "db.connection"
    assert back.data["rows"] == [{"a": 1}]


# ── notices, COPY, large results ────────────────────────────────────────────────────────


def test_notices_are_returned_and_logged(database: str) -> None:
    host = ToolHost()
    outcome = sql(database, "do $$ begin raise notice 'half way: %', 50; end $$", host=host)
    assert outcome.helpers["pg"]["notices"] == ["NOTICE: half way: 50"]
    assert host.lines == [("stderr", "NOTICE: half way: 50")]


def test_copy_in_reads_text_rows_and_files(table: str, tmp_path: Path) -> None:
    assert sql(table, "copy t from stdin (format csv)", stdin="1,a\n2,b\n").data["row_count"] == 2
    assert sql(table, "copy t (id, name) from stdin", stdin=[{"id": 3, "name": "c"}, {"id": 4}]).data["row_count"] == 2
    (tmp_path / "more.csv").write_text("id,name\n5,e\n")
    host = ToolHost(folder=tmp_path)
    assert sql(table, "copy t from stdin (format csv, header)", stdin={"file": "more.csv"}, host=host).status == "ok"
    assert rows(table, "select * from t order by id") == [(1, "a"), (2, "b"), (3, "c"), (4, None), (5, "e")]
    assert sql(table, "copy t from stdin").error.kind == "schema"  # type: ignore[union-attr]


def test_copy_out_returns_text_a_file_or_a_reference(table: str, tmp_path: Path) -> None:
    sql(table, "insert into t select n, 'x' from generate_series(1, 3) n")
    assert sql(table, "copy (select id from t order by id) to stdout").data["text"] == "1\n2\n3\n"
    host = ToolHost(folder=tmp_path)
    outcome = sql(table, "copy t to stdout (format csv)", stdout={"file": "t.csv"}, host=host)
    assert (tmp_path / "t.csv").read_text() == "1,x\n2,x\n3,x\n"
    assert outcome.data["bytes"] == 12
    outcome = sql(
        table, "copy (select repeat('y', 1000) from generate_series(1, 6000)) to stdout (format csv)", host=host
    )
    assert outcome.ref is not None and outcome.ref.meta.content_type == "text/plain"
    assert outcome.ref.meta.bytes == 6000 * 1001 and outcome.extracts["row_count"] == 6000


def test_a_large_result_is_streamed_to_the_store_as_a_table(database: str) -> None:
    host = ToolHost()
    command = (
        "select n as id, 'row ' || n as name, n / 4.0 as ratio, now() as at, jsonb_build_object('n', n) as doc, "
        "(n * 1.5)::numeric(12, 2) as price from generate_series(1, 20000) n"
    )
    outcome = sql(database, command, spec={"inline_rows": 1000}, host=host)
    assert outcome.data is None and outcome.extracts["row_count"] == 20_000
    assert outcome.ref is not None
    assert (outcome.ref.meta.rows, outcome.ref.meta.content_type) == (20_000, "application/vnd.apache.parquet")
    assert outcome.ref.meta.columns == ("id", "name", "ratio", "at", "doc", "price")
    table = pq.read_table(io.BytesIO(next(iter(host.results.values()))))
    assert table.num_rows == 20_000
    assert str(table.schema.field("price").type) == "decimal128(12, 2)"
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"

    from noetl.data.arrow_tables import rows_of

    inline = sql(database, command + " limit 3").data["rows"]
    stored = rows_of(table.slice(0, 3))
    for row in (*inline, *stored):
        row.pop("at")
    assert stored == inline
    assert host.counts[-1] == {"rows": 20_000}


def test_a_streamed_result_equals_an_inline_one(database: str) -> None:
    text = (
        "select * from (values (1, 'infinity'::date, '1 year 2 mons -3 days 04:05:06.5'::interval, array[1.5, 2], "
        "array['1 mon'::interval], '0044-03-15 01:00 BC'::timestamp), "
        "(2, '20000-01-01', '-00:00:01', null, array[]::interval[], '-infinity')) as t (id, d, iv, n, ivs, ts)"
    )
    small = run_tool("postgres", {"auth": database, "command": text})
    host = ToolHost()
    large = run_tool("postgres", {"auth": database, "command": text}, spec={"inline_rows": 1}, host=host)
    assert large.ref is not None, large.error
    resolved = run_tool("resolve", {"ref": msgspec.to_builtins(large.ref)}, host=host)
    assert small.data["rows"] == resolved.data["rows"]
    assert [row["iv"] for row in small.data["rows"]] == ["P1Y2M-3DT4H5M6.5S", "PT-1S"]
    assert small.data["rows"][0]["ivs"] == ["P1M"] and small.data["rows"][0]["d"] == "infinity"


def test_a_column_that_cannot_be_stored_is_named(database: str) -> None:
    text = "select 1 as id, array[[1,2],[3,4]] as grid union all select 2, null"
    outcome = run_tool("postgres", {"auth": database, "command": text}, spec={"inline_rows": 1})
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "'grid'" in outcome.error.message and "result_format: jsonl" in outcome.error.message
    outcome = run_tool(
        "postgres", {"auth": database, "command": text}, spec={"inline_rows": 1, "result_format": "jsonl"}
    )
    assert outcome.error is None
