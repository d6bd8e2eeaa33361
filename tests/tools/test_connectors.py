"""Sources and targets of plug-ins: discovery, validation, errors; and the conformance suites on the built-in ones."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.language.reference.json_schema import json_schema
from noetl.testing import SourceConformance, TargetConformance, ToolHost, run_tool
from noetl.tools import registry as tools

LETTERS = """
from noetl.tool import Field, RowTarget, SourceSpec, TargetSpec, error_info

written, events = [], []

async def read(call):
    try:
        for start in range(0, call.fields["count"], 2):
            if start == call.fields.get("fail_at"):
                raise LookupError("no letter")
            numbers = range(start, min(start + 2, call.fields["count"]))
            yield [{"n": n, "letter": chr(97 + n), **{name: n for name in call.fields.get("more", ())[:n]}} for n in numbers]
    finally:
        events.append("closed")

async def count(call):
    return call.fields["count"]

def explain(failure):
    return error_info("server_error", f"letters: {failure}") if isinstance(failure, LookupError) else None

class Letters(RowTarget):
    async def begin(self, schema):
        events.append(("begin", self.call.mode, self.call.key, schema.names))
    async def write(self, table):
        if self.call.fields.get("broken"):
            raise LookupError("disk full")
        events.append(("write", self.call.fields["shelf"], table.num_rows))
    async def commit(self):
        events.append("commit")
    async def abort(self):
        events.append("abort")

SOURCE = SourceSpec(kind="letters", doc="Letters.", read=read, count=count, explain=explain, aliases=("abc",), fields={
    "count": Field("integer", "How many.", required=True, aliases=("n",)), "fail_at": Field("integer", "Where."),
    "more": Field("list", "Columns of later rows.")})
TARGET = TargetSpec(kind="letters", doc="Letters.", open=Letters, explain=explain, place="shelf", modes=("append",),
    transactional=False, fields={"shelf": Field("string", "Where."), "broken": Field("boolean", "Fails.")})
