"""Callers that wait for the end of an execution: woken at once, or by one poll for all of them."""

import asyncio

from noetl.errors import StoreUnavailable
from noetl.server.orchestrator import effect_handler
from noetl.server.orchestrator.effect_handler import EndNotifier


def test_one_poll_serves_all_callers_and_wakes_those_whose_log_has_grown(monkeypatch):
    monkeypatch.setattr(effect_handler, "POLL_SECONDS", 0.01)
    polled_thrice = asyncio.Event()
    polls, seqs = [], {str(number): 3 for number in range(100)}

    async def lengths(ids):
        polls.append(len(ids))
        if len(polls) == 3:
            polled_thrice.set()
        return [(each, seqs[each]) for each in ids]

    async def scenario():
        ends = EndNotifier(lengths)

        async def caller(execution_id):
            with ends.subscribed(execution_id) as ended:
                while seqs[execution_id] < 4:
                    await ended.wait()
                    ended.clear()
            return execution_id

        callers = [asyncio.create_task(caller(each)) for each in seqs]
        await asyncio.wait_for(polled_thrice.wait(), 5)
        seqs["7"] = 4
        async with asyncio.timeout(5):
            assert await callers[7] == "7"
        assert set(polls) <= {100, 99}
        for each in seqs:
            seqs[each] = 4
        async with asyncio.timeout(5):
            await asyncio.gather(*callers)
        count = len(polls)
        await asyncio.sleep(0.05)
        assert len(polls) == count  # no caller, no poll

    asyncio.run(scenario())


def test_an_unreachable_store_wakes_all_callers(monkeypatch):
    monkeypatch.setattr(effect_handler, "POLL_SECONDS", 0.01)

    async def lengths(ids):
        raise StoreUnavailable("down")

    async def scenario():
        with EndNotifier(lengths).subscribed("1") as ended:
            async with asyncio.timeout(5):
                await ended.wait()

    asyncio.run(scenario())


def test_a_caller_is_woken_only_when_the_log_has_grown(monkeypatch):
    monkeypatch.setattr(effect_handler, "POLL_SECONDS", 0.001)
    polls = []

    async def lengths(ids):
        polls.append(ids)
        return [("1", 3 if len(polls) < 6 else 4)]

    async def scenario():
        woken = []
        with EndNotifier(lengths).subscribed("1") as ended:
            async with asyncio.timeout(5):
                while len(polls) < 8:
                    await ended.wait()
                    ended.clear()
                    woken.append(len(polls))
                    if len(woken) == 2:
                        return woken
        return woken

    assert asyncio.run(scenario()) == [1, 6]


def test_a_later_caller_is_polled_for_too(monkeypatch):
    monkeypatch.setattr(effect_handler, "POLL_SECONDS", 0.001)

    async def lengths(ids):
        return [(each, 1) for each in ids]

    async def scenario():
        ends = EndNotifier(lengths)
        for execution_id in ("1", "2"):
            with ends.subscribed(execution_id) as ended:
                async with asyncio.timeout(5):
                    await ended.wait()

    asyncio.run(scenario())
