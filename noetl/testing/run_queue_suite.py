"""The contract of `ports.RunQueue`, as tests: a back end subclasses the suite and inherits them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from noetl.model.work import Claim
from noetl.ports import MeasuredQueue, QueuedRun, RunQueue


def runs(execution: str, count: int, pool: str = "default") -> list[QueuedRun]:
    """Runs of one execution."""
    return [QueuedRun(execution, f"{execution}:s:1/{n}", pool) for n in range(count)]


class RunQueueSuite:
    """Runs wait for workers: once each, fair between executions, woken without delay."""

    async def open_queue(self) -> RunQueue:
        """An empty queue (of several in one test: the same runs behind each)."""
        raise LookupError("the suite's subclass says how to open its queue")

    async def closing(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a test's scenario; override to close what `open_queue` opened."""
        await scenario()

    def test_a_small_execution_is_not_kept_waiting_by_a_large_one(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 1000))
            await queue.put(runs("2", 1))
            taken = await queue.take(Claim("w", 10), wait=0)
            assert len(taken) == 10
            assert [run.run_id for run in taken if run.execution_id == "2"] == ["2:s:1/0"]
            assert [run.run_id for run in taken if run.execution_id == "1"] == [f"1:s:1/{n}" for n in range(9)]

        asyncio.run(self.closing(scenario))

    def test_a_run_that_is_put_twice_waits_once(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 2))
            await queue.put(runs("1", 2))
            assert len(await queue.take(Claim("w", 10), wait=0)) == 2
            assert await queue.take(Claim("w", 10), wait=0) == []

        asyncio.run(self.closing(scenario))

    def test_depths_say_how_much_waits_in_which_pool_and_since_when(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            if not isinstance(queue, MeasuredQueue):
                return
            assert await queue.depths() == []
            began = time.time()
            waiting = [msgspec.structs.replace(run, since=time.time()) for run in runs("1", 3)]
            await queue.put([*waiting, QueuedRun("2", "2:s:1/0", "gpu", since=time.time())])
            await queue.take(Claim("w", 1), wait=0)
            depths = {each.pool: each for each in await queue.depths()}
            assert {pool: each.runs for pool, each in depths.items()} == {"default": 2, "gpu": 1}
            assert all(each.since and began - 60 < each.since < began + 60 for each in depths.values())

        asyncio.run(self.closing(scenario))

    def test_a_waiting_claim_is_woken_by_a_run_of_its_pool(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            waiting = asyncio.create_task(queue.take(Claim("w", 1, pool="gpu"), wait=30))
            await asyncio.sleep(0)
            await queue.put(runs("1", 1))
            await asyncio.sleep(0)
            assert not waiting.done()
            await queue.put(runs("2", 1, pool="gpu"))
            assert [run.pool for run in await asyncio.wait_for(waiting, 5)] == ["gpu"]

        asyncio.run(self.closing(scenario))

    def test_a_claim_gives_up_after_its_time_and_when_the_queue_closes(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            assert await queue.take(Claim("w", 1), wait=0.01) == []
            waiting = asyncio.create_task(queue.take(Claim("w", 1), wait=30))
            await asyncio.sleep(0)
            await queue.close()
            assert await asyncio.wait_for(waiting, 5) == []

        asyncio.run(self.closing(scenario))

    def test_removed_runs_are_gone(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 3) + runs("2", 2))
            await queue.remove("1", ["1:s:1/1"])
            await queue.remove("2")
            assert [run.run_id for run in await queue.take(Claim("w", 10), wait=0)] == ["1:s:1/0", "1:s:1/2"]

        asyncio.run(self.closing(scenario))

    def test_a_claim_that_is_cancelled_takes_nothing_with_it(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            waiting = asyncio.create_task(queue.take(Claim("w", 1), wait=30))
            await asyncio.sleep(0)
            putting = asyncio.create_task(queue.put(runs("1", 1)))
            await asyncio.sleep(0)
            waiting.cancel()
            (taken,) = await asyncio.gather(waiting, return_exceptions=True)
            await putting
            if isinstance(taken, BaseException):
                assert len(await queue.take(Claim("w", 5), wait=5)) == 1
            else:
                assert len(taken) == 1

        asyncio.run(self.closing(scenario))
