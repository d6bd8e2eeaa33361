"""`exec: local`: the iterations of a loop stay on the worker that has it, and go on when it leaves."""

import asyncio

import pytest

from noetl.core.model.events import IterationStarted
from noetl.core.model.work import Claim
from noetl.server.dispatch import worker_service as workers
from noetl.server.orchestrator.submissions import Submission
from tests.server.conftest import Hand, make_orchestrator
from tests.server.test_orchestrator import LOOP, working

LOCAL = LOOP.replace("max_in_flight: 4}", "max_in_flight: 4, policy: {exec: local}}")
PROFILE = LOOP.replace("metadata:", "executor: {profile: local}\nmetadata:")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(workers, "RETRY_SECONDS", 0.01)


@pytest.mark.parametrize(("text", "alone"), [(LOCAL, True), (PROFILE, True), (LOOP, False)])
def test_a_local_loop_stays_on_the_worker_that_began_it(text, alone):
    async def scenario():
        orchestrator = make_orchestrator()
        hands = [Hand(orchestrator.work, worker=f"w{n}", slots=2) for n in range(3)]
        execution_id = await orchestrator.submit(Submission(text=text))
        orders = [await orchestrator.work.claim(Claim(hand.worker, 2), wait=0.05) for hand in hands]
        for hand, some in zip(hands, orders, strict=True):
            if some:
                await orchestrator.work.report(hand.worker, [hand.report(order) for order in some], free=2)
        events = await orchestrator.events(execution_id)
        await orchestrator.close()
        return {recorded.body.worker for recorded in events if isinstance(recorded.body, IterationStarted)}

    workers_seen = asyncio.run(scenario())
    assert len(workers_seen) == 1 if alone else len(workers_seen) > 1


def test_another_worker_continues_when_the_first_one_leaves():
    async def scenario():
        orchestrator = make_orchestrator()
        execution_id = await orchestrator.submit(Submission(text=LOCAL))
        first, second = Hand(orchestrator.work, worker="w1"), Hand(orchestrator.work, worker="w2")
        orders = await orchestrator.work.claim(Claim("w1", 2), wait=5)
        assert await orchestrator.work.claim(Claim("w2", 2), wait=0.03) == []
        # w1 finishes what it has and asks for nothing more.
        await orchestrator.work.report("w1", [first.report(order) for order in orders])
        async with working(second):
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        assert len(second.ran) == 8
        await orchestrator.close()

    asyncio.run(scenario())


def test_another_worker_continues_when_the_first_one_is_lost():
    async def scenario():
        orchestrator = make_orchestrator(lease_seconds=0.05)
        orchestrator.start()
        execution_id = await orchestrator.submit(Submission(text=LOCAL))
        assert len(await orchestrator.work.claim(Claim("lost", 2), wait=5)) == 2
        second = Hand(orchestrator.work, worker="w2")
        async with working(second):
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        await orchestrator.close()

    asyncio.run(scenario())
