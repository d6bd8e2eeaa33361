"""The conformance suites find the mistakes that a connector can have: each is planted in a correct connector."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.testing import SourceConformance, TargetConformance
from noetl.tools import registry as tools

SUITES_OF = {"Source": SourceConformance, "Target": TargetConformance}

CONNECTOR = """
import asyncio
from noetl.tool import Field, RowTarget, SourceSpec, TargetSpec, error_info

SHELVES = {}  # the server: the rows by the name of the shelf
COLUMNS = {}  # and their types
OPEN = []  # connections
DONE = set()  # keys of transfers that were committed
STATE = {"position": 0}
SCHEMA = (("id", "int64"), ("name", "string"), ("price", "float64"), ("note", "string"))


async def connect():
    await asyncio.sleep(0)
    OPEN.append(1)


async def close():
    OPEN.pop()
    await asyncio.sleep(0)


async def read(call):
    import pyarrow as pa

    await connect()
    try:
        rows = found(call.fields["shelf"])
        for start in range(0, len(rows), call.batch_rows):
            await asyncio.sleep(0)
            yield [dict(row) for row in rows[start : start + call.batch_rows]]
        if not rows:
            yield pa.RecordBatch.from_pylist([], pa.schema([(name, getattr(pa, type)()) for name, type in SCHEMA]))
    finally:
        await close()


def found(shelf):
    if shelf not in SHELVES:
        raise LookupError(shelf)
    return SHELVES[shelf]


async def count(call):
    return len(found(call.fields["shelf"]))


class Shelf(RowTarget):
    connected = False
    root = None

    async def begin(self, schema):
        await self.open()
        if not self.call.create:
            found(self.call.fields["shelf"])
        if not self.types and schema is not None:
            await self.alter(schema, {})

    async def open(self):
        if not self.connected and self.root is None:
            await connect()
        if not self.connected:
            self.connected = True
            self.staged = []
            self.gone = []
            self.types = dict(COLUMNS.get(self.call.fields["shelf"], {}))

    async def write(self, table):
        await asyncio.sleep(0)
        self.staged += table.to_pylist()
        if self.call.idempotency_key in DONE:
            self.staged.clear()

    async def columns(self):
        await self.open()
        return self.types

    async def alter(self, add, widen):
        names = {"int64": "bigint", "double": "double", "string": "text"}
        self.types |= {field.name: names.get(str(field.type), str(field.type)) for field in add} | widen

    def join(self, root):
        self.root = root
        root.children.append(self)

    @property
    def children(self):
        return self.__dict__.setdefault("joined", [])

    async def tables(self, beginning):
        return {name: list(columns) for name, columns in COLUMNS.items() if name.startswith(beginning)}

    async def delete(self, keys):
        await self.open()
        self.gone += keys.to_pylist()
        self.staged = self.without(keys.to_pylist(), self.staged)

    def without(self, keys, rows):
        return [row for row in rows if not any(key.items() <= row.items() for key in keys)]

    async def write_empty(self):
        if self.call.mode == "replace":
            await self.begin(None)

    async def commit(self):
        if self.root is not None or not self.connected:
            return
        for child in self.children:
            await child.store()
        await self.store()
        DONE.add(self.call.idempotency_key)
        await self.leave()

    async def store(self):
        if not self.connected:
            return
        stored = [] if self.call.mode == "replace" else SHELVES.get(self.call.fields["shelf"], [])
        stored = self.without(self.gone, stored)
        COLUMNS[self.call.fields["shelf"]] = self.types
        if self.call.mode == "upsert":
            key = lambda row: tuple(row[name] for name in self.call.key)
            merged = {}
            for row in [*stored, *self.staged]:
                merged[key(row)] = {**merged.get(key(row), {}), **row}
            stored = list(merged.values())
        else:
            stored = stored + self.staged
        SHELVES[self.call.fields["shelf"]] = stored

    async def abort(self):
        await self.leave()

    async def leave(self):
        if self.connected and self.root is None:
            self.connected = False
            await close()


