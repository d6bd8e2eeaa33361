"""The database of a query: on a full disk, and in little memory."""

from __future__ import annotations

import asyncio
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
