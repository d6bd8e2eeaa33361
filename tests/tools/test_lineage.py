"""The datasets of tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from noetl.core.model.outcome import error, ok
from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.lineage import with_lineage

DSN = "postgresql://shop:secret@db.example:5433/sales"
HOST = {
    "credentials": {"shop": {"db_host": "db.example", "db_password": "secret", "db_name": "sales", "database": "sales"}}
}


def lineage(kind: str, given: dict[str, Any], outcome: Any = None, **host: Any) -> dict[str, Any]:
    call = tool_call(kind, given, host=ToolHost(folder="/work", **host))
    return asyncio.run(with_lineage(call, outcome or ok({}))).meta.get("lineage", {})


def names(datasets: list[dict[str, Any]]) -> list[str]:
    return [f"{each['namespace']} {each['name']}" for each in datasets]


@pytest.mark.parametrize(
    ("kind", "given", "inputs", "outputs"),
    [
        ("postgres", {"auth": DSN, "command": "INSERT INTO a SELECT * FROM s.b"},
         ["postgres://db.example:5433 sales.s.b"], ["postgres://db.example:5433 sales.public.a"]),
        ("postgres", {"auth": "host=h dbname=d user=u", "sql": ["SELECT 1 FROM x", {"sql": "DELETE FROM y"}]},
         ["postgres://h:5432 d.public.x"], ["postgres://h:5432 d.public.y"]),
        ("postgres", {"auth": "shop", "command": "SELECT * FROM t"}, ["postgres://db.example:5432 sales.public.t"], []),
        ("duckdb", {"file": "d.duckdb", "command": "SELECT * FROM t"}, ["file /work/d.duckdb#t"], []),
        ("sqlite", {"command": "SELECT * FROM t"}, [], []),
        ("duckdb", {"command": "COPY (SELECT * FROM 'in/*.csv') TO 's3://b/o.parquet'"}, ["file /work/in"], ["s3://b o.parquet"]),
        ("duckdb", {"command": "FROM 's3://b/x.csv?s3_secret_access_key=secret', 'hf://x', 'https://u:secret@h/y?t=secret'"},
         ["s3://b x.csv", "https://h y"], []),
        ("duckdb", {"file": "d.duckdb", "tables": {"a": [{"x": 1}], "b": "b.csv"}, "command": "CREATE TABLE t AS FROM a, b, c"},
         ["file /work/d.duckdb#c", "file /work/b.csv"], ["file /work/d.duckdb#t"]),
        ("duckdb", {"attach": {"o": "o.duckdb", "pg": {"file": "host=h dbname=d", "type": "postgres"}},
                    "command": "INSERT INTO o.t SELECT * FROM pg.s.u"},
         ["postgres://h:5432 d.s.u"], ["file /work/o.duckdb#t"]),
        ("sqlite", {"file": "x.db", "command": "ATTACH 'o.db' AS o; INSERT INTO t SELECT * FROM o.u, main.v"},
         ["file /work/x.db#v", "file /work/o.db#u"], ["file /work/x.db#t"]),
        ("mysql", {"auth": {"host": "h", "database": "d"}, "command": "SELECT * FROM `t`"}, ["mysql://h:3306 d.t"], []),
        ("object", {"action": "get", "uri": "s3://bucket/a/b.csv"}, ["s3://bucket a/b.csv"], []),
        ("object", {"uri": "out/x.json", "data": {}}, [], ["file /work/out/x.json"]),
        ("object", {"action": "list", "uri": "s3://bucket/a"}, [], []),
        ("s3", {"bucket": "b", "key": "k", "action": "put", "data": 1}, [], ["s3://b k"]),
        ("object", {"action": "copy", "uri": "s3://b/a/k", "to": "x/"}, ["s3://b a/k"], ["s3://b x/k"]),
        ("object", {"action": "move", "uri": "a.csv", "to": "s3://b/x"}, ["file /work/a.csv"], ["s3://b x"]),
        ("object", {"action": "rename", "path": "a.csv", "target": "b.csv"}, ["file /work/a.csv"], ["file /work/b.csv"]),
    ],
)  # fmt: skip
def test_datasets_of_sql_and_objects(kind, given, inputs, outputs):
    found = lineage(kind, given, **HOST)
    assert names(found.get("inputs", [])) == inputs
    assert names(found.get("outputs", [])) == outputs
    assert "secret" not in str(found)


def test_datasets_of_a_transfer_have_columns_and_rows():
    given = {
        "source": {"kind": "postgres", "auth": DSN, "query": "SELECT * FROM a JOIN b USING (id)"},
        "targets": [
            {"kind": "file", "path": "x.parquet"},
            {"kind": "mysql", "auth": {"host": "h", "database": "d"}, "table": "t", "mapping": {"n": "id"}},
        ],
    }
    datasets = {"source": (4, {"id": "int64"}), "targets": [[("", 3, {"id": "int64"})], [("", 2, {"n": "int64"})]]}
    found = lineage("transfer", given, ok({}, meta={"datasets": datasets}))
    assert names(found["inputs"]) == [
        "postgres://db.example:5433 sales.public.a",
        "postgres://db.example:5433 sales.public.b",
    ]
    assert found["outputs"] == [
        {"namespace": "file", "name": "/work/x.parquet", "fields": [{"name": "id", "type": "int64"}], "rows": 3},
        {"namespace": "mysql://h:3306", "name": "d.t", "fields": [{"name": "n", "type": "int64"}], "rows": 2},
    ]


@pytest.mark.parametrize(
    ("side", "name"),
    [
        (
            {"kind": "http", "url": "https://api.example:8443/v1/orders?key=secret"},
            "https://api.example:8443 /v1/orders",
        ),
        ({"path": "in/*.csv"}, "file /work/in"),
        ({"path": "*.csv"}, "file /work"),
        ({"uri": "s3://b/x/**/*.parquet"}, "s3://b x"),
        ({"uri": "s3://b/*.csv"}, "s3://b /"),
        ({"kind": "s3", "bucket": "b", "path": "*.csv"}, "s3://b /"),
        ({"kind": "azure", "container": "c", "path": "x.csv", "auth": {"account": "a"}}, "abfss://c@a.dfs.core.windows.net x.csv"),
        ({"kind": "gcs", "path": "gs://b/x"}, "gs://b x"),
        ({"kind": "kafka", "auth": {"servers": "k:9092"}, "topic": "t"}, "kafka://k:9092 t"),
        ({"kind": "sftp", "auth": {"host": "h", "port": 22}, "path": "/x.csv"}, "sftp://h:22 /x.csv"),
        ({"kind": "kafka", "auth": {"servers": ["a:1", "u:secret@b:2"]}, "topic": "t"}, "kafka://a:1,b:2 t"),
        ({"kind": "kafka", "auth": {"bootstrap_servers": "a:1"}, "topic": "t"}, "kafka://a:1 t"),
        ({"kind": "kafka", "servers": "a:1", "topic": "t"}, "kafka://a:1 t"),
        ({"kind": "redis", "auth": "redis://:secret@h/0", "name": "order:*"}, "redis://h:6379 order:*"),
        ({"kind": "redis", "auth": {"host": "h"}, "key": "order:*"}, "redis://h:6379 order:*"),
        ({"kind": "azure", "container": "c", "path": "x.csv?sv=1&sig=secret"}, "az://c x.csv"),
        ({"uri": "s3://user:secret@b/x.csv"}, "s3://b x.csv"),
        ({"uri": "abfss://c@account.dfs.core.windows.net/x.csv"}, "abfss://c@account.dfs.core.windows.net x.csv"),
        ({"uri": "file:///in/a%20b.csv"}, "file /in/a b.csv"),
        ({"kind": "duckdb", "file": "md:shop?motherduck_token=secret", "table": "t"}, "md shop#t"),
        ({"kind": "duckdb", "file": "s3://u:secret@b/x.duckdb", "table": "t"}, "s3://b x.duckdb#t"),
        ({"kind": "postgres", "auth": DSN, "table": '"My table"'}, "postgres://db.example:5433 sales.public.My table"),
        ({"kind": "postgres", "auth": "postgresql://[::1]/my%20db", "table": "t"}, "postgres://[::1]:5432 my db.public.t"),
        ({"kind": "postgres", "auth": "postgresql://u:secret@a:1,b:2/d", "table": "t"}, "postgres://a:1,b:2 d.public.t"),
        ({"kind": "postgres", "auth": "postgresql://u:1#secret@h/d", "table": "t"}, "postgres://h:5432 d.public.t"),
        ({"kind": "postgres", "auth": "host = h dbname = 'd'", "table": "t"}, "postgres://h:5432 d.public.t"),
        ({"kind": "postgres", "auth": {"db_host": "h", "db_name": "d"}, "table": "t"}, "postgres://h:5432 d.public.t"),
        ({"kind": "snowflake", "auth": {"account": "a", "database": "d", "schema": "s"}, "table": "t"}, "snowflake://a d.s.t"),
        ({"kind": "bigquery", "auth": {"project": "p", "dataset": "d"}, "table": "t"}, "bigquery p.d.t"),
        (
            {"kind": "iceberg", "catalog": {"type": "rest", "uri": "https://u:secret@c/v1?token=secret", "warehouse": "w"}, "table": "s.t"},
            "iceberg://c/v1 w.s.t",
        ),
        ({"kind": "iceberg", "catalog": {"type": "sql", "uri": "sqlite:///c.db"}, "table": "s.t"}, "iceberg:///work/c.db s.t"),
        ({"kind": "iceberg", "catalog": {"type": "glue"}, "table": "s.t"}, "iceberg://glue/default s.t"),
    ],
)  # fmt: skip
def test_sources_of_every_kind(side, name):
    found = lineage("transfer", {"source": side, "targets": []})
    assert names(found.get("inputs", [])) == [name]


@pytest.mark.parametrize(
    "side",
    [
        {"kind": "postgres", "auth": "postgresql://u:12/secret@h/d", "table": "t"},
        {"kind": "mysql", "auth": "mysql://u:12/secret@h/d", "table": "t"},
        {"kind": "http", "endpoint": "/v1/orders"},
        {"kind": "mongodb", "auth": {"host": "h"}, "key": "id"},
    ],
)
def test_places_that_are_unknown_or_contain_a_password_are_no_datasets(side):
    assert lineage("transfer", {"source": side, "targets": []}) == {}


def test_a_failed_task_has_datasets_without_rows():
    given = {"source": {"kind": "data", "data": []}, "targets": [{"kind": "file", "path": "x.csv"}]}
    found = lineage("transfer", given, error("timeout", "too late", data={"targets": [{"rows": 5}]}))
    assert found["outputs"] == [{"namespace": "file", "name": "/work/x.csv"}]


def test_a_credential_that_cannot_be_read_leaves_the_outcome_unchanged():
    assert lineage("postgres", {"auth": "nothing", "command": "SELECT * FROM t"}) == {}


@pytest.mark.parametrize(
    "sides",
    [
        [
            {"kind": "postgres", "auth": "postgresql://u@H./d", "table": "sales.t"},
            {"kind": "postgres", "auth": "postgresql://u@h/d?options=-csearch_path%3Dsales", "table": "t"},
            {"kind": "postgres", "auth": "host=h dbname=d options='-c search_path=sales,public -c a=b'", "query": "TABLE t"},
            {"kind": "postgres", "auth": "postgresql://d@h", "query": 'SET search_path TO "$user", "sales"; SELECT * FROM t'},
        ],
        [{"kind": "http", "url": "https://h/x"}, {"kind": "http", "url": "https://H:443/x"}],
        [{"kind": "duckdb", "file": "d.duckdb", "table": name} for name in ("t", "main.t", "d.main.t")],
        [{"kind": "sqlite", "file": "d.db", "query": f"SELECT * FROM {name}"} for name in ("t", "main.t")],
        [{"kind": "clickhouse", "auth": {"host": "h"}, "table": name} for name in ("t", "default.t")],
        [{"kind": "bigquery", "auth": {"project": "p"}, "query": f"SELECT * FROM {name}"} for name in ("d.t", "`p.d.t`")],
        [{"kind": "kafka", "servers": servers, "topic": "t"} for servers in ("a:1,b:2", ["b:2", "A:1"])],
        [{"kind": "delta", "uri": uri} for uri in ("s3://b/t", "s3://b/t/")],
    ],
)  # fmt: skip
def test_the_same_data_has_one_name(sides):
    found = {tuple(names(lineage("transfer", {"source": side, "targets": []})["inputs"])) for side in sides}
    assert len(found) == 1, found


def test_sql_statements_have_the_rows_that_they_write():
    text = "CREATE TABLE t (a int); INSERT INTO t SELECT 1; INSERT INTO t SELECT 2; DELETE FROM u; UPDATE v SET a = 1"
    data = {f"command_{number}": {"row_count": count} for number, count in enumerate((0, 3, 4, 5, 6))}
    found = lineage("sqlite", {"file": "x.db", "command": text}, ok({"row_count": 6, **data}))
    assert {each["name"]: each.get("rows") for each in found["outputs"]} == {
        "/work/x.db#t": 7,
        "/work/x.db#u": None,
        "/work/x.db#v": 6,
    }
