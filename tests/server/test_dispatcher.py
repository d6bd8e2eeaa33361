"""Long polls: what they get, when they end, which slots are offered, and which workers are alive."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.engine.commands import ClaimAnyRun, Reply
from noetl.core.model.work import Claim
from noetl.errors import StoreUnavailable
from noetl.runtime.tasks import cancel
from noetl.server.dispatch.dispatcher import (
    LIVE_SECONDS,
    MAX_OFFERS,
    RETURN_SECONDS,
    SLOTS_SECONDS,
    UNDELIVERED_SECONDS,
    Dispatcher,
    pool_name,
)
from noetl.storage.ports.queue import QueuedRun
from noetl.storage.queue.memory import MemoryRunQueue
from tests.simulation.virtual_time import run_virtually


class Bench:
    """A dispatcher over a queue in memory; leases are the runs themselves."""

    def __init__(self):
        self.queue = MemoryRunQueue()
        self.claims, self.returned = [], []
        self.refuse = set()
        self.dispatcher = Dispatcher(self.queue, self._lease, self._return)

    async def _lease(self, claim, runs):
        self.claims.append((claim, [run.run_id for run in runs]))
        return [run for run in runs if run.run_id not in self.refuse]

    def _return(self, claim, orders):
        self.returned.append((claim.worker, list(orders)))

    def poll(self, worker="w", slots=1, wait=20.0, **fields):
        return asyncio.create_task(self.dispatcher.claim(Claim(worker, slots, **fields), wait))

    async def open(self, *polls):
        """Let the polls begin to wait."""
        await asyncio.sleep(0.001)
        assert not any(poll.done() for poll in polls)


def now():
    return asyncio.get_running_loop().time()


class Run(QueuedRun, frozen=True):
    """A run, and the order of it."""

    alone: bool = False


def run(name, **fields):
    return Run(name.partition(":")[0], name, **fields)


def test_a_poll_without_work_ends_after_its_wait():
    async def scenario(_):
        bench = Bench()
        began = now()
        assert await bench.poll(wait=20.0) == []
        assert now() - began == pytest.approx(20.0)
        assert bench.dispatcher.slot_offers() == []
        began = now()
        assert await bench.dispatcher.claim(Claim("w", 1), 0) == []
        assert now() == began

    run_virtually(scenario)


def test_a_poll_gets_the_run_that_is_enqueued_while_it_waits():
    async def scenario(_):
        bench = Bench()
        poll, gpu = bench.poll(), bench.poll("g", pool="gpu")
        await bench.open(poll, gpu)
        await bench.queue.put([run("1:a:1")])
        assert [each.run_id for each in await poll] == ["1:a:1"]
        assert not gpu.done()
        await bench.queue.put([run("2:a:1", pool="gpu")])
        assert [each.run_id for each in await gpu] == ["2:a:1"]
        assert now() < 1
        await asyncio.sleep(RETURN_SECONDS)
        await bench.queue.put([run("3:a:1"), run("3:b:1", pool="gpu")])  # neither worker has claimed again
        assert not any(bench.queue._watchers.values())

    run_virtually(scenario)


def test_a_claim_goes_on_if_the_runs_could_not_be_leased():
    async def scenario(_):
        bench = Bench()
        bench.refuse = {"1:a:1", "1:b:1"}
        await bench.queue.put([run("1:a:1"), run("1:b:1"), run("1:c:1")])
        (got,) = await bench.dispatcher.claim_now(Claim("w", 1))
        assert got.run_id == "1:c:1"
        assert [names for _, names in bench.claims] == [["1:a:1"], ["1:b:1"], ["1:c:1"]]
        poll = bench.poll()
        await bench.open(poll)
        await bench.queue.put([run("1:a:1")])
        await bench.open(poll)  # it waits again
        await bench.queue.put([run("1:d:1")])
        assert [each.run_id for each in await poll] == ["1:d:1"]

    run_virtually(scenario)


def test_a_poll_is_short_while_a_run_waits_that_costs_more_than_the_free_slots():
    async def scenario(_):
        bench = Bench()
        await bench.queue.put([run("1:a:1", cost=3)])
        began = now()
        assert await bench.dispatcher.claim(Claim("w", 1, capacity=4), 20.0) == []
        assert now() - began == pytest.approx(SLOTS_SECONDS)
        assert len(await bench.dispatcher.claim(Claim("w", 4, capacity=4), 20.0)) == 1

    run_virtually(scenario)


# ── offers ──────────────────────────────────────────────────────────────────────────────


def test_the_slots_of_open_polls_are_offered_to_one_decision_at_a_time():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll("w", 3, labels=("gpu",), capacity=5)
        other = bench.poll("x", 2, pool="big")
        await bench.open(poll, other)
        offers = bench.dispatcher.slot_offers()
        assert [each.command for each in offers] == [
            ClaimAnyRun("w", 3, None, 1, ("gpu",), 5),
            ClaimAnyRun("x", 2, "big", 1),
        ]
        assert bench.dispatcher.slot_offers() == []  # another decision holds them
        offers[0].decline()
        assert [each.command.worker for each in bench.dispatcher.slot_offers()] == ["w"]
        await bench.open(poll, other)

    run_virtually(scenario)


def test_a_decision_that_leases_runs_ends_the_poll():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll()
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        offer.accept(Reply(True, orders=(run("1:a:1"),)))
        assert bench.dispatcher.slot_offers() == []  # the slots are used, although the poll has not returned yet
        assert [each.run_id for each in await poll] == ["1:a:1"]
        assert bench.returned == [] and now() < 1

    run_virtually(scenario)


def test_a_decision_that_leases_nothing_leaves_the_poll_open():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(wait=20.0)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        offer.accept(Reply(False, "nothing to lease"))
        await bench.open(poll)
        assert len(bench.dispatcher.slot_offers()) == 1
        await bench.queue.put([run("1:a:1")])  # the slots are offered: not taken from the queue at the same time
        await bench.open(poll)

    run_virtually(scenario)


def test_slots_that_are_offered_take_no_run_of_the_queue_until_they_are_returned():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll()
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        await bench.queue.put([run("1:a:1")])
        await asyncio.sleep(1)
        assert not poll.done() and bench.claims == []
        offer.decline()
        assert [each.run_id for each in await poll] == ["1:a:1"]

    run_virtually(scenario)


def test_a_poll_whose_time_ends_while_its_slots_are_offered_waits_for_the_decision():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(wait=5.0)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        await asyncio.sleep(6)
        assert not poll.done()
        offer.accept(Reply(True, orders=(run("1:a:1"),)))
        assert [each.run_id for each in await poll] == ["1:a:1"]
        late = bench.poll(wait=5.0)
        await bench.open(late)
        (offer,) = bench.dispatcher.slot_offers()
        await asyncio.sleep(6)
        offer.decline()
        assert await late == []

    run_virtually(scenario)


def test_what_a_decision_does_not_use_is_offered_to_others_before_its_append():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(slots=3)
        await bench.open(poll)
        (first,) = bench.dispatcher.slot_offers()
        reply = Reply(True, orders=(run("1:a:1"),))
        first.decided(reply)
        (second,) = bench.dispatcher.slot_offers()
        assert (first.command.slots, second.command.slots) == (3, 2)
        second.decided(Reply(False))
        second.accept(Reply(False))
        (third,) = bench.dispatcher.slot_offers()
        other = Reply(True, orders=(run("2:a:1"),))
        third.decided(other)
        first.accept(reply)
        third.accept(other)  # in the same flush
        assert [each.run_id for each in await poll] == ["1:a:1", "2:a:1"]

    run_virtually(scenario)


def test_decisions_are_offered_the_slots_of_some_workers_in_turn():
    async def scenario(_):
        bench = Bench()
        names = [f"w{n}" for n in range(MAX_OFFERS + 2)]
        polls = [bench.poll(name, 2) for name in names]
        await bench.open(*polls)
        got = []
        for number in range(len(names)):
            offers = bench.dispatcher.slot_offers()
            assert len(offers) == MAX_OFFERS
            for offer in offers:
                reply = Reply(True, orders=(run(f"{number}:a:1"),)) if offer is offers[0] else Reply(False)
                offer.decided(reply)
                if not reply.orders:
                    offer.accept(reply)
            got.append(offers[0].command.worker)
        assert got == names

    run_virtually(scenario)


def test_the_other_slots_of_a_worker_that_got_orders_are_offered_until_it_claims_again():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(slots=4)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        reply = Reply(True, orders=(run("1:a:1"),))
        offer.decided(reply)
        offer.accept(reply)
        assert len(await poll) == 1
        (offer,) = bench.dispatcher.slot_offers()
        assert offer.command.slots == 3
        late = Reply(True, orders=(run("2:a:1"),))
        offer.decided(late)
        offer.accept(late)
        assert [each.run_id for each in await bench.poll(slots=3)] == ["2:a:1"]  # the next poll has them
        await asyncio.sleep(2 * UNDELIVERED_SECONDS)
        assert bench.returned == []
        assert bench.dispatcher.slot_offers() == []  # it has not claimed again

    run_virtually(scenario)


def test_slots_that_a_decision_still_holds_are_not_offered_with_the_next_poll():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(slots=4)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        reply = Reply(True, orders=(run("1:a:1"),))
        offer.decided(reply)
        (second,) = bench.dispatcher.slot_offers()
        late = Reply(True, orders=(run("2:a:1"),))
        second.decided(late)
        offer.accept(reply)
        assert len(await poll) == 1
        poll = bench.poll(slots=3)
        await bench.open(poll)
        (third,) = bench.dispatcher.slot_offers()
        assert third.command.slots == 2
        third.decline()
        second.accept(late)
        assert [each.run_id for each in await poll] == ["2:a:1"]

    run_virtually(scenario)


def test_orders_for_a_worker_that_does_not_claim_again_are_returned():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(slots=4)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        reply = Reply(True, orders=(run("1:a:1"),))
        offer.decided(reply)
        offer.accept(reply)
        await poll
        (offer,) = bench.dispatcher.slot_offers()
        late = run("2:a:1")
        offer.accept(Reply(True, orders=(late,)))
        await asyncio.sleep(UNDELIVERED_SECONDS + 0.1)
        assert bench.returned == [("w", [late])]

    run_virtually(scenario)


def test_a_worker_that_is_expected_to_claim_again_gets_runs_of_the_queue_first():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll()
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        offer.decided(Reply(False))
        offer.accept(Reply(False))
        await bench.queue.put([run(f"2:{name}:1") for name in "abc"])
        assert [each.run_id for each in await poll] == ["2:a:1"]
        assert bench.dispatcher.slot_offers() == []  # runs wait in the queue
        poll = bench.poll(slots=2)
        await asyncio.sleep(0.001)
        assert [each.run_id for each in await poll] == ["2:b:1", "2:c:1"]
        assert bench.dispatcher.slot_offers() == []  # all its slots are used

    run_virtually(scenario)


def test_while_new_runs_are_claimed_half_of_the_slots_are_offered():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(slots=4)
        await bench.open(poll)
        reading = asyncio.Event()
        take_each = bench.queue.take_each

        async def slow(claims):
            await reading.wait()
            return await take_each(claims)

        bench.queue.take_each = slow
        await bench.queue.put([run("1:a:1"), run("1:b:1"), run("1:c:1")])
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        assert offer.command.slots == 2
        reading.set()
        assert [each.run_id for each in await poll] == ["1:a:1", "1:b:1"]
        offer.decided(Reply(False))
        offer.accept(Reply(False))
        assert bench.dispatcher.slot_offers() == []  # the worker may have left runs in the queue

    run_virtually(scenario)


def test_a_worker_that_runs_an_order_alone_is_not_expected_to_claim():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(slots=4)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        reply = Reply(True, orders=(run("1:a:1", alone=True),))
        offer.decided(reply)
        offer.accept(reply)
        await poll
        assert bench.dispatcher.slot_offers() == []

    run_virtually(scenario)


@pytest.mark.parametrize("end", ["alone", "closed"])
def test_orders_for_a_worker_that_is_not_expected_any_more_are_returned_at_once(end):
    async def scenario(_):
        bench = Bench()
        poll = bench.poll(slots=4)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        offer.accept(Reply(True, orders=(run("1:a:1"),)))
        await poll  # now it is expected to claim again
        poll = bench.poll(slots=4)
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        reply = Reply(True, orders=(run("2:a:1", alone=True),) if end == "alone" else ())
        offer.decided(reply)
        (later,) = bench.dispatcher.slot_offers()  # to a decision that ends after the poll
        offer.accept(reply)
        if end == "alone":
            await poll
        else:
            await cancel(poll)
        late = run("3:a:1")
        later.accept(Reply(True, orders=(late,)))
        assert bench.returned == [("w", [late])]

    run_virtually(scenario)


def test_open_polls_claim_together():
    async def scenario(_):
        bench = Bench()
        asked = []
        take_each = bench.queue.take_each

        async def counted(claims):
            asked.append([claim.worker for claim in claims])
            return await take_each(claims)

        bench.queue.take_each = counted
        polls = [bench.poll(name) for name in "abc"]
        await bench.open(*polls)
        assert asked == [["a", "b", "c"]]
        await bench.queue.put([run("1:a:1")])
        await asyncio.sleep(0.001)
        assert asked == [["a", "b", "c"]] * 2  # one claim for the new run, and only one poll ends
        assert [poll.done() for poll in polls] == [True, False, False]

    run_virtually(scenario)


def test_a_second_poll_of_a_worker_ends_the_first():
    async def scenario(_):
        bench = Bench()
        first = bench.poll()
        await bench.open(first)
        second = bench.poll()
        assert await first == []
        await bench.queue.put([run("1:a:1")])
        assert len(await second) == 1

    run_virtually(scenario)


def test_an_error_of_the_queue_ends_the_polls():
    async def scenario(_):
        bench = Bench()

        async def broken(claims):
            raise StoreUnavailable("no database")

        take_each, bench.queue.take_each = bench.queue.take_each, broken
        for poll in (bench.poll("a"), bench.poll("b")):
            with pytest.raises(StoreUnavailable):
                await poll
        bench.queue.take_each = take_each
        await bench.queue.put([run("1:a:1")])
        assert len(await bench.poll("a")) == 1

    run_virtually(scenario)


@pytest.mark.parametrize("when", ["before the decision", "after the decision"])
def test_orders_for_a_poll_that_was_closed_are_returned(when):
    async def scenario(_):
        bench = Bench()
        poll = bench.poll()
        await bench.open(poll)
        (offer,) = bench.dispatcher.slot_offers()
        order = run("1:a:1")
        if when == "before the decision":
            poll.cancel()
            await asyncio.wait([poll])
            assert bench.returned == []
            offer.accept(Reply(True, orders=(order,)))
        else:
            offer.accept(Reply(True, orders=(order,)))
            poll.cancel()
            await asyncio.wait([poll])
        assert poll.cancelled()
        assert bench.returned == [("w", [order])]
        assert bench.dispatcher.slot_offers() == []

    run_virtually(scenario)


def test_a_poll_that_is_cancelled_without_orders_returns_none():
    async def scenario(_):
        bench = Bench()
        poll = bench.poll()
        await bench.open(poll)
        poll.cancel()
        await asyncio.wait([poll])
        assert poll.cancelled() and bench.returned == []
        assert bench.dispatcher.slot_offers() == []

    run_virtually(scenario)


def test_a_worker_that_is_dismissed_gets_the_orders_that_were_under_way():
    async def scenario(_):
        bench = Bench()
        poll, other = bench.poll("w"), bench.poll("x")
        await bench.open(poll, other)
        first, _second = bench.dispatcher.slot_offers()
        bench.dispatcher.dismiss("w")
        bench.dispatcher.dismiss("unknown")
        await bench.open(poll, other)
        first.accept(Reply(True, orders=(run("1:a:1"),)))
        assert [each.run_id for each in await poll] == ["1:a:1"]
        assert not other.done()

    run_virtually(scenario)


# ── live workers ────────────────────────────────────────────────────────────────────────


def test_workers_share_offers_with_those_that_come_later():
    async def scenario(_):
        bench = Bench()
        polls = [bench.poll(name, pool=pool) for name, pool in (("a", "p"), ("b", "p"), ("c", "q"))]
        await bench.open(*polls)
        bench.dispatcher.pools["busy"] = "p"
        bench.dispatcher.seen("busy")
        assert bench.dispatcher.live_workers("p") == 3
        shares = [(each.command.worker, each.command.workers) for each in bench.dispatcher.slot_offers()]
        assert shares == [("a", 3), ("b", 2), ("c", 1)]
        assert bench.dispatcher.shared(Claim("a", 1, "p")).workers == 3

    run_virtually(scenario)


def test_a_worker_counts_until_it_is_silent_for_too_long_or_dismissed():
    async def scenario(_):
        bench = Bench()
        dispatcher = bench.dispatcher
        for name in ("a", "b", "c"):
            await dispatcher.claim(Claim(name, 1), 0)
        dispatcher.seen("stranger")  # it has not claimed: its pool is unknown
        assert [*dispatcher._live] == ["default"]  # nothing is kept of it
        assert [dispatcher.live_workers(pool) for pool in ("default", "other")] == [3, 1]
        await asyncio.sleep(LIVE_SECONDS)
        dispatcher.seen("a")
        assert dispatcher.live_workers("default") == 3  # exactly as long as it may be silent
        await asyncio.sleep(1)
        assert dispatcher.live_workers("default") == 1
        await dispatcher.claim(Claim("b", 1), 0)
        assert dispatcher.live_workers("default") == 2
        dispatcher.dismiss("b")
        assert dispatcher.live_workers("default") == 1
        assert dispatcher.pool_of("a") == "default" and dispatcher.pool_of("stranger") == "default"

    run_virtually(scenario)


def test_a_worker_that_changes_its_pool_is_no_longer_live_in_the_old_one():
    async def scenario(_):
        dispatcher = Bench().dispatcher
        for name in ("a", "b"):
            await dispatcher.claim(Claim(name, 1, "old"), 0)
        await dispatcher.claim(Claim("a", 1, "new"), 0)
        assert [dispatcher.live_workers(pool) for pool in ("old", "new")] == [1, 1]
        await dispatcher.claim(Claim("b", 1, "new"), 0)
        assert dispatcher.live_workers("new") == 2
        assert dispatcher.placement_problem("old", ()) == "the pool old has no live worker"

    run_virtually(scenario)


def test_a_worker_that_changes_its_pool_claims_for_the_new_one():
    async def scenario(_):
        bench = Bench()
        dispatcher = bench.dispatcher
        await dispatcher.claim(Claim("a", 4, "gpu", ("x",), 8), 0)
        assert dispatcher.pool_of("a") == "gpu"
        assert dispatcher.claim_of("a", 2) == Claim("a", 2, "gpu", ("x",), 8)
        assert dispatcher.claim_of("unknown", 2) == Claim("unknown", 0)  # its pool is not known
        await dispatcher.claim(Claim("a", 4), 0)
        assert dispatcher.pool_of("a") == "default"

    run_virtually(scenario)


def test_a_run_that_no_live_worker_can_take_has_a_reason():
    async def scenario(_):
        bench = Bench()
        problem = bench.dispatcher.placement_problem
        assert problem("gpu", ()) == "the pool gpu has no live worker"
        await bench.dispatcher.claim(Claim("a", 1, "gpu", ("zone=eu", "ssd=1")), 0)
        await bench.dispatcher.claim(Claim("b", 1, "gpu", ("zone=us",)), 0)
        assert problem("gpu", ()) is None
        assert problem("gpu", ("zone=eu",)) is None
        assert problem("gpu", ("zone=us", "ssd=1")) == "no live worker of the pool gpu has the labels zone=us, ssd=1"
        assert problem("default", ()) == "the pool default has no live worker"
        await asyncio.sleep(LIVE_SECONDS)
        assert problem("gpu", ("zone=eu",)) is None
        await asyncio.sleep(1)
        bench.dispatcher.seen("b")
        assert problem("gpu", ("zone=eu",)) == "no live worker of the pool gpu has the labels zone=eu"
        await asyncio.sleep(LIVE_SECONDS + 1)
        assert problem("gpu", ()) == "the pool gpu has no live worker"

    run_virtually(scenario)


def test_the_engine_has_no_name_for_the_default_pool():
    assert [pool_name(pool) for pool in ("default", "gpu")] == [None, "gpu"]
