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
        ("mysql", {"auth": {"host": "h", "database": "d"}, "command": "SELECT * FROM `t`"}, ["mysql://h:3306 d.t"], []),
        ("object", {"action": "get", "uri": "s3://bucket/a/b.csv"}, ["s3://bucket a/b.csv"], []),
        ("object", {"uri": "out/x.json", "data": {}}, [], ["file /work/out/x.json"]),
        ("object", {"action": "list", "uri": "s3://bucket/a"}, [], []),
        ("s3", {"bucket": "b", "key": "k", "action": "put", "data": 1}, [], ["s3://b k"]),
    ],
)  # fmt: skip
def test_datasets_of_sql_and_objects(kind, given, inputs, outputs):
    found = lineage(kind, given, **HOST)
    assert names(found.get("inputs", [])) == inputs
    assert names(found.get("outputs", [])) == outputs
    assert "secret" not in str(found)


def test_datasets_of_a_transfer_have_columns_and_rows():
    summary = {"rows": 3, "targets": [{"rows": 3}, {"rows": 2}]}
    given = {
        "source": {"kind": "postgres", "auth": DSN, "query": "SELECT * FROM a JOIN b USING (id)"},
        "targets": [
            {"kind": "file", "path": "x.parquet"},
            {"kind": "mysql", "auth": {"host": "h", "database": "d"}, "table": "t", "mapping": {"n": "id"}},
        ],
    }
    found = lineage("transfer", given, ok(summary, meta={"columns": [("id", "int64")]}))
    assert names(found["inputs"]) == [
        "postgres://db.example:5433 sales.public.a",
        "postgres://db.example:5433 sales.public.b",
    ]
    assert found["outputs"] == [
        {"namespace": "file", "name": "/work/x.parquet", "fields": [{"name": "id", "type": "int64"}], "rows": 3},
        {"namespace": "mysql://h:3306", "name": "d.t", "rows": 2},
    ]


@pytest.mark.parametrize(
    ("side", "name"),
    [
        (
            {"kind": "http", "url": "https://api.example:8443/v1/orders?key=secret"},
            "https://api.example:8443 /v1/orders",
        ),
        ({"path": "in/*.csv"}, "file /work/in/*.csv"),
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
        ({"uri": "abfss://c@account.dfs.core.windows.net/x.csv"}, "az://c x.csv"),
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
        ({"kind": "bigquery", "auth": {"project": "p", "dataset": "d"}, "table": "t"}, "bigquery://p d.t"),
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
