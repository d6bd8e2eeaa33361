"""The conformance suite for sources of `transfer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.runtime.resources import close_loop_resources
from noetl.testing.connectors.checks import refused, same_rows, succeeded
from noetl.testing.connectors.suite import (
    ROWS,
    Fields,
    Rows,
    Suite,
    Waits,
    cancel_after_first_chunk,
    cancelled_at,
    diagnostics,
    many_rows,
    read_batches,
    some_points,
)
from noetl.testing.tools import ToolHost, tool_call


class SourceConformance(Suite):
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
        succeeded(outcome)
        self._same(rows, self.rows, "the source yields other rows than were stored")

    def test_chunks_divide_the_rows(self, place: Any, copy: Any) -> None:
        """Every row arrives once, whatever the size of a chunk is."""
        outcome, rows = copy(place(many_rows(25)), chunk={"size": 10})
        succeeded(outcome)
        self._same(rows, many_rows(25), "every row arrives once, whatever the size of a chunk is")
        assert (outcome.data["rows"], outcome.data["chunks"]) == (25, 3), f"25 rows are 3 chunks: {outcome.data}"

    def test_the_order_is_kept(self, place: Any, copy: Any) -> None:
        """Rows arrive in the order of the source."""
        if not self.ordered:
            pytest.skip("this source has no order")
        _, rows = copy(place(many_rows(50)), chunk={"size": 7})
        found = [row["id"] for row in rows]
        assert found == list(range(50)), f"rows arrive in the order of the source (or `ordered = False`): ids {found}"

    def test_a_source_without_rows_has_columns(self, place: Any, copy: Any, tmp_path: Path) -> None:
        """An empty source is a success."""
        import pyarrow.parquet as pq

        outcome, rows = copy(place([]))
        succeeded(outcome, "the transfer of a source without rows")
        assert rows == [], f"a source without rows yields {len(rows)}"
        if self.keeps_columns:
            file = tmp_path / "copied.parquet"
            names = pq.read_schema(file).names if file.exists() else []
            assert {"id", "name"} <= set(names), (
                "a source without rows yields an empty Arrow batch with its columns (or `keeps_columns = False`): "
                f"{names}"
            )

    def test_a_source_can_be_read_again(self, place: Any, copy: Any) -> None:
        """Two transfers of the same source read the same rows."""
        source = place(self.rows)
        first, second = copy(source), copy(source)
        for outcome, _ in (first, second):
            succeeded(outcome)
        self._same(second[1], first[1], "a second transfer reads the same rows")

    def test_rows_before_the_cursor_are_not_read(self, place: Any, copy: Any) -> None:
        """`incremental`: by the query of a source that has one, by the transfer for others."""
        source = {**place(many_rows(6)), "incremental": {"cursor": "id", "initial": 3}}
        outcome, rows = copy(source)
        succeeded(outcome)
        found = [row["id"] for row in self._sorted(rows)]
        assert found == [3, 4, 5], f"`incremental` from id 3 reads the rows 3, 4 and 5, not {found}"

    def test_a_batch_is_bounded(self, place: Any, host: ToolHost) -> None:
        """A source does not read all rows before it yields the first."""
        spec, call = _source_call(place(many_rows(500)), host, batch_rows=100)
        sizes = asyncio.run(read_batches(spec, call))
        assert sum(sizes) == 500, f"{sum(sizes)} rows instead of 500"
        assert max(sizes) <= 200, f"a batch has {max(sizes)} rows, but `call.batch_rows` is 100"

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

        counted = asyncio.run(count())
        assert counted in (25, None), f"`count` is {counted!r}, but `read` yields 25 rows"

    def test_cancellation_ends_the_transfer(self, place: Any, tmp_path: Path) -> None:
        """A cancelled transfer stops soon and closes its connections."""
        source = place(many_rows(2000))
        given = {"source": source, "targets": [{"kind": "file", "path": "cancelled.parquet"}], "chunk": {"size": 100}}
        asyncio.run(cancel_after_first_chunk(given, self._host(tmp_path)))

    def test_cancellation_is_not_swallowed(self, place: Any, host: ToolHost) -> None:
        """A source that is cancelled ends, whatever it waits for."""
        spec, call = _source_call(place(many_rows(300)), host, batch_rows=100)
        waits = Waits()
        asyncio.run(read_batches(spec, call, waits))
        for point in some_points(waits.written):
            assert asyncio.run(cancelled_at(point, lambda waits: read_batches(spec, call, waits))) is None, (
                f"the source goes on after a cancellation (wait {point} of {waits.written})"
            )

    def test_a_source_that_does_not_exist_is_an_error(self, missing: Any, copy: Any) -> None:
        """And not a source without rows, nor an exception that `explain` does not know."""
        if missing is None:
            pytest.skip("every place of this source exists")
        outcome, _ = copy(missing())
        refused(outcome, "a source that does not exist is an error")

    def test_a_misspelt_field_is_reported(self, place: Any, host: ToolHost, tmp_path: Path) -> None:
        """By the validator, and at run time if the kind is a template."""
        source = {**place(self.rows), "no_such_field": 1}
        found = diagnostics({"source": source, "targets": [{"kind": "file", "path": "x"}]})
        assert "no_such_field" in found, f"the validator does not report a field that `fields` does not have: {found}"
        if _plugin_source(source) is not None:
            outcome = self.transfer(source, {"kind": "file", "path": str(tmp_path / "x.parquet")}, host)
            error = refused(outcome, "a field that `fields` does not have is an error", "no_such_field")
            assert error.kind == "schema", f"it is an error of kind schema, not {error.kind}"

    def _host(self, folder: Path) -> ToolHost:
        return ToolHost(folder=folder)

    def _same(self, found: Rows, expected: Rows, rule: str) -> None:
        __tracebackhide__ = True
        same_rows(self._sorted(found), self._sorted(expected), rule)

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