"""


@pytest.fixture
def letters(plugins) -> Any:
    import sys

    plugins("noetl_letters", LETTERS, {"letters": "noetl_letters:SOURCE"}, "noetl.sources")
    site = Path(sys.path[0])
    info = site / "noetl_letters-1.2.dist-info" / "entry_points.txt"
    info.write_text(info.read_text() + "[noetl.targets]\nletters = noetl_letters:TARGET\n")
    tools.refresh()
    tools.specs()
    return sys.modules["noetl_letters"]


def findings(task: str) -> list[str]:
    text = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: s}}\nworkflow:\n  - step: start\n    tool: {task}\n"
    return [str(each) for each in compile_playbook(text, file="p.yaml", specs=tools.specs()).diagnostics]


def transfer(source: Any, *targets: Any, **others: Any) -> Any:
    return run_tool("transfer", {"source": source, "targets": list(targets), **others})


def test_rows_of_a_plug_in_reach_a_built_in_target(letters, tmp_path):
    outcome = transfer(
        {"kind": "abc", "n": 5}, {"kind": "file", "path": str(tmp_path / "l.parquet")}, chunk={"size": 3}
    )
    assert (outcome.error, outcome.data["rows"], outcome.data["chunks"]) == (None, 5, 2)
    assert [row["letter"] for row in pq.read_table(tmp_path / "l.parquet").to_pylist()] == list("abcde")
    assert letters.events == ["closed"]


def test_columns_of_later_rows_are_added_to_a_target_with_a_contract(letters, tmp_path):
    target = {"kind": "sqlite", "file": str(tmp_path / "l.sqlite"), "table": "l", "schema": "evolve"}
    outcome = transfer({"kind": "abc", "n": 4, "more": ["", "", "later"]}, target, chunk={"size": 2})
    assert outcome.error is None, outcome.error
    with contextlib.closing(sqlite3.connect(target["file"])) as found:
        assert found.execute("SELECT n, later FROM l ORDER BY n").fetchall() == [
            (0, None),
            (1, None),
            (2, None),
            (3, 3),
        ]


def test_a_text_that_is_not_unicode_is_a_bad_row(tmp_path):
    rows = [{"id": 1, "v": "good"}, {"id": 2, "v": "\ud800"}, {"id": 3, "v": ["\udfff"]}]
    target = {"kind": "file", "path": str(tmp_path / "l.jsonl")}
    outcome = transfer({"data": rows}, target)
    assert outcome.error.kind == "schema"
    assert "the column 'v' has '\\ud800', which is not valid Unicode" in outcome.error.message
    quarantine = {"kind": "file", "path": str(tmp_path / "bad.jsonl")}
    outcome = transfer({"data": rows}, target, bad_rows="quarantine", quarantine=quarantine)
    assert (outcome.error, (tmp_path / "l.jsonl").read_text()) == (None, '{"id":1,"v":"good"}\n')
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert ["\\ud800" in bad[0]["row"], "\\udfff" in bad[1]["row"]] == [True, True]
    outcome = transfer({"data": [{"id": 1, "\ud800": 2}]}, target)
    assert (outcome.error.kind, "lone surrogate" in outcome.error.message) == ("schema", True)


def test_rows_reach_a_target_of_a_plug_in(letters):
    outcome = transfer({"kind": "letters", "count": 3}, {"kind": "letters", "shelf": "top"})
    assert outcome.error is None
    assert outcome.data["targets"][0]["place"] == "top"
    assert letters.events == ["closed", ("begin", "append", (), ["n", "letter"]), ("write", "top", 3), "commit"]


def test_a_place_that_depends_on_the_chunk_is_opened_for_each(letters, tool):
    from noetl.core.templates.deferred import DeferredTemplate

    shelf = DeferredTemplate("shelf {{ chunk.index }} of {{ chunk.total }}")
    assert (
        transfer({"kind": "letters", "count": 3}, {"kind": "letters", "shelf": shelf}, chunk={"size": 2}).error is None
    )
    assert [each[1] for each in letters.events if each[0] == "write"] == ["shelf 0 of 2", "shelf 1 of 2"]


def test_failures_are_explained_by_the_plug_in(letters):
    outcome = transfer(
        {"kind": "letters", "count": 5, "fail_at": 2}, {"kind": "letters", "shelf": "top"}, chunk={"size": 2}
    )
    assert (outcome.error.kind, outcome.error.message) == ("server_error", "the source: letters: no letter")
    assert letters.events[-1] == "abort"
    outcome = transfer({"kind": "letters", "count": 5}, {"kind": "letters", "shelf": "top", "broken": True})
    assert outcome.error.message == "target 0 (letters top): letters: disk full"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("{kind: transfer, source: {kind: letters, cuont: 3}, target: {kind: file, path: x}}", "cuont"),
        ("{kind: transfer, source: {kind: letters}, target: {kind: file, path: x}}", 'requires "count"'),
        ("{kind: transfer, source: {kind: letters, count: many}, target: {kind: file, path: x}}", "a whole number"),
        ("{kind: transfer, data: [{a: 1}], target: {kind: letters, shelf: x, mode: replace}}", 'cannot be "replace"'),
        ("{kind: transfer, data: [{a: 1}], target: {kind: letters}}", 'requires "shelf"'),
        ("{kind: transfer, data: [{a: 1}], target: {kind: letter, shelf: x}}", "letters"),
        (
            "{kind: transfer, source: {kind: mysql, table: t}, target: {kind: file, path: x}}",
            "install the package noetl-mysql",
        ),
    ],
)
def test_the_validator_knows_the_fields_of_a_plug_in(letters, task, said):
    assert any(said in found for found in findings(task))


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ({"kind": "letters", "cuont": 3}, {"kind": "file", "path": "x"}, "did you mean `count`"),
        ({"kind": "data", "data": []}, {"kind": "letters", "shelf": "x", "mode": "upsert"}, "its modes are append"),
        ({"kind": "data", "data": []}, {"kind": "letters"}, "requires `shelf`"),
        ({"kind": "mysql", "table": "t"}, {"kind": "letters", "shelf": "x"}, "install the package noetl-mysql"),
        ({"kind": "lettres"}, {"kind": "letters", "shelf": "x"}, "letters"),
    ],
)
def test_fields_of_a_template_are_checked_when_the_task_runs(letters, source, target, said):
    outcome = transfer(source, target)
    assert outcome.error.kind == "schema"
    assert said in outcome.error.message


def test_the_schema_for_editors_has_the_fields_of_a_plug_in(letters):
    text = json.dumps(json_schema(tools.specs()))
    assert '"fail_at"' in text
    assert '"shelf"' in text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import a_library_that_is_not_there", "a_library_that_is_not_there"),
        ("SOURCE = 1", "is not a noetl.tool.SourceSpec"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_broken_connector_is_named_and_the_others_go_on(plugins, tmp_path, source, said):
    plugins("noetl_broken", source, {"broken": "noetl_broken:SOURCE"}, "noetl.sources")
    (problem,) = tools.problems()
    assert said in problem.message
    assert findings("{kind: transfer, source: {kind: broken, x: 1}, target: {kind: file, path: x}}") == []
    outcome = transfer({"kind": "broken", "x": 1}, {"kind": "file", "path": str(tmp_path / "x.csv")})
    assert outcome.error.message == f"source: {problem.message}"
    ok = transfer({"kind": "data", "data": [{"a": 1}]}, {"kind": "file", "path": str(tmp_path / "y.csv")})
    assert ok.error is None


# ── the suites on the built-in sources and targets ──────────────────────────────────────

COLUMNS = "id BIGINT, name TEXT, price DOUBLE PRECISION, note TEXT"
numbers = itertools.count()


def insert(connection: Any, table: str, rows: list[dict[str, Any]], mark: str) -> None:
    for row in rows:
        values = (row["id"], row["name"], row["price"], row["note"])
        connection.execute(f"INSERT INTO {table} VALUES ({mark}, {mark}, {mark}, {mark})", values)


class TestSqliteSource(SourceConformance):
    keeps_columns = True

    @pytest.fixture
    def place(self, tmp_path):
        def store(rows):
            file = tmp_path / f"source{next(numbers)}.sqlite"
            with sqlite3.connect(file) as connection:
                connection.execute(f"CREATE TABLE t ({COLUMNS})")
                insert(connection, "t", rows, "?")
            connection.close()
            return {"kind": "sqlite", "file": str(file), "table": "t"}

        return store


class TestDuckdbSource(SourceConformance):
    @pytest.fixture
    def place(self, tmp_path):
        def store(rows):
            file = tmp_path / f"source{next(numbers)}.duckdb"
            with duckdb.connect(str(file)) as connection:
                connection.execute(f"CREATE TABLE t ({COLUMNS})")
                if rows:
                    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [list(row.values()) for row in rows])
            return {"kind": "duckdb", "file": str(file), "query": "SELECT * FROM t"}

        return store


@pytest.mark.integration
class TestPostgresSource(SourceConformance):
    @pytest.fixture
    def place(self, database):
        def store(rows):
            table = f"source{next(numbers)}"
            with psycopg.connect(database) as connection:
                connection.execute(f"CREATE TABLE {table} ({COLUMNS})")
                insert(connection, table, rows, "%s")
            return {"kind": "postgres", "auth": database, "table": table}

        return store

    @pytest.fixture
    def connections(self, database):
        def count():
            with psycopg.connect(database) as connection:
                query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                return connection.execute(query).fetchone()[0]

        return count


class TestParquetSource(SourceConformance):
    @pytest.fixture
    def place(self, tmp_path):
        import pyarrow as pa

        schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("note", pa.string())])

        def store(rows):
            file = tmp_path / f"source{next(numbers)}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema), file)
            return {"kind": "file", "path": str(file)}

        return store


class TestSqliteTarget(TargetConformance):
    nests = True
    types = ("bigint", "double", "text", "bytes")  # that SQLite has

    @pytest.fixture
    def source(self):
        return lambda fields: {name: fields[name] for name in ("kind", "file", "table")}

    @pytest.fixture
    def place(self, tmp_path):
        return lambda: {"kind": "sqlite", "file": str(tmp_path / "target.sqlite"), "table": f"t{next(numbers)}"}

    @pytest.fixture
    def read(self):
        def rows(fields):
            connection = sqlite3.connect(fields["file"])
            connection.row_factory = sqlite3.Row
            try:
                return [dict(row) for row in connection.execute(f"SELECT * FROM {fields['table']}")]
            finally:
                connection.close()

        return rows


class TestDuckdbTarget(TargetConformance):
    nests = True

    @pytest.fixture
    def source(self):
        return lambda fields: {name: fields[name] for name in ("kind", "file", "table")}

    @pytest.fixture
    def place(self, tmp_path):
        return lambda: {"kind": "duckdb", "file": str(tmp_path / "target.duckdb"), "table": f"t{next(numbers)}"}

    @pytest.fixture
    def read(self):
        def rows(fields):
            with duckdb.connect(fields["file"]) as connection:
                return connection.sql(f"SELECT * FROM {fields['table']}").to_arrow_table().to_pylist()

        return rows


@pytest.mark.integration
class TestPostgresTarget(TargetConformance):
    nests = True

    @pytest.fixture
    def source(self):
        return lambda fields: {name: fields[name] for name in ("kind", "auth", "table")}

    @pytest.fixture
    def place(self, database):
        return lambda: {"kind": "postgres", "auth": database, "table": f"t{next(numbers)}"}

    @pytest.fixture
    def read(self, database):
        def rows(fields):
            with psycopg.connect(database, row_factory=psycopg.rows.dict_row) as connection:
                return connection.execute(f"SELECT * FROM {fields['table']}").fetchall()

        return rows


class TestParquetTarget(TargetConformance):
    modes = ("replace",)
    creates = False  # it is for tables

    @pytest.fixture
    def source(self):
        return lambda fields: {name: fields[name] for name in ("kind", "path")}

    @pytest.fixture
    def place(self, tmp_path):
        return lambda: {"kind": "file", "path": str(tmp_path / f"t{next(numbers)}.parquet")}

    @pytest.fixture
    def read(self):
        return lambda fields: pq.read_table(fields["path"]).to_pylist()


def test_a_suite_fails_for_a_source_that_loses_rows(letters, tmp_path):
    """The suites can fail: a source that yields only even rows does not pass."""
    suite = SourceConformance()
    suite.rows = [{"id": 1, "name": "x", "price": 1.0, "note": None}]

    def copy(source: Any) -> Any:
        return transfer(source, {"kind": "file", "path": str(tmp_path / "x.parquet")}), []

    with pytest.raises(AssertionError):
        suite.test_every_row_arrives_with_its_values(lambda rows: {"kind": "letters", "count": 1}, copy)
    assert ToolHost().counts == []


def test_texts_of_a_source_are_utf_8():
    import pyarrow as pa

    from noetl.tools._common.sql_task import BadInput
    from noetl.tools.transfer.sources.plugin_source import _checked

    wrong = pa.array([b"good", b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(BadInput, match="the column 'name' has bytes that are no UTF-8 text"):
        _checked(pa.record_batch({"id": pa.array([1, 2]), "name": wrong}))
