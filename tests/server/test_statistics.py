"""Statistics of many executions, from their stored summaries."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.model.events import ExecutionRequested
from noetl.core.model.ids import number_at
from noetl.server.read_models.statistics import RowFilter, cause_of, statistics_document
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.events import ExecutionFilter
from tests.conformance.event_store import make_append

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("row 5 is above 3 (shop/prices:14)", "row 17 is above 4 (shop/prices:15)"),
        ("iteration 4: KeyError: 'no price for item 4'", "iteration 9: KeyError: 'no price for item 12'"),
        ("user 'ada' is unknown", "user 'bob' is unknown"),
        ("object 0x7f1a at 397980557016119296", "object 0x8e at 397980557053868032"),
    ],
)
def test_errors_that_differ_in_values_have_one_cause(one: str, other: str):
    assert cause_of(one) == cause_of(other)


def test_different_errors_have_different_causes():
    assert cause_of("KeyError: 'no price for item 4'") != cause_of("KeyError: 'no name for item 4'")


def document(where: ExecutionFilter | None = None, rows: RowFilter | None = None) -> dict:
    async def scenario() -> dict:
        store = MemoryEventStore()
        for n in range(12):
            started = NOW - 3600 * (12 - n)
            failed = n % 3 == 1
            await store.append(
                make_append(
                    str(number_at(started)),
                    0,
                    ExecutionRequested(playbook="d", path="shop/orders"),
                    status="failed" if failed else "success",
                    started_at=started,
                    ended_at=started + n,
                    version="1" if n < 6 else "2",
                    error=f"row {n} is wrong" if failed else None,
                )
            )
        return await statistics_document(store, where or ExecutionFilter(), rows or RowFilter(), NOW)

    return asyncio.run(scenario())


def test_counts_rates_durations_causes_and_the_histogram():
    found = document()
    assert (found["total"], found["complete"], found["statuses"]) == (12, True, {"success": 8, "failed": 4})
    assert found["success_rate"] == pytest.approx(8 / 12)
    assert (found["p50_ms"], found["p95_ms"]) == (6000.0, 11000.0)
    assert [(each["cause"], each["count"], each["paths"]) for each in found["causes"]] == [
        ("row … is wrong", 4, ["shop/orders"])
    ]
    assert sum(bar.get("success", 0) + bar.get("failed", 0) for bar in found["histogram"]) == 12
    assert len(found["newest"]) == 12 and found["newest"][0]["version"] == "2"


def test_rows_are_filtered_by_time_version_error_and_duration():
    assert document(ExecutionFilter(since=NOW - 3 * 3600))["total"] == 3
    assert document(ExecutionFilter(until=NOW - 3 * 3600))["total"] == 9
    assert document(rows=RowFilter(version="2"))["total"] == 6
    assert document(rows=RowFilter(error="ROW 4"))["total"] == 1
    assert document(rows=RowFilter(error="row … is wrong"))["total"] == 4
    assert document(rows=RowFilter(least_ms=9000))["total"] == 3
    assert document(rows=RowFilter(least_ms=2000, most_ms=4000))["total"] == 3
