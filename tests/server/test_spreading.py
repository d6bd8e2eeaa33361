"""Several workers of a pool share what is ready, however many slots each of them has."""

import asyncio
from collections import Counter

import pytest

from noetl.core.model.events import IterationStarted
from noetl.core.model.work import Claim
from noetl.server.dispatch import dispatcher
from noetl.server.orchestrator.submissions import Submission
from tests.server.conftest import Hand, make_orchestrator
from tests.server.test_orchestrator import LOOP, working
from tests.waiting import until

WIDE = LOOP.replace(", max_in_flight: 4", "")
ITEMS = {"items": list(range(40))}


async def both_poll(orchestrator, slots=256):
    """The orders of two workers that wait for work when a loop of 40 iterations starts."""
    polls = [asyncio.ensure_future(orchestrator.work.claim(Claim(worker, slots), wait=5)) for worker in ("w1", "w2")]
    pools = orchestrator.work._dispatcher._pools
    await until(lambda: [each.seen for pool in pools.values() for each in pool] == [0, 0])
    execution_id = await orchestrator.submit(Submission(text=WIDE, payload=ITEMS))
    return execution_id, [len(orders) for orders in await asyncio.gather(*polls)]


def test_workers_that_wait_get_equal_shares_of_a_loop():
    async def scenario():
        orchestrator = make_orchestrator()
        _, counts = await both_poll(orchestrator)
        await orchestrator.close()
        return counts

    assert asyncio.run(scenario()) == [20, 20]


def test_a_worker_that_comes_later_leaves_the_share_of_the_others_in_the_queue():
    async def scenario():
        orchestrator = make_orchestrator()
        for worker in ("w1", "w2", "w3"):
            await orchestrator.work.claim(Claim(worker, 256), wait=0)
        await orchestrator.submit(Submission(text=WIDE, payload=ITEMS))
        counts = [len(await orchestrator.work.claim(Claim(worker, 256), wait=5)) for worker in ("w1", "w2", "w3")]
        await orchestrator.close()
        return counts

    assert asyncio.run(scenario()) == [14, 9, 6]


def test_a_loop_is_spread_over_two_working_workers_and_ends():
    async def scenario():
        orchestrator = make_orchestrator()
        hands = [Hand(orchestrator.work, worker=f"w{n}", slots=256) for n in (1, 2)]
        async with working(hands[0]), working(hands[1]):
            await until(lambda: orchestrator.work._dispatcher.live_workers("default") == 2)
            execution_id = await orchestrator.submit(Submission(text=WIDE, payload=ITEMS))
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        events = await orchestrator.events(execution_id)
        await orchestrator.close()
        return Counter(each.body.worker for each in events if isinstance(each.body, IterationStarted))

    counts = asyncio.run(scenario())
    assert sum(counts.values()) == 40 and min(counts["w1"], counts["w2"]) >= 10


def test_one_worker_takes_all():
    async def scenario():
        orchestrator = make_orchestrator()
        await orchestrator.submit(Submission(text=WIDE, payload=ITEMS))
        orders = await orchestrator.work.claim(Claim("w1", 256), wait=5)
        await orchestrator.close()
        return len(orders)

    assert asyncio.run(scenario()) == 40


def test_a_worker_that_is_gone_no_longer_has_a_share(monkeypatch):
    monkeypatch.setattr(dispatcher, "LIVE_SECONDS", 0.0)

    async def scenario():
        orchestrator = make_orchestrator()
        await orchestrator.work.claim(Claim("gone", 256), wait=0)
        await orchestrator.submit(Submission(text=WIDE, payload=ITEMS))
        orders = await orchestrator.work.claim(Claim("w1", 256), wait=5)
        await orchestrator.close()
        return len(orders)

    assert asyncio.run(scenario()) == 40


def test_workers_of_another_pool_have_no_share():
    async def scenario():
        orchestrator = make_orchestrator()
        await orchestrator.work.claim(Claim("other", 256, "gpu"), wait=0)
        await orchestrator.submit(Submission(text=WIDE, payload=ITEMS))
        orders = await orchestrator.work.claim(Claim("w1", 256), wait=5)
        await orchestrator.close()
        return len(orders)

    assert asyncio.run(scenario()) == 40


@pytest.mark.parametrize("local", ["exec: local", "profile"])
def test_a_local_loop_is_not_spread(local):
    text = WIDE.replace("mode: parallel", "mode: parallel, policy: {exec: local}")
    if local == "profile":
        text = WIDE.replace("metadata:", "executor: {profile: local}\nmetadata:")

    async def scenario():
        orchestrator = make_orchestrator()
        hands = [Hand(orchestrator.work, worker=f"w{n}", slots=256) for n in (1, 2)]
        async with working(hands[0]), working(hands[1]):
            await until(lambda: orchestrator.work._dispatcher.live_workers("default") == 2)
            execution_id = await orchestrator.submit(Submission(text=text, payload=ITEMS))
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        events = await orchestrator.events(execution_id)
        await orchestrator.close()
        return {each.body.worker for each in events if isinstance(each.body, IterationStarted)}

    assert len(asyncio.run(scenario())) == 1
