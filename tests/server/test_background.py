"""Background tasks are retried while the store is unreachable, and end with the server."""

import asyncio

from noetl.errors import Conflict, CorruptLog, StoreUnavailable
from noetl.runtime.tasks import cancel, keep_running
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.lifecycle.external_changes import watch_external_changes
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


def test_periodic_work_reports_an_error_that_lasts_once_and_without_a_traceback(caplog):
    async def scenario(clock):
        errors = [StoreUnavailable("full")] * 3 + [CorruptLog("damaged"), ValueError("a bug")]
        work_done = []

        async def work():
            if errors:
                raise errors.pop(0)
            work_done.append(clock.monotonic())

        await keep_running(work)
        assert len(work_done) == 1

    played(scenario)
    again = "periodic work failed and is started again"
    assert [(record.getMessage(), record.exc_info is not None) for record in caplog.records] == [
        (f"{again} every 1 s: full", False),
        (f"{again} every 1 s: damaged", False),
        (f"{again} in 1 s", True),
    ]


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


def test_retries_have_growing_intervals():
    async def scenario(clock):
        background = BackgroundTasks(clock)
        tries = []

        async def work():
            tries.append(round(clock.monotonic(), 2))
            raise StoreUnavailable("unreachable")

        background.run_until_done("it", work)
        await clock.sleep(12)
        await background.close()
        first = tries[0]
        assert [round(each - first, 2) for each in tries] == [0.0, 0.05, 0.25, 1.25, 6.25, 11.25]

    played(scenario)


def test_closing_waits_for_tasks_up_to_a_time_and_cancels_the_others():
    async def scenario(clock):
        ended = []

        async def work(name, seconds):
            try:
                await clock.sleep(seconds)
                ended.append(name)
            except asyncio.CancelledError:
                ended.append(f"{name} was cancelled")
                raise

        background = BackgroundTasks(clock)
        background.run_until_done("short", lambda: work("short", 1.0))
        background.run_until_done("long", lambda: work("long", 5.0))
        await clock.sleep(0.1)
        await background.close(2.0)
        assert ended == ["short", "long was cancelled"]
        assert round(clock.monotonic(), 1) == 2.1
        background.run_until_done("next", lambda: work("next", 1.0))
        await clock.sleep(0.1)
        await background.close()
        assert ended[2:] == ["next was cancelled"]
        assert round(clock.monotonic(), 1) == 2.2

    played(scenario)


def test_changes_by_other_processes_are_read_again_and_again():
    async def scenario(clock):
        calls = []

        class Changed:
            async def poll_external_changes(self, owned):
                calls.append((round(clock.monotonic(), 2), owned))
                if len(calls) == 2:
                    raise StoreUnavailable("unreachable")

        watch = asyncio.create_task(watch_external_changes(Changed(), len))
        await clock.sleep(1.1)
        await cancel(watch)
        assert calls == [(0.25, len), (0.5, len), (0.75, len), (1.0, len)]

    played(scenario)
