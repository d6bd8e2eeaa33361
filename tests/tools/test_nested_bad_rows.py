"""Bad rows with `nested: tables`: a source row is written to all tables, or to none and to the quarantine once."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool
from tests.tools.test_nested import Place

TABLES = (
    "create table orders (id int not null primary key, state text not null, total integer check (total >= 0))",
    "create table orders__items (_root_id integer, _index_1 integer, sku text not null, qty integer check (qty > 0))",
    "create table orders__items__tags (_root_id integer, _index_1 integer, _index_2 integer, value text "
    "check (length(value) < 5))",
)


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Place:
    return Place(request.param, tmp_path, database)


def load(place: Place, rows: list[dict[str, Any]], size: int = 1000, **others: Any) -> Outcome:
    path = place.folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "source": {"kind": "file", "path": "in.jsonl"},
        "targets": [place.target(key="id", **others)],
        "chunk": {"size": size},
        "bad_rows": "quarantine",
        "quarantine": {"kind": "file", "path": "bad.jsonl"},
    }
    return run_tool("transfer", given, host=ToolHost(folder=place.folder))


def quarantined(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.folder / "bad.jsonl").read_text().splitlines()]


def good(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


def contents(place: Place) -> tuple[list[Any], list[Any], list[Any]]:
    return (
        sorted(place.query("select id, state, total from orders")),
        sorted(place.query("select _root_id, _index_1, sku, qty from orders__items")),
        sorted(place.query("select _root_id, _index_1, _index_2, value from orders__items__tags")),
    )


class Model:
    """What the tables have after loads, row by row."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def load(self, rows: list[dict[str, Any]], mode: str) -> list[int]:
        """The lines of the bad rows."""
        if mode == "replace":
            self.rows = {}
        bad = []
        for line, row in enumerate(rows, 1):
            if is_bad(row) or (mode != "upsert" and row["id"] in self.rows):
                bad.append(line)
            else:
                self.rows[row["id"]] = row
        return bad

    def contents(self) -> tuple[list[Any], list[Any], list[Any]]:
        rows = sorted(self.rows.items())
        items = [(key, n, item) for key, row in rows for n, item in enumerate(row["items"])]
        return (
            [(key, row["state"], row["total"]) for key, row in rows],
            [(key, n, item["sku"], item["qty"]) for key, n, item in items],
            [(key, n, m, tag) for key, n, item in items for m, tag in enumerate(item["tags"])],
        )


def is_bad(row: dict[str, Any]) -> bool:
    wrong = row["id"] is None or row["state"] is None or not isinstance(row["total"], int) or row["total"] < 0
    return wrong or any(
        item["sku"] is None or item["qty"] <= 0 or any(len(tag) > 4 for tag in item["tags"]) for item in row["items"]
    )


