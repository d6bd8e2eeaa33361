"""The conformance suite for targets of `transfer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.connectors import typed_values
from noetl.testing.connectors.checks import refused, same_rows, succeeded
from noetl.testing.connectors.lost_worker import lose_worker
from noetl.testing.connectors.nested_cases import NestedCases
from noetl.testing.connectors.suite import (
    EXECUTIONS,
    ROWS,
    Fields,
    Rows,
    Suite,
    Waits,
    cancel_after_first_chunk,
    cancelled_at,
    diagnostics,
    failing_source,
    many_rows,
    numbers_table,
    run_transfer,
    some_points,
)
from noetl.testing.tools import ToolHost, run_tool


class TargetConformance(Suite, NestedCases):
    """What a target of `transfer` has to do. `place()` returns the fields of a new target, `read(fields)` its rows.

    `modes` are those of the kind. `rolls_back`: a failed transfer leaves nothing behind. `merges`: `upsert` keeps the
    values of columns that the source does not have. `creates`: a place has to be created, so `create: false` matters.
    `commits_once`: an attempt after a commit that was not reported appends nothing again. `evolves`, `nests`: as in its
    `TargetSpec`. `connections()`, if a test class defines this fixture, is the number of
    open connections to the server. `source(fields)`, if it is defined, returns the fields of the source that reads what
    the target has written, and `types` are those whose values come back."""

    modes: tuple[str, ...] = ("append", "replace", "upsert")
    rolls_back = True
    merges = True
    creates = True
    commits_once = False
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
        succeeded(outcome)
        same_rows(self._sorted(read(target)), self.rows, "the target has other rows than the source")

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
            succeeded(self.transfer(read_from, write_to, host))
        found = typed_values.differences(pq.read_table(copied).to_pylist(), self.types)
        assert not found, f"values come back changed: {'; '.join(found)}"

    def test_a_column_that_the_place_lacks_is_not_lost(self, place: Any, write: Any, read: Any) -> None:
        """It is written, or the transfer fails and changes nothing."""
        target = self._in_mode(place(), self.modes[0])
        succeeded(write([{"id": 1, "name": "a"}], target))
        before = read(target)
        if write([{"id": 2, "name": "b", "added": "x"}], target).error is None:
            found = [row.get("added") for row in read(target) if row["id"] == 2]
            assert found == ["x"], "the value of the column 'added' is lost, but the transfer succeeded"
        elif self.rolls_back:
            same_rows(read(target), before, "a transfer that fails because of a new column changes nothing")

    def test_append_keeps_what_is_there(self, place: Any, write: Any, read: Any) -> None:
        """Mode append adds rows."""
        self._needs("append")
        target = {**place(), "mode": "append"}
        for rows in (self.rows[:2], self.rows[2:]):
            succeeded(write(rows, target))
        same_rows(self._sorted(read(target)), self.rows, "mode append adds rows to those that are there")

    def test_replace_leaves_only_the_new_rows(self, place: Any, write: Any, read: Any) -> None:
        """Mode replace, also with fewer rows, and with none."""
        self._needs("replace")
        target = {**place(), "mode": "replace"}
        for rows in (self.rows, self.rows[:1]):
            succeeded(write(rows, target))
            same_rows(self._sorted(read(target)), rows, "mode replace leaves only the rows of the last transfer")

    def test_replace_by_no_rows_leaves_none(self, place: Any, read: Any, write: Any, host: ToolHost) -> None:
        """Whether the source has columns or not; a target that needs columns reports their absence."""
        self._needs("replace")
        target = {**place(), "mode": "replace"}
        query = "SELECT * FROM numbers WHERE id < 0"
        for source in ({**numbers_table(host.folder), "query": query}, {"kind": "data", "data": []}):
            succeeded(write(self.rows, target))
            outcome = self.transfer(source, target, host)
            if outcome.error is None:
                without = (
                    "columns but no rows (`begin`)" if "query" in source else "neither rows nor columns (`write_empty`)"
                )
                same_rows(read(target), [], f"mode replace empties the target if the source has {without}")
            else:
                assert "query" not in source, f"a source with columns but no rows is an error: {outcome.error.message}"
                same_rows(self._sorted(read(target)), self.rows, "a transfer that fails changes nothing")

    def test_upsert_updates_by_key(self, place: Any, write: Any, read: Any) -> None:
        """Mode upsert: existing keys are updated, others inserted, and the same rows again change nothing."""
        self._needs("upsert")
        target = {**place(), "mode": "upsert", "key": "id"}
        changed = [{**self.rows[1], "name": "changed"}, *self.rows[2:]]
        for rows in (self.rows[:2], changed, changed):
            succeeded(write(rows, target))
        rule = "mode upsert updates rows by their key and inserts the others"
        same_rows(self._sorted(read(target)), [self.rows[0], *changed], rule)

    def test_upsert_keeps_other_columns(self, place: Any, write: Any, read: Any) -> None:
        """Mode upsert: columns that are not in the source keep their values."""
        self._needs("upsert")
        if not self.merges:
            pytest.skip("this target writes whole rows")
        target = {**place(), "mode": "upsert", "key": "id"}
        partial_rows = [{"id": 0, "name": "changed"}, {"id": 2, "name": "added"}]
        for rows in (many_rows(2), partial_rows):
            succeeded(write(rows, target))
        found = {row["id"]: (row["name"], row.get("price")) for row in read(target)}
        assert (found[0], found[1], found[2][0]) == (("changed", 0.0), ("row 1", 0.25), "added"), (
            f"mode upsert keeps the values of columns that the source does not have (or `merges = False`): {found}"
        )

    def test_two_targets_in_one_place(self, place: Any, write: Any, read: Any, host: ToolHost) -> None:
        """Both targets of a transfer write their rows, or the transfer fails."""
        self._needs("append")
        target = {**place(), "mode": "append"}
        succeeded(write(many_rows(1), target))
        second = {**target, "mapping": {"id": "{{ row.id + 10 }}", "name": "name"}}
        given = {"data": many_rows(3)[1:], "targets": [target, second], **self.options}
        outcome = run_tool("transfer", given, host=host, execution_id=str(next(EXECUTIONS)))
        ids = sorted(row["id"] for row in read(target))
        expected = [0, 1, 2, 11, 12] if outcome.error is None else [0]
        assert ids == expected or not self.rolls_back, (
            f"two targets of a transfer in one place both write their rows, or the transfer fails: ids {ids}"
        )

    def test_the_last_row_of_a_key_wins(self, place: Any, write: Any, read: Any) -> None:
        """Several rows of one transfer with the same key."""
        self._needs("upsert")
        target = {**place(), "mode": "upsert", "key": ["id"]}
        rows = [{"id": number % 3, "name": f"version {number}"} for number in range(30)]
        succeeded(write(rows, target, chunk={"size": 7}))
        expected = [{"id": number, "name": f"version {27 + number}"} for number in range(3)]
        same_rows(self._sorted(read(target)), expected, "the last of several rows with one key wins")

    def test_a_key_of_two_columns(self, place: Any, write: Any, read: Any) -> None:
        """Rows are the same only if both columns are."""
        self._needs("upsert")
        target = {**self._with_key(place(), "id", "name"), "mode": "upsert", "key": ["id", "name"]}
        rows = [{"id": number // 2, "name": "ab"[number % 2], "price": number / 4} for number in range(4)]
        for given in (rows, [{**rows[3], "price": 9.5}]):
            succeeded(write(given, target))
        found = sorted((row["id"], row["name"], row["price"]) for row in read(target))
        assert found == [(0, "a", 0.0), (0, "b", 0.25), (1, "a", 0.5), (1, "b", 9.5)], (
            f"rows are the same only if all columns of the key are: {found}"
        )

    def test_a_mode_that_is_not_supported_is_reported(self, place: Any, write: Any) -> None:
        """As an error of kind schema, before anything is written."""
        for mode in {"append", "replace", "upsert", "no_such_mode"} - set(self.modes):
            outcome = write(self.rows, {**place(), "mode": mode, "key": "id"})
            error = refused(outcome, f"the mode {mode!r} is not in `modes`")
            assert error.kind == "schema", f"the mode {mode!r} is an error of kind schema, not {error.kind}"

    def test_chunks_are_all_written(self, place: Any, write: Any, read: Any) -> None:
        """Whatever the size of a chunk is."""
        target = place()
        outcome = write(many_rows(25), target, chunk={"size": 10})
        succeeded(outcome)
        same_rows(self._sorted(read(target)), many_rows(25), "the rows of every chunk are written")
        assert (outcome.data["rows"], outcome.data["chunks"]) == (25, 3), f"25 rows are 3 chunks: {outcome.data}"

    def test_a_missing_place_is_created_only_if_it_may_be(self, place: Any, write: Any, read: Any) -> None:
        """`create: false` is an error if the place does not exist, and nothing else if it does."""
        if not self.creates:
            pytest.skip("this target creates nothing")
        target = place()
        rule = "`create: false` is an error if the place does not exist (or `creates = False`)"
        refused(write(self.rows, {**target, "create": False}), rule)
        succeeded(write(self.rows[:1], target))
        existing = write(self.rows, {**self._in_mode(target, self.modes[-1]), "create": False})
        succeeded(existing, "a transfer with `create: false` into a place that exists")
        assert {row["id"] for row in read(target)} == {row["id"] for row in self.rows}, "rows are missing"

    def test_a_failed_transfer_leaves_nothing_behind(self, place: Any, write: Any, read: Any, host: ToolHost) -> None:
        """The source fails after some chunks were written; in every mode."""
        for mode in self.modes:
            target = self._in_mode(place(), mode)
            succeeded(write(many_rows(1), target))
            before = read(target)
            outcome = self.transfer(failing_source(host.folder), target, host, chunk={"size": 1000})
            refused(outcome, "a row of the source cannot be read")
            if self.rolls_back:
                same_rows(read(target), before, f"a failed transfer in mode {mode} changes nothing (`abort`)")

    def test_the_failure_of_another_side_leaves_nothing_behind(
        self, place: Any, write: Any, read: Any, host: ToolHost
    ) -> None:
        """`abort` follows any other call, or none: also a source can fail before its first row."""
        target, other = place(), {"kind": "sqlite", "file": "none.sqlite", "table": "t", "create": False}
        succeeded(write(many_rows(1), target))
        before = read(target)
        source = {"data": many_rows(20)}
        failing = {"source": {"kind": "sqlite", "file": "none.sqlite", "query": "SELECT * FROM none"}}
        for rows, targets in ((source, [target, other]), (source, [other, target]), (failing, [target])):
            given = {**rows, "targets": targets, "chunk": {"size": 5}, **self.options}
            outcome = run_tool("transfer", given, host=host, execution_id=str(next(EXECUTIONS)))
            refused(outcome, "another side of the transfer fails", *(() if rows is failing else ("sqlite",)))
            lines = [line for _, line in host.lines if "was not rolled back" in line]
            assert not lines, f"`abort` may follow any other call, or none: {lines[0]}"
            if self.rolls_back:
                same_rows(read(target), before, "a transfer that fails at another side changes nothing (`abort`)")

    def test_a_cancelled_transfer_leaves_nothing_behind(
        self, place: Any, write: Any, read: Any, host: ToolHost
    ) -> None:
        """The task is cancelled after the first chunk; in every mode."""
        for mode in self.modes:
            target = self._in_mode(place(), mode)
            succeeded(write(many_rows(1), target))
            before = read(target)
            given = {"data": many_rows(5000), "targets": [target], "chunk": {"size": 100}, **self.options}
            asyncio.run(cancel_after_first_chunk(given, host))
            if self.rolls_back:
                same_rows(read(target), before, f"a cancelled transfer in mode {mode} changes nothing (`abort`)")

    def test_cancellation_is_not_swallowed(self, place: Any, read: Any, write: Any, host: ToolHost) -> None:
        """A target that is cancelled ends, whatever it waits for, with all of the rows or none."""
        given = {"data": many_rows(3)[1:], "chunk": {"size": 1}, **self.options}
        states = []
        for target in (place(), place()):
            succeeded(write(many_rows(1), target))
            states.append(self._sorted(read(target)))
        waits = Waits()
        asyncio.run(run_transfer({**given, "targets": [target]}, host, waits))
        states[0] = self._sorted(read(target))
        target = place()
        succeeded(write(many_rows(1), target))
        for point in some_points(waits.count):
            run = partial(run_transfer, {**given, "targets": [target]}, host)
            outcome = asyncio.run(cancelled_at(point, run))
            completed = outcome is not None and outcome.error is None
            found = self._sorted(read(target))
            assert not completed or (point > waits.written and found == states[0]), (
                f"the transfer is a success after a cancellation (wait {point} of {waits.count})"
            )
            if self.rolls_back:
                assert found in states, f"some of the rows remain (wait {point} of {waits.count})"
            if found != states[1]:
                target = place()
                succeeded(write(many_rows(1), target))

    def test_the_attempt_after_a_lost_worker_writes_every_row_once(
        self, place: Any, write: Any, read: Any, host: ToolHost
    ) -> None:
        """The process of the first attempt is killed after a chunk; in every mode."""
        if not self.rolls_back:
            pytest.skip("this target does not roll back")
        for mode in self.modes:
            target = self._in_mode(place(), mode)
            succeeded(write(many_rows(1), target))
            given = {"data": many_rows(21)[1:], "targets": [target], "chunk": {"size": 5}, **self.options}
            execution = str(next(EXECUTIONS))
            lose_worker(given, host, execution)
            outcome = run_tool("transfer", given, host=host, execution_id=execution, attempt=2)
            succeeded(outcome, "the attempt after a lost worker")
            found = [row["id"] for row in self._sorted(read(target))]
            assert found == list(range(1 if mode == "replace" else 0, 21)), (
                f"the attempt after a lost worker writes every row once in mode {mode}, without the rows that the lost "
                f"one has written: ids {found}"
            )

    def test_a_commit_that_was_not_reported_is_not_repeated(self, place: Any, read: Any, host: ToolHost) -> None:
        """The worker was lost between the commit and its report: the next attempt has the same `idempotency_key`."""
        if not self.commits_once:
            pytest.skip("this target appends again")
        target = self._in_mode(place(), self.modes[0])
        execution = str(next(EXECUTIONS))
        for attempt in (1, 2):
            given = {"data": many_rows(3), "targets": [target], **self.options}
            succeeded(run_tool("transfer", given, host=host, execution_id=execution, attempt=attempt))
        rule = "an attempt after a commit that was not reported writes nothing again (or `commits_once = False`)"
        same_rows(self._sorted(read(target)), many_rows(3), rule)

    def test_columns_are_mapped(self, place: Any, write: Any, read: Any) -> None:
        """`mapping` selects and renames columns."""
        target = {**place(), "mapping": {"id": "id", "title": "name"}}
        succeeded(write(self.rows, target))
        expected = [{"id": row["id"], "title": row["name"]} for row in self.rows]
        same_rows(self._sorted(read(target)), expected, "`mapping` selects and renames columns")

    def test_a_schema_contract_is_kept(self, place: Any, write: Any, read: Any) -> None:
        """`schema` of a target that can change its table: new columns, wider types."""
        if not self.evolves:
            pytest.skip("this target has no schema contract")
        target = place()
        succeeded(write([{"id": 1, "name": "a", "price": 1}], target))
        wider = [{"id": 2, "name": "b", "price": 2.5, "added": "x"}, {"id": 3, "name": "c", "price": None}]
        refused(write(wider, {**target, "schema": "freeze"}), "`schema: freeze` refuses a new column", "added")
        kept = write(wider, {**target, "schema": {"columns": "discard_value", "types": "evolve"}})
        succeeded(kept)
        discarded = kept.data["targets"][0].get("discarded")
        assert discarded and discarded["values"] == 1, f"`discard_value` counts one discarded value: {discarded}"
        assert "added" not in read(target)[0], "`discard_value` adds no column"
        modes = {"mode": "upsert", "key": "id"} if "upsert" in self.modes else {}
        more = wider if modes else []
        succeeded(write([*more, {"id": 4, "name": "d", "added": "y"}], {**target, **modes, "schema": "evolve"}))
        rows = self._sorted(read(target))
        found = [(row["id"], row["added"]) for row in rows]
        expected = [(1, None), (2, "x" if modes else None), (3, None), (4, "y")]
        assert found == expected, f"`evolve` adds the column 'added': {found} instead of {expected}"
        prices = [float(row["price"]) for row in rows[:2]]
        assert prices == [1, 2.5], f"`evolve` makes the type of 'price' wider: {prices}"

    def test_a_misspelt_field_is_reported(self, place: Any) -> None:
        """By the validator."""
        found = diagnostics({"data": [], "targets": [{**place(), "no_such_field": 1}]})
        assert "no_such_field" in found, f"the validator does not report a field that `fields` does not have: {found}"

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
