"""`nested: tables`: members of objects are columns, lists are child tables; in one transaction, and idempotent."""

from __future__ import annotations

import json
import sqlite3
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
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


@pytest.mark.parametrize(
    "key",
    [
        pa.array([b"\x00\xff", b"a"]),
        pa.array([time(1, 2, 3, 4), time(23)], pa.time64("us")),
        pa.array([date(2024, 2, 29), date(1999, 12, 31)]),
        pa.array([Decimal("1.50"), Decimal("2.25")], pa.decimal128(12, 2)),
        pa.array([0.1, 1.5], pa.float32()),
    ],
    ids=lambda key: str(key.type),
)
def test_a_key_of_any_type_joins_child_rows(place: Place, key: pa.Array) -> None:
    for codes in ([[1, 2], [3]], [[4], [5, 6]]):
        pq.write_table(pa.table({"k": key, "codes": pa.array(codes)}), place.folder / "rows.parquet")
        good(move(place, {"kind": "file", "path": "rows.parquet"}, mode="upsert", key="k"))
    joined = "select c.value from orders o join orders__codes c on c._root_k = o.k order by 1"
    assert place.query(joined) == [(4,), (5,), (6,)]
    assert place.query("select count(*) from orders__codes") == [(3,)]


def test_a_key_that_becomes_text_is_found_in_child_tables(place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("SQLite cannot change the type of a primary key")
    good(move(place, [{"id": 1, "a": [1, 2], "b": [3]}, {"id": 2, "a": [4]}], mode="upsert", key="id"))
    good(move(place, [{"id": "1", "a": [5]}, {"id": "x", "a": [6]}], mode="upsert", key="id", chunk={"size": 1}))
    assert place.query("select _root_id, value from orders__a order by 2") == [("2", 4), ("1", 5), ("x", 6)]
    assert place.query("select * from orders__b") == []


def test_child_tables_of_another_key_are_named(place: Place) -> None:
    good(move(place, [{"id": 1, "code": "a", "items": [1]}], mode="append", key="id"))
    outcome = move(place, [{"id": 1, "code": "a", "items": [2]}], mode="upsert", key="code")
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "orders__items): the table has no column _root_code" in outcome.error.message
    assert place.query("select value from orders__items") == [(1,)]


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


def test_members_and_lists_with_long_names_are_replaced(place: Place) -> None:
    long = "a_member_with_a_long_name_of_forty_bytes"
    lists = {"items": [1], "others_with_a_name_of_more_than_twenty": [2]}
    good(move(place, [{"id": 1, long: {"x": {"y" * 30: 1}, "z": 2, **lists}, "v": 1}], mode="upsert", key="id"))
    assert sum(len(place.query(f'select * from "{name}"')) for name in place.tables()) == 3
    good(move(place, [{"id": 1, long: {}, "v": 2}], mode="upsert", key="id"))
    assert [value for value in place.query("select * from orders")[0] if value is not None] == [1, 2]
    assert sum(len(place.query(f'select * from "{name}"')) for name in place.tables()) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"a": {"b": 1}, "a__b": 2},
        {"x": {"a": {"b": 1}, "a__b": 2}},
        {"a": {"b": [1]}, "a__b": [2]},
        {"a": [{"_index_1": 9, "v": 1}, {"_index_1": 9, "v": 2}]},
        {"a": [{"_root_id": 9}]},
        {"a": [{"b": {"c": 1}, "b__c": 2}]},
        {"a": {"b": [1]}, "a__b": {"c": 1}, "a__": {"b__c": [1], "c": 2}, "a____c": 5},
    ],
)
def test_members_that_need_the_same_name_are_rejected(place: Place, row: dict[str, Any]) -> None:
    outcome = move(place, [{"id": 1, **row}], mode="upsert", key="id")
    assert outcome.error is not None and outcome.error.kind == "schema", outcome
    assert "needs the name" in outcome.error.message
    assert place.tables() == []


