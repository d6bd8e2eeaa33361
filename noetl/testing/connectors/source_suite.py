"""The conformance suite for sources of `transfer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.runtime.resources import close_loop_resources
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
        sizes = asyncio.run(read_batches(spec, call))
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
        assert outcome.error is not None

    def test_a_misspelt_field_is_reported(self, place: Any, host: ToolHost, tmp_path: Path) -> None:
        """By the validator, and at run time if the kind is a template."""
        source = {**place(self.rows), "no_such_field": 1}
        assert "no_such_field" in diagnostics({"source": source, "targets": [{"kind": "file", "path": "x"}]})
        if _plugin_source(source) is not None:
            outcome = self.transfer(source, {"kind": "file", "path": str(tmp_path / "x.parquet")}, host)
            assert outcome.error is not None
            assert outcome.error.kind == "schema"

    def _host(self, folder: Path) -> ToolHost:
        return ToolHost(folder=folder)

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