def explain(failure):
    return error_info("not_found", f"there is no shelf {failure}") if isinstance(failure, LookupError) else None


FIELDS = {"shelf": Field("string", "The shelf.", required=True)}
SOURCE = SourceSpec(kind="KIND", doc="Rows of a shelf.", read=read, count=count, fields=FIELDS, explain=explain)
TARGET = TargetSpec(kind="KIND", doc="A shelf.", open=Shelf, fields=FIELDS, place="shelf", explain=explain,
    evolves=True, nests=True)
"""

SUITES = """
import itertools
import pytest
from MODULE import COLUMNS, OPEN, SHELVES
from noetl.testing import SourceConformance, TargetConformance

numbers = itertools.count()


class TestSource(SourceConformance):
    close_seconds = 0.05

    @pytest.fixture
    def place(self):
        def store(rows):
            shelf = f"s{next(numbers)}"
            SHELVES[shelf] = rows
            return {"kind": "KIND", "shelf": shelf}

        return store

    @pytest.fixture
    def missing(self):
        return lambda: {"kind": "KIND", "shelf": "none"}

    @pytest.fixture
    def connections(self):
        return lambda: len(OPEN)


class TestTarget(TargetConformance):
    close_seconds = 0.05
    evolves = nests = commits_once = True

    @pytest.fixture
    def place(self):
        return lambda: {"kind": "KIND", "shelf": f"t{next(numbers)}"}

    @pytest.fixture
    def read(self):
        def read(fields):
            shelf = fields["shelf"]
            return [dict.fromkeys(COLUMNS[shelf]) | row for row in SHELVES.get(shelf, [])]

        return read

    @pytest.fixture
    def source(self):
        return lambda fields: fields

    @pytest.fixture
    def connections(self):
        return lambda: len(OPEN)
"""

GO_ON = """
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
"""
# The collected rows are those of the idempotency key: also of the attempt before.
COLLECTED = """
        import json, pathlib

        file = pathlib.Path("collected-" + self.call.idempotency_key.replace(":", "-").replace("/", "-"))
        self.staged = (json.loads(file.read_text()) if file.exists() else []) + table.to_pylist()
        file.write_text(json.dumps(self.staged))
