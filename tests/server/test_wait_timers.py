"""Timers of waiting executions: which are read, by which server, how often, and what is set."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from noetl.core.model.events import WaitStarted
from noetl.core.model.work import Claim, Report
from noetl.errors import NoetlError, StoreUnavailable
from noetl.runtime.tasks import cancel
from noetl.server.lifecycle import wait_timers
from noetl.server.lifecycle.timers import HORIZON
from noetl.server.lifecycle.wait_timers import (
    FULL_SECONDS,
    LEADER_ROLE,
    LEADER_SECONDS,
    POLL_SECONDS,
    RENEW_SECONDS,
    WaitTimers,
)
from noetl.server.orchestrator.submissions import Submission
from tests.server.conftest import run
from tests.simulation.virtual_time import EPOCH, run_virtually


class Store:
    """Executions that wait until an instant; the instants of the reads are recorded."""

    def __init__(self, *due):
        self.waiting = list(due)
        self.reads = []
        self.problem = None

    async def due(self, before, limit):
        self.reads.append((asyncio.get_running_loop().time(), before, limit))
        if self.problem is not None:
            raise self.problem
        return [each for each in self.waiting if each[1] <= before][:limit]


class Leadership:
    def __init__(self, granted=True):
        self.granted, self.requested, self.problem = granted, [], None

    async def acquire_leadership(self, role, seconds):
        self.requested.append((role, seconds))
        if self.problem is not None:
            raise self.problem
        return self.granted


def timers_over(store, clock, **options):
    noted = []
    timers = SimpleNamespace(set=lambda execution_id, at: noted.append((execution_id, at)))
    orchestrator = SimpleNamespace(store=store, timers=timers)
    return WaitTimers(orchestrator, clock, **options), noted


def test_timers_that_are_due_within_the_horizon_are_set():
    async def scenario(clock):
        due = [("1", EPOCH - 5), ("2", EPOCH + HORIZON), ("3", EPOCH + HORIZON + 1)]
        reader, noted = timers_over(Store(*due), clock)
        assert await reader.load() == 2
        assert noted == due[:2]

    run_virtually(scenario)


def test_timers_of_executions_of_other_processes_are_counted_but_not_set():
    async def scenario(clock):
        due = [("1", EPOCH), ("2", EPOCH + 1)]
        asked = []

        def owned(executions):
            asked.append(list(executions))
            return ["2"]

        reader, noted = timers_over(Store(*due), clock, owned=owned)
        assert await reader.load() == 2  # a full page is followed by another one, although none of it is owned
        assert (asked, noted) == ([["1", "2"]], [("2", EPOCH + 1)])

    run_virtually(scenario)


@pytest.mark.parametrize("granted", [True, False])
def test_one_server_of_a_cluster_reads(granted):
    async def scenario(clock):
        leadership, store = Leadership(granted), Store(("1", EPOCH))
        reader, noted = timers_over(store, clock, leadership=leadership)
        assert await reader.load() == (1 if granted else 0)
        assert noted == ([("1", EPOCH)] if granted else [])
        assert len(store.reads) == (1 if granted else 0)
        assert leadership.requested == [(LEADER_ROLE, LEADER_SECONDS)]

    run_virtually(scenario)


def test_a_leader_renews_its_lease_between_reads_and_another_server_reads_as_soon_as_it_leads():
    async def scenario(clock):
        leadership, store = Leadership(), Store()
        reader, _ = timers_over(store, clock, leadership=leadership)
        reading = asyncio.create_task(reader.run())
        await asyncio.sleep(POLL_SECONDS + 1)
        assert [at for at, _, _ in store.reads] == [0.0, POLL_SECONDS]
        assert len(leadership.requested) >= POLL_SECONDS / RENEW_SECONDS
        leadership.granted = False
        await asyncio.sleep(3 * POLL_SECONDS)
        reads = len(store.reads)
        leadership.granted = True
        await asyncio.sleep(RENEW_SECONDS)
        assert len(store.reads) == reads + 1
        await cancel(reading)

    run_virtually(scenario)


def test_a_lease_that_cannot_be_renewed_is_requested_again(caplog):
    async def scenario(clock):
        leadership, store = Leadership(), Store()
        reader, _ = timers_over(store, clock, leadership=leadership)
        reading = asyncio.create_task(reader.run())
        await asyncio.sleep(1)
        leadership.problem = StoreUnavailable("away")
        await asyncio.sleep(RENEW_SECONDS)
        leadership.problem = None
        await asyncio.sleep(RENEW_SECONDS)
        assert len(store.reads) == 2  # at once, because another server may have been the leader
        await cancel(reading)

    run_virtually(scenario)
    assert "could not be renewed: away" in caplog.text


def test_reads_are_frequent_only_while_there_are_more_timers_than_one_read_returns(monkeypatch):
    monkeypatch.setattr(wait_timers, "BATCH", 2)

    async def scenario(clock):
        store = Store(("1", EPOCH), ("2", EPOCH))
        reader, _ = timers_over(store, clock)
        reading = asyncio.create_task(reader.run())
        await asyncio.sleep(FULL_SECONDS * 1.5)
        store.waiting.pop()
        await asyncio.sleep(POLL_SECONDS - 1)
        assert [at for at, _, _ in store.reads] == [0.0, FULL_SECONDS, 2 * FULL_SECONDS]
        await asyncio.sleep(POLL_SECONDS)
        assert [at for at, _, _ in store.reads][3:] == [2 * FULL_SECONDS + POLL_SECONDS]
        await cancel(reading)

    run_virtually(scenario)


def test_the_horizon_is_read_three_times_before_it_has_passed():
    assert 3 * POLL_SECONDS == HORIZON


@pytest.mark.parametrize("problem", [StoreUnavailable("away"), NoetlError("other")])
def test_a_read_that_fails_is_repeated_later(problem, caplog):
    async def scenario(clock):
        store = Store(("1", EPOCH))
        store.problem = problem
        reader, noted = timers_over(store, clock)
        reading = asyncio.create_task(reader.run())
        await asyncio.sleep(1)
        store.problem = None
        await asyncio.sleep(POLL_SECONDS)
        assert noted == [("1", EPOCH)]
        assert [at for at, _, _ in store.reads] == [0.0, POLL_SECONDS]
        await cancel(reading)

    run_virtually(scenario)
    assert "the timers of waiting executions could not be read" in caplog.text


TWO_WAITS = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: p}
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: later}, {step: answer}]}}
  - {step: later, tool: {kind: wait, for: 1h}}
  - {step: answer, tool: {kind: wait, signal: go}}
"""


def test_a_timer_is_held_only_while_something_else_runs():
    """The instant of the wait stays the same, so no decision sets the timer when the execution begins or stops to wait:
    neither may an execution that only waits be held, nor one that runs be left to the store, which lists the others."""

    async def scenario(orchestrator):
        def waits(order, **fields):
            where = {"step": order.context.step, "step_run_id": order.context.step_run_id, "task": "t"}
            return Report(order.run_id, order.epoch, 1, (WaitStarted(**where, **fields),))

        async def listed():
            return [execution_id for execution_id, _ in await orchestrator.store.due(2e10, 10)]

        work, held = orchestrator.work, orchestrator.timers._at
        execution_id = await orchestrator.submit(Submission(text=TWO_WAITS))
        orders = {each.context.step: each for each in await work.claim(Claim("hand", 2), wait=5)}
        await work.report("hand", [waits(orders["later"], for_s=3600.0)])
        assert ([*held], await listed()) == ([execution_id], [])
        await work.report("hand", [waits(orders["answer"], signal="go")])
        assert ([*held], await listed()) == ([], [execution_id])
        await orchestrator.signal(execution_id, "go", {}, by="ann")
        assert ([*held], await listed()) == ([execution_id], [])

    run(scenario, stored_timers=True)