def documents(chance: random.Random, count: int) -> list[dict[str, Any]]:
    def some(usual: Any, *wrong: Any) -> Any:
        return chance.choice(wrong) if chance.random() < 0.06 else usual

    return [
        {
            "id": some(chance.randint(1, 20), None),
            "state": some("new", None),
            "total": some(chance.randint(0, 9), -1),
            "items": [
                {
                    "sku": some(f"s{chance.randint(1, 9)}", None),
                    "qty": some(chance.randint(1, 9), 0, -3),
                    "tags": [some("tag", "too long") for _ in range(chance.randint(0, 2))],
                }
                for _ in range(chance.randint(0, 3))
            ],
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_in_all_tables_or_in_the_quarantine(place: Place, mode: str, seed: int) -> None:
    chance, model = random.Random(seed), Model()
    for table in TABLES:
        place.query(table)
    for _ in range(3):
        rows = documents(chance, 40)
        size = chance.choice((1, 7, 1000))
        summary = good(load(place, rows, size=size, mode=mode))
        bad = model.load(rows, mode)
        if mode != "upsert":
            assert sorted(each["position"] for each in quarantined(place)) == bad
        found = {each["position"]: each["row"] for each in quarantined(place)}
        assert found == {line: rows[line - 1] for line in found}
        assert set(found) <= set(bad)  # a row that a later one with its key replaces may be bad
        assert contents(place) == model.contents()
        target = summary["targets"][0]
        assert (summary["read"], target["rows"]) == (40, 40 - len(found))
        assert target["quarantined"] == len(found)


def order(number: Any, **others: Any) -> dict[str, Any]:
    items = [{"sku": "a", "qty": 1, "tags": ["x"]}]
    return {"id": number, "state": "new", "total": 1, "items": items, **others}


def reasons(place: Place) -> dict[int, str]:
    return {each["position"]: each["reason"] for each in quarantined(place)}


@pytest.mark.parametrize("size", [1, 1000])
def test_the_reason_names_table_and_column(place: Place, size: int) -> None:
    for table in TABLES:
        place.query(table)
    rows = [
        order(1),
        order(2, state=None),
        order(3, items=[{"sku": None, "qty": 1, "tags": []}]),
        order(4, items=[{"sku": "a", "qty": 0, "tags": []}, {"sku": None, "qty": 0, "tags": ["too long"]}]),
        order(None),
        order(6, items=[{"sku": "a", "qty": 1, "tags": ["ok", "too long"]}]),
        order(7),
    ]
    summary = good(load(place, rows, size=size, mode="upsert"))
    assert [row[0] for row in contents(place)[0]] == [1, 7]
    assert [row[0] for row in contents(place)[1]] == [1, 7]
    found = reasons(place)
    assert sorted(found) == [2, 3, 4, 5, 6]
    for line, table, said in (
        (2, "orders", "state"),
        (3, "orders__items", "sku"),
        (4, "orders__items", ""),
        (5, "orders", "no value for the key (id)"),
        (6, "orders__items__tags", ""),
    ):
        assert found[line].startswith(f"{table}: ") and said in found[line]
    assert summary["quarantined"] == 5
    assert summary["targets"][0]["tables"] == {"orders__items": 2, "orders__items__tags": 2}


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("nested", ["tables", "json"])
def test_a_column_that_cannot_be_widened_rejects_rows(place: Place, size: int, nested: str) -> None:
    for table in TABLES:
        place.query(table)
    place.query("create index by_total on orders (total)")
    if place.kind == "postgres":
        place.query("create view totals as select total from orders")
    rows = [order(1), order(2, total=1.5 if place.kind == "sqlite" else "many"), order(3)]
    if nested == "tables" and place.kind != "sqlite":  # there, a column of integers holds texts
        rows += [order(4, items=[{"sku": "a", "qty": "x", "tags": []}])]
    if nested == "json":
        rows = [{name: row[name] for name in ("id", "state", "total")} for row in rows]
    good(load(place, rows, size=size, mode="upsert", nested=nested, schema="evolve"))
    if place.kind == "sqlite":  # keeps 1.5 in a column of integers
        assert [row[0] for row in place.query("select id from orders order by 1")] == [1, 2, 3]
        return
    assert [row[0] for row in place.query("select id from orders order by 1")] == [1, 3]
    found = reasons(place)
    assert "the column 'total' is integer, and the rows need text (the type cannot be changed: " in found[2]
    if nested == "tables":
        assert found[4].startswith("orders__items: the column 'qty' is integer")
        assert [row[0] for row in contents(place)[1]] == [1, 3]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_rejected_row_leaves_the_row_that_it_would_replace(place: Place, mode: str) -> None:
    for table in TABLES:
        place.query(table)
    good(load(place, [order(1), order(2)], mode="append"))
    before = contents(place)
    bad = order(1, state="changed", items=[{"sku": "b", "qty": 5, "tags": []}, {"sku": "c", "qty": -5, "tags": []}])
    good(load(place, [bad], mode=mode))
    assert contents(place) == before
    assert [each["row"] for each in quarantined(place)] == [bad]


def test_contracts_reject_root_rows(place: Place) -> None:
    for table in TABLES:
        place.query(table)
    rows = [
        order(1),
        order(2, more=1),
        order(3, items=[{"sku": "a", "qty": 1, "tags": [], "price": 2}]),
        order(4, items=[{"sku": "a", "qty": 1, "tags": [{"label": "x"}]}]),
        order(5),
    ]
    summary = good(load(place, rows, mode="upsert", schema="freeze"))
    assert [[row[0] for row in table] for table in contents(place)] == [[1, 5], [1, 5], [1, 5]]
    found = reasons(place)
    assert found[2] == "orders: the table has no column more (schema.columns: freeze)"
    assert found[3] == "orders__items: the table has no column price (schema.columns: freeze)"
    assert found[4] == "orders__items__tags: the table has no column label (schema.columns: freeze)"
    assert summary["targets"][0]["rows"] == 2


def test_a_row_counts_once_for_the_limit(place: Place) -> None:
    for table in TABLES:
        place.query(table)
    wrong = {"sku": None, "qty": 0, "tags": ["too long"]}
    rows = [order(n, items=[wrong, wrong] if n % 5 == 0 else []) for n in range(1, 21)]  # four bad ones
    for most, fails in ((4, False), ("20%", False), (3, True), ("19%", True)):
        for table in ("orders", "orders__items", "orders__items__tags"):
            place.query(f"delete from {table}")
        outcome = run_tool(
            "transfer",
            {
                "data": rows,
                "targets": [place.target(key="id", mode="upsert")],
                "bad_rows": "quarantine",
                "quarantine": {"table": "bad"},
                "max_bad_rows": most,
            },
            host=ToolHost(folder=place.folder),
        )
        assert (outcome.error is not None) == fails
        assert place.query("select count(*) from orders") == [(0 if fails else 16,)]


def test_two_targets_in_one_file_undo_only_their_own_rows(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path, "")
    for table in TABLES:
        place.query(table)
    rows = [order(n, items=[{"sku": "a" if n % 3 else None, "qty": 1, "tags": []}]) for n in range(1, 200)]
    targets = [place.target(key="id", mode="upsert"), place.target(table="others", key="id", mode="upsert")]
    given = {"data": rows, "targets": targets, "chunk": {"size": 20}}
    given |= {"bad_rows": "quarantine", "quarantine": {"table": "bad"}}
    summary = good(run_tool("transfer", given, host=ToolHost(folder=tmp_path)))
    assert [target["rows"] for target in summary["targets"]] == [133, 199]
    assert place.query("select count(*) from others") == place.query("select count(*) from others__items") == [(199,)]
    assert place.query("select count(*) from orders") == place.query("select count(*) from orders__items") == [(133,)]
    assert place.query("select count(*) from bad") == [(66,)]


def test_rows_of_files_that_a_contract_rejects(tmp_path: Path) -> None:
    target = {"kind": "file", "path": "orders.parquet", "key": "id", "nested": "tables"}
    quarantine = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    host = ToolHost(folder=tmp_path)
    good(run_tool("transfer", {"data": [order(1)], "targets": [target]}, host=host))
    rows = [order(1), order(2, items=[{"sku": "a", "qty": "x", "tags": []}]), order(3, total="many"), order(4)]
    given = {"data": rows, "targets": [{**target, "schema": "freeze"}], **quarantine}
    summary = good(run_tool("transfer", given, host=host))
    assert (summary["targets"][0]["rows"], summary["quarantined"]) == (2, 2)
    assert pq.read_table(tmp_path / "orders.parquet").column("id").to_pylist() == [1, 4]
    assert pq.read_table(tmp_path / "orders__items.parquet").column("_root_id").to_pylist() == [1, 4]


def test_unique_values_of_child_rows_that_are_replaced(place: Place) -> None:
    place.query("create table orders (id int primary key, name text unique)")
    place.query("create table orders__items (_root_id int, _index_1 int, sku text, unique (_root_id, sku))")
    first = [{"id": n, "name": f"n{n}", "items": [{"sku": "a"}, {"sku": "b"}]} for n in (1, 2)]
    good(load(place, first, mode="upsert"))
    turned = [
        {"id": 1, "name": "n1", "items": [{"sku": "b"}, {"sku": "a"}, {"sku": "c"}]},
        {"id": 2, "name": "n2", "items": [{"sku": "c"}, {"sku": "c"}]},
        {"id": 3, "name": "n9", "items": [{"sku": "c"}, {"sku": "c"}]},
        {"id": 4, "name": "n9", "items": []},
        {"id": 5, "name": "n1", "items": []},
    ]
    good(load(place, turned, mode="upsert"))
    assert sorted(reasons(place)) == [2, 3, 5]
    assert place.query("select id, name from orders order by 1") == [(1, "n1"), (2, "n2"), (4, "n9")]
    found = place.query("select _root_id, _index_1, sku from orders__items order by 1, 2")
    assert found == [(1, 0, "b"), (1, 1, "a"), (1, 2, "c"), (2, 0, "a"), (2, 1, "b")]


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
def test_rows_without_the_column_of_the_key(place: Place, mode: str) -> None:
    outcome = run_tool("transfer", {"data": [{"n": 1, "items": [1]}], "targets": [place.target(key="id", mode=mode)]})
    assert outcome.error is not None and outcome.error.kind == "schema"
    assert "the key 'id' is not a column of the rows; columns: n, items" in outcome.error.message
