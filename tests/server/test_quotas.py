"""Quotas of a server: calls of one key are one transaction, every caller gets an answer, idle buckets are dropped."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.model.quotas.token_bucket import Bucket, Demand, QuotaCall
from noetl.errors import StoreUnavailable
from noetl.server.concurrency.quotas import DROP_SECONDS, Quotas
from noetl.server.lifecycle.background import BackgroundTasks
from tests.simulation.virtual_time import EPOCH, run_virtually


class Store:
    """Buckets in memory; each update takes a second."""

    def __init__(self):
        self.buckets = {}
        self.updates, self.dropped = [], []
        self.problem = self.drop_problem = None

    async def update(self, key, now, change):
        self.updates.append((key, now))
        await asyncio.sleep(1)
        if self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem
        self.buckets[key], result = change(self.buckets.get(key, Bucket()), now)
        return result

    async def drop_idle(self, before):
        self.dropped.append(before)
        if self.drop_problem is not None:
            problem, self.drop_problem = self.drop_problem, None
            raise problem


def quotas_over(store, clock):
    opened = []

    def open_store():
        opened.append(store)
        return store

    return Quotas(open_store, clock, BackgroundTasks(clock)), opened


def call(key="api", rate=1.0):
    return QuotaCall(Demand(key, rate))


def test_calls_that_arrive_during_a_transaction_are_the_next_one():
    async def scenario(clock):
        store = Store()
        quotas, opened = quotas_over(store, clock)
        assert not quotas.used and opened == []
        first = asyncio.create_task(quotas.call(call()))
        await asyncio.sleep(0.5)
        assert quotas.used
        others = [asyncio.create_task(quotas.call(call())) for _ in range(3)]
        other_key = asyncio.create_task(quotas.call(call("mail")))
        replies = await asyncio.gather(first, *others, other_key)
        assert store.updates == [("api", EPOCH), ("mail", EPOCH + 0.5), ("api", EPOCH + 1)]
        assert [reply.at for reply in replies[:4]] == [EPOCH, EPOCH + 1, EPOCH + 2, EPOCH + 3]
        assert replies[4].at == EPOCH + 0.5
        assert opened == [store]
        assert (await quotas.call(call())).at == EPOCH + 4  # the key is worked on again after a pause

    run_virtually(scenario)


def test_a_transaction_that_fails_fails_its_callers_and_no_others():
    async def scenario(clock):
        store = Store()
        store.problem = OSError("away")
        quotas, _ = quotas_over(store, clock)
        first = [asyncio.create_task(quotas.call(call())) for _ in range(2)]
        await asyncio.sleep(0.5)
        second = asyncio.create_task(quotas.call(call()))
        outcomes = await asyncio.gather(*first, second, return_exceptions=True)
        # The first two calls arrived together.
        assert [str(each) for each in outcomes[:2]] == ["away", "away"]
        assert outcomes[2].at == EPOCH + 1

    run_virtually(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_a_caller_that_stopped_waiting_does_not_disturb_the_others(fails):
    async def scenario(clock):
        store = Store()
        store.problem = OSError("away") if fails else None
        quotas, _ = quotas_over(store, clock)
        calls = [asyncio.create_task(quotas.call(call())) for _ in range(3)]
        await asyncio.sleep(0.5)
        calls[1].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[1], asyncio.CancelledError)
        assert all(isinstance(outcomes[number], OSError) == fails for number in (0, 2))
        assert (await quotas.call(call())).at >= EPOCH

    run_virtually(scenario)


def test_idle_buckets_are_dropped_once_in_a_while():
    async def scenario(clock):
        store = Store()
        quotas, _ = quotas_over(store, clock)
        await asyncio.sleep(DROP_SECONDS - 1)
        await quotas.call(call())  # it ends exactly after the interval
        assert store.dropped == []
        await asyncio.sleep(1)
        await quotas.call(call())
        await asyncio.sleep(0.1)
        assert store.dropped == [EPOCH + 2]  # idle for the whole interval
        await quotas.call(call())
        await asyncio.sleep(DROP_SECONDS - 10)
        await quotas.call(call())
        await asyncio.sleep(0.1)
        assert len(store.dropped) == 1
        await asyncio.sleep(20)
        await quotas.call(call())
        await asyncio.sleep(0.1)
        assert len(store.dropped) == 2

    run_virtually(scenario)


def test_a_drop_that_fails_is_repeated_and_disturbs_no_caller():
    async def scenario(clock):
        store = Store()
        quotas, _ = quotas_over(store, clock)
        unhandled = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        store.drop_problem = StoreUnavailable("away")
        await asyncio.sleep(DROP_SECONDS + 1)
        replies = [await quotas.call(call()) for _ in range(4)]
        await asyncio.sleep(60)
        assert len({reply.at for reply in replies}) == 4
        assert len(store.dropped) == 2
        assert unhandled == []

    run_virtually(scenario)
