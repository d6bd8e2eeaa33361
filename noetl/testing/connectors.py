"""Conformance suites for sources and targets of `transfer`, public in `noetl.testing`.

A test class inherits a suite and defines the fixture `place` (and `read` for targets):

    class TestSource(SourceConformance):
        @pytest.fixture
        def place(self, server):
            return lambda rows: {"kind": "mysql", "auth": server.auth, "table": server.create(rows)}

    class TestTarget(TargetConformance):
        @pytest.fixture
        def place(self, server):
            return lambda: {"kind": "mysql", "auth": server.auth, "table": server.new_name()}

        @pytest.fixture
        def read(self, server):
            return lambda fields: server.rows(fields["table"])
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load, specs

Rows = list[dict[str, Any]]
Fields = dict[str, Any]

ROWS: Rows = [
    {"id": 1, "name": "Ada", "price": 1.5, "note": None},
    {"id": 2, "name": "Grüße, \"quoted\"\n\\line\t'2'", "price": -0.25, "note": ""},
    {"id": 9_007_199_254_740_993, "name": "日本語 🎉", "price": 0.1, "note": "null"},
]
_EXECUTIONS = count(1)
FAILING_ROW = 11_000  # of `_failing_source`: after the first batch of 10,000


def many_rows(count: int) -> Rows:
    """Rows with ids from 0."""
    return [{"id": number, "name": f"row {number}", "price": number / 4, "note": None} for number in range(count)]


class _Suite:
    """What both suites share."""

    options: Fields = {}  # of the task beside `source` and `targets`

    @pytest.fixture
    def host(self, tmp_path: Path) -> ToolHost:
        """The worker; override it to supply credentials."""
        return ToolHost(folder=tmp_path)

    def transfer(self, source: Fields, target: Fields, host: ToolHost, **options: Any) -> Outcome:
        """Run one transfer, each in an execution of its own."""
        given = {"source": source, "targets": [target], **self.options, **options}
        return run_tool("transfer", given, host=host, execution_id=str(next(_EXECUTIONS)))


class SourceConformance(_Suite):
    """What a source of `transfer` has to do. `place(rows)` stores rows and returns the source's fields.

    `keeps_columns`: an empty source still has its columns. `ordered`: rows arrive in the order in which they were
    stored. `connections()`, if a test class defines this fixture, is the number of open connections to the server."""

    keeps_columns = True
    ordered = True
    rows: Rows = ROWS

    @pytest.fixture
    def place(self) -> Callable[[Rows], Fields]:
        """Stores rows and returns the fields of a source."""
        raise NotImplementedError("define the fixture `place` in the test class")

    @pytest.fixture
    def connections(self) -> Callable[[], int] | None:
        """Counts the open connections to the server; None if that cannot be observed."""
        return None

    @pytest.fixture
    def copy(self, tmp_path: Path, host: ToolHost) -> Callable[..., tuple[Outcome, Rows]]:
        """Copies a source to a Parquet file and returns the outcome with the rows of the file."""

        def run(source: Fields, **options: Any) -> tuple[Outcome, Rows]:
            import pyarrow.parquet as pq

            file = tmp_path / "copied.parquet"
            outcome = self.transfer(source, {"kind": "file", "path": str(file)}, host, **options)
            return outcome, pq.read_table(file).to_pylist() if outcome.status == "ok" and file.exists() else []

        return run

    def test_every_row_arrives_with_its_values(self, place: Any, copy: Any) -> None:
        """Text, numbers and nulls are unchanged."""
        outcome, rows = copy(place(self.rows))
        assert outcome.error is None
        assert self._sorted(rows) == self._sorted(self.rows)

    def test_chunks_divide_the_rows(self, place: Any, copy: Any) -> None:
        """Every row arrives once, whatever the size of a chunk is."""
        outcome, rows = copy(place(many_rows(25)), chunk={"size": 10})
        assert (outcome.error, outcome.data["rows"], outcome.data["chunks"]) == (None, 25, 3)
        assert self._sorted(rows) == many_rows(25)

    def test_the_order_is_kept(self, place: Any, copy: Any) -> None:
        """Rows arrive in the order of the source."""
        if not self.ordered:
            pytest.skip("this source has no order")
        _, rows = copy(place(many_rows(50)), chunk={"size": 7})
        assert [row["id"] for row in rows] == list(range(50))

    def test_a_source_without_rows_has_columns(self, place: Any, copy: Any, tmp_path: Path) -> None:
        """An empty source is a success."""
        import pyarrow.parquet as pq

        outcome, rows = copy(place([]))
        assert (outcome.error, rows) == (None, [])
        if self.keeps_columns:
            assert set(pq.read_schema(tmp_path / "copied.parquet").names) >= {"id", "name"}

    def test_a_batch_is_bounded(self, place: Any, host: ToolHost) -> None:
        """A source does not read all rows before it yields the first."""
        spec = _plugin_source(place(many_rows(1)))
        if spec is None:
            pytest.skip("a built-in source")
        from noetl.tools.transfer.transfer_plan import read_plan

        given = {"source": place(many_rows(500)), "targets": [{"kind": "file", "path": "x.parquet"}]}
        plan = read_plan(tool_call("transfer", given, host=host)).source

        async def largest() -> int:
            from noetl.core.model.connector import SourceCall

            assert plan is not None
            call = SourceCall(plan.kind, plan.fields, host, batch_rows=100)
            sizes = [len(batch) if isinstance(batch, list) else batch.num_rows async for batch in spec.read(call)]
            await close_loop_resources()
            assert sum(sizes) == 500
            return max(sizes)

        assert asyncio.run(largest()) <= 200

    def test_cancellation_ends_the_transfer(self, place: Any, tmp_path: Path, connections: Any) -> None:
        """A cancelled transfer stops soon and closes its connections."""
        source = place(many_rows(2000))
        before = connections() if connections else 0
        given = {"source": source, "targets": [{"kind": "file", "path": "cancelled.parquet"}], "chunk": {"size": 100}}
        asyncio.run(_cancel_after_first_chunk(given, self._host(tmp_path)))
        if connections:
            _wait_for(lambda: connections() <= before)

    def test_a_misspelt_field_is_reported(self, place: Any, host: ToolHost, tmp_path: Path) -> None:
        """By the validator, and at run time if the kind is a template."""
        source = {**place(self.rows), "no_such_field": 1}
        assert "no_such_field" in _diagnostics({"source": source, "targets": [{"kind": "file", "path": "x"}]})
        if _plugin_source(source) is not None:
            outcome = self.transfer(source, {"kind": "file", "path": str(tmp_path / "x.parquet")}, host)
            assert outcome.error is not None
            assert outcome.error.kind == "schema"

    def _host(self, folder: Path) -> ToolHost:
        return ToolHost(folder=folder)

    def _sorted(self, rows: Rows) -> Rows:
        return sorted(rows, key=lambda row: row["id"])


class TargetConformance(_Suite):
    """What a target of `transfer` has to do. `place()` returns the fields of a new target, `read(fields)` its rows.

    `modes` are those of the kind. `rolls_back`: a failed transfer leaves nothing behind. `evolves`: as in its
    `TargetSpec`."""

    modes: tuple[str, ...] = ("append", "replace", "upsert")
    rolls_back = True
    evolves = False
    rows: Rows = ROWS

    @pytest.fixture
    def place(self) -> Callable[[], Fields]:
        """The fields of a new target."""
        raise NotImplementedError("define the fixture `place` in the test class")

    @pytest.fixture
    def read(self) -> Callable[[Fields], Rows]:
        """The rows of a target."""
        raise NotImplementedError("define the fixture `read` in the test class")

    @pytest.fixture
    def write(self, host: ToolHost) -> Callable[..., Outcome]:
        """Writes rows to a target."""

        def run(rows: Rows, target: Fields, **options: Any) -> Outcome:
            return self.transfer({"kind": "data", "data": rows}, target, host, **options)

        return run

    def test_every_row_arrives_with_its_values(self, place: Any, write: Any, read: Any) -> None:
        """Text, numbers and nulls are unchanged."""
        target = place()
        outcome = write(self.rows, target)
        assert outcome.error is None
        assert self._sorted(read(target)) == self.rows

    def test_append_keeps_what_is_there(self, place: Any, write: Any, read: Any) -> None:
        """Mode append adds rows."""
        self._needs("append")
        target = {**place(), "mode": "append"}
        for rows in (self.rows[:2], self.rows[2:]):
            assert write(rows, target).error is None
        assert self._sorted(read(target)) == self.rows

    def test_replace_leaves_only_the_new_rows(self, place: Any, write: Any, read: Any) -> None:
        """Mode replace, also with fewer rows, and with none."""
        self._needs("replace")
        target = {**place(), "mode": "replace"}
        for rows in (self.rows, self.rows[:1]):
            assert write(rows, target).error is None
            assert self._sorted(read(target)) == rows

    def test_upsert_updates_by_key(self, place: Any, write: Any, read: Any) -> None:
        """Mode upsert: existing keys are updated, others inserted, and the same rows again change nothing."""
        self._needs("upsert")
        target = {**place(), "mode": "upsert", "key": "id"}
        changed = [{**self.rows[1], "name": "changed"}, *self.rows[2:]]
        for rows in (self.rows[:2], changed, changed):
            assert write(rows, target).error is None
        assert self._sorted(read(target)) == [self.rows[0], *changed]

    def test_the_last_row_of_a_key_wins(self, place: Any, write: Any, read: Any) -> None:
        """Several rows of one transfer with the same key."""
        self._needs("upsert")
        target = {**place(), "mode": "upsert", "key": ["id"]}
        rows = [{"id": number % 3, "name": f"version {number}"} for number in range(30)]
        assert write(rows, target, chunk={"size": 7}).error is None
        assert self._sorted(read(target)) == [{"id": number, "name": f"version {27 + number}"} for number in range(3)]

    def test_a_mode_that_is_not_supported_is_reported(self, place: Any, write: Any) -> None:
        """As an error of kind schema, before anything is written."""
        for mode in {"append", "replace", "upsert", "no_such_mode"} - set(self.modes):
            outcome = write(self.rows, {**place(), "mode": mode, "key": "id"})
            assert outcome.error is not None
            assert outcome.error.kind == "schema"

    def test_chunks_are_all_written(self, place: Any, write: Any, read: Any) -> None:
        """Whatever the size of a chunk is."""
        target = place()
        outcome = write(many_rows(25), target, chunk={"size": 10})
        assert (outcome.error, outcome.data["rows"], outcome.data["chunks"]) == (None, 25, 3)
        assert self._sorted(read(target)) == many_rows(25)

    def test_a_failed_transfer_leaves_nothing_behind(
        self, place: Any, write: Any, read: Any, host: ToolHost, tmp_path: Path
    ) -> None:
        """The source fails after some chunks were written."""
        target = place()
        assert write(many_rows(1), target).error is None
        before = read(target)
        outcome = self.transfer(_failing_source(tmp_path), target, host, chunk={"size": 1000})
        assert outcome.error is not None
        if self.rolls_back:
            assert read(target) == before

    def test_a_cancelled_transfer_leaves_nothing_behind(
        self, place: Any, write: Any, read: Any, host: ToolHost
    ) -> None:
        """The task is cancelled after the first chunk."""
        target = place()
        assert write(many_rows(1), target).error is None
        before = read(target)
        given = {"data": many_rows(5000), "targets": [target], "chunk": {"size": 100}, **self.options}
        asyncio.run(_cancel_after_first_chunk(given, host))
        if self.rolls_back:
            assert read(target) == before

    def test_columns_are_mapped(self, place: Any, write: Any, read: Any) -> None:
        """`mapping` selects and renames columns."""
        target = {**place(), "mapping": {"id": "id", "title": "name"}}
        assert write(self.rows, target).error is None
        expected = [{"id": row["id"], "title": row["name"]} for row in self.rows]
        assert self._sorted(read(target)) == expected

    def test_a_schema_contract_is_kept(self, place: Any, write: Any, read: Any) -> None:
        """`schema` of a target that can change its table: new columns, wider types."""
        if not self.evolves:
            pytest.skip("this target has no schema contract")
        target = place()
        assert write([{"id": 1, "name": "a", "price": 1}], target).error is None
        wider = [{"id": 2, "name": "b", "price": 2.5, "added": "x"}, {"id": 3, "name": "c", "price": None}]
        frozen = write(wider, {**target, "schema": "freeze"})
        assert frozen.error is not None
        assert "added" in frozen.error.message
        kept = write(wider, {**target, "schema": {"columns": "discard_value", "types": "evolve"}})
        assert (kept.error, kept.data["targets"][0]["discarded"]["values"]) == (None, 1)
        assert "added" not in read(target)[0]
        modes = {"mode": "upsert", "key": "id"} if "upsert" in self.modes else {}
        more = wider if modes else []
        assert (
            write([*more, {"id": 4, "name": "d", "added": "y"}], {**target, **modes, "schema": "evolve"}).error is None
        )
        rows = self._sorted(read(target))
        assert [(row["id"], row["added"]) for row in rows] == [
            (1, None), (2, "x" if modes else None), (3, None), (4, "y"),
        ]  # fmt: skip
        assert [float(row["price"]) for row in rows[:2]] == [1, 2.5]

    def test_a_misspelt_field_is_reported(self, place: Any) -> None:
        """By the validator."""
        assert "no_such_field" in _diagnostics({"data": [], "targets": [{**place(), "no_such_field": 1}]})

    def _needs(self, mode: str) -> None:
        if mode not in self.modes:
            pytest.skip(f"this target has no mode {mode}")

    def _sorted(self, rows: Rows) -> Rows:
        return sorted(rows, key=lambda row: row["id"])


def _plugin_source(source: Fields) -> Any:
    from noetl.tools import connectors

    return connectors.sources().get(str(source.get("kind")))


def _diagnostics(task: Fields) -> str:
    """The findings of the validator for a transfer."""
    import json

    from noetl.core.language.compile import compile_playbook

    playbook = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "sample"},
        "workflow": [{"step": "start", "tool": {"kind": "transfer", **task}}],
    }
    compilation = compile_playbook(json.dumps(playbook), file="sample.yaml", specs=specs())
    return "\n".join(str(each) for each in compilation.diagnostics)


def _failing_source(folder: Path) -> Fields:
    """A source whose row number FAILING_ROW cannot be read."""
    file = folder / "failing.sqlite"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE numbers (id INTEGER, name TEXT, price REAL, note TEXT)")
        database.executemany(
            "INSERT INTO numbers VALUES (?, 'row', 0.5, NULL)", [(number,) for number in range(FAILING_ROW + 1)]
        )
    database.close()
    fails = f"CASE WHEN id = {FAILING_ROW} THEN abs(-9223372036854775807 - 1) ELSE id END"
    return {"kind": "sqlite", "file": str(file), "query": f"SELECT {fails} AS id, name, price, note FROM numbers"}


async def _cancel_after_first_chunk(given: Fields, host: ToolHost) -> None:
    """Run a transfer and cancel it when it has written a chunk; fails if it does not end soon."""
    written = asyncio.Event()
    report = host.progress

    def progress(**counts: float) -> None:
        report(**counts)
        written.set()

    host.progress = progress  # type: ignore[method-assign]
    try:
        task = asyncio.ensure_future(load("transfer")(tool_call("transfer", given, host=host)))
        waiting = asyncio.ensure_future(written.wait())
        await asyncio.wait([task, waiting], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert written.is_set(), "no chunk was written"
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.done(), "the transfer did not end after it was cancelled"
    finally:
        host.progress = report  # type: ignore[method-assign]
        await close_loop_resources()


def _wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "connections are still open"
        time.sleep(0.05)
