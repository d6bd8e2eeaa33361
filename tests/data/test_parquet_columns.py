"""The columns of a large row group are decoded in parts, so that not all of their pages are in memory."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.data.files import table_files


def test_columns_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    count, rows = 300, 1000
    columns = {f"c{number}": pa.array(range(number, number + rows), pa.int64()) for number in range(count)}
    columns |= {
        "text": pa.array([f"row {n}" for n in range(rows)]),
        "list": pa.array([[n, n + 1] for n in range(rows)]),
    }
    table = pa.table(columns)
    file = io.BytesIO()
    pq.write_table(table, file, use_dictionary=False, compression="none")
    monkeypatch.setattr(table_files, "PAGES_READ", 400_000)
    monkeypatch.setattr(table_files, "BATCH_BYTES", 200_000)
    opened = table_files.open_parquet(file)
    parts = table_files._column_parts(opened, opened.metadata.row_group(0), None)
    assert 5 < len(parts) < 50
    assert [name for part in parts for name in part] == table.schema.names
    batches = list(table_files.parquet_batches(opened, 10_000))
    assert len(batches) > 5
    assert pa.Table.from_batches(batches).equals(table)
    some = pa.Table.from_batches(list(table_files.parquet_batches(opened, 10_000, columns=["text", "c3"])))
    assert some.equals(table.select(["text", "c3"]))


def test_usual_files_are_decoded_at_once() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": range(1000), "b": ["x"] * 1000}), file)
    opened = table_files.open_parquet(file)
    assert table_files._column_parts(opened, opened.metadata.row_group(0), None) == [["a", "b"]]
