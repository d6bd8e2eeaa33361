"""The contract of `ports.RunQueue`, as tests: a back end subclasses the suite and inherits them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import QueuedRun, RunQueue


def runs(execution: str, count: int, pool: str = "default") -> list[QueuedRun]:
    """Runs of one execution."""
    return [QueuedRun(execution, f"{execution}:s:1/{n}", pool) for n in range(count)]


def in_line(runs: list[QueuedRun], limit: str) -> list[QueuedRun]:
    """The same runs, parked for a limit."""
    return [msgspec.structs.replace(run, limit=limit) for run in runs]


def of_tenant(tenant: str, execution: str) -> QueuedRun:
    """The only run of an execution of a tenant."""
    return QueuedRun(execution, f"{execution}:s:1", tenant=tenant)


async def taken_within(queue: RunQueue, claim: Claim, seconds: float = 5.0) -> list[QueuedRun]:
    """The first runs that can be taken; none when it takes longer."""
    woken = asyncio.Event()
    unwatch = queue.watch(claim.pool, woken.set)
    try:
        async with asyncio.timeout(seconds):
            while not (taken := await queue.take(claim)):
                await woken.wait()
                woken.clear()
            return taken
    except TimeoutError:
        return []
    finally:
        unwatch()


class RunQueueSuite:
    """Runs wait for workers: once each, fair between executions, woken without delay."""

    async def open_queue(self) -> RunQueue:
        """An empty queue (of several in one test: the same runs behind each)."""
        raise LookupError("the suite's subclass says how to open its queue")

    async def closing(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a test's scenario; override to close what `open_queue` opened."""
        await scenario()

    def test_the_pools_and_labels_of_waiting_runs_are_listed(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            assert await queue.kinds() == []
            gpu = QueuedRun("3", "3:s:1", "big", labels=("gpu=true", "zone=a"))
            await queue.put(
                [*runs("1", 3), *runs("2", 2, "reports"), gpu, QueuedRun("4", "4:s:1", "urgent", priority=3.0)]
            )
            await queue.put(in_line(runs("5", 1, "parked"), "pool parked"))
            assert sorted(await queue.kinds()) == [
                ("big", ("gpu=true", "zone=a")), ("default", ()), ("reports", ()), ("urgent", ()),
            ]  # fmt: skip

        asyncio.run(self.closing(scenario))

    def test_several_claims_at_once_take_equal_shares_that_fit_into_their_slots(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 12))
            claims = [Claim(worker, slots, workers=3) for worker, slots in (("a", 100), ("b", 2), ("c", 100))]
            taken = await queue.take_each(claims)
            assert len(taken[1]) == 2 and len(taken[0]) >= 4 and len(taken[2]) >= 4
            names = [run.run_id for each in taken for run in each]  # all, because all workers have claimed
            assert sorted(names) == sorted(run.run_id for run in runs("1", 12))
            assert await queue.take_each(claims) == [[], [], []]
            await queue.put(runs("3", 12))
            claims = [Claim(worker, slots, workers=3) for worker, slots in (("a", 100), ("b", 2), ("c", 2))]
            assert [len(each) for each in await queue.take_each(claims)] == [8, 2, 2]
            await queue.put(runs("4", 12))
            taken = await queue.take_each([Claim(worker, 5, workers=4) for worker in "abc"])
            assert [len(each) for each in taken] == [3, 3, 3]
            assert len(await queue.take(Claim("d", 5))) == 3
            await queue.put(runs("2", 2))
            taken = await queue.take_each([Claim(worker, 5, workers=8) for worker in "abc"])
            assert [len(each) for each in taken] == [1, 1, 0]  # at least one for each

        asyncio.run(self.closing(scenario))

    def test_of_several_claims_each_gets_runs_whose_labels_it_has(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([QueuedRun(str(n), f"{n}:s:1", labels=("gpu=true",)) for n in range(1, 5)])
            await queue.put([QueuedRun("9", "9:s:1", priority=2.0)])
            claims = [Claim("a", 4), Claim("b", 2), Claim("g", 9, labels=("gpu=true",)), Claim("c", 4)]
            taken = [[run.run_id for run in each] for each in await queue.take_each(claims)]
            assert taken == [["9:s:1"], [], [f"{n}:s:1" for n in range(1, 5)], []]

        asyncio.run(self.closing(scenario))

    def test_several_claims_at_once_are_fair_between_tenants(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([of_tenant("large", str(n)) for n in range(1, 101)])
            await queue.put([of_tenant("small", str(n)) for n in range(201, 211)])
            taken = await queue.take_each([Claim(worker, 4, workers=2) for worker in "ab"])
            assert sorted(run.tenant for each in taken for run in each) == ["large"] * 4 + ["small"] * 4

        asyncio.run(self.closing(scenario))

    def test_several_workers_take_their_share_of_what_waits(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 9))
            counts = [len(await queue.take(Claim(worker, 100, workers=2))) for worker in ("a", "b", "a", "b", "a")]
            assert counts == [5, 2, 1, 1, 0]
            await queue.put(runs("2", 9))
            assert len(await queue.take(Claim("a", 3, workers=2))) == 3
            assert len(await queue.take(Claim("a", 100))) == 6

        asyncio.run(self.closing(scenario))

    def test_claims_at_the_same_time_leave_nothing_behind(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([QueuedRun(str(n), f"{n}:s:1") for n in range(1, 31)])
            taken = await asyncio.gather(*(queue.take(Claim(f"w{n}", 3)) for n in range(10)))
            assert [len(each) for each in taken] == [3] * 10

        asyncio.run(self.closing(scenario))

    def test_a_large_execution_does_not_delay_a_small_one(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 1000))
            await queue.put(runs("2", 1))
            taken = await queue.take(Claim("w", 10))
            assert len(taken) == 10
            assert [run.run_id for run in taken if run.execution_id == "2"] == ["2:s:1/0"]
            assert [run.run_id for run in taken if run.execution_id == "1"] == [f"1:s:1/{n}" for n in range(9)]

        asyncio.run(self.closing(scenario))

    def test_a_run_enqueued_twice_is_queued_once(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 2))
            await queue.put(runs("1", 2))
            assert len(await queue.take(Claim("w", 10))) == 2
            assert await queue.take(Claim("w", 10)) == []

        asyncio.run(self.closing(scenario))

    def test_depths_report_runs_and_age_by_pool(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            assert await queue.depths() == []
            began = time.time()
            waiting = [msgspec.structs.replace(run, since=time.time()) for run in runs("1", 3)]
            await queue.put([*waiting, QueuedRun("2", "2:s:1/0", "gpu", since=time.time())])
            await queue.take(Claim("w", 1))
            depths = {each.pool: each for each in await queue.depths()}
            assert {pool: each.runs for pool, each in depths.items()} == {"default": 2, "gpu": 1}
            assert all(each.since and began - 60 < each.since < began + 60 for each in depths.values())

        asyncio.run(self.closing(scenario))

    def test_a_subscriber_is_woken_by_a_run_of_its_pool(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            waiting = asyncio.create_task(taken_within(queue, Claim("w", 1, pool="gpu")))
            await asyncio.sleep(0)
            await queue.put(runs("1", 1))
            await asyncio.sleep(0)
            assert not waiting.done()
            await queue.put(runs("2", 1, pool="gpu"))
            assert [run.pool for run in await waiting] == ["gpu"]

        asyncio.run(self.closing(scenario))

    def test_an_unsubscribed_callback_is_not_called(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            heard: list[str] = []
            unwatch = queue.watch("default", lambda: heard.append("first"))
            queue.watch("default", lambda: heard.append("second"))
            unwatch()
            await queue.put(runs("1", 1))
            assert set(heard) == {"second"}

        asyncio.run(self.closing(scenario))

    def test_subscribers_are_woken_on_close(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            woken = asyncio.Event()
            queue.watch("default", woken.set)
            assert await queue.take(Claim("w", 1)) == []
            await queue.close()
            await asyncio.wait_for(woken.wait(), 5)
            assert await queue.take(Claim("w", 1)) == []

        asyncio.run(self.closing(scenario))

    def test_removed_runs_are_not_returned(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(runs("1", 3) + runs("2", 2))
            await queue.put(runs("3", 2))
            await queue.remove(["2", "3"])
            assert [run.execution_id for run in await queue.take(Claim("w", 10))] == ["1", "1", "1"]

        asyncio.run(self.closing(scenario))

    def test_a_cancelled_claim_takes_no_run(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            waiting = asyncio.create_task(taken_within(queue, Claim("w", 1)))
            await asyncio.sleep(0)
            putting = asyncio.create_task(queue.put(runs("1", 1)))
            await asyncio.sleep(0)
            waiting.cancel()
            (taken,) = await asyncio.gather(waiting, return_exceptions=True)
            await putting
            if isinstance(taken, BaseException):
                assert len(await taken_within(queue, Claim("w", 5))) == 1
            else:
                assert len(taken) == 1

        asyncio.run(self.closing(scenario))

    def test_parked_runs_do_not_block_others_until_they_are_released(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(in_line(runs("1", 3), "credential pg") + runs("2", 1))
            assert [run.run_id for run in await queue.take(Claim("w", 10))] == ["2:s:1/0"]
            assert [(line.key, line.runs) for line in await queue.limit_depths()] == [("credential pg", 3)]
            assert await queue.depths() == []
            await queue.put(runs("1", 3))  # already queued
            assert await queue.release_waiting("credential pg", 2) == 2
            assert await queue.release_waiting("credential other", 2) == 0
            taken = await queue.take(Claim("w", 10))
            assert [(run.run_id, run.limit) for run in taken] == [(f"1:s:1/{n}", "credential pg") for n in range(2)]
            assert [(line.key, line.runs) for line in await queue.limit_depths()] == [("credential pg", 1)]
            await queue.remove(["1"])
            assert await queue.limit_depths() == []
            assert await queue.release_waiting("credential pg", 2) == 0

        asyncio.run(self.closing(scenario))

    def test_releases_are_fair_between_executions_and_keep_their_turn(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(in_line(runs("1", 100), "pool default"))
            await queue.put(in_line(runs("2", 1), "pool default"))
            await queue.put(in_line(runs("3", 1), "pool default"))
            assert await queue.release_waiting("pool default", 1) == 1
            (first,) = await queue.take(Claim("w", 10))
            assert first.execution_id == "1"
            await queue.put([first])  # another execution took the slot
            order = []
            for _ in range(4):
                await queue.release_waiting("pool default", 1)
                order += await queue.take(Claim("w", 10))
            assert order[0].run_id == first.run_id
            assert {run.execution_id for run in order} == {"1", "2", "3"}

        asyncio.run(self.closing(scenario))

    def test_whole_executions_are_released_in_start_order(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            for execution in ("1", "2", "3", "4"):
                await queue.put(in_line(runs(execution, 2), "playbook etl"))
            assert await queue.release_waiting("playbook etl", 1, whole=True, also=["3"]) == 4
            assert {run.execution_id for run in await queue.take(Claim("w", 10))} == {"1", "3"}
            assert await queue.release_waiting("playbook etl", 0, whole=True) == 0
            assert await queue.release_waiting("playbook etl", 5, whole=True) == 4

        asyncio.run(self.closing(scenario))

    def test_a_subscriber_is_woken_by_a_released_run(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(in_line(runs("1", 1, pool="gpu"), "pool gpu"))
            waiting = asyncio.create_task(taken_within(queue, Claim("w", 1, pool="gpu")))
            await asyncio.sleep(0)
            await queue.release_waiting("pool gpu", 1)
            assert [run.run_id for run in await waiting] == ["1:s:1/0"]

        asyncio.run(self.closing(scenario))

    def test_weights_give_turns_and_an_idle_share_is_used_by_others(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([msgspec.structs.replace(run, weight=3) for run in runs("1", 40)] + runs("2", 40))
            first = [run for _ in range(20) for run in await queue.take(Claim("w", 1))]
            assert [run.execution_id for run in first].count("1") in (14, 15, 16)
            await queue.remove(["1"])
            alone = [run for _ in range(10) for run in await queue.take(Claim("w", 1))]
            assert [run.execution_id for run in alone] == ["2"] * 10

        asyncio.run(self.closing(scenario))

    def test_runs_with_a_priority_come_first_unless_others_have_waited_long_enough(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([QueuedRun("1", "1:a:1", since=1000.0), QueuedRun("1", "1:a:2", since=1000.0)])
            await queue.put(
                [QueuedRun("2", "2:b:1", since=1000.0, priority=5), QueuedRun("2", "2:b:2", since=1000.0, priority=-1)]
            )
            taken = [run.run_id for _ in range(4) for run in await queue.take(Claim("w", 1))]
            assert taken == ["2:b:1", "1:a:1", "1:a:2", "2:b:2"]

        asyncio.run(self.closing(scenario))

    def test_a_worker_gets_only_runs_whose_labels_it_has(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([QueuedRun("1", "1:a:1", labels=("gpu=true", "zone=eu")), QueuedRun("1", "1:b:1")])
            assert [run.run_id for run in await queue.take(Claim("w", 5))] == ["1:b:1"]
            assert await queue.take(Claim("w", 5, labels=("gpu=true",))) == []
            assert await queue.labelled() == [("default", ("gpu=true", "zone=eu"), 1)]
            taken = await queue.take(Claim("v", 5, labels=("gpu=true", "zone=eu", "ssd=1")))
            assert [(run.run_id, run.labels) for run in taken] == [("1:a:1", ("gpu=true", "zone=eu"))]
            assert await queue.labelled() == []

        asyncio.run(self.closing(scenario))

    def test_runs_are_taken_while_their_costs_fit_into_the_free_slots(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([QueuedRun("1", f"1:a:1/{n}", cost=cost) for n, cost in enumerate((2, 2, 3, 1))])
            taken = await queue.take(Claim("w", 5, capacity=8))
            assert [(run.run_id, run.cost) for run in taken] == [("1:a:1/0", 2), ("1:a:1/1", 2)]
            # The run of cost 1 does not pass the one that waits for three slots.
            assert await queue.take(Claim("w", 2, capacity=8)) == []
            assert queue.waits_for_slots("default")
            # A worker with fewer slots than a run costs executes it alone.
            assert [run.run_id for run in await queue.take(Claim("small", 2, capacity=2))] == ["1:a:1/2"]
            assert [run.run_id for run in await queue.take(Claim("small", 1, capacity=2))] == ["1:a:1/3"]

        asyncio.run(self.closing(scenario))

    def test_a_tenant_with_many_runs_does_not_delay_another(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([of_tenant("a", str(n)) for n in range(1, 1001)])
            first = [run for _ in range(30) for run in await queue.take(Claim("w", 10))]
            assert len(first) == 300
            await queue.put([of_tenant("b", str(n)) for n in range(2001, 2021)])
            await queue.put([QueuedRun(str(n), f"{n}:s:1") for n in range(3001, 3021)])  # without a tenant
            shared = [run.tenant for run in await queue.take(Claim("w", 6))]
            assert len(queue.waiting_tenants("default")) > 1
            shared += [run.tenant for _ in range(9) for run in await queue.take(Claim("w", 6))]
            assert [shared.count(each) for each in ("a", "b", "")] == [20, 20, 20]
            assert {run.tenant for run in await queue.take(Claim("w", 10))} == {"a"}
            assert queue.waiting_tenants("default") == {"a"}

        asyncio.run(self.closing(scenario))

    def test_tenants_get_shares_by_their_weights_and_no_credit_for_idle_time(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            queue.set_weights({"a": 3})
            await queue.put([of_tenant("a", str(n)) for n in range(1, 101)])
            await queue.put([of_tenant("b", str(n)) for n in range(201, 301)])
            shared = [run.tenant for _ in range(40) for run in await queue.take(Claim("w", 1))]
            assert abs(shared.count("a") - 30) <= 1
            assert await queue.tenant_depths() == {"a": 100 - shared.count("a"), "b": 100 - shared.count("b")}
            await queue.put([of_tenant("c", str(n)) for n in range(401, 501)])
            later = [run.tenant for _ in range(50) for run in await queue.take(Claim("w", 1))]
            assert abs(later.count("c") - 10) <= 1

        asyncio.run(self.closing(scenario))

    def test_executions_of_a_tenant_and_priorities_share_its_turns(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put([QueuedRun("1", f"1:s:1/{n}", since=1000.0, tenant="a") for n in range(20)])
            await queue.put([QueuedRun("2", "2:s:1", since=1000.0, tenant="a")])
            assert {run.execution_id for _ in range(3) for run in await queue.take(Claim("w", 1))} == {"1", "2"}
            await queue.put([QueuedRun("3", f"3:s:1/{n}", since=1000.0, tenant="b", priority=9) for n in range(20)])
            await queue.put([QueuedRun("4", "4:s:1", since=1000.0, tenant="a", priority=5)])
            shared = [run for _ in range(6) for run in await queue.take(Claim("w", 2))]
            assert [run.tenant for run in shared].count("b") in (5, 6, 7)  # its priorities order its own runs only
            assert "4:s:1" in {run.run_id for run in shared[:3]}

        asyncio.run(self.closing(scenario))

    def test_releases_are_fair_between_tenants(self) -> None:
        async def scenario() -> None:
            queue = await self.open_queue()
            await queue.put(in_line([of_tenant("a", str(n)) for n in range(1, 101)], "pool default"))
            assert await queue.release_waiting("pool default", 10) == 10
            await queue.put(in_line([of_tenant("b", str(n)) for n in range(201, 206)], "pool default"))
            assert await queue.release_waiting("pool default", 10) == 10
            released = [run.tenant for _ in range(5) for run in await queue.take(Claim("w", 4))]
            assert (released.count("a"), released.count("b")) == (15, 5)

        asyncio.run(self.closing(scenario))
