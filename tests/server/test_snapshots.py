"""A long log is folded from its snapshot, and a useless snapshot is not believed."""

import asyncio

import msgspec
import pytest

from noetl.server.orchestrator import execution_actor as execution
from noetl.server.orchestrator.submissions import Submission
from noetl.server.read_models import explain
from tests.server.conftest import Hand, make_orchestrator
from tests.server.test_orchestrator import LOOP, working


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(execution, "SNAPSHOT_EVENTS", 20)


def test_a_state_from_a_snapshot_continues_like_the_folded_one():
    async def scenario():
        first = make_orchestrator(lease_seconds=0.05)
        execution_id = await first.submit(Submission(text=LOOP, payload={"items": list(range(40))}))
        hand = Hand(first.work, slots=2)
        working_on_it = asyncio.create_task(hand.run())
        while len(hand.ran) < 20:  # noqa: ASYNC110 - it counts, there is no event
            await asyncio.sleep(0)
        working_on_it.cancel()
        await asyncio.gather(working_on_it, return_exceptions=True)
        await first.close()
        kept = await first.store.snapshot(execution_id)
        assert kept is not None and kept[0] >= 20
        reads = []
        inner = first.store.read

        async def counted(execution_id, after=0, limit=None):
            reads.append(after)
            return await inner(execution_id, after, limit)

        first.store.read = counted
        second = make_orchestrator(store=first.store, playbooks=first.catalog.playbooks, lease_seconds=0.05)
        from noetl.server.lifecycle import recovery

        await recovery.resume(second)
        assert reads == [] or min(reads) >= 20
        second.start()
        async with working(Hand(second.work)):
            assert (await second.wait(execution_id, 10)).status == "success"
        progress = await second.progress(execution_id)
        assert progress.steps["start"].iterations_done == 40
        await second.close()

    asyncio.run(scenario())


def test_a_snapshot_of_another_version_is_ignored():
    async def scenario():
        orchestrator = make_orchestrator()
        execution_id = await orchestrator.submit(Submission(text=LOOP))
        async with working(Hand(orchestrator.work)):
            await orchestrator.wait(execution_id, 10)
        await orchestrator.store.save_snapshot(execution_id, 1_000_000, b"never")
        await orchestrator.store.save_snapshot(execution_id, 30, b"nonsense")
        orchestrator.store._snapshots[execution_id] = (30, b"nonsense")
        assert (await orchestrator.state(execution_id)).finished == "success"
        await orchestrator.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("query", ["progress", "explain", "state", "why"])
def test_a_query_of_a_long_execution_reads_a_bounded_number_of_events(query, monkeypatch):
    monkeypatch.setattr(explain, "MAX_EVENTS", 20)

    async def scenario():
        first = make_orchestrator()
        execution_id = await first.submit(Submission(text=LOOP, payload={"items": list(range(400))}))
        async with working(Hand(first.work)):
            await first.wait(execution_id, 30)
        wanted = await first.progress(execution_id)
        inner, rows = first.store.read, []

        async def counted(execution_id, after=0, limit=None):
            page = await inner(execution_id, after, limit)
            rows.append(len(page))
            return page

        first.store.read = counted
        second = make_orchestrator(store=first.store, playbooks=first.catalog.playbooks)
        found = await getattr(second, query)(execution_id)
        assert sum(rows) <= 60 and wanted.seq > 1_000
        if query == "progress":
            assert msgspec.to_builtins(found.steps) == msgspec.to_builtins(wanted.steps)
            assert (found.status, found.seq, found.ctx) == (wanted.status, wanted.seq, wanted.ctx)
        await first.close()
        await second.close()

    asyncio.run(scenario())


def test_the_path_of_many_steps_is_a_page():
    text = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: cycle}
workflow:
  - step: start
    set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
    next: {arcs: [{step: start, when: "{{ ctx.n < 250 }}"}]}
"""

    async def scenario():
        orchestrator = make_orchestrator()
        execution_id = await orchestrator.submit(Submission(text=text))
        await orchestrator.wait(execution_id, 30)
        found = await orchestrator.explain(execution_id)
        assert (len(found.way), found.way_omitted) == (explain.MAX_PATH, True)
        assert "no arc was taken" in found.way[-1]
        await orchestrator.close()

    asyncio.run(scenario())


def test_a_short_log_has_no_snapshot_and_a_long_one_has_few(monkeypatch):
    monkeypatch.setattr(execution, "SNAPSHOT_EVENTS", 40)
    saved = []

    async def scenario(items):
        orchestrator = make_orchestrator()
        inner = orchestrator.store.save_snapshot

        async def save(execution_id, seq, data):
            saved.append(seq)
            await inner(execution_id, seq, data)

        orchestrator.store.save_snapshot = save
        execution_id = await orchestrator.submit(Submission(text=LOOP, payload={"items": list(range(items))}))
        async with working(Hand(orchestrator.work, slots=1)):
            await orchestrator.wait(execution_id, 30)
        length = (await orchestrator.summary(execution_id)).seq
        await orchestrator.close()
        return length

    assert asyncio.run(scenario(3)) < 40
    assert saved == []
    length = asyncio.run(scenario(60))
    between = [later - earlier for earlier, later in zip([0, *saved], saved[:-1], strict=False)]
    assert saved and min(between, default=40) >= 40  # except the last one, at the end
    assert len(saved) <= length // 40 + 1
    assert saved[-1] == length
