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
    commits_once = True
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
        ({"partition_by": ["id", "id"]}, "`partition_by` has the column 'id' twice"),
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


def load(target: dict[str, Any], folder: Path, rows: Any, number: int, **options: Any) -> Any:
    import pyarrow.parquet as pq

    pq.write_table(rows, folder / f"{number}.parquet")
    source = {"kind": "file", "path": f"{number}.parquet"}
    given = {"source": source, "targets": [{**target, **options}]}
    return run_tool("transfer", given, host=ToolHost(folder=folder), execution_id=str(number + 1))


def test_rows_of_several_parts_and_files_arrive_once(target, tmp_path, monkeypatch):
    monkeypatch.setattr("noetl_lakehouse.spooled.PART_BYTES", 1_000)
    monkeypatch.setattr("noetl_lakehouse.spooled.FILE_BYTES", 10_000)
    ids = list(range(5_000))
    rows = pa.table({"id": ids, "shop": [f"s {number % 3}" for number in ids], "note": ["x" * (n % 50) for n in ids]})
    for number, mode in enumerate(["append", "replace", "append"]):
        outcome = load(target, tmp_path, rows, number, partition_by=["shop"], mode=mode)
        assert outcome.error is None, outcome.error
    found = sorted(rows_of(target), key=lambda row: row["id"])
    assert found == sorted(rows.to_pylist() * 2, key=lambda row: row["id"])


PARTITIONS = {
    "text": pa.array(["a b/c=d%&'", " ", None, "ü"], pa.string()),
    "flag": pa.array([True, False, None, True], pa.bool_()),
    "day": pa.array([DAY, None, DAY, datetime.date(1969, 12, 31)], pa.date32()),
    "at": pa.array([datetime.datetime(2026, 1, 1, 10, 0, 0, 5), None, None, None], pa.timestamp("us")),
    "zoned": pa.array([datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC), None, None, None],
                      pa.timestamp("us", "UTC")),
    "price": pa.array([decimal.Decimal("1.50"), None, None, decimal.Decimal("-2.00")], pa.decimal128(9, 2)),
    "size": pa.array([1, -2, None, 2**40], pa.int64()),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_of_every_type_are_replaced(target, tmp_path, name):
    rows = pa.table({"id": [1, 2, 3, 4], name: PARTITIONS[name]})
    for number, given in enumerate([rows, rows.slice(0, 1), rows.slice(2, 1), rows]):
        outcome = load(target, tmp_path, given, number, partition_by=[name], mode="replace")
        assert outcome.error is None, outcome.error
    assert sorted(rows_of(target), key=lambda row: row["id"]) == rows.to_pylist()


def test_a_partitioned_table_is_written_without_naming_its_partitions(target, tmp_path):
    rows = pa.table({"id": [1, 2], "shop": ["a", "b"]})
    assert load(target, tmp_path, rows, 0, partition_by=["shop"]).error is None
    assert load(target, tmp_path, rows, 1, mode="append").error is None
    assert len(rows_of(target)) == 4
    assert load(target, tmp_path, rows.slice(1), 2, mode="replace").error is None
    assert rows_of(target) == [{"id": 2, "shop": "b"}]


def test_an_empty_text_is_no_partition_of_delta(tmp_path):
    rows = pa.table({"id": [1, 2], "shop": ["a", ""]})
    outcome = load(targets("delta", tmp_path)(), tmp_path, rows, 0, partition_by=["shop"])
    assert outcome.error.kind == "schema" and "'shop' has an empty text" in outcome.error.message
    assert not list(tmp_path.glob("t0/*.parquet"))


def test_errors_of_the_store_are_one_line(tmp_path):
    auth = {"access_key_id": "a", "secret_access_key": "s3cret", "endpoint": "http://127.0.0.1:1", "region": "eu"}
    outcome = write([{"id": 1}], {"kind": "delta", "uri": "s3://lake/t", "auth": auth})
    assert outcome.error.kind == "storage.access" and "Connection refused" in outcome.error.message
    assert "\n" not in outcome.error.message and "\x1b" not in outcome.error.message


def test_names_that_a_table_cannot_have_are_refused(target):
    unnamed = write([{"id": 1, "": 2}], target)
    assert unnamed.error.kind == "schema" and "column without a name" in unnamed.error.message
    outcome = write([{"id": 1, "ID": 2}], target)
    if target["kind"] == "iceberg":
        assert rows_of(target) == [{"id": 1, "ID": 2}]
    else:
        assert outcome.error.kind == "schema" and "'id' twice" in outcome.error.message
        assert not Path(target["uri"]).exists()


