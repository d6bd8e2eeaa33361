"""`nested: tables`: members of objects are columns, lists are child tables; in one transaction, and idempotent."""

from __future__ import annotations

import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool


class Place:
    """A database, read with its own driver."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self.kind = kind
        self.folder = folder
        self.dsn = dsn

    def target(self, **others: Any) -> dict[str, Any]:
        place = {"auth": self.dsn} if self.kind == "postgres" else {"file": f"t.{self.kind}"}
        return {"kind": self.kind, "table": "orders", "nested": "tables", **place, **others}

    def query(self, text: str) -> list[tuple[Any, ...]]:
        if self.kind == "postgres":
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                cursor = connection.execute(text)
                return cursor.fetchall() if cursor.description else []
        path = str(self.folder / f"t.{self.kind}")
        with duckdb.connect(path) if self.kind == "duckdb" else sqlite3.connect(path) as database:
            return database.execute(text).fetchall()

    def tables(self) -> list[str]:
        catalog = {
            "postgres": "select table_name from information_schema.tables where table_schema = 'public'",
            "duckdb": "select table_name from duckdb_tables()",
            "sqlite": "select name from sqlite_master where type = 'table'",
        }
        return sorted(row[0] for row in self.query(catalog[self.kind]))


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Place:
    return Place(request.param, tmp_path, database)


def move(place: Place, rows: Any, **others: Any) -> Outcome:
    given = {"source": rows} if isinstance(rows, dict) else {"data": rows}
    chunk = {"chunk": others.pop("chunk")} if "chunk" in others else {}
    target = place.target(**others)
    return run_tool("transfer", {**given, "targets": [target], **chunk}, host=ToolHost(folder=place.folder))


def good(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


ORDERS = [
    {
        "id": 1,
        "to": {"city": "Oslo", "at": {"lat": 59.9}},
        "items": [{"sku": "a", "tags": ["x", "y"]}, {"sku": "b", "tags": []}],
        "codes": [7, 8],
    },
    {"id": 2, "to": {"city": "Lima"}, "items": [], "codes": None},
    {"id": 3, "to": None, "items": [{"sku": "c", "price": 1.5, "dim": {"w": 2}}], "codes": [9]},
]


def check_orders(place: Place, root: str = "id") -> None:
    key = f"_root_{root}"
    assert place.query("select id, to__city, to__at__lat from orders order by id") == [
        (1, "Oslo", 59.9),
        (2, "Lima", None),
        (3, None, None),
    ]
    assert place.query(f"select {key}, _index_1, sku, price, dim__w from orders__items order by 1, 2") == [
        (1, 0, "a", None, None),
        (1, 1, "b", None, None),
        (3, 0, "c", 1.5, 2),
    ]
    tags = f"select {key}, _index_1, _index_2, value from orders__items__tags order by 1, 2, 3"
    assert place.query(tags) == [(1, 0, 0, "x"), (1, 0, 1, "y")]
    codes = f"select {key}, _index_1, value from orders__codes order by 1, 2"
    assert place.query(codes) == [(1, 0, 7), (1, 1, 8), (3, 0, 9)]


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
def test_lists_are_child_tables(place: Place, mode: str, size: int) -> None:
    summary = good(move(place, ORDERS, mode=mode, key="id", chunk={"size": size}))
    check_orders(place)
    assert summary["rows"] == 3
    assert summary["targets"][0]["tables"] == {"orders__items": 3, "orders__items__tags": 2, "orders__codes": 3}


@pytest.mark.parametrize("mode", ["replace", "upsert"])
def test_loading_again_gives_the_same_tables(place: Place, mode: str) -> None:
    for _ in range(2):
        good(move(place, ORDERS, mode=mode, key="id"))
        check_orders(place)


def test_child_rows_of_a_changed_row_are_replaced(place: Place) -> None:
    good(move(place, ORDERS, mode="upsert", key="id"))
    good(move(place, [{"id": 1, "to": {"city": "Rome"}, "items": [{"sku": "z"}]}], mode="upsert", key="id"))
    assert place.query("select to__city from orders where id = 1") == [("Rome",)]
    assert place.query("select sku from orders__items where _root_id = 1") == [("z",)]
    assert place.query("select count(*) from orders__items__tags") == [(0,)]
    assert place.query("select _root_id, value from orders__codes") == [(3, 9)]
    assert place.query("select sku from orders__items where _root_id = 3") == [("c",)]


def test_the_last_of_equal_keys_in_a_chunk_wins(place: Place) -> None:
    rows = [{"id": 1, "items": [{"sku": "a"}, {"sku": "b"}]}, {"id": 1, "items": [{"sku": "c"}]}]
    good(move(place, rows, mode="upsert", key="id"))
    assert place.query("select sku from orders__items") == [("c",)]


def test_replace_empties_tables_of_lists_that_are_gone(place: Place) -> None:
    good(move(place, ORDERS, mode="replace", key="id"))
    good(move(place, [{"id": 9, "codes": [1]}], mode="replace", key="id"))
    assert place.query("select id from orders") == [(9,)]
    assert place.query("select count(*) from orders__items") == [(0,)]
    assert place.query("select value from orders__codes") == [(1,)]


def test_rows_without_a_key_get_an_id(place: Place) -> None:
    good(move(place, ORDERS, mode="append", chunk={"size": 2}))
    joined = "select o.id, i.sku from orders o join orders__items i on i._root__noetl_id = o._noetl_id order by 1, 2"
    assert place.query(joined) == [(1, "a"), (1, "b"), (3, "c")]


def test_a_key_of_several_columns_and_of_another_type(place: Place) -> None:
    rows = [{"shop": "s1", "no": "007", "price": "1.50", "items": [{"sku": "a"}]}]
    source = {"kind": "data", "data": rows, "types": {"no": "numeric"}}
    for _ in range(2):
        good(move(place, source, mode="upsert", key=["shop", "no"]))
    found = place.query("select _root_shop, _root_no, sku from orders__items")
    assert [(row[0], Decimal(str(row[1])), row[2]) for row in found] == [("s1", Decimal(7), "a")]


def test_a_failed_transfer_leaves_no_table_behind(place: Place) -> None:
    good(move(place, [{"id": 1, "items": [{"sku": "a"}]}], mode="upsert", key="id"))
    bad = [{"id": 2, "items": [{"sku": "b"}]}, {"id": None, "items": [{"sku": "c"}]}]
    assert move(place, bad, mode="upsert", key="id", chunk={"size": 1}).error is not None
    assert place.query("select id from orders") == [(1,)]
    assert place.query("select sku from orders__items") == [("a",)]


def test_the_contract_applies_to_child_tables(place: Place) -> None:
    good(move(place, [{"id": 1, "items": [{"sku": "a"}]}], mode="upsert", key="id"))
    more = [{"id": 2, "items": [{"sku": "b", "new": 1}]}]
    frozen = move(place, more, mode="upsert", key="id", schema="freeze")
    assert frozen.error is not None and "orders__items" in frozen.error.message and "new" in frozen.error.message
    good(move(place, more, mode="upsert", key="id", schema={"columns": "discard_value"}))
    assert place.query("select sku from orders__items order by 1") == [("a",), ("b",)]
    good(move(place, more, mode="upsert", key="id"))
    assert place.query("select sku, new from orders__items order by 1") == [("a", None), ("b", 1)]


def test_json_stays_json_by_default(place: Place) -> None:
    good(move(place, ORDERS, nested="json"))
    assert place.tables() == ["orders"]
    kept = place.query("select items from orders where id = 3")[0][0]
    assert (json.loads(kept) if isinstance(kept, str) else kept)[0]["sku"] == "c"


def test_long_names_of_tables_stay_distinct(place: Place) -> None:
    name = "a_long_name_of_a_list_that_has_more_than_sixty_three_characters_"
    good(move(place, [{"id": 1, f"{name}1": [1], f"{name}2": [2]}], key="id"))
    assert len(place.tables()) == 3


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"kind": "file", "path": "o.jsonl", "nested": "tables"}, "for tables of postgres, duckdb, sqlite"),
        ({"kind": "sqlite", "file": "a.db", "table": "t", "nested": "deep"}, "not one of json, tables"),
        (
            {"kind": "sqlite", "file": "a.db", "table": "t", "nested": "tables", "on_error": "continue"},
            "one transaction",
        ),
    ],
)
def test_wrong_fields(target: dict[str, Any], said: str, tmp_path: Path) -> None:
    outcome = run_tool("transfer", {"data": ORDERS, "targets": [target]}, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None and said in outcome.error.message
