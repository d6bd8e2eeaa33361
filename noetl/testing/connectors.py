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
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import aclosing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.runtime.resources import close_loop_resources
from noetl.testing import typed_values
from noetl.testing.lost_worker import lose_worker
from noetl.testing.nested_cases import NestedCases
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load, specs

Rows = list[dict[str, Any]]
Fields = dict[str, Any]

ROWS: Rows = [
    {"id": 1, "name": "Ada", "price": 1.5, "note": None},
    {"id": 2, "name": "Grüße, \"quoted\"\n\\line\t'2'", "price": -0.25, "note": ""},
    {"id": 9_007_199_254_740_993, "name": f"  日本語 🎉 {'long ' * 100}", "price": 0.1, "note": "null"},
]
_EXECUTIONS = count(1)
POINTS = 12  # at which work is cancelled
FAILING_ROW = 11_000  # of `_failing_source`: after the first batch of 10,000


def many_rows(count: int) -> Rows:
    """Rows with ids from 0."""
    return [{"id": number, "name": f"row {number}", "price": number / 4, "note": None} for number in range(count)]


class _Suite:
    """What both suites share."""

    options: Fields = {}  # of the task beside `source` and `targets`
    close_seconds = 20.0  # until the server has noticed that a connection is closed

    @pytest.fixture
    def host(self, tmp_path: Path) -> ToolHost:
        """The worker; override it to supply credentials."""
        return ToolHost(folder=tmp_path)

    @pytest.fixture
    def connections(self) -> Callable[[], int] | None:
        """Counts the open connections to the server; None if that cannot be observed."""
        return None

    @pytest.fixture(autouse=True)
    def _connections_are_closed(self, connections: Any) -> Iterator[None]:
        """Every test leaves as many connections open as it has found."""
        before = connections() if connections else 0
        yield
        if connections:
            _wait_for(lambda: connections() <= before, self.close_seconds)

    def transfer(self, source: Fields, target: Fields, host: ToolHost, **options: Any) -> Outcome:
        """Run one transfer, each in an execution of its own."""
        given = {"source": source, "targets": [target], **self.options, **options}
        return run_tool("transfer", given, host=host, execution_id=str(next(_EXECUTIONS)))

    def points(self, given: Fields, host: ToolHost) -> list[int]:
        """Numbers of points where a transfer waits; it is run once."""
        waits = _Waits()
        asyncio.run(_run_transfer({**self.options, **given}, host, waits))
        return _some(waits.count)

    def cancelled(self, point: int, given: Fields, host: ToolHost) -> Outcome | None:
        """Run a transfer and cancel it at a point; its outcome if it has one, None if it has ended."""
        run = partial(_run_transfer, {**self.options, **given}, host)
        outcome: Outcome | None = asyncio.run(_cancelled_at(point, run))
        return outcome


