"""The datasets of transfers that have run: rows and columns, child tables, quarantines, mapped and copied columns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.lineage import with_lineage
from noetl.tools.transfer.task import run

ORDERS = [{"id": 1, "items": [{"sku": "a"}], "at": {"day": 3}}, {"id": 2, "items": [{"sku": "b"}, {"sku": "c"}]}]


def lineage(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    call = tool_call("transfer", given, host=ToolHost(folder=str(folder)))

    async def scenario() -> Any:
        return await with_lineage(call, await run(call))

    outcome = asyncio.run(scenario())
    assert outcome.error is None, outcome.error
    assert "datasets" not in outcome.meta
    return outcome.meta["lineage"]


def facts(datasets: list[dict[str, Any]]) -> dict[str, tuple[int | None, list[str]]]:
    """Rows and columns by the last part of the name."""
    return {
        each["name"].rpartition("/")[2]: (
            each.get("rows"),
            [f"{field['name']} {field['type']}" for field in each.get("fields", ())],
        )
        for each in datasets
    }


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ({"kind": "duckdb", "file": "x.duckdb", "table": "orders"}, ("x.duckdb#orders", "x.duckdb#orders__items")),
        ({"kind": "file", "path": "orders.parquet"}, ("orders.parquet", "orders__items.parquet")),
    ],
)
def test_child_tables_and_files_are_datasets(tmp_path, target, names):
    found = lineage(tmp_path, {"data": ORDERS, "targets": [{**target, "nested": "tables", "key": "id"}]})
    assert facts(found["outputs"]) == {
        names[0]: (2, ["id int64", "at__day int64"]),
        names[1]: (3, ["_root_id int64", "_index_1 int64", "sku string"]),
    }


@pytest.mark.parametrize(
    ("quarantine", "name"),
    [
        ({"table": "bad"}, "x.duckdb#bad"),
        ({"kind": "file", "path": "bad.jsonl"}, "bad.jsonl"),
        ({"kind": "file", "path": "bad/"}, "bad"),
    ],
)
def test_a_quarantine_is_a_dataset(tmp_path, quarantine, name):
    (tmp_path / "in.csv").write_text("id\n1\nx\n3\n")
    given = {
        "source": {"kind": "file", "path": "in.csv", "types": {"id": "bigint"}},
        "targets": [{"kind": "duckdb", "file": "x.duckdb", "table": "good"}],
        "bad_rows": "quarantine",
        "quarantine": quarantine,
    }
    found = lineage(tmp_path, given)
    assert facts(found["inputs"]) == {"in.csv": (3, ["id int64"])}
    outputs = facts(found["outputs"])
    assert outputs["x.duckdb#good"] == (2, ["id int64"])
    assert outputs[name][0] == 1
    assert "reason string" in outputs[name][1]


def test_columns_are_those_of_the_target_and_of_all_chunks(tmp_path):
    rows = [{"a": 1, "n": None}, {"a": 2, "n": "x", "doc": {"b": [1]}}]
    given = {
        "data": rows,
        "chunk": {"size": 1},
        "targets": [
            {"kind": "sqlite", "file": "x.db", "table": "t", "schema": "evolve"},
            {"kind": "file", "path": "o.csv", "mapping": {"k": "a", "fixed": {"value": 1}}},
        ],
    }
    found = facts(lineage(tmp_path, given)["outputs"])
    assert found["x.db#t"] == (2, ["a int64", "n string", "doc json"])
    assert found["o.csv"] == (2, ["k int64", "fixed int64"])


def test_the_columns_of_a_query_are_not_those_of_its_table(tmp_path, database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE a (id int, price numeric); INSERT INTO a VALUES (1, 2), (3, 4)")
    source, target = {"kind": "postgres", "auth": database}, {"kind": "postgres", "auth": database, "table": "b"}
    copied = lineage(tmp_path, {"source": {**source, "table": "a"}, "targets": [{**target, "mapping": {"k": "price"}}]})
    assert [(each["rows"], len(each["fields"])) for each in copied["inputs"]] == [(2, 2)]
    assert [each["fields"] for each in copied["outputs"]] == [[{"name": "k", "type": "numeric"}]]
    counted = lineage(
        tmp_path, {"source": {**source, "query": "SELECT count(*) AS k FROM a"}, "targets": [{**target, "table": "c"}]}
    )
    assert [sorted(each) for each in counted["inputs"]] == [["name", "namespace"]]
    assert [each["fields"] for each in counted["outputs"]] == [[{"name": "k", "type": "int64"}]]