"""
# The mistake, what it changes in the connector, and the test that finds it.
MISTAKES = [
    ("loses rows of a part of a batch", "len(rows), call.", "len(rows) - 9, call.", "Source::test_chunks"),
    ("repeats a row of every batch", "start + call.batch_rows]", "start + call.batch_rows + 1]", "Source::test_chunks"),
    ("reads nulls as text", "[dict(row) for row in rows[", "[{**row, 'note': row['note'] or ''} for row in rows[",
     "Source::test_every_row_arrives"),
    ("rounds numbers", "[dict(row) for row in rows[", "[{**row, 'id': float(row['id'])} for row in rows[",
     "Source::test_every_row_arrives"),
    ("removes blanks at the ends of texts", "[dict(row) for row in rows[",
     "[{**row, 'name': row['name'].strip()} for row in rows[", "Source::test_every_row_arrives"),
    ("cuts long texts", "[dict(row) for row in rows[", "[{**row, 'name': row['name'][:255]} for row in rows[",
     "Source::test_every_row_arrives"),
    ("reads all rows at once", "rows[start : start + call.batch_rows]", "(rows if not start else [])",
     "Source::test_a_batch_is_bounded"),
    ("changes the order", "in rows[start", "in rows[::-1][start", "Source::test_the_order_is_kept"),
    ("has no columns without rows", "if not rows:", "if False:", "Source::test_a_source_without_rows"),
    ("goes on after a cancellation", "            await asyncio.sleep(0)\n            yield",
     GO_ON.replace("\n", "\n    ") + "        yield", "Source::test_cancellation_is_not_swallowed"),
    ("leaves connections of a source open", "    finally:\n        await close()", "    finally:\n        pass",
     "Source::test_every_row_arrives"),
    ("counts wrong", "return len(found(call.fields[\"shelf\"]))", "return 7", "Source::test_the_rows_are_counted"),
    ("reads only what is new to the process", "rows = found(call.fields[\"shelf\"])",
     "rows = found(call.fields[\"shelf\"]) if STATE.pop(\"position\", None) == 0 else []",
     "Source::test_a_source_can_be_read_again"),
    ("has no rows if there is no shelf", "rows = found(call.fields[\"shelf\"])",
     "rows = SHELVES.get(call.fields[\"shelf\"], [])", "Source::test_a_source_that_does_not_exist"),
    ("does not explain its errors", "isinstance(failure, LookupError)", "False",
     "Source::test_a_source_that_does_not_exist"),
    ("ignores `create: false`", "if not self.call.create:", "if False:", "Target::test_a_missing_place_is_created"),
    ("replaces in mode append", 'self.call.mode == "replace" else', 'self.call.mode != "upsert" else',
     "Target::test_append_keeps"),
    ("appends in mode replace", 'self.call.mode == "replace" else', "False else", "Target::test_replace_leaves"),
    ("appends in mode upsert", 'if self.call.mode == "upsert":', "if False:", "Target::test_upsert_updates"),
    ("keeps the first row of a key", "in [*stored, *self.staged]", "in [*stored, *self.staged[::-1]]",
     "Target::test_the_last_row"),
    ("uses the first column of a key", "in self.call.key)", "in self.call.key[:1])", "Target::test_a_key_of_two"),
    ("writes whole rows in mode upsert", "{**merged.get(key(row), {}), **row}", "{'price': None, **row}",
     "Target::test_upsert_keeps_other_columns"),
    ("loses a chunk", "self.staged += table.to_pylist()", "self.staged = table.to_pylist()", "Target::test_chunks"),
    ("writes nulls as text", "table.to_pylist()", "[{n: v or '' for n, v in r.items()} for r in table.to_pylist()]",
     "Target::test_every_row_arrives"),
    ("stores rows before the commit", "self.staged += table.to_pylist()",
     "SHELVES.setdefault(self.call.fields['shelf'], []).extend(table.to_pylist())", "Target::test_a_failed_transfer"),
    ("empties the shelf at the beginning", "self.staged = []",
     "self.staged = []\n            if self.call.mode == 'replace': SHELVES[self.call.fields['shelf']] = []",
     "Target::test_a_failed_transfer"),
    ("shares rows between transfers", "self.staged = []", "self.staged = STATE.setdefault('staged', [])",
     "Target::test_append_keeps"),
    ("does not empty the shelf without rows", 'if self.call.mode == "replace":\n            await self.begin', "if False:\n"
     "            await self.begin", "Target::test_replace_by_no_rows"),
    ("goes on after a cancellation of a write", "        await asyncio.sleep(0)\n        self.staged +=",
     GO_ON + "        self.staged +=", "Target::test_cancellation_is_not_swallowed"),
    ("reports a cancelled commit as a success", "        SHELVES[self.call.fields[\"shelf\"]] = stored",
     GO_ON.replace("pass", "return await self.leave()") + "        SHELVES[self.call.fields[\"shelf\"]] = stored",
     "Target::test_cancellation_is_not_swallowed"),
    ("commits row by row", "        SHELVES[self.call.fields[\"shelf\"]] = stored",
     "        shelf = SHELVES[self.call.fields['shelf']] = []\n        for row in stored:\n"
     "            await asyncio.sleep(0)\n            shelf.append(row)", "Target::test_cancellation_is_not_swallowed"),
    ("leaves connections open after a failure", "    async def abort(self):\n        await self.leave()",
     "    async def abort(self):\n        pass", "Target::test_a_failed_transfer"),
    ("leaves connections open after a commit", "key)\n        await self.leave()", "key)",
     "Target::test_every_row_arrives"),
    ("drops columns that it does not know", "table.to_pylist()",
     "table.select([n for n in table.column_names if n != 'added']).to_pylist()", "Target::test_a_column_that_the_place"),
    ("stores dates as text", "table.to_pylist()",
     "[{n: str(v) if hasattr(v, 'year') else v for n, v in r.items()} for r in table.to_pylist()]",
     "Target::test_values_of_every_type"),
    ("keeps what a lost worker has collected", "self.staged += table.to_pylist()", COLLECTED,
     "Target::test_the_attempt_after_a_lost_worker"),
    ("appends again after a commit that was not reported", "DONE.add(self.call.idempotency_key)", "pass",
     "Target::test_a_commit_that_was_not_reported"),
    ("cannot be aborted before it has begun", "    async def abort(self):\n", "    async def abort(self):\n"
     "        self.staged.clear()\n", "Target::test_the_failure_of_another_side"),
    ("keeps child rows of rows that are loaded again", "self.without(self.gone, stored)", "stored",
     "Target::test_upsert_replaces_child_rows"),
    ("keeps child rows of earlier chunks", "self.without(keys.to_pylist(), self.staged)", "self.staged",
     "Target::test_upsert_replaces_child_rows"),
    ("does not find its child tables", "in COLUMNS.items() if", "in () if", "Target::test_replace_empties_child_tables"),
    ("stores child rows before the commit", "self.staged += table.to_pylist()",
     "self.staged += table.to_pylist()\n        if self.root is not None: await self.store()",
     "Target::test_all_tables_are_rolled_back"),
    ("forgets rows of one child table", "for child in self.children:", "for child in self.children[:1]:",
     "Target::test_lists_are_child_tables"),
    ("commits its tables one by one", "            await child.store()",
     "            await child.store()\n            await asyncio.sleep(0)",
     "Target::test_a_cancelled_transfer_changes_all_tables"),
]  # fmt: skip


class Results:
    """The outcome of every test of a run."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}  # test -> message
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed[report.nodeid] = report.longrepr.reprcrash.message
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith(("noetl_shelf", "test_shelf"))]:
        del sys.modules[name]
    monkeypatch.undo()
    tools.refresh()


