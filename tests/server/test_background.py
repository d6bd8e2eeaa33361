"""Background tasks are retried while the store is unreachable."""

import asyncio

from noetl.errors import Conflict, StoreUnavailable
from noetl.server.lifecycle.background import BackgroundTasks
from tests.simulation.virtual_time import VirtualClock, VirtualLoop


def played(scenario):
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario(VirtualClock(runner.get_loop())))


def test_a_single_task_is_retried_until_the_store_is_reachable_and_runs_once_at_a_time():
    async def scenario(clock):
        background = BackgroundTasks(clock)
        tries = []

        async def work():
            tries.append(clock.monotonic())
            if len(tries) < 3:
                raise StoreUnavailable("unreachable")

        for _ in range(20):  # more often than it is tried
            background.run_single("it", work)
            await clock.sleep(0.01)
        assert len(tries) == 2  # at once, and after a twentieth of a second
        await clock.sleep(0.1)
        assert len(tries) == 3
        await background.close()

    played(scenario)


def test_a_single_task_that_ended_or_failed_can_start_again():
    async def scenario(clock):
        background = BackgroundTasks(clock)
        done = []

        async def work():
            done.append(None)
            if len(done) == 1:
                raise Conflict("no")

        for _ in range(3):
            background.run_single("it", work)
            await clock.sleep(0.01)
        assert len(done) == 3
        await background.close()

    played(scenario)
