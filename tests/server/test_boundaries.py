"""Boundaries of starting, finding, listing and enqueueing: versions, keys, pages, ids, waits of children."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace

import msgspec
import pytest

from noetl.core.engine.commands import RecordChildWait
from noetl.core.engine.effects import AwaitChild, CancelRun, ContinueLater, ReturnTurns, SetTimer
from noetl.core.model.events import Parent
from noetl.core.model.quotas.token_bucket import Demand, QuotaCall
from noetl.errors import Conflict, NotFound, RequestRefused
from noetl.server.dispatch.enqueuer import Enqueuer
from noetl.server.lifecycle import decision_watch
from noetl.server.lifecycle.children import Children
from noetl.server.lifecycle.decision_watch import MAX_DEATHS, MappedDecisionWatch
from noetl.server.orchestrator.catalog import Source
from noetl.server.orchestrator.effect_handler import EffectHandler
from noetl.server.orchestrator.execution_ids import COUNTER_BITS, EPOCH_MS, PROCESS_BITS, ExecutionIds
from noetl.server.orchestrator.submissions import Submission, caller_key, source_of
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.queue import QueuedRun
from tests.server.conftest import Hand, run
from tests.server.test_worker_service import Background, Executions, Queue, row

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\nworkflow:\n"
TEXT = HEAD + "  - {step: start, tool: {kind: noop}}\n"
OTHER = HEAD + "  - {step: start, tool: {kind: noop, input: {x: 1}}}\n"


PARENT = Parent("1", "1:a:1", "1:a:1:t:1:1")

# ── the catalog ─────────────────────────────────────────────────────────────────────────


def test_versions_are_numbers_texts_of_numbers_or_the_newest():
    async def scenario(orchestrator):
        catalog = orchestrator.catalog
        for text in (TEXT, OTHER):
            await catalog.register(Source(text, ""), 1.0)
        wanted = {
            version: await catalog.registered("p", version) for version in (None, "", "latest", "1", 1, "2", "x", 3)
        }
        found = {version: each and each.version for version, each in wanted.items()}
        assert found == {None: 2, "": 2, "latest": 2, "1": 1, 1: 1, "2": 2, "x": None, 3: None}
        assert (await catalog.find("p", "1")).version == "1"
        with pytest.raises(NotFound, match=r"^there is no version 3 of playbook 'p'; the newest is 2$"):
            await catalog.find("p", 3)
        with pytest.raises(
            NotFound, match=r"^there is no playbook 'q' in the catalog; register it with `noetl register FILE`$"
        ):
            await catalog.find("q")

    run(scenario)


def test_the_source_of_a_submission_is_its_text_or_the_named_playbook():
    async def scenario(orchestrator):
        catalog = orchestrator.catalog
        await catalog.register(Source(TEXT, ""), 1.0)
        assert await source_of(Submission(text=OTHER), catalog) == Source(OTHER, "", None)
        assert await source_of(Submission(text=OTHER, version=4, file="f"), catalog) == Source(OTHER, "f", "4")
        assert (await source_of(Submission(path="p"), catalog)).text == TEXT
        with pytest.raises(RequestRefused, match=r"^a request needs `path`"):
            await source_of(Submission(), catalog)

    run(scenario)


# ── keys ────────────────────────────────────────────────────────────────────────────────


def test_a_key_belongs_to_one_request_but_a_caller_may_start_its_child_again():
    async def scenario(orchestrator):
        first = await orchestrator.submit(Submission(text=TEXT, key="api:ann:k"))
        assert await orchestrator.submit(Submission(text=TEXT, key="api:ann:k")) == first
        with pytest.raises(Conflict, match=rf"^the key 'k' was used for another request \(execution {first}\)"):
            await orchestrator.submit(Submission(text=OTHER, key="api:ann:k"))
        child = Submission(text=OTHER, key="api:ann:k", parent=PARENT)
        assert await orchestrator.submit(child) == first

    run(scenario)


def test_a_key_that_version_0_1_stored_belongs_to_its_caller():
    async def scenario(orchestrator):
        first = await orchestrator.submit(Submission(text=TEXT, key="http:k", requested_by="ann"))
        again = Submission(text=TEXT, key=caller_key("ann", "k"), requested_by="ann")
        assert await orchestrator.submit(again) == first
        other = Submission(text=TEXT, key=caller_key("bob", "k"), requested_by="bob")
        second = await orchestrator.submit(other)
        assert second != first
        assert await orchestrator.submit(other) == second

    run(scenario)


class Racing(MemoryEventStore):
    """A store in which another process uses the key between the check and the append."""

    found = True

    async def by_key(self, key):
        return await super().by_key(key) if self.looked else None

    looked = False

    async def append(self, append):
        self.looked = True
        if not self.found:
            raise Conflict("the key is used")
        await super().append(append)


def test_a_key_that_is_used_at_the_same_time_starts_one_execution():
    store = Racing()

    async def scenario(orchestrator):
        first = await orchestrator.submit(Submission(text=TEXT, key="k"))
        store.looked = False
        assert await orchestrator.submit(Submission(text=TEXT, key="k")) == first
        store.found, store.looked = False, False
        with pytest.raises(Conflict, match=r"^the key is used$"):
            await orchestrator.submit(Submission(text=TEXT, key="other"))

    run(scenario, store=store)


# ── queries ─────────────────────────────────────────────────────────────────────────────


def test_waiting_for_an_end_returns_its_summary_or_times_out():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=TEXT))
        with pytest.raises(TimeoutError, match=rf"^execution {execution} is still (running|pending) after 0.01 s$"):
            await orchestrator.wait(execution, 0.01)
        waiting = asyncio.create_task(orchestrator.wait(execution, 20))
        await Hand(orchestrator.work).step()
        ended = await waiting
        assert (ended.execution_id, ended.status) == (execution, "success")
        assert (await orchestrator.wait(execution, 1)).status == "success"

    run(scenario)


def test_starting_watches_leases_and_limits():
    async def scenario(orchestrator):
        calls = []
        orchestrator.work = SimpleNamespace(start=lambda: calls.append("work"), close=orchestrator.work.close)
        limits = orchestrator.limits
        orchestrator.limits = SimpleNamespace(start=lambda: calls.append("limits"), close=_nothing)
        orchestrator.start()
        orchestrator.limits = None
        orchestrator.start()
        assert calls == ["work", "limits", "work"]
        orchestrator.limits = limits

    run(scenario)


async def _nothing():
    pass


# ── enqueueing ──────────────────────────────────────────────────────────────────────────


class NotedQueue(Queue):
    def __init__(self):
        super().__init__()
        self.puts, self.removed = [], []

    async def put(self, runs):
        self.puts.append([run.run_id for run in runs])

    async def remove(self, executions):
        self.removed.append(executions)


def test_runs_of_all_executions_are_enqueued_and_removed_together():
    rechecked = []
    limiter = SimpleNamespace(recheck=rechecked.append)
    queue, background = NotedQueue(), Background()
    enqueuer = Enqueuer(queue, limiter, background)
    enqueuer.put("1", [QueuedRun("1", "1:a:1"), QueuedRun("1", "1:b:1", limit="pool gpu")])
    enqueuer.put("2", [QueuedRun("2", "2:a:1")])
    assert background.names == ["enqueueing runs"]
    asyncio.run(background.run())
    assert (queue.puts, enqueuer.pending, rechecked) == ([["1:a:1", "1:b:1", "2:a:1"]], [], [{"pool gpu"}])
    for execution in ("1", "1", "3", "2"):  # "3" had no runs
        enqueuer.remove_ended(execution)
    asyncio.run(background.run())
    assert queue.removed == [["1", "2"]]


# ── children ────────────────────────────────────────────────────────────────────────────


def child_state(status, finished=None, parent=True):
    request = SimpleNamespace(parent=PARENT if parent else None)
    return SimpleNamespace(execution_id="9", request=request, finished=finished, status=status, seq=12)


def children(caller):
    rows = {"1": caller} if caller is not None else {}

    async def summary(execution_id):
        return rows.get(execution_id)

    actors = SimpleNamespace(store=SimpleNamespace(summary=summary))
    executions, background = Executions(), Background()
    return Children(actors, executions, None, background), executions, background


@pytest.mark.parametrize("waiting", [True, False])
def test_a_child_reports_that_it_waits(waiting):
    made, executions, background = children(None)
    made.report_wait(child_state("waiting"), waiting=waiting)
    made.report_wait(child_state("success", finished="success"), waiting=waiting)
    made.report_wait(child_state("waiting", parent=False), waiting=waiting)
    assert background.names == ["report of the wait of execution 9"]
    asyncio.run(background.run())
    assert executions.sent == [("1", RecordChildWait("1:a:1:t:1:1", "9", waiting, 12))]


@pytest.mark.parametrize(
    ("caller", "status", "sent"),
    [
        ("waiting", "running", False),
        ("waiting", "waiting", True),
        ("running", "running", None),
        (None, "running", None),
    ],
)
def test_after_a_restart_a_child_corrects_a_caller_that_considers_it_waiting(caller, status, sent):
    made, executions, background = children(row("1", "p", status=caller) if caller else None)
    made.check_wait(child_state(status))
    made.check_wait(child_state("success", finished="success"))
    made.check_wait(child_state("running", parent=False))
    assert background.names == ["check of the caller of execution 9"]
    asyncio.run(background.run())
    expected = [] if sent is None else [("1", RecordChildWait("1:a:1:t:1:1", "9", sent, 12))]
    assert executions.sent == expected


# ── ids and dead servers ────────────────────────────────────────────────────────────────


def test_the_thousand_and_twenty_fifth_id_of_a_millisecond_belongs_to_the_next():
    ids = ExecutionIds(SimpleNamespace(now=lambda: (EPOCH_MS + 5) / 1000), process=3)
    minted = [int(ids.mint()) for _ in range(2**COUNTER_BITS + 2)]

    def id_of(ms, counter):
        return ms << (PROCESS_BITS + COUNTER_BITS) | 3 << COUNTER_BITS | counter

    assert minted[:2] == [id_of(5, 0), id_of(5, 1)]
    assert minted[-3:] == [id_of(5, 2**COUNTER_BITS - 1), id_of(6, 0), id_of(6, 1)]


def test_an_execution_is_given_up_after_the_third_death_at_the_same_event(tmp_path):
    watch = MappedDecisionWatch(tmp_path)
    try:
        found = []
        for seq in ("4", "4", "5", "5", "5", "5"):
            (tmp_path / "0-dead.deciding").write_bytes(f"77 {seq}".encode().ljust(64, b"\0"))
            found.append([(each.execution_id, each.error.kind) for each in watch.poisoned()])
        assert MAX_DEATHS == 3
        assert found == [[], [], [], [], [("77", "limit")], []]
        for marker in (b"", b"77", b"x 4", b"77 x"):
            (tmp_path / "0-dead.deciding").write_bytes(marker.ljust(64, b"\0"))
            assert watch.poisoned() == []
        with watch.deciding("78", 3):
            assert watch._path.read_bytes().rstrip(b"\0") == b"78 3"
        assert watch._path.read_bytes()[:1] == b"\0"
        (tmp_path / "0-dead.deciding").write_bytes(b"79 1".ljust(64, b"\0"))
        (tmp_path / "0-dead.stack").write_text("a stack")
        (late,) = watch.poisoned()
        assert (late.execution_id, late.error.kind) == ("79", "limit") and "CPU time" in late.error.message
        assert sorted(path.suffix for path in tmp_path.iterdir()) == [".deaths", ".deciding", ".stack"]
    finally:
        watch.close()
    assert decision_watch.NOT_WATCHED.poisoned() == []
    assert msgspec.json.encode([each.name for each in tmp_path.iterdir()]) == b'["77.deaths"]'


def test_the_files_of_other_living_servers_are_left_alone(tmp_path):
    one, two = MappedDecisionWatch(tmp_path / "new"), MappedDecisionWatch(tmp_path / "new")
    try:
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
        with one.deciding("77", 4):
            assert two.poisoned() == one.poisoned() == []
            assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 9
            assert one._path.exists() and one._path.with_suffix(".stack").exists()
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0
        assert decision_watch._is_locked(one._path)
        assert decision_watch._is_locked(tmp_path / "none")  # its server has removed it meanwhile
        (tmp_path / "free").touch()
        descriptors = len(os.listdir("/proc/self/fd"))
        assert not decision_watch._is_locked(tmp_path / "free")
        assert len(os.listdir("/proc/self/fd")) == descriptors
    finally:
        for path in (two._path, two._path.with_suffix(".stack")):
            path.unlink()  # an operator has removed them
        two.close()
        one.close()
    assert list((tmp_path / "new").iterdir()) == []


# ── take-over ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("orphaned", [True, False])
def test_a_process_that_performs_no_effects_takes_over_the_leases_alone(enabled, orphaned):
    calls = []

    def note(name):
        return lambda *_, **__: calls.append(name)

    handler = SimpleNamespace(
        work=SimpleNamespace(expire_all=note("expire"), adopt=note("adopt")),
        children=SimpleNamespace(check_wait=note("check")),
        executions=SimpleNamespace(get=lambda _: SimpleNamespace(wake=note("wake"))),
        enabled=enabled,
        _perform=note("perform"),
    )
    state = child_state("running")
    EffectHandler.take_over(handler, state, [], orphaned=orphaned)
    assert calls == ["expire" if orphaned else "adopt", "perform", *(["check"] if enabled else [])]
    calls.clear()
    EffectHandler.take_over(handler, state, [SetTimer(5.0), ContinueLater()])
    assert calls[-1] == "wake"


@pytest.mark.parametrize(("enabled", "shared"), [(True, False), (True, True), (False, False)])
def test_an_execution_that_was_overtaken_is_caught_up_once(enabled, shared):
    background = Background()
    handler = SimpleNamespace(
        work=SimpleNamespace(follow=lambda _: None),
        executions=SimpleNamespace(running=1),
        _perform=lambda *_, **__: None,
        enabled=enabled,
        shared=shared,
        stored_timers=False,
        background=background,
    )
    execution = SimpleNamespace(id="9", waited=False, waits=False, overtaken=True, state=None)
    for _ in range(2):
        EffectHandler.events_written(handler, execution, SimpleNamespace(events=(), effects=()))
    assert background.names == (["catching up with 9"] if enabled and not shared else [])


@pytest.mark.parametrize("enabled", [True, False])
def test_effects_on_leases_quotas_timers_and_children_are_performed(enabled):
    async def scenario():
        calls = []

        async def call(each):
            calls.append(each)

        handler = SimpleNamespace(
            enabled=enabled,
            limiter=SimpleNamespace(weights={}),
            work=SimpleNamespace(
                leases=SimpleNamespace(revoke=lambda *run: calls.append(run)), quotas=SimpleNamespace(call=call)
            ),
            background=Background(),
            children=SimpleNamespace(perform=lambda *effect: calls.append(effect)),
            _set_timer=lambda *at, waiting: calls.append((*at, waiting)),
        )
        demand = Demand("api", 2.0)
        effects = [CancelRun("9:a:1", 2, "w"), ReturnTurns(demand, (5.0, 6.0)), SetTimer(7.0), AwaitChild("k", "8")]
        EffectHandler._perform(handler, "9", effects, None, waiting=True)
        await handler.background.run()
        return calls, demand

    calls, demand = asyncio.run(scenario())
    returned = QuotaCall(demand, unused=(5.0, 6.0))
    found = [("9:a:1", 2, "w"), ("9", 7.0, True), ("9", AwaitChild("k", "8")), returned]
    assert calls == (found if enabled else [])
