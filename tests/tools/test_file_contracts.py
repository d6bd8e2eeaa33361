"""Schema contracts of Parquet and Arrow files: the file that is replaced is the contract."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool

NUMBERS = [2**63, -(10**37), 2**70]


def write(folder: Path, rows: Any, size: int = 1000, **target: Any) -> Outcome:
    place = {"kind": "file", "path": "o.parquet", **target}
    return run_tool(
        "transfer", {"data": rows, "targets": [place], "chunk": {"size": size}}, host=ToolHost(folder=folder)
    )


def good(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


@pytest.mark.parametrize("schema", ["evolve", "freeze", "discard_value", "discard_row"])
@pytest.mark.parametrize("path", ["o.parquet", "o.arrow"])
def test_the_new_file_has_the_columns_and_types_of_the_old_one(tmp_path: Path, path: str, schema: str) -> None:
    fields = {
        "id": pa.int16(), "price": pa.float64(), "amount": pa.decimal128(20, 4), "at": pa.timestamp("us", "UTC"),
        "name": pa.string(), "missing": pa.int64(),
    }  # fmt: skip
    old = pa.table({name: pa.array([None], kind) for name, kind in fields.items()})
    if path.endswith("parquet"):
        pq.write_table(old, tmp_path / path)
    else:
        with pa.ipc.new_file(tmp_path / path, old.schema) as file:
            file.write_table(old)
    rows = [
        {"name": "a", "id": 1, "price": 5, "amount": 1.25, "at": "2024-01-01T00:00:00Z"},
        {"name": "b", "id": 2, "price": 7, "amount": "1.50", "at": None},
    ]
    good(write(tmp_path, rows, 1, path=path, schema=schema))
    new = pq.read_table(tmp_path / path) if path.endswith("parquet") else pa.ipc.open_stream(tmp_path / path).read_all()
    assert {field.name: field.type for field in new.schema} == fields
    assert new.schema.names == list(fields)
    assert new.to_pylist() == [
        {"id": 1, "price": 5.0, "amount": Decimal("1.25"), "at": datetime(2024, 1, 1, tzinfo=UTC), "name": "a",
         "missing": None},
        {"id": 2, "price": 7.0, "amount": Decimal("1.5"), "at": None, "name": "b", "missing": None},
    ]  # fmt: skip


def test_a_file_whose_rows_were_all_discarded_keeps_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]}), tmp_path / "o.parquet")
    rows = [{"id": 2, "extra": 1}, {"id": 3, "extra": 2}]
    for columns, types in (("discard_row", "evolve"), ("discard_row", "freeze")):
        good(write(tmp_path, rows, 1, schema={"columns": columns, "types": types}))
        new = pq.read_table(tmp_path / "o.parquet")
        assert (new.num_rows, new.schema.names, new.schema.field("id").type) == (0, ["id", "name"], pa.int32())


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_a_column_that_becomes_text_has_the_texts_of_its_rows(tmp_path: Path, size: int) -> None:
    pq.write_table(pa.table({"v": pa.array([Decimal(1)], pa.decimal128(38, 9))}), tmp_path / "o.parquet")
    good(write(tmp_path, [{"v": "7"}, {"v": "1.50"}, {"v": "x"}], size, schema="evolve"))
    assert pq.read_table(tmp_path / "o.parquet").column("v").to_pylist() == ["7", "1.50", "x"]


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("target", [{}, {"path": "parts", "format": "parquet", "partition_by": ["p"]}])
@pytest.mark.parametrize("schema", ["evolve", "freeze"])
def test_the_digits_of_later_numbers_are_known_before_the_first_is_written(
    tmp_path: Path, schema: str, target: dict[str, Any], size: int
) -> None:
    rows = [{"id": number, "p": 1, "v": value} for number, value in enumerate(NUMBERS)]
    good(write(tmp_path, rows, size, schema=schema, **target))
    found = pq.read_table(tmp_path / ("parts" if target else "o.parquet"), partitioning=None)
    assert sorted(found.column("v").to_pylist()) == sorted(map(Decimal, NUMBERS))
    assert found.schema.field("v").type == pa.decimal128(38, 0)
