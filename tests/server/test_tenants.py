"""Tenants: fair shares, limits and weights of labels, and refused requests before memory grows."""

import asyncio

import msgspec
import pytest

from noetl.core.model.work import Claim
from noetl.errors import RequestRefused, TooManyRequests
from noetl.runtime.clock import RealClock
from noetl.server.concurrency import admission
from noetl.server.orchestrator.catalog import Source
from noetl.server.orchestrator.submissions import RerunRequest, Submission
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.worker.factory import create_pool
from noetl.worker.host import HostServices
from tests.server.conftest import Hand, make_orchestrator
from tests.server.test_limits import PLAIN, control_plane, finish, text
from tests.waiting import until


def submission(tenant=None, name="plain", step=PLAIN, **options):
    labels = {} if tenant is None else {"tenant": tenant}
    return Submission(text=text(name, step), labels=labels, **options)


def test_a_tenant_with_many_executions_does_not_delay_another():
    async def scenario():
        async with control_plane() as (orchestrator, store):
            for _ in range(200):
                await orchestrator.submit(submission("a"))
            late = [await orchestrator.submit(submission("b")) for _ in range(5)]
            hand, ran = Hand(orchestrator.work, slots=1), []
            orders = await orchestrator.work.claim(Claim("hand", 1), wait=5)
            while len(ran) < 11:
                ran += [order.context.execution_id for order in orders]
                _, orders = await orchestrator.work.report("hand", [hand.report(each) for each in orders], free=1)
            assert set(late) <= set(ran)
            assert store.requested == 0  # a share is no limit

    asyncio.run(scenario())


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_slots_that_one_report_frees_are_shared_with_other_tenants(slots):
    loop = "{step: start, loop: {in: '{{ range(2000) | list }}', iterator: n, spec: {mode: parallel, max_in_flight: 2000}}, tool: {kind: noop}}"

    async def scenario():
        async with control_plane() as (orchestrator, _):
            large = await orchestrator.submit(submission("a", "large", loop))
            hand, ran = Hand(orchestrator.work, slots=slots), []
            orders = await orchestrator.work.claim(Claim("hand", slots), wait=5)
            for _ in range(100):
                await orchestrator.submit(submission("b"))
            await until(lambda: "b" in orchestrator.queue.waiting_tenants("default"))
            while len(ran) < 160:
                _, orders = await orchestrator.work.report("hand", [hand.report(each) for each in orders], free=slots)
                ran += [order.context.execution_id != large for order in orders]
            assert 0.45 <= ran.count(True) / len(ran) <= 0.55

    asyncio.run(scenario())


def test_runs_of_a_label_are_limited_over_all_playbooks_and_others_pass():
    async def scenario():
        async with control_plane() as (orchestrator, store):
            await orchestrator.limits.set("label", "tenant=a", 2)
            loop = "{step: start, loop: {in: '{{ range(8) | list }}', iterator: n, spec: {mode: parallel}}, tool: {kind: noop}}"
            ids = [await orchestrator.submit(submission("a", name, loop)) for name in ("one", "two")]
            ids.append(await orchestrator.submit(submission("b", "one", loop)))
            reached = [each.text for each in await orchestrator.why(ids[0]) if each.subject == "limit"]
            assert reached == []
            assert await finish(orchestrator, ids, slots=8) == ["success"] * 3
            assert store.most["label tenant=a"] == 2
            assert store.most["label tenant=b"] > 2
            assert await orchestrator.queue.limit_depths() == []

    asyncio.run(scenario())


def test_a_run_names_the_limit_of_its_label():
    async def scenario():
        async with control_plane() as (orchestrator, _):
            await orchestrator.limits.set("label", "tenant=a", 0)
            waiting = await orchestrator.submit(submission("a"))
            assert await orchestrator.work.claim(Claim("w", 1), wait=0) == []
            (found,) = [each.text for each in await orchestrator.why(waiting) if each.subject == "limit"]
            assert "for the limit of label tenant=a: 0 of 0 slots in use" in found
            await orchestrator.limits.remove("label", "tenant=a")
            assert await finish(orchestrator, [waiting]) == ["success"]

    asyncio.run(scenario())


