"""The job `examples/jobs/incremental_api`: changed orders only, also after kills."""

from __future__ import annotations

import duckdb

from tests.jobs.conftest import JOBS

JOB = JOBS / "incremental_api"


def loaded(folder) -> list[tuple]:
    with duckdb.connect(str(folder / "orders.duckdb"), read_only=True) as connection:
        return connection.execute("SELECT id, version FROM orders ORDER BY id").fetchall()


def test_only_changed_orders_are_loaded_and_none_is_lost_or_doubled(noetl, start, stub, folder):
    orders = stub(JOB / "stub.py")
    run = ("run", str(JOB / "playbook.yaml"), "--json", "--set", f"api={orders.url}")
    run += ("--set", f"database={folder}/orders.duckdb")

    def rows() -> int:
        answer = noetl(*run)
        assert answer.code == 0, answer.err
        return answer.json["output"]["data"]["rows"]

    def everything() -> list[tuple]:
        return sorted((row["id"], row["version"]) for row in orders.get("/all"))

    assert rows() == 200
    assert rows() <= 3  # the orders with the time of the cursor
    orders.get("/change?first=150&last=230")
    process = start(*run)
    process.kill()
    process.communicate()
    assert 81 <= rows() <= 84
    assert loaded(folder) == everything()
    orders.get("/change?first=231&last=231")  # with the time of the cursor
    assert rows() <= 4
    assert loaded(folder) == everything()