class SourceConformance(_Suite):
    """What a source of `transfer` has to do. `place(rows)` stores rows and returns the source's fields.

    `keeps_columns`: an empty source still has its columns. `ordered`: rows arrive in the order in which they were
    stored. `connections()`, if a test class defines this fixture, is the number of open connections to the server.
    `missing()`, if it is defined, returns the fields of a source that does not exist."""

    keeps_columns = True
    ordered = True
    rows: Rows = ROWS

    @pytest.fixture
    def place(self) -> Callable[[Rows], Fields]:
        """Stores rows and returns the fields of a source."""
        raise NotImplementedError("define the fixture `place` in the test class")

    @pytest.fixture
    def missing(self) -> Callable[[], Fields] | None:
        """The fields of a source that does not exist; None if every place exists."""
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

    def test_a_source_can_be_read_again(self, place: Any, copy: Any) -> None:
        """Two transfers of the same source read the same rows."""
        source = place(self.rows)
        first, second = copy(source), copy(source)
        assert (first[0].error, second[0].error) == (None, None)
        assert self._sorted(second[1]) == self._sorted(first[1])

    def test_rows_before_the_cursor_are_not_read(self, place: Any, copy: Any) -> None:
        """`incremental`: by the query of a source that has one, by the transfer for others."""
        source = {**place(many_rows(6)), "incremental": {"cursor": "id", "initial": 3}}
        outcome, rows = copy(source)
        assert outcome.error is None
        assert [row["id"] for row in self._sorted(rows)] == [3, 4, 5]

    def test_a_batch_is_bounded(self, place: Any, host: ToolHost) -> None:
        """A source does not read all rows before it yields the first."""
        spec, call = _source_call(place(many_rows(500)), host, batch_rows=100)
        sizes = asyncio.run(_read(spec, call))
        assert sum(sizes) == 500
        assert max(sizes) <= 200

    def test_the_rows_are_counted(self, place: Any, host: ToolHost) -> None:
        """`count`, if the source has it, is the number of rows that `read` yields."""
        spec, call = _source_call(place(many_rows(25)), host)
        if spec.count is None:
            pytest.skip("this source does not count its rows")

        async def count() -> Any:
            try:
                return await spec.count(call)
            finally:
                await close_loop_resources()

        assert asyncio.run(count()) in (25, None)

    def test_cancellation_ends_the_transfer(self, place: Any, tmp_path: Path) -> None:
        """A cancelled transfer stops soon and closes its connections."""
        source = place(many_rows(2000))
        given = {"source": source, "targets": [{"kind": "file", "path": "cancelled.parquet"}], "chunk": {"size": 100}}
        asyncio.run(_cancel_after_first_chunk(given, self._host(tmp_path)))

    def test_cancellation_is_not_swallowed(self, place: Any, host: ToolHost) -> None:
        """A source that is cancelled ends, whatever it waits for."""
        spec, call = _source_call(place(many_rows(300)), host, batch_rows=100)
        waits = _Waits()
        asyncio.run(_read(spec, call, waits))
        for point in _some(waits.written):
            assert asyncio.run(_cancelled_at(point, lambda waits: _read(spec, call, waits))) is None, (
                f"the source goes on after a cancellation (wait {point} of {waits.written})"
            )

    def test_a_source_that_does_not_exist_is_an_error(self, missing: Any, copy: Any) -> None:
        """And not a source without rows, nor an exception that `explain` does not know."""
        if missing is None:
            pytest.skip("every place of this source exists")
        outcome, _ = copy(missing())
        assert outcome.error is not None

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


