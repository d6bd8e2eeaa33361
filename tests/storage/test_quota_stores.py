"""Token buckets, on every back end."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from noetl.core.model.quotas.token_bucket import Bucket, Demand, QuotaCall, apply
from noetl.runtime.clock import RealClock
from noetl.server.concurrency.quotas import Quotas
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.storage.factory import open_quotas, open_stores

DEMAND = Demand("api", 50.0)


def take(bucket: Bucket, now: float):
    return apply(bucket, QuotaCall(DEMAND), now)


class Suite:
    url = "memory:"
    processes = 1

    def within(self, scenario):
        async def whole():
            stores = [open_stores(self.url)[0] for _ in range(self.processes)]
            try:
                await scenario(*(open_quotas(each) for each in stores))
            finally:
                for each in stores:
                    await each.close()

        asyncio.run(whole())

    def test_concurrent_demands_get_different_instants(self):
        async def scenario(*quotas):
            replies = await asyncio.gather(
                *(each.update("api", time.time(), take) for _ in range(30) for each in quotas)
            )
            instants = sorted(reply.at for reply in replies)
            assert len(set(instants)) == len(instants)
            gaps = [later - earlier for earlier, later in itertools.pairwise(instants)]
            assert min(gaps) >= 1 / DEMAND.rate - 1e-6

        self.within(scenario)

    def test_keys_are_independent_and_a_failed_change_changes_nothing(self):
        async def scenario(quotas, *_):
            first = await quotas.update("a", time.time(), take)
            other = await quotas.update("b", time.time(), take)
            assert other.at - other.now <= 0

            def fail(bucket, now):
                raise ValueError("no")

            with pytest.raises(ValueError, match="no"):
                await quotas.update("a", time.time(), fail)
            second = await quotas.update("a", time.time(), take)
            assert second.at >= first.at + 1 / DEMAND.rate - 1e-6

        self.within(scenario)

    def test_idle_buckets_are_dropped(self):
        async def scenario(quotas, *_):
            await quotas.update("idle", time.time(), take)
            busy = Demand("busy", 0.001)
            await quotas.update("busy", time.time(), lambda bucket, now: apply(bucket, QuotaCall(busy), now))
            await quotas.drop_idle(time.time() + 100)
            assert await quotas.update("idle", time.time(), lambda bucket, _: (bucket, bucket)) == Bucket()
            assert await quotas.update("busy", time.time(), lambda bucket, _: (bucket, bucket)) != Bucket()

        self.within(scenario)


class TestMemory(Suite):
    pass


class TestSqlite(Suite):
    processes = 2

    @pytest.fixture(autouse=True)
    def _fresh(self, tmp_path) -> None:
        self.url = str(tmp_path / "noetl.db")


class TestPostgres(Suite):
    processes = 2

    @pytest.fixture(autouse=True)
    def _fresh(self, database: str) -> None:
        self.url = database

    def test_the_clock_of_the_database_decides(self):
        async def scenario(quotas, *_):
            reply = await quotas.update("api", 12345.0, take)
            assert abs(reply.now - time.time()) < 60

        self.within(scenario)


def test_demands_that_arrive_together_are_one_transaction():
    async def scenario():
        events, _ = open_stores("memory:")
        store = open_quotas(events)
        calls = 0
        update = store.update

        async def counted(key, now, change):
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)
            return await update(key, now, change)

        store.update = counted
        clock = RealClock()
        quotas = Quotas(lambda: store, clock, BackgroundTasks(clock))
        replies = await asyncio.gather(*(quotas.call(QuotaCall(DEMAND)) for _ in range(100)))
        assert len({reply.at for reply in replies}) == 100
        assert calls <= 3

    asyncio.run(scenario())
