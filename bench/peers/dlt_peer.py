"""dlt: a Postgres table to DuckDB, Parquet and Postgres, with its pyarrow back end."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from reporting import report, selected_workloads

ENGINE = "dlt"


def move(kind: str, rows: int) -> float:
    """Transfer the table; returns the seconds."""
    os.environ.update(RUNTIME__DLTHUB_TELEMETRY="false", RUNTIME__LOG_LEVEL="ERROR")
    import dlt
    from dlt.sources.sql_database import sql_table

    source, target = os.environ["BENCH_SOURCE"], os.environ["BENCH_TARGET"]
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=".")).resolve()
    os.environ["DLT_DATA_DIR"] = str(folder)
    os.environ["DESTINATION__FILESYSTEM__BUCKET_URL"] = f"file://{folder}/out"
    options: dict[str, Any] = {"write_disposition": "replace"}
    try:
        began = time.perf_counter()
        if kind == "duckdb":
            destination = dlt.destinations.duckdb(str(folder / "out.duckdb"))
        elif kind == "parquet":
            destination = dlt.destinations.filesystem()
            options["loader_file_format"] = "parquet"
        else:
            destination = dlt.destinations.postgres(target)
        pipeline = dlt.pipeline("bench", destination=destination, dataset_name="moved", pipelines_dir=str(folder))
        table = sql_table(
            source.replace("postgresql://", "postgresql+psycopg2://"),
            table="src",
            schema="public",
            backend="pyarrow",
            chunk_size=100_000,
            reflection_level="full_with_precision",
        )
        pipeline.run(table, **options)
        return time.perf_counter() - began
    finally:
        shutil.rmtree(folder)


def main() -> None:
    selected_workloads()
    rows = int(os.environ["BENCH_ROWS"])
    for kind in os.environ.get("BENCH_KINDS", "duckdb parquet postgres").split():
        report(ENGINE, "W5", f"postgres to {kind}", [rows / move(kind, rows)], "rows/s")


if __name__ == "__main__":
    main()