def test_lists_of_different_depth_do_not_share_a_table(place: Place) -> None:
    shallow, deep = {"id": 1, "a": {"b": [1]}}, {"id": 2, "a": [{"b": [2, 3]}]}
    both = move(place, [shallow, deep], mode="upsert", key="id")
    assert both.error is not None and "orders__a__b" in both.error.message
    for number, (first, second) in enumerate([(shallow, deep), (deep, shallow)]):
        table = f"t{number}"
        good(move(place, [first], mode="upsert", key="id", table=table))
        before = place.query(f"select * from {table}__a__b")
        later = move(place, [second], mode="upsert", key="id", table=table)
        assert later.error is not None and f"{table}__a__b" in later.error.message
        assert place.query(f"select * from {table}__a__b") == before


def test_rows_with_the_column_of_ids_need_it_as_key(place: Place) -> None:
    rows = [{"_noetl_id": "a", "codes": [1]}]
    outcome = move(place, rows)
    assert outcome.error is not None and "key: _noetl_id" in outcome.error.message
    good(move(place, rows, key="_noetl_id", mode="upsert"))
    assert place.query("select _root__noetl_id, value from orders__codes") == [("a", 1)]


@pytest.mark.parametrize("later", [{"n": 2}, {}, None, [7], "x", {"n": 2, "city": None}])
def test_members_that_are_gone_become_null(place: Place, later: Any) -> None:
    first = [{"id": 1, "to": {"city": "Oslo", "at": {"lat": 1.5}}, "note": "a"}, {"id": 2, "to": {"city": "Rome"}}]
    good(move(place, first, mode="upsert", key="id"))
    good(move(place, [{"id": 1, "to": later}], mode="upsert", key="id"))
    found = place.query("select id, to__city, to__at__lat, note from orders order by id")
    assert found == [(1, None, None, "a"), (2, "Rome", None, None)]


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("files", [["id"], ["id", "to"]])
def test_an_object_that_no_row_of_a_chunk_has_becomes_null(place: Place, files: list[str], size: int) -> None:
    """Members of an object are those of the load, not of a chunk; other columns that do not come stay."""
    first = [{"id": each, "to": {"city": "Oslo"}, "note": "a", "__v": 7} for each in (1, 2)]
    good(move(place, first, mode="upsert", key="id"))
    for number, last in enumerate(files, 1):
        row = {"id": number} if last == "id" else {"id": number, "to": {"city": "Rome"}}
        pq.write_table(pa.Table.from_pylist([row]), place.folder / f"{number}.parquet")
    good(move(place, {"kind": "file", "path": "*.parquet"}, mode="upsert", key="id", chunk={"size": size}))
    found = place.query('select id, to__city, note, "__v" from orders order by id')
    assert found == [(1, None, "a", 7), (2, "Rome" if "to" in files else "Oslo", "a", 7)]


def test_files_with_other_columns_need_no_contract(place: Place) -> None:
    """The default of nested tables is `evolve`."""
    for number, text in enumerate(("id,a\n1,2\n", "id,b\n2,x\n")):
        (place.folder / f"{number}.csv").write_text(text)
    good(move(place, {"kind": "file", "path": "*.csv"}, mode="upsert", key="id"))
    assert place.query("select id, a, b from orders order by id") == [(1, 2, None), (2, None, "x")]


@pytest.mark.parametrize("size", [1, 100])
def test_values_of_several_types_are_text(place: Place, size: int) -> None:
    rows = [{"id": 1, "v": "a", "to": {"n": 1}}, {"id": 2, "v": 5, "to": {"n": "b"}, "codes": [7, "c", True]}]
    good(move(place, rows, mode="upsert", key="id", chunk={"size": size}))
    assert place.query("select id, v, to__n from orders order by id") in (
        [(1, "a", "1"), (2, "5", "b")],
        [(1, "a", 1), (2, "5", "b")],  # a column of SQLite holds both
    )
    assert place.query("select value from orders__codes order by _index_1") == [("7",), ("c",), ("true",)]


def test_a_value_that_became_an_object_is_gone(place: Place) -> None:
    good(move(place, [{"id": 1, "to": "x"}], mode="upsert", key="id"))
    good(move(place, [{"id": 1, "to": {"a": 1}}], mode="upsert", key="id"))
    assert place.query('select id, "to", to__a from orders') == [(1, None, 1)]