def install(site: Path, name: str, old: str = "", new: str = "") -> None:
    assert not old or old in CONNECTOR, old
    (site / f"noetl_{name}.py").write_text(CONNECTOR.replace(old or "KIND", new or name).replace("KIND", name))
    info = site / f"noetl_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: noetl_{name}\nVersion: 1.0\n")
    groups = {"noetl.sources": "SOURCE", "noetl.targets": "TARGET"}
    lines = [f"[{group}]\n{name} = noetl_{name}:{spec}\n" for group, spec in groups.items()]
    (info / "entry_points.txt").write_text("".join(lines))
    (site / f"test_{name}.py").write_text(SUITES.replace("MODULE", f"noetl_{name}").replace("KIND", name))


def test_the_suites_pass_for_a_correct_connector_and_find_every_mistake(site: Path) -> None:
    install(site, "shelf")
    wanted = ["test_shelf.py"]
    for number, (_, old, new, test) in enumerate(MISTAKES):
        install(site, f"shelf{number}", old, new)
        names = [name for name in dir(SUITES_OF[test.partition("::")[0]]) if name.startswith(test.partition("::")[2])]
        assert len(names) == 1, (test, names)
        wanted.append(f"test_shelf{number}.py::Test{test.partition('::')[0]}::{names[0]}")
    tools.refresh()
    results = Results()
    (site / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:xdist -p no:cacheprovider\n")
    folder = Path.cwd()
    os.chdir(site)
    try:
        pytest.main(["-c", "pytest.ini", *wanted], plugins=[results])
    finally:
        os.chdir(folder)
    assert {test for test in results.failed if test.startswith("test_shelf.py")} == set()
    unexplained = {test: said for test, said in results.failed.items() if re.match("(AssertionError: )?assert ", said)}
    assert unexplained == {}, "every failure says the rule, not only the comparison"
    assert len([test for test in results.passed if test.startswith("test_shelf.py")]) >= 40
    missed = [MISTAKES[n][0] for n in range(len(MISTAKES)) if wanted[n + 1] not in results.failed]
    assert missed == []
