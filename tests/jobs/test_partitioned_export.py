"""The job `examples/jobs/partitioned_export`: a month of partitions, with a kill in the middle."""

from __future__ import annotations

import duckdb

from tests.cli.test_executions import wait_for
from tests.jobs.conftest import JOBS

JOB = JOBS / "partitioned_export"
JANUARY = ("--from", "2026-01-01", "--to", "2026-02-01", "--every", "1d", "--concurrency", "4", "--name", "january")


def test_every_day_is_one_partition_also_after_a_kill(noetl, start, stub, folder):
    orders = stub(JOB / "stub.py")
    values = ("--set", f"api={orders.url}", "--set", f"folder={folder}/out")
    process = start("backfill", str(JOB / "playbook.yaml"), *JANUARY, *values)
    wait_for(lambda: len(list((folder / "out").glob("day=*"))) >= 5)
    process.kill()
    process.communicate()
    answer = noetl("backfill", "resume", "january", "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["succeeded"], answer.json["total"]) == (31, 31)
    partitions = sorted(file.parent.name for file in (folder / "out").glob("day=*/orders.parquet"))
    assert len(partitions) == 27, "four Sundays have no orders"
    found = duckdb.sql(f"SELECT count(*), count(DISTINCT id) FROM '{folder}/out/*/orders.parquet'").fetchall()
    assert found == [(81, 81)]
    again = noetl("backfill", str(JOB / "playbook.yaml"), *JANUARY[:-1], "again", *values, "--json")
    assert again.json["succeeded"] == 31
    assert duckdb.sql(f"SELECT count(*) FROM '{folder}/out/*/orders.parquet'").fetchall() == [(81,)]
