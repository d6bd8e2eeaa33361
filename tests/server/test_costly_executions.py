"""Executions whose templates take much of the server's time are paused, so that the others continue."""

from __future__ import annotations

import pytest

from noetl.server.dispatch import costly_executions
from noetl.server.dispatch.costly_executions import COSTLY, MAX_PAUSE, PAUSE, CostlyExecutions
from noetl.server.orchestrator.submissions import Submission
from tests.server.conftest import Hand, run
from tests.server.test_orchestrator import working

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\n"
GUARD = "{% for i in range(60000) %}{% endfor %}true"
CHAIN = """workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: middle, when: "WHEN"}]}}
  - {step: middle, tool: {kind: noop}, next: {arcs: [{step: end, when: "WHEN"}]}}
  - {step: end, tool: {kind: noop}}
"""
COSTLY_CHAIN, CHEAP_CHAIN = (HEAD + CHAIN.replace("WHEN", guard) for guard in (GUARD, "true"))


class StoppedClock:
    at = 100.0

    def monotonic(self):
        return self.at


def test_the_pause_grows_with_the_operations_and_the_number_of_costly_executions():
    clock = StoppedClock()
    costly = CostlyExecutions(clock)
    assert costly.pause_after("1", COSTLY - 1) == 0.0
    assert not costly.is_paused("1")
    alone = costly.pause_after("1", COSTLY)
    assert alone == COSTLY * PAUSE
    assert costly.pause_after("1", COSTLY) == alone
    assert costly.pause_after("2", 2 * COSTLY) == 4 * alone
    assert costly.is_paused("1")
    clock.at += alone
    assert not costly.is_paused("1")
    assert costly.is_paused("2")
    assert costly.pause_after("1", COSTLY) == 2 * alone
    clock.at += 5 * alone
    assert costly.pause_after("3", COSTLY) == alone
    assert costly.pause_after("3", 10**12) == MAX_PAUSE


def test_other_executions_continue_during_a_pause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(costly_executions, "PAUSE", 1.0)

    async def scenario(orchestrator):
        async with working(Hand(orchestrator.work)):
            paused = [await orchestrator.submit(Submission(text=COSTLY_CHAIN)) for _ in range(2)]
            other = await orchestrator.submit(Submission(text=CHEAP_CHAIN))
            ended = await orchestrator.wait(other, 10)
        return ended.status, [(await orchestrator.summary(each)).status for each in paused]

    assert run(scenario) == ("success", ["running", "running"])


@pytest.mark.parametrize("others", [0, 1])
def test_a_costly_execution_ends_after_its_pauses(others: int):
    async def scenario(orchestrator):
        for _ in range(others):
            await orchestrator.submit(
                Submission(text=HEAD + "workflow: [{step: a, tool: {kind: noop}, spec: {pool: none}}]")
            )
        execution = await orchestrator.submit(Submission(text=COSTLY_CHAIN))
        async with working(Hand(orchestrator.work)):
            return (await orchestrator.wait(execution, 10)).status

    assert run(scenario) == "success"


def test_an_execution_without_others_is_not_paused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(costly_executions, "PAUSE", 1.0)

    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=COSTLY_CHAIN))
        async with working(Hand(orchestrator.work)):
            return (await orchestrator.wait(execution, 10)).status

    assert run(scenario) == "success"