class TargetConformance(_Suite, NestedCases):
    """What a target of `transfer` has to do. `place()` returns the fields of a new target, `read(fields)` its rows.

    `modes` are those of the kind. `rolls_back`: a failed transfer leaves nothing behind. `merges`: `upsert` keeps the
    values of columns that the source does not have. `creates`: a place has to be created, so `create: false` matters.
    `evolves`, `nests`: as in its `TargetSpec`. `connections()`, if a test class defines this fixture, is the number of
    open connections to the server. `source(fields)`, if it is defined, returns the fields of the source that reads what
    the target has written, and `types` are those whose values come back."""

    modes: tuple[str, ...] = ("append", "replace", "upsert")
    rolls_back = True
    merges = True
    creates = True
    evolves = False
    rows: Rows = ROWS
    types: tuple[str, ...] = typed_values.TYPES

    @pytest.fixture
    def source(self) -> Callable[[Fields], Fields] | None:
        """The fields of the source that reads a target; None if there is none."""
        return None

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

    def test_values_of_every_type_come_back(self, place: Any, source: Any, host: ToolHost, tmp_path: Path) -> None:
        """What the target has stored is what its source reads."""
        import pyarrow.parquet as pq

        if source is None:
            pytest.skip("no source reads this target")
        given, copied = tmp_path / "given.parquet", tmp_path / "copied.parquet"
        typed_values.write_file(given, self.types)
        target = place()
        for read_from, write_to in (({"kind": "file", "path": str(given)}, target),
                                    (source(target), {"kind": "file", "path": str(copied)})):  # fmt: skip
            assert self.transfer(read_from, write_to, host).error is None
        assert typed_values.differences(pq.read_table(copied).to_pylist(), self.types) == []

    def test_a_column_that_the_place_lacks_is_not_lost(self, place: Any, write: Any, read: Any) -> None:
        """It is written, or the transfer fails and changes nothing."""
        target = self._in_mode(place(), self.modes[0])
        assert write([{"id": 1, "name": "a"}], target).error is None
        before = read(target)
        if write([{"id": 2, "name": "b", "added": "x"}], target).error is None:
            assert [row.get("added") for row in read(target) if row["id"] == 2] == ["x"]
        elif self.rolls_back:
            assert read(target) == before

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

    def test_replace_by_no_rows_leaves_none(self, place: Any, read: Any, write: Any, host: ToolHost) -> None:
        """Whether the source has columns or not; a target that needs columns reports their absence."""
        self._needs("replace")
        target = {**place(), "mode": "replace"}
        query = "SELECT * FROM numbers WHERE id < 0"
        for source in ({**_numbers(host.folder), "query": query}, {"kind": "data", "data": []}):
            assert write(self.rows, target).error is None
            if self.transfer(source, target, host).error is None:
                assert read(target) == []
            else:
                assert "query" not in source
                assert self._sorted(read(target)) == self.rows

    def test_upsert_updates_by_key(self, place: Any, write: Any, read: Any) -> None:
        """Mode upsert: existing keys are updated, others inserted, and the same rows again change nothing."""
        self._needs("upsert")
        target = {**place(), "mode": "upsert", "key": "id"}
        changed = [{**self.rows[1], "name": "changed"}, *self.rows[2:]]
        for rows in (self.rows[:2], changed, changed):
            assert write(rows, target).error is None
        assert self._sorted(read(target)) == [self.rows[0], *changed]

    def test_upsert_keeps_other_columns(self, place: Any, write: Any, read: Any) -> None:
        """Mode upsert: columns that are not in the source keep their values."""
        self._needs("upsert")
        if not self.merges:
            pytest.skip("this target writes whole rows")
        target = {**place(), "mode": "upsert", "key": "id"}
        partial_rows = [{"id": 0, "name": "changed"}, {"id": 2, "name": "added"}]
        for rows in (many_rows(2), partial_rows):
            assert write(rows, target).error is None
        found = {row["id"]: (row["name"], row.get("price")) for row in read(target)}
        assert (found[0], found[1], found[2][0]) == (("changed", 0.0), ("row 1", 0.25), "added")

    def test_two_targets_in_one_place(self, place: Any, write: Any, read: Any, host: ToolHost) -> None:
        """Both targets of a transfer write their rows, or the transfer fails."""
        self._needs("append")
        target = {**place(), "mode": "append"}
        assert write(many_rows(1), target).error is None
        second = {**target, "mapping": {"id": "{{ row.id + 10 }}", "name": "name"}}
        given = {"data": many_rows(3)[1:], "targets": [target, second], **self.options}
        outcome = run_tool("transfer", given, host=host, execution_id=str(next(_EXECUTIONS)))
        ids = sorted(row["id"] for row in read(target))
        assert ids == ([0, 1, 2, 11, 12] if outcome.error is None else [0]) or not self.rolls_back

    def test_the_last_row_of_a_key_wins(self, place: Any, write: Any, read: Any) -> None:
        """Several rows of one transfer with the same key."""
        self._needs("upsert")
        target = {**place(), "mode": "upsert", "key": ["id"]}
        rows = [{"id": number % 3, "name": f"version {number}"} for number in range(30)]
        assert write(rows, target, chunk={"size": 7}).error is None
        assert self._sorted(read(target)) == [{"id": number, "name": f"version {27 + number}"} for number in range(3)]

    def test_a_key_of_two_columns(self, place: Any, write: Any, read: Any) -> None:
        """Rows are the same only if both columns are."""
        self._needs("upsert")
        target = {**self._with_key(place(), "id", "name"), "mode": "upsert", "key": ["id", "name"]}
        rows = [{"id": number // 2, "name": "ab"[number % 2], "price": number / 4} for number in range(4)]
        for given in (rows, [{**rows[3], "price": 9.5}]):
            assert write(given, target).error is None
        found = sorted((row["id"], row["name"], row["price"]) for row in read(target))
        assert found == [(0, "a", 0.0), (0, "b", 0.25), (1, "a", 0.5), (1, "b", 9.5)]

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

    def test_a_missing_place_is_created_only_if_it_may_be(self, place: Any, write: Any, read: Any) -> None:
        """`create: false` is an error if the place does not exist, and nothing else if it does."""
        if not self.creates:
            pytest.skip("this target creates nothing")
        target = place()
        outcome = write(self.rows, {**target, "create": False})
        assert outcome.error is not None, "`create: false` was ignored"
        assert write(self.rows[:1], target).error is None
        assert write(self.rows, {**self._in_mode(target, self.modes[-1]), "create": False}).error is None
        assert {row["id"] for row in read(target)} == {row["id"] for row in self.rows}

    def test_a_failed_transfer_leaves_nothing_behind(self, place: Any, write: Any, read: Any, host: ToolHost) -> None:
        """The source fails after some chunks were written; in every mode."""
        for mode in self.modes:
            target = self._in_mode(place(), mode)
            assert write(many_rows(1), target).error is None
            before = read(target)
            outcome = self.transfer(_failing_source(host.folder), target, host, chunk={"size": 1000})
            assert outcome.error is not None
            if self.rolls_back:
                assert read(target) == before

    def test_the_failure_of_another_side_leaves_nothing_behind(
        self, place: Any, write: Any, read: Any, host: ToolHost
    ) -> None:
        """`abort` follows any other call, or none: also a source can fail before its first row."""
        target, refused = place(), {"kind": "sqlite", "file": "none.sqlite", "table": "t", "create": False}
        assert write(many_rows(1), target).error is None
        before = read(target)
        source = {"data": many_rows(20)}
        failing = {"source": {"kind": "sqlite", "file": "none.sqlite", "query": "SELECT * FROM none"}}
        for rows, targets in ((source, [target, refused]), (source, [refused, target]), (failing, [target])):
            given = {**rows, "targets": targets, "chunk": {"size": 5}, **self.options}
            outcome = run_tool("transfer", given, host=host, execution_id=str(next(_EXECUTIONS)))
            assert outcome.error is not None
            assert "sqlite" in outcome.error.message or rows is failing
            assert not [line for _, line in host.lines if "was not rolled back" in line]
            if self.rolls_back:
                assert read(target) == before

    def test_a_cancelled_transfer_leaves_nothing_behind(
        self, place: Any, write: Any, read: Any, host: ToolHost
    ) -> None:
        """The task is cancelled after the first chunk; in every mode."""
        for mode in self.modes:
            target = self._in_mode(place(), mode)
            assert write(many_rows(1), target).error is None
            before = read(target)
            given = {"data": many_rows(5000), "targets": [target], "chunk": {"size": 100}, **self.options}
            asyncio.run(_cancel_after_first_chunk(given, host))
            if self.rolls_back:
                assert read(target) == before

    def test_cancellation_is_not_swallowed(self, place: Any, read: Any, write: Any, host: ToolHost) -> None:
        """A target that is cancelled ends, whatever it waits for, with all of the rows or none."""
        given = {"data": many_rows(3)[1:], "chunk": {"size": 1}, **self.options}
        states = []
        for target in (place(), place()):
            assert write(many_rows(1), target).error is None
            states.append(self._sorted(read(target)))
        waits = _Waits()
        asyncio.run(_run_transfer({**given, "targets": [target]}, host, waits))
        states[0] = self._sorted(read(target))
        target = place()
        assert write(many_rows(1), target).error is None
        for point in _some(waits.count):
            run = partial(_run_transfer, {**given, "targets": [target]}, host)
            outcome = asyncio.run(_cancelled_at(point, run))
            succeeded = outcome is not None and outcome.error is None
            found = self._sorted(read(target))
            assert not succeeded or (point > waits.written and found == states[0]), (
                f"the transfer is a success after a cancellation (wait {point} of {waits.count})"
            )
            if self.rolls_back:
                assert found in states, f"some of the rows remain (wait {point} of {waits.count})"
            if found != states[1]:
                target = place()
                assert write(many_rows(1), target).error is None

    def test_the_attempt_after_a_lost_worker_writes_every_row_once(
        self, place: Any, write: Any, read: Any, host: ToolHost
    ) -> None:
        """The process of the first attempt is killed after a chunk; in every mode."""
        if not self.rolls_back:
            pytest.skip("this target does not roll back")
        for mode in self.modes:
            target = self._in_mode(place(), mode)
            assert write(many_rows(1), target).error is None
            given = {"data": many_rows(21)[1:], "targets": [target], "chunk": {"size": 5}, **self.options}
            execution = str(next(_EXECUTIONS))
            lose_worker(given, host, execution)
            outcome = run_tool("transfer", given, host=host, execution_id=execution, attempt=2)
            assert outcome.error is None
            assert [row["id"] for row in self._sorted(read(target))] == list(range(1 if mode == "replace" else 0, 21))

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

    def _in_mode(self, target: Fields, mode: str) -> Fields:
        return {**target, "mode": mode, **({"key": "id"} if mode == "upsert" else {})}

    def _with_key(self, target: Fields, *columns: str) -> Fields:
        """A target with another key; override it if a field depends on the key."""
        return target

    def _needs(self, mode: str) -> None:
        if mode not in self.modes:
            pytest.skip(f"this target has no mode {mode}")

    def _sorted(self, rows: Rows) -> Rows:
        return sorted(rows, key=lambda row: row["id"])


def _plugin_source(source: Fields) -> Any:
    from noetl.tools import connectors

    return connectors.sources().get(str(source.get("kind")))


def _source_call(source: Fields, host: ToolHost, **options: Any) -> tuple[Any, Any]:
    """The declaration of a plug-in's source, and its call."""
    from noetl.core.model.connector import SourceCall
    from noetl.tools.transfer.transfer_plan import read_plan

    spec = _plugin_source(source)
    if spec is None:
        pytest.skip("a built-in source")
    given = {"source": source, "targets": [{"kind": "file", "path": "x.parquet"}]}
    plan = read_plan(tool_call("transfer", given, host=host)).source
    assert plan is not None
    return spec, SourceCall(plan.kind, plan.fields, host, **options)


class _Waits:
    """Counts how often a coroutine waits, and cancels its task at one of these points."""

    def __init__(self, cancel_at: int = 0) -> None:
        self._cancel_at = cancel_at
        self.count = 0
        self.written = 0  # the count when the last row was read or written

    def mark(self) -> None:
        """Rows were read or written."""
        self.written = self.count

    @types.coroutine
    def of(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The result of the coroutine."""
        step, given = work.send, None
        while True:
            try:
                awaited = step(given)
            except StopIteration as end:
                return end.value
            self.count += 1
            if self.count == self._cancel_at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step, given = work.send, (yield awaited)
            except BaseException as thrown:  # noqa: BLE001 - passed on
                step, given = work.throw, thrown


def _some(count: int) -> list[int]:
    """At most POINTS numbers from 1 to `count`, these two among them."""
    step = max(1, -(-count // POINTS))
    return sorted({*range(1, count + 1, step), count} - {0})


async def _read(spec: Any, call: Any, waits: _Waits | None = None) -> list[int]:
    """The sizes of the batches of a source."""
    waits, sizes = waits or _Waits(), []
    try:
        async with aclosing(spec.read(call)) as stream:
            while (batch := await waits.of(_next(stream))) is not None:
                sizes.append(len(batch) if isinstance(batch, list) else batch.num_rows)
                if sizes[-1]:
                    waits.mark()
        return sizes
    finally:
        await close_loop_resources()


async def _next(stream: Any) -> Any:
    return await anext(stream, None)


async def _run_transfer(given: Fields, host: ToolHost, waits: _Waits) -> Outcome:
    call = tool_call("transfer", given, host=host, execution_id=str(next(_EXECUTIONS)))
    report = host.progress

    def progress(**counts: float) -> None:
        report(**counts)
        waits.mark()

    async def run() -> Outcome:
        return await load("transfer")(call)

    host.progress = progress  # type: ignore[method-assign]
    try:
        outcome: Outcome = await waits.of(run())
        return outcome
    finally:
        host.progress = report  # type: ignore[method-assign]
        await close_loop_resources()


async def _cancelled_at(point: int, run: Callable[[_Waits], Coroutine[Any, Any, Any]]) -> Any:
    """Cancel a coroutine at a point where it waits; its result if it has one, None if it has ended."""
    task = asyncio.ensure_future(run(_Waits(point)))
    await asyncio.wait([task], timeout=20)
    assert task.done(), f"the work did not end after it was cancelled (wait {point})"
    return None if task.cancelled() or task.exception() else task.result()


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


def _numbers(folder: Path) -> Fields:
    """A table with FAILING_ROW + 1 rows."""
    file = folder / "numbers.sqlite"
    if not file.exists():
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE numbers (id INTEGER, name TEXT, price REAL, note TEXT)")
            database.executemany(
                "INSERT INTO numbers VALUES (?, 'row', 0.5, NULL)", [(number,) for number in range(FAILING_ROW + 1)]
            )
        database.close()
    return {"kind": "sqlite", "file": str(file)}


def _failing_source(folder: Path) -> Fields:
    """A source whose row number FAILING_ROW cannot be read."""
    fails = f"CASE WHEN id = {FAILING_ROW} THEN abs(-9223372036854775807 - 1) ELSE id END"
    return {**_numbers(folder), "query": f"SELECT {fails} AS id, name, price, note FROM numbers"}


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
        assert task.cancelled() or task.exception() or task.result().error, "the cancellation was swallowed"
    finally:
        host.progress = report  # type: ignore[method-assign]
        await close_loop_resources()


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "connections are still open"
        time.sleep(0.05)
