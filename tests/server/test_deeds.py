"""Deeds in the background: tried while the store is away, and one at a time where that is asked for."""

import asyncio

from noetl.errors import Conflict, StoreUnavailable
from noetl.server.lifecycle.background import BackgroundTasks
from tests.simulation.virtual_time import VirtualClock, VirtualLoop


def played(scenario):
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario(VirtualClock(runner.get_loop())))


def test_a_deed_is_tried_until_the_store_is_back_and_begun_once_meanwhile():
    async def scenario(clock):
        deeds = BackgroundTasks(clock)
        tries = []

        async def deed():
            tries.append(clock.monotonic())
            if len(tries) < 3:
                raise StoreUnavailable("away")

        for _ in range(20):  # more often than it is tried
            deeds.run_single("it", deed)
            await clock.sleep(0.01)
        assert len(tries) == 2  # at once, and after a twentieth of a second
        await clock.sleep(0.1)
        assert len(tries) == 3
        await deeds.close()

    played(scenario)


def test_a_deed_that_has_ended_or_failed_can_begin_anew():
    async def scenario(clock):
        deeds = BackgroundTasks(clock)
        done = []

        async def deed():
            done.append(None)
            if len(done) == 1:
                raise Conflict("no")

        for _ in range(3):
            deeds.run_single("it", deed)
            await clock.sleep(0.01)
        assert len(done) == 3
        await deeds.close()

    played(scenario)