@pytest.mark.parametrize(
    ("catalog", "kind", "said"),
    [
        ({"type": "sql", "uri": "sqlite:////proc/none/x.db", "warehouse": "w"}, "storage.access", "unable to open"),
        ({"type": "hive", "uri": "thrift://127.0.0.1:1"}, "schema", "not installed"),
        ({"type": "rest", "uri": "http://u:s3cret@127.0.0.1:1/x?token=s3cret"}, "storage.access", "Connection refused"),
    ],
)
def test_a_catalog_that_cannot_be_used_is_an_error_without_secrets(catalog, kind, said):
    outcome = write([{"id": 1}], {"kind": "iceberg", "catalog": catalog, "table": "a.b"})
    assert outcome.error.kind == kind and said in outcome.error.message
    assert "s3cret" not in outcome.error.message


def test_a_date_outside_of_the_range_is_an_error_of_the_schema(tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"at": pa.array([-(10**14)], pa.timestamp("ms"))}), tmp_path / "x.parquet")
    source = {"kind": "file", "path": str(tmp_path / "x.parquet")}
    outcome = run_tool("transfer", {"source": source, "targets": [targets("iceberg", tmp_path)()]}, host=ToolHost())
    assert outcome.error.kind == "schema" and "out of range" in outcome.error.message


def test_a_table_that_another_writer_creates_meanwhile_is_a_conflict(tmp_path, monkeypatch):
    from noetl_lakehouse.failures import explain
    from noetl_lakehouse.iceberg import IcebergTarget
    from pyiceberg.exceptions import TableAlreadyExistsError

    target = targets("iceberg", tmp_path)()
    transaction = IcebergTarget._transaction

    def overtaken(self: Any) -> Any:
        monkeypatch.setattr(IcebergTarget, "_transaction", transaction)
        assert write([{"id": 1}], target, execution_id="2").error is None
        return transaction(self)

    monkeypatch.setattr(IcebergTarget, "_transaction", overtaken)
    outcome = write([{"id": 2}], target)
    assert outcome.error.kind == "db.deadlock" and "another writer" in outcome.error.message
    assert write([{"id": 2}], target, attempt=2).error is None
    assert sorted(row["id"] for row in rows_of(target)) == [1, 2]
    exists = explain(TableAlreadyExistsError("Table shop.t already exists"))  # between the check and the commit
    assert exists is not None and exists.kind == "db.deadlock"


def test_a_replaced_partition_includes_what_others_wrote_meanwhile(tmp_path, monkeypatch):
    """A commit of another writer between reading the files and the commit: the files are read again."""
    from noetl_lakehouse.delta import DeltaTarget

    target = targets("delta", tmp_path)()
    rows = pa.table({"id": [1], "shop": ["a"]})
    assert load(target, tmp_path, rows, 0, partition_by=["shop"]).error is None
    original, others = DeltaTarget._removed_files, iter([10, 11])

    def overtaken(self: Any, table: Any) -> Any:
        found = original(self, table)
        number = next(others, None)
        if number is not None:
            assert load(target, tmp_path, rows, number, partition_by=["shop"], mode="append").error is None
        return found

    monkeypatch.setattr(DeltaTarget, "_removed_files", overtaken)
    assert (
        load(target, tmp_path, pa.table({"id": [5], "shop": ["a"]}), 1, partition_by=["shop"], mode="replace").error
        is None
    )
    assert rows_of(target) == [{"id": 5, "shop": "a"}]


def test_conditions_of_readers_find_all_rows(tmp_path):
    import pyarrow.compute as pc

    target = targets("delta", tmp_path)()
    rows = pa.table({
        "id": [1, 2, 3],
        "at": pa.array([datetime.datetime(2026, 1, 1, 0, 0, 0, 999_999), None, datetime.datetime(1960, 1, 1)],
                       pa.timestamp("us")),
        "note": ["x" * 100, "a", None],
        "day": [DAY, None, DAY],
        "rate": [float("nan"), 1.5, -1.0],
    })  # fmt: skip
    assert load(target, tmp_path, rows, 0).error is None
    dataset = DeltaTable(target["uri"]).to_pyarrow_dataset()
    for name in rows.column_names:
        for value in [each for each in rows.column(name).to_pylist() if each is not None and each == each]:
            scalar = pa.scalar(value, rows.schema.field(name).type)
            assert dataset.to_table(filter=pc.field(name) == scalar).num_rows >= 1, (name, value)
    actions = pa.table(DeltaTable(target["uri"]).get_add_actions()).to_pylist()
    assert [each["num_records"] for each in actions] == [3]


def test_every_type_keeps_its_value_from_every_source(tmp_path):
    from type_page import check

    kinds = {kind: (targets(kind, tmp_path), table_of) for kind in ("delta", "iceberg")}
    check(Path(__file__).parents[1] / "types.md", tmp_path, kinds)
