"""Results as tables: values that DuckDB would change, a full disk, and little memory."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.data import result_tables
from noetl.data.result_tables import ResultTables
from noetl.errors import StoreUnavailable


def test_a_query_that_gets_no_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(duckdb, "connect", full)
    with pytest.raises(StoreUnavailable, match=f"a file in {tmp_path}.*No space left"):
        ResultTables()
    assert not list(tmp_path.iterdir())


def test_an_export_holds_only_some_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_tables, "LOAD_MEMORY", "24MB")
    monkeypatch.setattr(result_tables, "MEMORY", "24MB")
    rows = tmp_path / "rows.parquet"
    values = [f"{number:060}" for number in range(300_000)]
    pq.write_table(pa.table({"value": values}), rows, row_group_size=len(values))

    async def content() -> AsyncIterator[bytes]:
        yield rows.read_bytes()

    with closing(ResultTables()) as tables:
        asyncio.run(tables.add_payload(("step", "s"), "parquet", content()))
        tables.lock()
        exported = tables.export("SELECT * FROM step.s", "csv")
    with exported.open("rb") as file:
        assert file.read().decode().split() == ["value", *values]
    exported.unlink()


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "doc": {"p": 1}}, {"id": 2, "doc": {"P": "x"}}],
        [{"id": 1, "doc": {"n": 2**63 + 1}}, {"id": 2, "doc": {"n": 10**30 + 1}}],
        [{"id": 1, "doc": [2**64, 1]}, {"id": 2, "doc": [-(10**40)]}],
    ],
    ids=["keys that differ in case", "large members", "large items"],
)
def test_nested_values_are_not_changed(rows: list[dict[str, object]]):
    tables = ResultTables()
    try:
        tables.add_value(("step", "fetch"), rows)
        tables.lock()
        assert tables.rows("SELECT * FROM step.fetch ORDER BY id", 10).rows == rows
        path = tables.export("SELECT * FROM step.fetch ORDER BY id", "json")
        assert json.loads(path.read_text()) == rows
        path.unlink()
    finally:
        tables.close()
