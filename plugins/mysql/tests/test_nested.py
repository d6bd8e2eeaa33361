"""`nested: tables`: members of objects are columns, lists are child tables, all in one transaction."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from noetl_mysql.names import quoted

from noetl.testing import ToolHost, run_tool

LONG = "a_member_whose_name_has_more_than_forty_bytes_"


def load(server, rows, table, **others):
    options = {"chunk": {"size": others.pop("size")}} if "size" in others else {}
    target = {"kind": "mysql", "auth": server.auth, "table": table, "nested": "tables", "key": "id", **others}
    return run_tool("transfer", {"data": rows, "targets": [target], **options})


def good(outcome):
    assert outcome.error is None, outcome.error
    return outcome.data["targets"][0]


def tables_of(server, table):
    found = server.sql("SHOW TABLES")
    return sorted(name for row in found for name in row.values() if name == table or name.startswith(f"{table}__"))


def contents(server, table):
    return {name: server.sql(f"SELECT * FROM {quoted(name)}") for name in tables_of(server, table)}


# ── the same loads give the same tables as in SQLite ─────────────────────────────────────


class Documents:
    """Random documents: members come and go, and so do objects and lists."""

    NAMES = ("a", "b", "C", "d e", "x.y", "q`r", "s'%t", f"{LONG}1", f"{LONG}2")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = self.random.sample(self.NAMES, 4)

    def rows(self):
        return [
            {"id": self.random.randint(1, 6), **self.members(0)} for _ in range(self.random.choice((0, 1, 3, 8)))
        ]  # fmt: skip

    def members(self, depth):
        chosen = self.random.sample(self.names, self.random.randint(0, len(self.names)))
        return {name: self.value(depth) for name in chosen}

    def value(self, depth):
        kind = self.random.choice(("int", "text", "null", "float", "object", "list", "list"))
        if kind == "object" and depth < 3:
            return self.members(depth + 1)
        if kind == "list" and depth < 3:
            count = self.random.randint(0, 3)
            if self.random.random() < 0.5:
                return [self.members(depth + 1) for _ in range(count)]
            return [self.scalar("int") for _ in range(count)]
        return self.scalar(kind)

    def scalar(self, kind):
        number = self.random.randint(-9, 9)
        return {"text": f"t{number}", "float": number + 0.5, "int": number}.get(kind)


def plain(rows):
    """Rows without nulls, in an order; in MySQL a number is text if another value of the column is."""
    return sorted(sorted((name, spelled(value)) for name, value in row.items() if value is not None) for row in rows)


def spelled(value):
    try:
        return str(float(value))
    except ValueError:
        return value


def in_sqlite(file):
    with closing(sqlite3.connect(file)) as database:
        database.row_factory = sqlite3.Row
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: plain(map(dict, database.execute('SELECT * FROM "{}"'.format(name.replace('"', '""')))))
            for name in names
        }


@pytest.mark.parametrize("seed", range(15))
def test_the_tables_are_those_of_sqlite(server, tmp_path: Path, seed):
    documents, table = Documents(seed), server.new_name()
    places = ({"kind": "sqlite", "file": "t.sqlite"}, {"kind": "mysql", "auth": server.auth})
    for _ in range(5):
        choose = documents.random.choice
        columns = choose(("evolve", "evolve", "evolve", "discard_value", "discard_row", "freeze"))
        mode = choose(("upsert", "upsert", "replace", "append"))
        fields = {"table": table, "mode": mode, "key": "id", "nested": "tables", "schema": {"columns": columns}}
        fields["schema"]["types"] = "evolve"
        given = {"data": documents.rows(), "chunk": {"size": choose((1, 2, 100))}}
        expected, found = (
            run_tool("transfer", {**given, "targets": [{**place, **fields}]}, host=ToolHost(folder=tmp_path))
            for place in places
        )
        assert (found.error is None) == (expected.error is None), (given, fields, found.error, expected.error)
        stored = {name: plain(rows) for name, rows in contents(server, table).items()}
        assert stored == in_sqlite(tmp_path / "t.sqlite"), (given, fields)
        if found.error is not None:
            break  # MySQL keeps columns that it has added
        counts = [sorted(good(each).get("tables", {}).values()) for each in (found, expected)]
        assert counts[0] == counts[1]


# ── what is special about MySQL ──────────────────────────────────────────────────────────


def test_a_failed_merge_changes_no_table(server):
    """Statements that commit come before the first row of a table is changed, also without a unique index."""
    table = server.new_name()
    good(load(server, [{"id": 1, "v": 1, "items": [{"n": 1}]}], table, mode="append"))
    server.sql(f"ALTER TABLE {table}__items ADD CHECK (n < 5)")
    before = contents(server, table)
    for mode in ("upsert", "replace", "append"):
        rows = [
            {"id": 1, "v": 2, "items": [{"n": 2, "more": 1}]},
            {"id": 2, "w": 1, "items": [{"n": 9, "others": [1]}]},
        ]
        outcome = load(server, rows, table, mode=mode, size=1)
        assert outcome.error.kind == "db.constraint", outcome
        now = contents(server, table)
        assert {name: plain(rows) for name, rows in now.items()} == {name: plain(rows) for name, rows in before.items()}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_key_that_becomes_text_is_found_in_child_tables(server, mode):
    table = server.new_name()
    good(load(server, [{"id": 1, "a": [1, 2], "b": [3]}, {"id": 2, "a": [4]}], table, mode=mode))
    good(
        load(
            server, [{"id": "1", "a": [5]}, {"id": "x", "a": [6]}, {"id": "X", "a": [7]}], table, mode="upsert", size=2
        )
    )
    assert {row["id"] for row in server.sql(f"SELECT id FROM {table}")} == {"1", "2", "x", "X"}
    rows = server.sql(f"SELECT _root_id AS id, value FROM {table}__a ORDER BY 2")
    assert [(row["id"], row["value"]) for row in rows] == [("2", 4), ("1", 5), ("x", 6), ("X", 7)]
    assert server.sql(f"SELECT * FROM {table}__b") == []


def test_the_tables_of_another_root_and_of_another_database_stay(server):
    table = server.new_name()
    good(load(server, [{"id": 1, "items": [7]}], f"{table}__archive", mode="upsert"))
    server.sql(f"CREATE VIEW {table}__view AS SELECT * FROM {table}__archive__items")
    for items in ([1, 2], [3]):
        good(load(server, [{"id": 1, "items": items}], f"noetl.`{table}`", mode="upsert"))
    assert [row["value"] for row in server.sql(f"SELECT value FROM {table}__items")] == [3]
    for rows in ([{"id": 1}], []):
        good(load(server, rows, table, mode="replace"))
    assert server.sql(f"SELECT * FROM {table}__items") == []
    assert [row["value"] for row in server.sql(f"SELECT value FROM {table}__archive__items")] == [7]


def test_lists_whose_names_differ_in_case_have_tables_of_their_own(server):
    table = server.new_name()
    for number in (1, 2):
        good(load(server, [{"id": 1, "o": {"Items": [number]}, "p": {"items": [3]}}], table, mode="upsert"))
    assert server.sql(f"SELECT value FROM {table}__o__Items") == [{"value": 2}]
    outcome = load(server, [{"id": 1, "v": {"A": 1, "a": 2}}], table, mode="upsert")
    assert outcome.error.kind == "schema" and "needs the name" in outcome.error.message


def test_child_tables_of_another_key_are_named(server):
    table = server.new_name()
    good(load(server, [{"id": 1, "code": "a", "items": [1]}], table, mode="append"))
    outcome = load(server, [{"id": 1, "code": "a", "items": [2]}], table, mode="upsert", key="code")
    assert outcome.error.kind == "schema"
    assert f"{table}__items): the table has no column _root_code" in outcome.error.message
    assert server.sql(f"SELECT value FROM {table}__items") == [{"value": 1}]


@pytest.mark.parametrize("unique", [True, False])
def test_a_connection_without_a_database(server, unique):
    table = server.new_name()
    auth = {name: value for name, value in server.auth.items() if name != "database"}
    good(load(server, [{"id": 1, "items": [1, 2]}], f"noetl.{table}", auth=auth, mode="upsert" if unique else "append"))
    good(load(server, [{"id": 1, "items": [3]}, {"id": 2}], f"noetl.{table}", auth=auth, mode="upsert", size=1))
    assert contents(server, table) == {
        table: [{"id": 1}, {"id": 2}],
        f"{table}__items": [{"_root_id": 1, "_index_1": 0, "value": 3}],
    }


def test_a_failed_first_load_leaves_no_table(server):
    table = server.new_name()
    rows = [{"id": 1, "items": [{"tags": [1]}]}, {"id": None, "items": []}]
    assert load(server, rows, table, mode="upsert", size=1).error is not None
    assert tables_of(server, table) == []


def test_rows_without_a_key_get_an_id(server):
    table = server.new_name()
    good(load(server, [{"a": 1, "items": [5]}, {"a": 2, "items": [6, 7]}], table, key=None, size=1))
    joined = f"SELECT r.a, i.value FROM {table} r JOIN {table}__items i ON i._root__noetl_id = r._noetl_id ORDER BY 2"
    assert [tuple(row.values()) for row in server.sql(joined)] == [(1, 5), (2, 6), (2, 7)]


# ── a worker that is killed ──────────────────────────────────────────────────────────────

KILLED = """
import json, os, signal, sys
from noetl.testing import ToolHost, run_tool
from noetl_mysql.target import MysqlTarget

