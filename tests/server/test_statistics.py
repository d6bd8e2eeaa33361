"""Statistics of many executions, from their stored summaries."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.model.events import ExecutionRequested
from noetl.core.model.ids import number_at
from noetl.server.read_models.statistics import activity_document, cause_of, history_document, statistics_document
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


def document(where: ExecutionFilter | None = None) -> dict:
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
        return await statistics_document(store, where or ExecutionFilter(), NOW)

    return asyncio.run(scenario())


def test_counts_rates_durations_causes_and_the_histogram():
    found = document()
    assert (found["total"], found["statuses"]) == (12, {"success": 8, "failed": 4})
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
    assert document(ExecutionFilter(version="2"))["total"] == 6
    assert document(ExecutionFilter(error="ROW 4"))["total"] == 1
    assert document(ExecutionFilter(error="row … is wrong"))["total"] == 4
    assert document(ExecutionFilter(least_ms=9000))["total"] == 3
    assert document(ExecutionFilter(least_ms=2000, most_ms=4000))["total"] == 3


def test_history_survives_the_deletion_of_executions_and_has_step_trends():
    async def scenario() -> tuple[dict, dict, dict]:
        store = MemoryEventStore()
        ids = []
        for n in range(10):
            started = NOW - 86_400 * (9 - n)
            ids.append(str(number_at(started)))
            await store.append(
                make_append(
                    ids[-1],
                    0,
                    ExecutionRequested(playbook="d", path="shop/orders"),
                    status="failed" if n == 4 else "success",
                    started_at=started,
                    ended_at=started + 1 + n,
                    steps={"load": 100.0 + n} | ({"report": 5.0} if n > 7 else {}),
                )
            )
        before = await history_document(store, "shop/orders", NOW, 30)
        home = await activity_document(store, NOW, 7)
        await store.drop(ids[:6])
        return before, await history_document(store, "shop/orders", NOW, 30), home

    before, after, home = asyncio.run(scenario())
    assert before["days"] == after["days"], "deleted executions are counted on their day"
    assert len(after["days"]) == 30
    assert (after["total"], after["deleted"], after["success_rate"]) == (10, 6, 0.9)
    assert [(each["step"], each["durations_ms"][-2:], each["last_ms"]) for each in after["steps"]] == [
        ("load", [108.0, 109.0], 109.0),
        ("report", [5.0, 5.0], 5.0),
    ]
    assert before["steps"][1]["durations_ms"][0] is None, "the step did not exist yet"
    assert len(after["newest"]) == 4
    assert [(each["path"], each["total"]) for each in home["playbooks"]] == [("shop/orders", 7)]
    assert (home["total"], len(home["days"])) == (7, 7)


def test_durations_of_deleted_executions_are_known_approximately():
    async def scenario() -> dict:
        store = MemoryEventStore()
        for n in range(100):
            started = NOW - 86_400 + n
            id = str(number_at(started))
            await store.append(make_append(id, 0, status="success", started_at=started, ended_at=started + 1 + n / 100))
            await store.drop([id])
        return await history_document(store, "shop/orders", NOW, 7)

    found = asyncio.run(scenario())
    assert found["p50_ms"] == pytest.approx(1500, rel=0.09)
    assert found["p95_ms"] == pytest.approx(1950, rel=0.09)
