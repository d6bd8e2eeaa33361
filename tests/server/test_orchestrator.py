"""The control plane: requests, leases, conflicts, children, recovery."""

import asyncio
import contextlib

import pytest

from noetl.core.model.events import ExecutionCancelled, PlaybookProcessed, StepStarted
from noetl.core.model.outcome import error
from noetl.core.model.work import Claim
from noetl.errors import Conflict, InvalidPlaybook, NotFound
from noetl.server.lifecycle import recovery
from noetl.server.orchestrator.submissions import Submission
from tests.server.conftest import Hand, make_orchestrator

CHAIN = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chain, path: tests/chain}
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: middle}]}
  - step: middle
    tool: {kind: noop}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""

LOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: loop, path: tests/loop}
workflow:
  - step: start
    loop:
      in: "{{ workload.items }}"
      iterator: item
      spec: {mode: parallel, max_in_flight: 4}
    tool: {kind: noop}
workload:
  items: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""


@contextlib.asynccontextmanager
async def working(hand):
    task = asyncio.create_task(hand.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_chain_runs_to_its_end():
    async def scenario():
        orchestrator = make_orchestrator()
        async with working(Hand(orchestrator.work, {"end": {"n": 1}})):
            execution_id = await orchestrator.submit(Submission(text=CHAIN))
            summary = await orchestrator.wait(execution_id, 10)
        assert (summary.status, summary.steps_done, summary.steps_running) == ("success", 3, 0)
        progress = await orchestrator.progress(execution_id)
        assert progress.output.data == {"n": 1}
        assert [row.step for row in progress.steps.values()] == ["start", "middle", "end"]
        await orchestrator.close()

    asyncio.run(scenario())


def recorded_appends(orchestrator):
    """The event types of every append from now on."""
    appends = []
    inner = orchestrator.store.append

    async def record(append):
        appends.append([type(recorded.body).__name__ for recorded in append.events])
        await inner(append)

    orchestrator.store.append = record
    return appends


async def lease_history(orchestrator, execution_id):
    """(worker, epoch) of every start of a run."""
    events = await orchestrator.events(execution_id)
    return [(event.body.worker, event.body.epoch) for event in events if isinstance(event.body, StepStarted)]


def test_a_step_that_ends_starts_and_leases_the_next_in_one_append():
    async def scenario():
        orchestrator = make_orchestrator()
        appends = recorded_appends(orchestrator)
        async with working(Hand(orchestrator.work)):
            await asyncio.sleep(0.01)
            execution_id = await orchestrator.submit(Submission(text=CHAIN))
            await orchestrator.wait(execution_id, 10)
        assert len(appends) == 4
        assert appends[0][-1] == appends[1][-1] == appends[2][-1] == "StepStarted"
        await orchestrator.close()

    asyncio.run(scenario())


def test_many_reports_of_one_loop_share_appends():
    async def scenario():
        orchestrator = make_orchestrator()
        appends = recorded_appends(orchestrator)
        hand = Hand(orchestrator.work, slots=10)
        async with working(hand):
            await asyncio.sleep(0.01)
            execution_id = await orchestrator.submit(Submission(text=LOOP))
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        assert len(hand.ran) == 10 == len(set(hand.ran))
        # The submission, then one append for each batch of max_in_flight reports.
        assert [names.count("IterationDone") for names in appends] == [0, 4, 4, 2]
        await orchestrator.close()

    asyncio.run(scenario())


def test_an_invalid_playbook_is_refused_with_all_diagnostics():
    async def scenario():
        orchestrator = make_orchestrator()
        with pytest.raises(InvalidPlaybook) as refusal:
            await orchestrator.submit(Submission(text=CHAIN.replace("middle}", "nowhere}")))
        assert any("nowhere" in diagnostic.message for diagnostic in refusal.value.diagnostics)
        assert await orchestrator.store.unfinished() == []

    asyncio.run(scenario())


def test_a_key_starts_one_execution():
    async def scenario():
        orchestrator = make_orchestrator()
        ids = await asyncio.gather(*(orchestrator.submit(Submission(text=CHAIN, key="k")) for _ in range(5)))
        assert len(set(ids)) == 1
        with pytest.raises(Conflict, match="another request"):
            await orchestrator.submit(Submission(text=CHAIN, key="k", payload={"n": 2}))

    asyncio.run(scenario())


def test_an_unknown_execution_is_not_found():
    async def scenario():
        orchestrator = make_orchestrator()
        for requested in (
            orchestrator.summary("1"),
            orchestrator.events("1"),
            orchestrator.state("1"),
            orchestrator.cancel("1"),
            orchestrator.wait("1", 1),
        ):
            with pytest.raises(NotFound):
                await requested

    asyncio.run(scenario())


def test_cancelling_revokes_what_runs_and_ends_the_execution():
    async def scenario():
        orchestrator = make_orchestrator()
        execution_id = await orchestrator.submit(Submission(text=CHAIN))
        (order,) = await orchestrator.work.claim(Claim("w", 1), wait=5)
        listening = asyncio.create_task(orchestrator.work.revoked("w", wait=5))
        await asyncio.sleep(0)
        await orchestrator.cancel(execution_id, "enough")
        assert await listening == [order.run_id]
        assert (await orchestrator.wait(execution_id, 5)).status == "cancelled"
        verdicts, orders = await orchestrator.work.report("w", [Hand(None).report(order)], free=1)
        assert (verdicts[0].accepted, orders) == (False, [])
        with pytest.raises(Conflict):
            await orchestrator.cancel(execution_id)
        bodies = [recorded.body for recorded in await orchestrator.events(execution_id)]
        assert sum(isinstance(body, ExecutionCancelled) for body in bodies) == 1
        assert isinstance(bodies[-1], PlaybookProcessed)
        await orchestrator.close()

    asyncio.run(scenario())


def test_a_paused_execution_starts_nothing_until_it_is_resumed():
    async def scenario():
        orchestrator = make_orchestrator()
        execution_id = await orchestrator.submit(Submission(text=CHAIN))
        await orchestrator.pause(execution_id)
        assert (await orchestrator.summary(execution_id)).status == "paused"
        assert await orchestrator.work.claim(Claim("w", 1), wait=0.02) == []
        await orchestrator.resume(execution_id)
        async with working(Hand(orchestrator.work)):
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        await orchestrator.close()

    asyncio.run(scenario())


def test_two_orchestrators_on_one_store_never_lease_a_run_twice():
    async def scenario():
        one = make_orchestrator()
        other = make_orchestrator(store=one.store, playbooks=one.catalog.playbooks)
        execution_id = await one.submit(Submission(text=LOOP))
        runs = [f"{execution_id}:start:1/{n}" for n in range(4)]
        from noetl.storage.ports.queue import QueuedRun

        await other.queue.put([QueuedRun(execution_id, run) for run in runs])
        first, second = Hand(one.work, worker="w1"), Hand(other.work, worker="w2")
        async with working(first), working(second):
            assert (await one.wait(execution_id, 10)).status == "success"
        assert sorted(first.ran + second.ran) == sorted(set(first.ran + second.ran))
        assert len(first.ran + second.ran) == 10
        log = await one.events(execution_id)
        assert [recorded.seq for recorded in log] == list(range(1, len(log) + 1))
        await one.close()
        await other.close()

    asyncio.run(scenario())


def test_a_restarted_orchestrator_continues_where_the_log_ends():
    async def scenario():
        first = make_orchestrator()
        waiting = await first.submit(Submission(text=CHAIN))
        half = await first.submit(Submission(text=CHAIN))
        orders = await first.work.claim(Claim("dead", 1), wait=5)
        orders += await first.work.claim(Claim("dead", 1), wait=5)
        order = next(order for order in orders if order.context.execution_id == half)
        await first.work.report("dead", [Hand(None).report(order)])
        await first.close()
        second = make_orchestrator(store=first.store, playbooks=first.catalog.playbooks, lease_seconds=0.05)
        assert sorted(await recovery.resume(second)) == sorted([waiting, half])
        second.start()
        async with working(Hand(second.work)):
            for execution_id in (waiting, half):
                assert (await second.wait(execution_id, 10)).status == "success"
        await second.close()

    asyncio.run(scenario())


def test_a_lost_worker_is_replaced_and_its_late_report_refused():
    async def scenario():
        orchestrator = make_orchestrator(lease_seconds=0.04)
        orchestrator.start()
        execution_id = await orchestrator.submit(Submission(text=CHAIN))
        (order,) = await orchestrator.work.claim(Claim("lost", 1), wait=5)
        hand = Hand(orchestrator.work)
        async with working(hand):
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        late = Hand(None, {"start": "something else"}).report(order)
        verdicts, _ = await orchestrator.work.report("lost", [late])
        assert not verdicts[0].accepted
        assert (await lease_history(orchestrator, execution_id))[:2] == [("lost", 1), ("hand", 2)]
        await orchestrator.close()

    asyncio.run(scenario())


def test_a_worker_with_heartbeats_keeps_its_run():
    async def scenario():
        orchestrator = make_orchestrator(lease_seconds=0.06)
        orchestrator.start()
        await orchestrator.submit(Submission(text=CHAIN))
        (order,) = await orchestrator.work.claim(Claim("w", 1), wait=5)
        for _ in range(10):
            await asyncio.sleep(0.02)
            assert (await orchestrator.work.extend("w", [(order.run_id, order.epoch)])).lost == []
        standing = await orchestrator.work.extend("w", [(order.run_id, 7), ("1:x:1", 1)])
        assert standing.lost == [order.run_id, "1:x:1"]
        await orchestrator.close()

    asyncio.run(scenario())


def test_returned_runs_are_claimed_by_others():
    async def scenario():
        orchestrator = make_orchestrator()
        execution_id = await orchestrator.submit(Submission(text=CHAIN))
        (order,) = await orchestrator.work.claim(Claim("leaving", 1), wait=5)
        await orchestrator.work.give_back("leaving", [(order.run_id, order.epoch)])
        (again,) = await orchestrator.work.claim(Claim("other", 1), wait=5)
        assert (again.run_id, again.epoch) == (order.run_id, order.epoch + 1)
        acks, _ = await orchestrator.work.report("leaving", [Hand(None).report(order)])
        assert not acks[0].accepted
        acks, _ = await orchestrator.work.report("other", [Hand(None).report(again)])
        assert acks[0].accepted
        assert await lease_history(orchestrator, execution_id) == [("leaving", 1), ("other", 2)]
        await orchestrator.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["before the append", "after the append"])
