"""Alarms ring once, in order, and the newest instant of an execution counts."""

import asyncio

from noetl.server.lifecycle.timers import RECHECK_SECONDS, Timers


class ManualClock:
    """Time that moves when the test says so."""

    def __init__(self):
        self.time = 1000.0
        self.set_by = 0.0  # seconds that the clock was set forward
        self.sleepers = []

    def now(self):
        return self.time + self.set_by

    def monotonic(self):
        return self.time

    async def sleep(self, seconds):
        future = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.time + seconds, future))
        await future

    async def go(self, seconds):
        self.time += seconds
        for at, future in self.sleepers:
            if at <= self.time and not future.done():
                future.set_result(None)
        for _ in range(10):
            await asyncio.sleep(0)


def test_timers_fire_in_order_and_once():
    async def scenario():
        clock, rung = ManualClock(), []
        timers = Timers(clock, rung.append)
        timers.set("b", 1020.0)
        timers.set("a", 1010.0)
        timers.set("c", 1030.0)
        await clock.go(0)
        assert rung == []
        await clock.go(15)
        assert rung == ["a"]
        await clock.go(30)
        assert rung == ["a", "b", "c"]
        await clock.go(100)
        assert rung == ["a", "b", "c"]
        await timers.close()

    asyncio.run(scenario())


def test_a_new_instant_replaces_the_old_one():
    async def scenario():
        clock, rung = ManualClock(), []
        timers = Timers(clock, rung.append)
        timers.set("a", 1100.0)
        await clock.go(0)
        timers.set("a", 1010.0)
        timers.set("b", 1010.0)
        timers.set("b", None)
        timers.set("c", 1010.0)
        timers.set("c", 1200.0)
        await clock.go(20)
        assert rung == ["a"]
        await clock.go(100)
        assert rung == ["a"]
        await clock.go(100)
        assert rung == ["a", "c"]
        await timers.close()

    asyncio.run(scenario())


def test_a_clock_that_is_set_forward_is_noticed_within_a_minute():
    async def scenario():
        clock, rung = ManualClock(), []
        timers = Timers(clock, rung.append)
        timers.set("a", 1000.0 + 1800)
        await clock.go(0)
        clock.set_by = 3600.0
        await clock.go(RECHECK_SECONDS)
        assert rung == ["a"]
        await timers.close()

    asyncio.run(scenario())


def test_each_execution_has_one_timer():
    async def scenario():
        timers = Timers(ManualClock(), lambda _: None)
        sizes = []
        for execution, at in (("a", 1020.0), ("b", 1010.0), ("a", 1030.0), ("b", None), ("c", None)):
            timers.set(execution, at)
            sizes.append(len(timers))
        await timers.close()
        assert sizes == [1, 2, 2, 1, 1]

    asyncio.run(scenario())


def test_replaced_timers_do_not_pile_up():
    """A step sets a near timer for its lease and then the far one of the execution again."""

    async def scenario():
        rung = []
        clock = ManualClock()
        timers = Timers(clock, rung.append)
        for turn in range(20_000):
            timers.set("a", 90_000.0)
            timers.set("a", 50_000.0 + turn)
        timers.set("b", 40_000.0)
        assert len(timers) == 2 and len(timers._heap) < 2_000
        await clock.go(40_000.0)
        await clock.go(40_000.0)
        assert rung == ["b", "a"]
        await timers.close()

    asyncio.run(scenario())
