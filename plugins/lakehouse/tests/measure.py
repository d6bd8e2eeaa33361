"""Writes rows to Delta Lake and Iceberg tables, and merges some: `tests/measure.py delta|iceberg [ROWS] [PARTITIONS]`.

Run it in the environment of the plug-in (`.venv-plugins/lakehouse/bin/python`); memory is the peak of the process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.testing import ToolHost, run_tool

ROWS, PARTITIONS = 1_000_000, 4


def resident() -> float:
    """Memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def rows(count: int, days: int) -> Any:
    """Rows of a table with dates, times, decimals and texts."""
    ids = pa.array(range(count), pa.int64())
    return pa.table({
        "id": ids,
        "day": pa.array([20_454 + number % days for number in range(count)], pa.int32()).cast(pa.date32()),
        "at": pa.array([number * 1000 for number in range(count)], pa.timestamp("us", "UTC")),
        "amount": ids.cast(pa.decimal128(21, 0)).cast(pa.decimal128(23, 2)),
        "note": ids.cast(pa.string()),
    })  # fmt: skip


def measured(name: str, work: Callable[[], Any]) -> None:
    """Run and print the CPU time and the peak of the memory."""
    peak, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    print(f"{name}: {cpu:.2f} s CPU, {wall:.2f} s, peak {peak[0]:.0f} MB", flush=True)


def main(kind: str, count: int = ROWS, days: int = PARTITIONS) -> None:
    """Measure one kind."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, __file__, "rows", str(count), str(days), folder], check=True
        )  # its memory is not measured
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder}/warehouse"}
        place = {"uri": f"{folder}/table"} if kind == "delta" else {"catalog": catalog, "table": "shop.orders"}
        numbers = iter(range(1, 100))

        def transfer(file: str, mode: str) -> None:
            target = {"kind": kind, **place, "mode": mode, "partition_by": ["day"]}
            given = {"source": {"kind": "file", "path": f"{folder}/{file}"}, "targets": [target]}
            outcome = run_tool("transfer", given, host=ToolHost(folder=folder), execution_id=str(next(numbers)))
            assert outcome.error is None, outcome.error

        measured(
            "import of the driver", lambda: __import__("deltalake" if kind == "delta" else "pyiceberg.catalog.sql")
        )
        measured(f"append of {count:,} rows, {days} partitions", lambda: transfer("all.parquet", "append"))
        measured("replace of one partition", lambda: transfer("day.parquet", "replace"))
        some = rows(20_000, days)
        if kind == "delta":
            from deltalake import DeltaTable

            merge = DeltaTable(f"{folder}/table").merge(some, "t.id = s.id", source_alias="s", target_alias="t")
            measured("merge of 20,000 rows", merge.when_matched_update_all().when_not_matched_insert_all().execute)
        else:
            from pyiceberg.catalog import load_catalog

            table = load_catalog("default", **{**catalog, "warehouse": f"file://{folder}/warehouse"})
            measured("upsert of 20,000 rows", lambda: table.load_table("shop.orders").upsert(some, join_cols=["id"]))


def write_rows(count: int, days: int, folder: str) -> None:
    """The files to load: all days, and one of them."""
    pq.write_table(rows(count, days), f"{folder}/all.parquet", row_group_size=50_000)
    pq.write_table(rows(count // days, 1), f"{folder}/day.parquet", row_group_size=50_000)


if __name__ == "__main__":
    if sys.argv[1] == "rows":
        write_rows(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
