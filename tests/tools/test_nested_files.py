"""`nested: tables` of Parquet and Arrow files: lists are files beside that of the rows, replaced together with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool

PARTS = ("endpoint", "access_key_id", "secret_access_key", "region")
ROWS = [
    {"id": 1, "to": {"city": "Oslo"}, "items": [{"sku": "a", "tags": ["x", "y"]}, {"sku": "b"}], "a/../b": [7]},
    {"id": 2, "to": None, "items": []},
    {"id": 3, "to": {"at": {"lat": 59.9}}, "items": [{"sku": "c", "price": 1.5}]},
]


class Files:
    """A folder or a bucket, read with the task that reads objects."""

    def __init__(self, folder: Path, base: str, auth: dict[str, Any] | None, extension: str) -> None:
        self.host = ToolHost(folder=folder)
        self.base = base
        self.auth = {} if auth is None else {"auth": auth}
        self.kind = "file" if auth is None else "s3"
        self.extension = extension

    def load(self, rows: Any, size: int = 100, **others: Any) -> Outcome:
        target = {
            "kind": self.kind,
            "path": self._path("orders"),
            "nested": "tables",
            "key": "id",
            **self.auth,
            **others,
        }
        return run_tool("transfer", {"data": rows, "targets": [target], "chunk": {"size": size}}, host=self.host)

    def names(self) -> list[str]:
        listed = run_tool("object", {"action": "list", "uri": self.base, **self.auth}, host=self.host)
        assert listed.error is None, listed.error
        return sorted(each["key"].rpartition("/")[2].rpartition(".")[0] for each in listed.data["objects"])

    def rows(self, name: str) -> list[dict[str, Any]]:
        got = run_tool("object", {"uri": self._path(name), **self.auth}, host=self.host)
        assert got.error is None, got.error
        return got.data["rows"]

    def _path(self, name: str) -> str:
        return f"{self.base}/{name}.{self.extension}"


@pytest.fixture(params=["file parquet", "file arrow", "s3 parquet"])
def files(request: pytest.FixtureRequest, tmp_path: Path, s3: dict[str, Any], bucket: str) -> Files:
    kind, extension = request.param.split()
    if kind == "s3":
        return Files(tmp_path, f"s3://{bucket}/lake", {name: s3[name] for name in PARTS}, extension)
    (tmp_path / "lake").mkdir()
    return Files(tmp_path, "lake", None, extension)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_lists_are_files_beside_the_rows(files: Files, size: int) -> None:
    for _ in range(2):
        outcome = files.load(ROWS, size)
        assert outcome.error is None, outcome.error
    assert outcome.data["targets"][0]["rows"] == 3
    assert {name.rpartition("/")[2]: rows for name, rows in outcome.data["targets"][0]["tables"].items()} == {
        f"orders__items.{files.extension}": 3,
        f"orders__items__tags.{files.extension}": 2,
        f"orders__a_.._b.{files.extension}": 1,
    }
    assert files.names() == ["orders", "orders__a_.._b", "orders__items", "orders__items__tags"]
    assert files.rows("orders") == [
        {"id": 1, "to__city": "Oslo", "to__at__lat": None},
        {"id": 2, "to__city": None, "to__at__lat": None},
        {"id": 3, "to__city": None, "to__at__lat": 59.9},
    ]
    assert files.rows("orders__items") == [
        {"_root_id": 1, "_index_1": 0, "sku": "a", "price": None},
        {"_root_id": 1, "_index_1": 1, "sku": "b", "price": None},
        {"_root_id": 3, "_index_1": 0, "sku": "c", "price": 1.5},
    ]
    assert [row["value"] for row in files.rows("orders__items__tags")] == ["x", "y"]
    assert files.rows("orders__a_.._b") == [{"_root_id": 1, "_index_1": 0, "value": 7}]


@pytest.mark.parametrize("later", [[{"id": 2}], []])
def test_files_of_lists_that_are_gone_become_empty(files: Files, later: list[Any]) -> None:
    assert files.load(ROWS).error is None
    assert files.load([{"id": 9, "lines": [1]}], path=files._path("orders__archive")).error is None  # another root
    assert files.load(later).error is None
    assert len(files.rows("orders")) == len(later)
    assert files.rows("orders__items") == files.rows("orders__items__tags") == files.rows("orders__a_.._b") == []
    assert files.rows("orders__archive") == [{"id": 9}]
    assert [row["value"] for row in files.rows("orders__archive__lines")] == [1]


def test_a_failed_transfer_leaves_the_files_as_they_were(files: Files) -> None:
    assert files.load(ROWS).error is None
    outcome = files.load([*ROWS, {"id": 4, "items": [{"_index_1": 3}]}], 1)
    assert outcome.error is not None and "_index_1" in outcome.error.message
    assert len(files.rows("orders")) == 3 and len(files.rows("orders__items")) == 3
    assert files.names() == ["orders", "orders__a_.._b", "orders__items", "orders__items__tags"]


def test_a_file_that_is_no_list_is_not_replaced(tmp_path: Path) -> None:
    pq.write_table(pa.table({"other": [1]}), tmp_path / "orders__items.parquet")
    target = {"kind": "file", "path": "orders.parquet", "nested": "tables", "key": "id"}
    outcome = run_tool("transfer", {"data": ROWS, "targets": [target]}, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None and "it is the table of another list" in outcome.error.message
    assert [path.name for path in tmp_path.iterdir()] == ["orders__items.parquet"]
    assert pq.read_table(tmp_path / "orders__items.parquet").to_pylist() == [{"other": 1}]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"path": "o.csv"}, "single files NAME.parquet"),
        ({"path": "lake/"}, "single files NAME.parquet"),
        ({"path": "o.parquet", "partition_by": ["id"]}, "`partition_by`"),
        ({"path": "o.parquet", "mode": "append"}, "its only mode is replace"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    target = {"kind": "file", "nested": "tables", **fields}
    outcome = run_tool("transfer", {"data": ROWS, "targets": [target]}, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None and said in outcome.error.message