def test_a_run_leased_to_a_disconnected_long_poll_is_returned(when):
    async def scenario():
        orchestrator = make_orchestrator()
        waiting = asyncio.create_task(orchestrator.work.claim(Claim("gone", 1), wait=30))
        await asyncio.sleep(0.01)
        inner = orchestrator.store.append

        async def disconnect(append):
            orchestrator.store.append = inner
            if when == "before the append":
                waiting.cancel()
                await asyncio.wait([waiting])
                await inner(append)
            else:  # the lease is durable, and the poll has not resumed yet
                await inner(append)
                asyncio.get_running_loop().call_soon(waiting.cancel)

        orchestrator.store.append = disconnect
        execution_id = await orchestrator.submit(Submission(text=CHAIN))
        async with working(Hand(orchestrator.work)):
            assert (await orchestrator.wait(execution_id, 10)).status == "success"
        assert waiting.cancelled()
        assert (await lease_history(orchestrator, execution_id))[:2] == [("gone", 1), ("hand", 2)]
        await orchestrator.close()

    asyncio.run(scenario())


def test_a_cancellation_by_another_process_before_a_report_stops_the_other_runs():
    async def scenario():
        orchestrator = make_orchestrator()
        terminal = make_orchestrator(
            store=orchestrator.store, playbooks=orchestrator.catalog.playbooks, performs_effects=False
        )
        execution_id = await orchestrator.submit(Submission(text=LOOP))
        first, second = await orchestrator.work.claim(Claim("w", 2), wait=5)
        await terminal.cancel(execution_id, "enough")
        acks, _ = await orchestrator.work.report("w", [Hand(None).report(first)])
        assert not acks[0].accepted
        assert second.run_id in await orchestrator.work.revoked("w", wait=5)
        await orchestrator.close()

    asyncio.run(scenario())


def test_a_failure_is_in_the_summary():
    async def scenario():
        orchestrator = make_orchestrator()
        async with working(Hand(orchestrator.work, {"middle": error("timeout", "too slow")})):
            execution_id = await orchestrator.submit(Submission(text=CHAIN))
            summary = await orchestrator.wait(execution_id, 10)
        assert summary.status == "failed"
        assert "too slow" in summary.error
        await orchestrator.close()

    asyncio.run(scenario())


def test_an_empty_report_has_an_empty_reply():
    async def scenario():
        orchestrator = make_orchestrator()
        assert await orchestrator.work.report("w", [], free=3) == ([], [])
        await orchestrator.close()

    asyncio.run(scenario())
