"""Simulated faults violate no invariant, and the simulation catches every planted bug."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import pytest

from noetl.core.engine.concurrency_keys import SUSPECTS
from noetl.server.concurrency import limiter
from noetl.server.dispatch.worker_service import WorkerService
from noetl.storage.ports.queue import QueuedRun
from tests.simulation import shrink, simulate, virtual_time
from tests.simulation.killers import outcomes
from tests.simulation.many_nodes import Simulation, Size
from tests.simulation.planted_bugs import PLANTED_BUGS, first_violation
from tests.simulation.planted_edits import EDITS, QUICK_EDITS
from tests.simulation.tenants import p99
from tests.simulation.waiting_runs import starved


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_faults_violate_no_invariant(first: int):
    results = [simulate(seed, 50) for seed in range(first, first + 25)]
    assert [result.describe() for result in results if result.violations] == []
    assert sum(len(result.injected) for result in results) > 25 * 20


def test_a_seed_gives_the_same_result_twice():
    first, again = simulate(11, 50), simulate(11, 50)
    assert first == again
    assert first.events > 0


def test_the_documentation_has_the_number_of_planted_bugs():
    page = Path(__file__).parents[2] / "docs" / "howto" / "simulate.md"
    assert f"{len(PLANTED_BUGS)} planted bugs" in page.read_text()


def test_every_planted_bug_can_be_planted():
    for plant in PLANTED_BUGS.values():
        with plant():
            pass


# `python -m tests.simulation` runs all; of the edits, which cost more seeds, a test run has those that few seeds catch.
FIRST_SEEDS = {  # that catch bugs which most seeds do not reach; the others are tried after them
    "reports of an old epoch are accepted": 116,
    "the timers of waiting executions are not read from the store": 73,
    "a signal that arrives before its wait is not taken": 57,
    "a late report starts the next task": 27,
    "a child is started with a new idempotency key each time": 26,
    "contributions are joined in the order of completion": 22,
    "a guard that is false is true": 14,
    "the projection is not written with the events": 12,  # others find a livelock, which takes long
    "appends are acknowledged before they are durable": 12,
    "a task with at_most_once runs again after a lost worker": 11,
    "the start of a task is not stored before its tool runs": 11,
    "a lease whose order was lost stays until it expires": 8,
    "tokens of one partition run at the same time": 7,
    "tokens of one partition enter in reverse order": 7,
    "timers never fire": 7,
    "timers are not set after a take-over": 7,
    "a run that waits for a worker does not hold its partition": 7,
    "tokens with an equal key run both": 7,
    "a new lease restarts at the first task": 6,
    "repeated events are accepted as new ones": 6,
    "a server believes its stale cache when it refuses": 5,
    "outstanding child executions are dropped": 5,
    "a worker that stops does not say that a tool had begun": 4,
}
QUICK = [name for name in PLANTED_BUGS if name not in EDITS or name in QUICK_EDITS]


@pytest.mark.parametrize("name", QUICK, ids=lambda name: name.replace(" ", "-"))
def test_a_planted_bug_is_caught(name: str):
    first = FIRST_SEEDS.get(name, 0)
    result = first_violation(name, [*range(first, 400), *range(first)])
    assert result is not None, f"not caught: {name}"


def test_a_livelock_is_a_violation():
    with (
        PLANTED_BUGS["the projection is not written with the events"](),
        patch.object(virtual_time, "MAX_TURNS", 20_000),
    ):
        assert any(each.startswith("livelock: ") for each in simulate(3, 60).violations)


@pytest.mark.parametrize("seed", range(6))
def test_only_tasks_that_end_all_workers_fail(seed: int):
    killers = 1 + seed % 3
    ended = outcomes(seed, killers=killers, servers=1 + seed % 2)
    assert ended == {"innocent success": 8, "killer failed": killers}


async def _never(*_: object) -> bool:
    return False


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(patch.object(WorkerService, "_lost_together", _never), id="each loss is evidence against one run"),
        pytest.param(patch.dict(limiter.BUILT_IN, {SUSPECTS: 100}), id="suspects do not wait for their turn"),
    ],
)
def test_wrong_rules_for_lost_workers_fail_innocent_runs(wrong: AbstractContextManager[object]):
    with wrong:
        assert any(outcomes(seed, killers=1 + seed % 3)["innocent failed"] for seed in range(4))


@pytest.mark.parametrize("seed", range(12))
def test_no_run_waits_longer_than_its_bound(seed: int):
    assert starved(seed) == []


@pytest.mark.parametrize(
    "rank",
    [
        pytest.param(lambda run: -run.priority, id="without ageing"),
        pytest.param(lambda run: run.since - 100 * run.priority, id="ageing is too slow"),
        pytest.param(lambda run: run.since, id="priorities are ignored"),
    ],
)
def test_a_wrong_rank_of_priorities_is_caught(rank: Callable[[QueuedRun], float]):
    with patch.object(QueuedRun, "rank", property(rank)):
        assert any(starved(seed) for seed in range(12))


def test_a_violation_is_shrunk_to_few_faults():
    name = "a new server does not resume unfinished executions"
    result = first_violation(name, faults=8)
    assert result is not None

    def repeat(only: frozenset[int]):
        with PLANTED_BUGS[name]():
            return simulate(result.seed, result.faults, executions=4, only=only)

    small = shrink(result, repeat)
    assert small.violations
    assert len(small.injected) < len(result.injected)


def test_a_tenant_with_100_000_executions_does_not_double_the_latency_of_another():
    alone = p99(0)
    assert p99(100_000) <= 2 * alone
    assert p99(10_000, tenants=False) > 10 * alone  # without tenants it waits behind them


def test_the_cost_of_an_execution_does_not_grow_with_the_number_of_workers():
    few, many = (
        Simulation(Size(workers, servers, 5_000, killed_servers=1, cut_off_workers=3)).run()
        for workers, servers in ((10, 2), (500, 10))
    )
    for found in (few, many):
        assert found.violations == ()
        assert found.takeover <= 7  # five seconds without a heartbeat, and two intervals
    assert few.refused + many.refused > 0  # late reports of workers that were cut off
    for name in ("messages", "appends", "bytes", "cpu_ms"):
        assert getattr(many, name) <= 1.2 * getattr(few, name), name


def test_an_overload_of_one_tenant_does_not_delay_the_other_in_the_model():
    found = Simulation(Size(50, 2, 5_000, load=1.3, killed_servers=0, cut_off_workers=0)).run()
    small, large = found.tenants
    alone = Simulation(Size(50, 2, 2_000, load=0.5, killed_servers=0, cut_off_workers=0)).run()
    assert small <= 2 * alone.p99
    assert large > 3 * small


def test_a_step_that_is_accepted_twice_is_a_violation_of_the_model(monkeypatch):
    def lease(self, execution, worker):  # without a new epoch
        worker.free -= 1
        takes = self._chance.uniform(0.5, 1.5) * self._size.task_seconds
        self._at(self._now + takes, self._report, execution, worker, execution.epoch, execution.step)

    monkeypatch.setattr(Simulation, "_lease", lease)
    monkeypatch.setattr(Simulation, "_expire", lambda self, execution, epoch: self._enqueue(execution))
    assert Simulation(Size(10, 2, 500, task_seconds=40.0, cut_off_workers=5)).run().violations
