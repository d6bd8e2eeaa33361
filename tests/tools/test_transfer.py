"""Transfers from every kind of source to every kind of target, with real systems."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest

from devcluster import services
from noetl.core.model.outcome import Outcome
from noetl.core.templates.deferred import DeferredTemplate
from noetl.testing.tools import ToolHost, run_tool
from tests.waiting import until

ROWS = [{"id": number, "name": f"n{number}", "ratio": number / 4, "ok": number % 2 == 0} for number in range(1, 26)]


@pytest.fixture
def host(tmp_path: Path, s3: dict[str, Any]) -> ToolHost:
    return ToolHost(folder=tmp_path, credentials={"store": s3})


def move(host: ToolHost, source: Any, *targets: Any, **others: Any) -> Outcome:
    extra = {name: others.pop(name) for name in ("spec", "timeout", "scopes") if name in others}
    given = {"source": source} if isinstance(source, dict) else {"data": source}
    return run_tool("transfer", {**given, "targets": list(targets), **others}, host=host, **extra)


def query(database: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(text).fetchall()


def ids(place: str, table: str = "t") -> list[int]:
    """The ids in a table of any kind."""
    if place.startswith("postgresql:"):
        return [row[0] for row in query(place, f"select id from {table} order by id")]
    if place.endswith(".duckdb"):
        with duckdb.connect(place) as connection:
            return [row[0] for row in connection.execute(f"select id from {table} order by id").fetchall()]
    connection = sqlite3.connect(place)
    try:
        return [row[0] for row in connection.execute(f"select id from {table} order by id").fetchall()]
    finally:
        connection.close()


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """A table `t` that does not exist yet, as a source or target, and where it is."""
    if request.param == "postgres":
        place = request.getfixturevalue("database")
        yield {"kind": "postgres", "auth": place, "table": "t"}, place
    else:
        place = str(tmp_path / f"x.{request.param}")
        yield {"kind": request.param, "file": place, "table": "t"}, place


# ── every kind to every kind ────────────────────────────────────────────────────────────


def test_rows_reach_a_database_and_come_back_as_files(host: ToolHost, table: tuple[dict, str], tmp_path: Path) -> None:
    target, place = table
    outcome = move(host, ROWS, target, chunk={"size": 10})
    assert outcome.error is None
    assert outcome.data == {
        "rows": 25,
        "count": 25,
        "chunks": 3,
        "targets": [
            {"kind": target["kind"], "place": "t", "mode": "append", "rows": 25, "chunks": 3, "status": "ok"},
        ],
    }
    assert ids(place) == list(range(1, 26))
    formats = ("parquet", "json", "jsonl", "csv", "arrow")
    back = move(host, target, *({"kind": "file", "path": f"out/x.{format}"} for format in formats))
    assert back.error is None
    assert pq.read_table(tmp_path / "out/x.parquet").num_rows == 25
    assert len(json.loads((tmp_path / "out/x.json").read_text())) == 25
    assert len((tmp_path / "out/x.jsonl").read_text().splitlines()) == 25
    assert (tmp_path / "out/x.csv").read_text().splitlines()[0] == "id,name,ratio,ok"
    for format in formats:
        again = move(host, {"kind": "file", "path": f"out/x.{format}"}, {**target, "table": f"again_{format}"})
        assert again.error is None, again.error
        assert ids(place, f"again_{format}") == list(range(1, 26))


def test_values_of_every_type_are_preserved(host: ToolHost, database: str, tmp_path: Path) -> None:
    columns = """n, n * 1.25::numeric as loose, (n * 1.25)::numeric(10, 2) as exact, 'tëxt, "quoted"
 line' as text, ''::text as empty, null::text as nothing, n::float8 / 3 as ratio, n % 2 = 0 as ok, date '2024-02-03' as day,
        timestamp '2024-02-03 04:05:06.789' as at, timestamptz '2024-02-03 04:05:06+02' as moment, time '04:05' as clock,
        '\\x00ff'::bytea as raw, jsonb_build_object('n', n, 'l', array[1, null]) as doc, array[n, null] as numbers,
        array['a', 'b"\\,{}', null] as words, '0f8fad5b-d9cb-469f-a165-70867728950e'::uuid as id, interval '1 mon 2 days' as span,
        '10.0.0.1'::inet as ip"""
    query_text = f"select {columns} from generate_series(1, 3) n order by n"
    source = {"kind": "postgres", "auth": database, "query": query_text}
    piped = move(host, source, {"kind": "postgres", "auth": database, "table": "piped"})
    beside = move(
        host,
        source,
        {"kind": "postgres", "auth": database, "table": "copied"},
        {"kind": "duckdb", "file": "x.duckdb", "table": "t"},
        {"kind": "file", "path": "x.parquet"},
        {"kind": "sqlite", "file": "x.db", "table": "t"},
    )
    assert (piped.error, beside.error) == (None, None)
    expected = query(database, query_text)
    assert query(database, "select * from piped order by n") == expected
    assert query(database, "select * from copied order by n") == expected
    back = move(
        host,
        {"kind": "duckdb", "file": "x.duckdb", "query": "from t order by n"},
        {"kind": "postgres", "auth": database, "table": "back"},
    )
    assert back.error is None
    exact = "n, exact, text, empty, nothing, ratio, ok, day, at, moment, clock, raw, doc, numbers, words"
    assert query(database, f"select {exact} from back order by n") == query(
        database, f"select {exact} from piped order by n"
    )
    schema = pq.read_schema(tmp_path / "x.parquet")
    assert str(schema.field("exact").type) == "decimal128(10, 2)"
    assert str(schema.field("moment").type) == "timestamp[us, tz=UTC]"


def test_objects_are_sources_and_targets(host: ToolHost, bucket: str, database: str) -> None:
    store = {"kind": "s3", "auth": "store"}
    outcome = move(
        host, ROWS, *({**store, "path": f"s3://{bucket}/x.{format}"} for format in ("parquet", "csv", "jsonl"))
    )
    assert outcome.error is None
    for format in ("parquet", "csv", "jsonl"):
        source = {**store, "path": f"{bucket}/x.{format}"}
        assert move(host, source, {"kind": "postgres", "auth": database, "table": f"from_{format}"}).error is None
        assert ids(database, f"from_{format}") == list(range(1, 26))


def test_a_stored_result_is_a_source(host: ToolHost, database: str) -> None:
    large = {"auth": database, "command": "select n as id, 'x' as name from generate_series(1, 5000) n"}
    reference = msgspec.to_builtins(run_tool("postgres", large, host=host, spec={"inline_rows": 10}).ref)
    assert move(host, reference, {"kind": "postgres", "auth": database, "table": "t"}).error is None
    assert len(ids(database)) == 5000
    small = run_tool("postgres", {**large, "command": "select 1 as id"}, host=host).data
    assert (
        move(host, {"kind": "data", "data": small}, {"kind": "postgres", "auth": database, "table": "u"}).data["rows"]
        == 1
    )


# ── modes ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_append_replace_and_upsert(host: ToolHost, table: tuple[dict, str], tmp_path: Path, beside: bool) -> None:
    target, place = table
    other = [{"kind": "file", "path": "other.parquet"}] if beside else []

    def run(rows: list[dict[str, Any]], **how: Any) -> Outcome:
        source: Any = rows
        if target["kind"] == "postgres":  # through the short cut as well
            values = ", ".join(f"({row['id']}, '{row['name']}')" for row in rows) or "(1, 'x')"
            where = "" if rows else " where false"
            source = {**target, "query": f"select * from (values {values}) as v(id, name){where}"}
        return move(host, source, {**target, **how}, *other)

    few = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert run(few).error is None
    assert run(few, mode="insert").error is None
    assert ids(place) == [1, 1, 2, 2]
    assert run([{"id": 3, "name": "c"}], mode="replace").error is None
    assert ids(place) == [3]
    upsert = {"mode": "upsert", "key": "id"}
    changed = [{"id": 3, "name": "C"}, {"id": 4, "name": "d"}, {"id": 4, "name": "D"}]
    assert run(changed, **upsert).error is None  # no unique index: replaced by key
    assert ids(place) == [3, 4]
    made = {**upsert, "table": "made"}
    assert run(few, **made).error is None
    assert run([{"id": 2, "name": "B"}, {"id": 5, "name": "e"}], **made).error is None
    assert ids(place, "made") == [1, 2, 5]
    if target["kind"] == "postgres":
        assert query(place, "select name from t order by id") == [("C",), ("D",)]
        assert query(place, "select name from made order by id") == [("a",), ("B",), ("e",)]


def test_replacing_by_nothing_leaves_nothing(host: ToolHost, table: tuple[dict, str]) -> None:
    target, place = table
    move(host, ROWS, target)
    assert move(host, [], {**target, "mode": "replace"}).data["rows"] == 0
    assert ids(place) == []
    move(host, ROWS, target)
    assert (
        move(
            host, {**target, "query": "select * from t where id < 0"}, {**target, "mode": "replace", "table": "u"}
        ).error
        is None
    )
    assert ids(place, "u") == []


def test_an_existing_table_keeps_its_types_and_defaults(host: ToolHost, database: str) -> None:
    query_text = "create table t (id bigint, at date default current_date, note varchar(20), doc jsonb, tags text[])"
    with psycopg.connect(database) as connection:
        connection.execute(query_text)
    rows = [
        {"id": 1, "note": "x", "doc": {"a": 1}, "tags": ["a", None]},
        {"id": 2, "note": None, "doc": [1], "tags": []},
    ]
    assert move(host, rows, {"kind": "postgres", "auth": database, "table": "t"}).error is None
    found = query(database, "select id, at = current_date, note, doc, tags from t order by id")
    assert found == [(1, True, "x", {"a": 1}, ["a", None]), (2, True, None, [1], [])]


def test_a_missing_table_is_an_error_with_create_false(host: ToolHost, table: tuple[dict, str]) -> None:
    target, _ = table
    outcome = move(host, ROWS, {**target, "create": False})
    assert (
        outcome.error is not None
        and outcome.error.kind == "schema"
        and "the table does not exist" in outcome.error.message
    )


def test_schemas_are_created(host: ToolHost, database: str, tmp_path: Path) -> None:
    source = {"kind": "postgres", "auth": database, "query": "select 1 as id"}
    assert move(host, source, {"kind": "postgres", "auth": database, "table": "deep.t"}).error is None
    assert move(host, [{"id": 1}], {"kind": "postgres", "auth": database, "table": "other.t"}).error is None
    assert move(host, [{"id": 1}], {"kind": "duckdb", "file": "x.duckdb", "table": "deep.t"}).error is None
    assert ids(database, "deep.t") == ids(database, "other.t") == ids(str(tmp_path / "x.duckdb"), "deep.t") == [1]


# ── mapping, chunks, templates ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["rows", "postgres"])
def test_columns_are_selected_renamed_and_computed(host: ToolHost, database: str, kind: str) -> None:
    target = {"kind": "postgres", "auth": database, "table": "t"}
    source: Any = [{"id": 1, "full_name": "ada", "extra": 5}]
    if kind == "postgres":
        source = {"kind": "postgres", "auth": database, "query": "select 1 as id, 'ada' as full_name, 5 as extra"}
    assert move(host, source, {**target, "mapping": {"key": "id", "name": "full_name"}}).error is None
    assert query(database, "select * from t") == [(1, "ada")]
    mapping = {
        "name": DeferredTemplate("{{ row.full_name | upper }}"),
        "key": "id",
        "source": {"value": "api"},
        "chunk": DeferredTemplate("{{ chunk.index }}"),
        "run": DeferredTemplate("{{ workload.day }}-{{ row.id }}"),
        "n": 7,
    }
    scopes = {"workload": {"day": "monday"}}
    outcome = move(host, source, {**target, "table": "u", "mapping": mapping}, scopes=scopes)
    assert outcome.error is None
    assert query(database, "select name, key, source, chunk, run, n from u") == [("ADA", 1, "api", 0, "monday-1", 7)]
    wrong = move(host, source, {**target, "mapping": {"name": "fullname"}})
    assert wrong.error is not None and wrong.error.kind == "schema"
    assert "'fullname'" in wrong.error.message and "full_name" in wrong.error.message


def test_templates_of_a_target_see_the_chunk(host: ToolHost, tmp_path: Path) -> None:
    path = DeferredTemplate(
        "{{ workload.day }}/{{ chunk.index }}-{{ chunk.size }}-{{ chunk.first }}-{{ chunk.last }}-{{ chunk.total }}.json"
    )
    outcome = move(
        host, ROWS, {"kind": "file", "path": path}, chunk={"size": 10}, scopes={"workload": {"day": "monday"}}
    )
    assert outcome.error is None
    names = sorted(file.name for file in (tmp_path / "monday").iterdir())
    assert names == ["0-10-True-False-3.json", "1-10-False-False-3.json", "2-5-False-True-3.json"]
    assert [row["id"] for row in json.loads((tmp_path / "monday" / names[2]).read_text())] == [21, 22, 23, 24, 25]


def test_the_total_is_counted_when_a_template_reads_it(host: ToolHost, database: str, tmp_path: Path) -> None:
    source = {"kind": "postgres", "auth": database, "query": "select n as id from generate_series(1, 25) n"}
    move(
        host, source, {"kind": "file", "path": DeferredTemplate("{{ chunk.index }}-of-{{ chunk.total }}.csv")}, chunk=10
    )
    assert sorted(file.name for file in tmp_path.glob("*-of-*")) == ["0-of-3.csv", "1-of-3.csv", "2-of-3.csv"]


def test_text_from_data_is_never_a_template(host: ToolHost, tmp_path: Path) -> None:
    assert move(host, ROWS, {"kind": "file", "path": "{{ chunk.index }}.json"}).error is None
    assert (tmp_path / "{{ chunk.index }}.json").exists()


# ── errors ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["alone", "beside"])
def test_when_one_target_fails_no_database_has_rows(host: ToolHost, database: str, tmp_path: Path, where: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table bad (id int check (id < 20))")
    source = {"kind": "postgres", "auth": database, "query": "select n as id from generate_series(1, 25) n order by n"}
    good = [
        {"kind": "postgres", "auth": database, "table": "good"},
        {"kind": "duckdb", "file": "x.duckdb", "table": "good"},
        {"kind": "sqlite", "file": "x.db", "table": "good"},
        {"kind": "file", "path": "good.parquet"},
    ]
    outcome = move(
        host,
        source,
        *(good if where == "beside" else []),
        {"kind": "postgres", "auth": database, "table": "bad"},
        chunk=10,
    )
    assert outcome.error is not None and outcome.error.kind == "db.constraint"
    assert "postgres bad" in outcome.error.message and "bad_id_check" in outcome.error.message
    assert ids(database, "bad") == []
    assert query(database, "select to_regclass('good')") == [(None,)]
    assert not (tmp_path / "good.parquet").exists() and not list(tmp_path.glob("*.unfinished"))


def test_a_target_that_only_warns_lets_the_others_go_on(
    host: ToolHost, table: tuple[dict, str], tmp_path: Path
) -> None:
    target, place = table
    if target["kind"] == "duckdb":  # where an upsert creates no primary key
        with duckdb.connect(place) as connection:
            connection.execute("create table picky (id bigint primary key)")
    move(host, [{"id": 15}], {**target, "table": "picky", "mode": "upsert", "key": "id"})
    picky = {**target, "table": "picky", "on_error": "warn"}
    outcome = move(host, [{"id": n} for n in range(1, 26)], picky, {"kind": "file", "path": "all.parquet"}, chunk=10)
    assert outcome.status == "ok"
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 25
    first, second = outcome.data["targets"]
    assert (first["status"], first["rows"], first["failed_chunks"]) == ("failed", 15, 1)
    assert (second["status"], second["rows"]) == ("ok", 25)
    assert ids(place, "picky") == [*range(1, 11), 15, *range(21, 26)]
    assert any("picky" in line for _, line in host.lines)


def test_a_target_that_cannot_be_reached_may_warn(host: ToolHost, tmp_path: Path) -> None:
    gone = f"postgresql://a:b@127.0.0.1:{services.free_port()}/x"
    lost = {"kind": "postgres", "auth": gone, "table": "t", "on_error": "warn"}
    outcome = move(host, ROWS, lost, {"kind": "file", "path": "x.parquet"}, chunk=10)
    assert outcome.status == "ok"
    assert [target["status"] for target in outcome.data["targets"]] == ["failed", "ok"]
    failed = move(host, ROWS, {**lost, "on_error": "fail"})
    assert failed.error is not None and failed.error.kind == "db.connection" and failed.error.retryable


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"kind": "postgres", "auth": "DB", "query": "selec 1"}, "db.syntax"),
        ({"kind": "postgres", "auth": "DB", "table": "nowhere"}, "db.syntax"),
        ({"kind": "postgres", "auth": "DB", "query": "select 1/(n-3) from generate_series(1, 5) n"}, "schema"),
        ({"kind": "postgres", "auth": "nope", "query": "select 1"}, "auth"),
        ({"kind": "postgres", "auth": "postgresql://a:b@127.0.0.1:1/x", "query": "select 1"}, "db.connection"),
        ({"kind": "duckdb", "query": "select * from nowhere"}, "db.syntax"),
        ({"kind": "sqlite", "file": "none.db", "table": "nowhere"}, "db.syntax"),
        ({"kind": "file", "path": "none.parquet"}, "not_found"),
        ({"kind": "file", "path": "broken.parquet"}, "parse"),
        ({"kind": "s3", "auth": "store", "path": "s3://no-such-bucket/x.csv"}, "not_found"),
        ({"kind": "http", "url": "http://127.0.0.1:1/"}, "connection"),
        ({"kind": "postgres", "auth": "DB"}, "schema"),
        ({"kind": "postgres", "auth": "DB", "query": "select %(x)s", "params": {"y": 1}}, "schema"),
        ({"kind": "tape", "path": "x"}, "schema"),
        ({"kind": "data", "data": 5}, "schema"),
    ],
)  # fmt: skip
def test_a_source_that_fails_is_an_error_of_its_kind(
    host: ToolHost, database: str, tmp_path: Path, source: dict[str, Any], kind: str
) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really PAR1")
    source = {**source, "auth": database} if source.get("auth") == "DB" else source
    outcome = move(host, source, {"kind": "file", "path": "out.parquet"})
    assert outcome.error is not None and outcome.error.kind == kind, outcome.error
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([], "no targets"),
        ("x", "no targets"),
        (["x"], "target 0 must be a mapping"),
        ([{"kind": "tape", "table": "t"}], "'tape'"),
        ([{"kind": "postgres"}], "requires `table`"),
        ([{"kind": "file"}], "requires `path`"),
        ([{"kind": "http"}], "requires `url`"),
        ([{"kind": "duckdb", "table": "t"}], "requires the `file`"),
        ([{"kind": "postgres", "table": "t", "mode": "merge"}], "'merge'"),
        ([{"kind": "postgres", "table": "t", "mode": "upsert"}], "requires `key`"),
        ([{"kind": "file", "path": "x.csv", "mode": "upsert", "key": "id"}], "only by databases"),
        ([{"kind": "file", "path": "x.csv", "on_error": "cry"}], "'cry'"),
        ([{"kind": "file", "path": "x.txt"}], "not as text"),
        ([{"kind": "postgres", "table": DeferredTemplate("{{ chunk.index }}")}], "cannot depend on the chunk"),
        ([{"kind": "postgres", "table": "t"}], "no host"),
    ],
)
def test_invalid_targets_are_rejected(host: ToolHost, targets: Any, says: str) -> None:
    outcome = run_tool("transfer", {"data": ROWS, "targets": targets}, host=host)
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert says in outcome.error.message


def test_rows_that_do_not_fit_the_first_are_named(host: ToolHost, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("create table t (id)")
    connection.executemany("insert into t values (?)", [(1,)] * 10_000 + [("text",)])
    connection.commit()
    connection.close()
    source = {"kind": "sqlite", "file": "x.db", "table": "t"}
    outcome = move(host, source, {"kind": "file", "path": "out.parquet"})
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "'text'" in outcome.error.message and "types" in outcome.error.message
    assert (
        move(host, {**source, "types": {"id": "text"}}, {"kind": "file", "path": "out.parquet"}).data["rows"] == 10_001
    )


def test_a_transfer_that_takes_too_long_is_stopped_and_undone(host: ToolHost, database: str) -> None:
    source = {
        "kind": "postgres",
        "auth": database,
        "query": "select n as id, pg_sleep(0.01) from generate_series(1, 1000) n",
    }
    for others in ([], [{"kind": "file", "path": "x.parquet"}]):
        target = {"kind": "postgres", "auth": database, "table": "t"}
        outcome = move(host, source, target, *others, timeout=0.5)
        assert outcome.error is not None and outcome.error.kind == "timeout" and outcome.error.retryable
        assert query(database, "select to_regclass('t')") == [(None,)]
        active = "select 1 from pg_stat_activity where query like '%pg_sleep%' and state = 'active' and pid <> pg_backend_pid()"
        assert query(database, active) == []


def _is_active(dsn: str, query: str) -> bool:
    with psycopg.connect(dsn) as connection:
        active = "select 1 from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() and query like %s"
        return bool(connection.execute(active, (f"%{query}%",)).fetchall())


def test_a_server_that_dies_in_the_middle_is_a_connection_error(host: ToolHost, tmp_path: Path) -> None:
    from noetl.runtime.resources import close_loop_resources
    from noetl.testing.tools import tool_call
    from noetl.tools.registry import load

    with services.Postgres(tmp_path / "pg") as server:
        slow = "select n as id, pg_sleep(0.01) from generate_series(1, 100000) n"

        async def crash(*targets: Any) -> Outcome:
            source = {"kind": "postgres", "auth": server.dsn(), "query": slow}
            call = tool_call("transfer", {"source": source, "targets": list(targets), "chunk": 10}, host=host)
            task = asyncio.create_task(load("transfer")(call))
            await until(lambda: _is_active(server.dsn(), "pg_sleep(0.01)"))
            await asyncio.to_thread(server.kill)
            outcome = await task
            await close_loop_resources()
            return outcome

        first = asyncio.run(crash({"kind": "file", "path": "x.parquet"}))
        server.start()
        second = asyncio.run(crash({"kind": "postgres", "auth": server.dsn(), "table": "t"}))
    for outcome in (first, second):
        assert outcome.error is not None and (outcome.error.kind, outcome.error.retryable) == ("db.connection", True)


def test_progress_is_reported(host: ToolHost) -> None:
    move(host, ROWS, {"kind": "file", "path": "x.parquet"}, chunk=10)
    assert host.counts == [{"rows": 10, "chunks": 1}, {"rows": 20, "chunks": 2}, {"rows": 25, "chunks": 3}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.csv", b"id,name\n1,a\n2,b,c\n3,d\n", "line 3 has 3 values, the first line has 2"),
        ("bad.jsonl", b'{"id": 1}\n{"id": \n', "line 2 is not JSON: Input data was truncated"),
    ],
)
def test_an_error_in_an_object_names_the_object_and_its_line(host, bucket, tmp_path, name, content, message):
    put = {"action": "put", "auth": "store", "uri": f"s3://{bucket}/{name}", "data": content.decode(), "format": "text"}
    assert run_tool("object", put, host=host).status == "ok"
    source = {"kind": "s3", "auth": "store", "path": f"s3://{bucket}/{name}", "format": name.partition(".")[2]}
    outcome = move(host, source, {"kind": "duckdb", "file": "x.duckdb", "table": "t"})
    assert outcome.status == "error"
    assert f"s3://{bucket}/{name}" in outcome.error.message and message in outcome.error.message, outcome.error
    assert "noetl-transfer-" not in outcome.error.message