def test_a_list_in_a_list_that_a_later_chunk_has(place: Place) -> None:
    """The table exists, and the first chunk does not have its list."""
    good(move(place, [{"id": 1, "i": [{"t": [1, 2]}]}], mode="upsert", key="id"))
    rows = [{"id": 2, "i": [{"s": 1}]}, {"id": 3, "i": [{"t": [5, 6, 7]}]}]
    good(move(place, rows, mode="upsert", key="id", chunk={"size": 1}))
    found = place.query("select _root_id, _index_1, _index_2, value from orders__i__t order by 1, 2, 3")
    assert found == [(1, 0, 0, 1), (1, 0, 1, 2), (3, 0, 0, 5), (3, 0, 1, 6), (3, 0, 2, 7)]


@pytest.mark.parametrize("table", ["orders", '"my orders"'])
def test_any_character_in_the_name_of_a_list(place: Place, table: str) -> None:
    for codes in ([1, 2], [3]):
        row = {"id": 1, "a.b": codes, 'q"x y': {"d.e": [{"f": codes}]}}
        good(move(place, [row], mode="upsert", key="id", table=table))
        name = table.strip('"')
        assert place.tables() == sorted([name, f"{name}__a.b", f'{name}__q"x y__d.e', f'{name}__q"x y__d.e__f'])
        for child in (f"{name}__a.b", f'{name}__q""x y__d.e__f'):
            assert place.query(f'select value from "{child}" order by 1') == [(code,) for code in codes]


@pytest.mark.parametrize("mode", ["replace", "upsert"])
def test_the_lists_of_another_root_stay(place: Place, mode: str) -> None:
    for rows in ([{"id": 1, "items": [1, {"t": [5]}]}], [{"id": 1, "items": [2]}]):
        good(move(place, [{"id": 1, "items": [7, {"t": [8]}]}], mode="upsert", key="id", table="orders__archive"))
        good(move(place, rows, mode=mode, key="id"))
        assert place.query("select value from orders__archive__items order by _index_1") == [(7,), (None,)]
        assert place.query("select value from orders__archive__items__t") == [(8,)]
    assert place.query("select value from orders__items") == [(2,)]
    assert place.query("select * from orders__items__t") == []


def test_discarded_values_of_child_tables_are_counted(place: Place) -> None:
    good(move(place, [{"id": 1, "o": {"a": 1}, "items": [{"s": 1}]}], mode="upsert", key="id"))
    rows = [{"id": 2, "o": {"b": 2}, "items": [{"s": 1, "new": 2}, {"new": 3}]}]
    [target] = good(move(place, rows, mode="upsert", key="id", schema="discard_value"))["targets"]
    assert target["discarded"] == {"rows": 0, "values": 3, "columns": {"o__b": 1, "orders__items.new": 2}}


def test_objects_and_lists_that_no_row_has_are_no_columns(place: Place) -> None:
    good(move(place, [{"id": 1, "o": {"a": 1}, "items": [{"s": 1}]}], mode="upsert", key="id"))
    good(move(place, [{"id": 1, "o": None, "items": None}], mode="upsert", key="id", schema="freeze"))
    assert place.query("select * from orders") == [(1, None)]
    assert place.query("select * from orders__items") == []


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


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_lists_of_a_discarded_row_are_discarded(place: Place, mode: str) -> None:
    keyed = {"mode": mode, "key": "id"}
    good(move(place, [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": ["b", "c"]}], **keyed))
    rows = [{"id": 2, "tags": ["x"], "extra": 1}, {"id": 3, "tags": ["d"]}, {"id": 4, "tags": ["y"], "extra": 2}]
    done = good(move(place, rows, schema={"columns": "discard_row"}, **keyed))
    assert (done["targets"][0]["rows"], done["targets"][0]["discarded"]["rows"]) == (1, 2)
    assert place.query("select id from orders order by 1") == [(1,), (2,), (3,)]
    found = place.query("select _root_id, value from orders__tags order by 1, 2")
    assert found == [(1, "a"), (2, "b"), (2, "c"), (3, "d")]