auth, table, rows, where = json.loads(sys.argv[1])
calls = []

def killing(name):
    original = getattr(MysqlTarget, name)
    async def method(self, *given):
        result = await original(self, *given)
        calls.append(name)
        if calls.count(name) == where[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(MysqlTarget, name, method)

killing(where[0])
target = {"kind": "mysql", "auth": auth, "table": table, "nested": "tables", "key": "id", "mode": "upsert"}
print(run_tool("transfer", {"data": rows, "targets": [target], "chunk": {"size": 1}}))
"""


@pytest.mark.parametrize(
    "where", [("begin", 2), ("write", 3), ("write", 5), ("delete", 3), ("alter", 2), ("prepare", 1), ("prepare", 2)]
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_killed_load_changes_no_row_and_can_be_repeated(server, where, exists):
    table = server.new_name()
    first = [{"id": 1, "items": [{"s": 1, "tags": [1]}, {"s": 2}]}, {"id": 2, "items": [{"s": 3}]}]
    if exists:
        good(load(server, first, table, mode="upsert"))
    before = {name: plain(rows) for name, rows in contents(server, table).items()}
    rows = [
        {"id": 1, "items": [{"s": 9}]},
        {"id": 3, "to": {"city": "Oslo"}, "items": [{"s": "x", "n": 1, "tags": [5]}]},
        {"id": 1, "items": [{"s": 10}, {"s": 11}]},
        {"id": 4, "more": 1, "items": [{"n": 2.5, "tags": [6]}]},
    ]
    command = [sys.executable, "-c", KILLED, json.dumps([server.auth, table, rows, where])]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    left = {name: plain(each) for name, each in contents(server, table).items()}
    assert {name: each for name, each in left.items() if each} == before  # tables that were created are empty
    for _ in range(2):
        good(load(server, rows, table, mode="upsert", size=1))
        ids = [2] if exists else []
        assert [row["id"] for row in server.sql(f"SELECT id FROM {table} ORDER BY id")] == sorted([1, *ids, 3, 4])
        items = server.sql(f"SELECT _root_id, _index_1, s, n FROM {table}__items ORDER BY 1, 2")
        expected = [(1, 0, "10", None), (1, 1, "11", None), (3, 0, "x", 1), (4, 0, None, 2.5)]
        assert [tuple(row.values()) for row in items] == sorted([*expected, *[(2, 0, "3", None)] * exists])
        tags = server.sql(f"SELECT _root_id, _index_1, _index_2, value FROM {table}__items__tags ORDER BY 1, 2")
        assert [tuple(row.values()) for row in tags] == [(3, 0, 0, 5), (4, 0, 0, 6)]


# ── bad rows ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_row_that_a_table_rejects_is_quarantined_with_its_child_rows(server, tmp_path: Path, mode, size):
    table = server.new_name()
    server.sql(f"CREATE TABLE {table} (id BIGINT NOT NULL PRIMARY KEY, state VARCHAR(9) NOT NULL)")
    server.sql(f"CREATE TABLE {table}__items (_root_id BIGINT, _index_1 BIGINT, sku VARCHAR(9) NOT NULL)")
    first = [{"id": n, "state": "old", "items": [{"sku": "x"}, {"sku": "y"}]} for n in (1, 3)]
    good(load(server, first if mode != "append" else [], table, mode="append"))
    rows = [
        {"id": 1, "state": "new", "items": [{"sku": "a"}]},
        {"id": 2, "state": None, "items": [{"sku": "b"}]},
        {"id": 3, "state": "new", "items": [{"sku": "c"}, {"sku": None}], "codes": [1]},
        {"id": 4, "state": "new", "items": [{"sku": "d"}, {"sku": "e"}], "codes": [2]},
        {"id": 4, "state": "last", "items": [{"sku": None}]},
        {"id": 5, "state": "new", "items": []},
    ]
    target = {"kind": "mysql", "auth": server.auth, "table": table, "nested": "tables", "key": "id", "mode": mode}
    given = {"data": rows, "targets": [target], "chunk": {"size": size}}
    given |= {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    summary = good(run_tool("transfer", given, host=ToolHost(folder=tmp_path)))
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(each["position"], each["reason"].partition(":")[0]) for each in bad] == [
        (2, table),
        (3, f"{table}__items"),
        (5, f"{table}__items"),
    ]
    assert (summary["rows"], summary["quarantined"]) == (3, 3)
    kept = [(3, "old")] if mode == "upsert" else []
    found = server.sql(f"SELECT id, state FROM {table} ORDER BY 1")
    assert [tuple(row.values()) for row in found] == [(1, "new"), *kept, (4, "new"), (5, "new")]
    found = server.sql(f"SELECT _root_id, sku FROM {table}__items ORDER BY 1, 2")
    kept = [(3, "x"), (3, "y")] if mode == "upsert" else []
    assert [tuple(row.values()) for row in found] == [(1, "a"), *kept, (4, "d"), (4, "e")]
    assert [tuple(row.values()) for row in server.sql(f"SELECT _root_id, value FROM {table}__codes")] == [(4, 2)]
