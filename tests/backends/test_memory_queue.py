"""Runs wait for workers: once each, fair between executions, woken without delay."""

import asyncio

from noetl.backends.queue.memory import MemoryRunQueue
from noetl.model.work import Claim
from noetl.ports import QueuedRun


def runs(execution, count, pool="default"):
    return [QueuedRun(execution, f"{execution}:s:1/{n}", pool) for n in range(count)]


def test_a_small_execution_is_not_kept_waiting_by_a_large_one():
    async def scenario():
        queue = MemoryRunQueue()
        await queue.put(runs("1", 1000))
        await queue.put(runs("2", 1))
        taken = await queue.take(Claim("w", 10), wait=0)
        assert len(taken) == 10
        assert [run.run_id for run in taken if run.execution_id == "2"] == ["2:s:1/0"]
        assert [run.run_id for run in taken if run.execution_id == "1"] == [f"1:s:1/{n}" for n in range(9)]

    asyncio.run(scenario())


def test_a_run_that_is_put_twice_waits_once():
    async def scenario():
        queue = MemoryRunQueue()
        await queue.put(runs("1", 2))
        await queue.put(runs("1", 2))
        assert len(await queue.take(Claim("w", 10), wait=0)) == 2
        assert await queue.take(Claim("w", 10), wait=0) == []

    asyncio.run(scenario())


def test_a_waiting_claim_is_woken_by_a_run_of_its_pool():
    async def scenario():
        queue = MemoryRunQueue()
        waiting = asyncio.create_task(queue.take(Claim("w", 1, pool="gpu"), wait=30))
        await asyncio.sleep(0)
        await queue.put(runs("1", 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        await queue.put(runs("1", 1, pool="gpu"))
        assert [run.pool for run in await asyncio.wait_for(waiting, 5)] == ["gpu"]

    asyncio.run(scenario())


def test_a_claim_gives_up_after_its_time_and_when_the_queue_closes():
    async def scenario():
        queue = MemoryRunQueue()
        assert await queue.take(Claim("w", 1), wait=0.01) == []
        waiting = asyncio.create_task(queue.take(Claim("w", 1), wait=30))
        await asyncio.sleep(0)
        await queue.close()
        assert await asyncio.wait_for(waiting, 5) == []

    asyncio.run(scenario())


def test_removed_runs_are_gone():
    async def scenario():
        queue = MemoryRunQueue()
        await queue.put(runs("1", 3) + runs("2", 2))
        await queue.remove("1", ["1:s:1/1"])
        await queue.remove("2")
        assert [run.run_id for run in await queue.take(Claim("w", 10), wait=0)] == ["1:s:1/0", "1:s:1/2"]

    asyncio.run(scenario())
