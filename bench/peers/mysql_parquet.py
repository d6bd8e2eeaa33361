"""One table of MySQL to a Parquet file, in the environment of each engine.

mysql_parquet.py noetl|connectorx|dlt URL TABLE FOLDER
mysql_parquet.py statement URL SQL FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def with_connectorx(url: str, table: str, folder: Path) -> None:
    """Read the table into memory, and write it."""
    import connectorx
    import pyarrow.parquet as pq

    found: Any = connectorx.read_sql(url, f"SELECT * FROM {table}", return_type="arrow")
    pq.write_table(found, folder / "rows.parquet", compression="zstd")


def with_dlt(url: str, table: str, folder: Path) -> None:
    """A pipeline with the pyarrow back end."""
    os.environ.update(RUNTIME__DLTHUB_TELEMETRY="false", RUNTIME__LOG_LEVEL="ERROR", DLT_DATA_DIR=str(folder))
    os.environ["DESTINATION__FILESYSTEM__BUCKET_URL"] = f"file://{folder}/out"
    import dlt
    from dlt.sources.sql_database import sql_table

    pipeline = dlt.pipeline(
        "bench", destination=dlt.destinations.filesystem(), dataset_name="moved", pipelines_dir=str(folder)
    )
    source = sql_table(
        url.replace("mysql://", "mysql+pymysql://"),
        table=table,
        backend="pyarrow",
        chunk_size=100_000,
        reflection_level="full_with_precision",
    )
    pipeline.run(source, write_disposition="replace", loader_file_format="parquet")


def with_noetl(url: str, table: str, folder: Path) -> None:
    """A transfer with the plug-in."""
    from noetl.testing import run_tool

    target = {"kind": "file", "path": str(folder / "rows.parquet")}
    outcome = run_tool("transfer", {"source": {"kind": "mysql", "auth": url, "table": table}, "targets": [target]})
    assert outcome.error is None, outcome.error


def run_statement(url: str, statement: str, folder: Path) -> None:
    """Prepare the table."""
    from noetl.testing import run_tool

    outcome = run_tool("mysql", {"auth": url, "command": statement}, timeout=600)
    assert outcome.error is None, outcome.error


METHODS = {
    "connectorx": with_connectorx,
    "dlt": with_dlt,
    "noetl": with_noetl,
    "statement": run_statement,
}


def main() -> None:
    """Print seconds, CPU seconds and peak memory as JSON."""
    method, url, table, folder = sys.argv[1:]
    began = time.perf_counter()
    METHODS[method](url, table, Path(folder))
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    cpu = time.process_time()
    print(json.dumps({"seconds": seconds, "cpu_seconds": round(cpu, 2), "rss_mb": round(peak, 1)}))


if __name__ == "__main__":
    main()
