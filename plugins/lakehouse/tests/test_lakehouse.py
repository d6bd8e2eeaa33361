"""Delta Lake and Iceberg tables: the conformance suite, partitions, types, repeated and killed commits."""

from __future__ import annotations

import datetime
import decimal
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from noetl.testing import TargetConformance, ToolHost, run_tool

DAY = datetime.date(2026, 1, 1)


def catalog_of(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "warehouse")}


def rows_of(target: dict[str, Any]) -> list[dict[str, Any]]:
    return table_of(target).to_pylist()


def table_of(target: dict[str, Any]) -> Any:
    if target["kind"] == "delta":
        return DeltaTable(target["uri"]).to_pyarrow_table()
    properties = {**target["catalog"], "warehouse": f"file://{target['catalog']['warehouse']}"}
    return load_catalog("default", **properties).load_table(target["table"]).scan().to_arrow()


def versions_of(target: dict[str, Any]) -> int:
    if target["kind"] == "delta":
        return len(DeltaTable(target["uri"]).history())
    return len(load_catalog("default", **target["catalog"]).load_table(target["table"]).metadata.snapshots)


def targets(kind: str, folder: Path) -> Any:
    numbers = count()
    if kind == "delta":
        return lambda: {"kind": "delta", "uri": str(folder / f"t{next(numbers)}")}
    return lambda: {"kind": "iceberg", "catalog": catalog_of(folder), "table": f"shop.t{next(numbers)}"}


class _Target(TargetConformance):
    modes = ("append", "replace")
    kind = ""

    @pytest.fixture
    def place(self, tmp_path):
        return targets(self.kind, tmp_path)

    @pytest.fixture
    def read(self):
        return rows_of


class TestDelta(_Target):
    kind = "delta"


class TestIceberg(_Target):
    kind = "iceberg"


del _Target


@pytest.fixture(params=["delta", "iceberg"])
def target(request, tmp_path):
    return targets(request.param, tmp_path)()


def write(rows: Any, target: dict[str, Any], attempt: int = 1, execution_id: str = "1", **options: Any) -> Any:
    given = {"data": rows, "targets": [target], **options}
    return run_tool("transfer", given, host=ToolHost(), attempt=attempt, execution_id=execution_id)


def test_replacing_a_partition_keeps_the_others(target):
    days = [(DAY + datetime.timedelta(days=number)).isoformat() for number in range(3)]
    rows = [{"id": number, "day": day} for number, day in enumerate(days * 3)]
    side = {**target, "partition_by": ["day"], "mode": "replace"}
    second = [row for row in rows if row["day"] == days[1]]
    for number, given in enumerate([rows, second, second, [{"id": 100, "day": days[2]}], [{"id": 7, "day": None}]]):
        source = {"kind": "data", "data": given, "types": {"day": "date"}}
        outcome = run_tool("transfer", {"source": source, "targets": [side]}, execution_id=str(number + 1))
        assert outcome.error is None, outcome.error
    found = sorted((row["id"], str(row["day"])) for row in rows_of(target))
    kept = [(row["id"], row["day"]) for row in rows if row["day"] != days[2]]
    assert found == sorted([*kept, (100, days[2]), (7, "None")])
    refused = run_tool("transfer", {"data": rows, "targets": [{**side, "partition_by": ["id"]}]}, execution_id="9")
    assert refused.error is not None and "partitioned by ['day']" in refused.error.message


def test_the_same_task_writes_once(target):
    rows = [{"id": 1}, {"id": 2}]
    for attempt in (1, 2):  # a worker was lost after its commit
        assert write(rows, target, attempt=attempt).error is None
    assert len(rows_of(target)) == 2
    assert write(rows, target, execution_id="2").error is None
    assert len(rows_of(target)) == 4


TYPES = {
    "small": pa.array([1, None], pa.int16()),
    "huge": pa.array([2**64 - 1, None], pa.uint64()),
    "price": pa.array([decimal.Decimal("12345678901234567890.123456789"), None], pa.decimal128(38, 9)),
    "day": pa.array([DAY, None], pa.date32()),
    "local": pa.array([datetime.datetime(2026, 1, 1, 10, 0, 0, 123456), None], pa.timestamp("us")),
    "zoned": pa.array([datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC), None], pa.timestamp("us", "UTC")),
    "flag": pa.array([True, None], pa.bool_()),
    "raw": pa.array([b"\x00\xff", None], pa.binary()),
    "tags": pa.array([["a", None], None], pa.list_(pa.string())),
    "shape": pa.array([{"x": 1, "y": "z"}, None], pa.struct([("x", pa.int64()), ("y", pa.string())])),
    "hour": pa.array([datetime.time(10, 30), None], pa.time64("us")),
}


def test_types_are_kept(target, tmp_path):
    import pyarrow.parquet as pq

    given = pa.table(TYPES)
    pq.write_table(given, tmp_path / "given.parquet")
    source = {"kind": "file", "path": str(tmp_path / "given.parquet")}
    outcome = run_tool("transfer", {"source": source, "targets": [target]}, host=ToolHost(folder=tmp_path))
    assert outcome.error is None, outcome.error
    found = table_of(target)
    for name in TYPES:
        expected = given.column(name).to_pylist()
        if name == "huge":
            expected = [decimal.Decimal(2**64 - 1), None]
        if name == "hour" and target["kind"] == "delta":
            expected = ["10:30:00.000000", None]
        assert found.column(name).to_pylist() == expected, name
    assert found.schema.field("local").type.tz is None
    assert found.schema.field("zoned").type.tz == "UTC"
    assert run_tool("transfer", {"source": source, "targets": [target]}, host=ToolHost(folder=tmp_path)).error is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"partition_by": ["nowhere"]}, "nowhere"),
        ({"mode": "upsert"}, "no mode 'upsert'"),
        ({"create": False}, "does not exist"),
    ],
)
def test_errors_say_what_is_wrong(target, change, said):
    outcome = write([{"id": 1}], {**target, **change})
    assert outcome.error.kind == "schema" and said in outcome.error.message


def test_rows_that_do_not_fit_the_table_change_nothing(target):
    assert write([{"id": 1}], target).error is None
    more = write([{"id": 2, "added": "x"}], target, execution_id="2")
    assert more.error.kind == "schema" and "no column 'added'" in more.error.message
    text = write([{"id": "many"}], target, execution_id="3")
    assert text.error.kind == "schema" and "'id'" in text.error.message
    assert rows_of(target) == [{"id": 1}]


WRITE = """
import sys, json
from noetl.testing import run_tool
target, number = json.loads(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
outcome = run_tool("transfer", {"data": [{"id": n, "note": "x" * 200} for n in range(20000)], "targets": [target]},
                   execution_id=number)
print(outcome.status, outcome.error, flush=True)
"""


def test_a_killed_writer_leaves_all_rows_or_none(target):
    import json
    import random
    import time

    assert write([{"id": 0, "note": ""}], target, execution_id="100").error is None
    chance, counts = random.Random(3), set()
    for number in range(3):
        command = [sys.executable, "-c", WRITE, json.dumps(target), str(number + 1)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.1, 1.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        counts.add((len(rows_of(target)) - 1) % 20000)
    assert counts == {0}
    assert write([{"id": 1, "note": ""}], target, execution_id="200").error is None