def test_a_child_and_a_rerun_belong_to_the_tenant_of_their_caller():
    child = "{step: start, tool: {kind: playbook, path: below}}"

    async def scenario():
        async with control_plane() as (orchestrator, store):
            await orchestrator.catalog.register(Source(text("below", PLAIN)), at=0.0)
            caller = await orchestrator.submit(
                Submission(text=text("above", child), labels={"tenant": "a", "team": "x"})
            )
            pool = create_pool(
                orchestrator.work, HostServices(orchestrator.results), worker="w", clock=RealClock(), slots=4
            )
            await pool.start()
            try:
                await orchestrator.wait(caller, 10)
            finally:
                await pool.stop(grace=0)
            (below,) = [each for each in store._summaries.values() if each.parent == caller]
            assert below.labels == ("tenant=a",)
            again = await orchestrator.rerun(RerunRequest(caller))
            assert (await orchestrator.summary(again)).labels == ("tenant=a",)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("tenant", {"most": 1}, "write NAME=VALUE"),
        ("=a", {"most": 1}, "write NAME=VALUE"),
        ("team=x", {"weight": 2}, "that of a tenant: tenant=NAME"),
        ("team=x", {"max_waiting": 2}, "only tenants have max_waiting"),
        ("tenant=a", {"weight": 61}, "from 1 to 60"),
        ("tenant=a", {}, "needs a maximum"),
    ],
)
def test_an_invalid_limit_of_a_label_is_refused(name, values, words):
    async def scenario():
        async with control_plane() as (orchestrator, _):
            with pytest.raises(RequestRefused, match=words):
                await orchestrator.limits.set("label", name, **values)

    asyncio.run(scenario())


def test_requests_of_a_tenant_are_refused_while_its_bound_is_reached():
    async def scenario():
        async with control_plane() as (orchestrator, _):
            limit = await orchestrator.limits.set("label", "tenant=a", max_waiting=3)
            assert (limit.most, limit.weight, limit.max_waiting) == (None, 1, 3)
            ids = [await orchestrator.submit(submission("a", bounded=True)) for _ in range(3)]
            with pytest.raises(TooManyRequests, match="3 runs of tenant a wait") as refused:
                await orchestrator.submit(submission("a", bounded=True))
            assert refused.value.retry_after == 5
            ids.append(await orchestrator.submit(submission("b", bounded=True)))
            ids.append(await orchestrator.submit(submission("a")))  # a trigger
            document = await orchestrator.limits.document(limit)
            assert (document["queued"], document["max_waiting"]) in ((3, 3), (4, 3))  # the last may not be queued yet
            assert await finish(orchestrator, ids) == ["success"] * 5
            await orchestrator.submit(submission("a", bounded=True))

    asyncio.run(scenario())


def test_requests_are_refused_while_too_many_runs_wait():
    async def scenario():
        orchestrator = make_orchestrator(triggers=MemoryTriggerStore(), max_waiting_runs=2)
        ids = [await orchestrator.submit(submission(bounded=True)) for _ in range(2)]
        with pytest.raises(TooManyRequests, match=r"2 runs wait .*server\.max_waiting_runs"):
            await orchestrator.submit(submission("c", bounded=True))
        assert await finish(orchestrator, ids) == ["success"] * 2
        await orchestrator.submit(submission("c", bounded=True))
        await orchestrator.close()

    asyncio.run(scenario())


def test_a_tenant_cannot_use_all_room_for_requests_that_are_being_stored(monkeypatch):
    monkeypatch.setattr(admission, "MAX_STARTING", 10)

    async def scenario():
        async with control_plane() as (orchestrator, store):
            stored, append = asyncio.Event(), store.append

            async def later(row):
                await stored.wait()
                await append(row)

            store.append = later
            first = await asyncio.gather(*(_started(orchestrator, "a") for _ in range(20)))
            assert [each is not None for each in first].count(True) == 5
            second = await asyncio.gather(*(_started(orchestrator, "b") for _ in range(20)))
            assert [each is not None for each in second].count(True) == 3
            stored.set()
            running = [each for each in (*first, *second) if each is not None]
            assert await finish(orchestrator, [await each for each in running]) == ["success"] * 8

    asyncio.run(scenario())


async def _started(orchestrator, tenant):
    """The task of a request that is being stored; None if it is refused."""
    task = asyncio.create_task(orchestrator.submit(submission(tenant, bounded=True)))
    for _ in range(20):
        await asyncio.sleep(0)
    if not task.done():
        return task
    assert isinstance(task.exception(), TooManyRequests)
    return None


def test_rows_hold_label_slots_only_for_executions_with_labels():
    async def scenario():
        async with control_plane() as (orchestrator, store):
            for tenant in ("a", None):
                await orchestrator.submit(submission(tenant))
            for _ in range(2):
                await orchestrator.work.claim(Claim("w", 1), wait=1)
            held = [msgspec.structs.asdict(each)["held"] for each in store._summaries.values()]
            assert {"playbook plain": 1, "pool default": 1, "label tenant=a": 1} in held
            assert {"playbook plain": 1, "pool default": 1} in held

    asyncio.run(scenario())
