"""The orchestrator: control commands, waits, summaries, inbox, external changes, and what blocks an execution."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from msgspec import structs

from noetl.core.model.outcome import error_info
from noetl.core.model.work import Claim
from noetl.errors import Conflict, NotFound, RequestRefused, RoleRequired, StoreUnavailable, VersionConflict
from noetl.observability import lineage
from noetl.server.lifecycle import recovery
from noetl.server.lifecycle.children import Children
from noetl.server.orchestrator.submissions import RerunRequest, Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.triggers.memory import MemoryTriggerStore
from tests.server.conftest import Hand, make_orchestrator, run
from tests.server.test_orchestrator import CHAIN, LOOP, working
from tests.waiting import until

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\n"
ASK = (
    HEAD
    + """
workflow:
  - step: start
    tool:
      - {name: ask, kind: wait, signal: answer, roles: [author], form: {type: object, required: [n]}}
"""
)
GPU = HEAD + "workflow: [{step: start, spec: {pool: gpu}, tool: {kind: noop}}]\n"


async def waiting_for_an_answer(orchestrator):
    """An execution whose wait is open, by a worker of production classes."""
    from noetl.runtime.clock import RealClock
    from noetl.worker.factory import create_pool
    from noetl.worker.host import HostServices

    execution = await orchestrator.submit(Submission(text=ASK))
    pool = create_pool(orchestrator.work, HostServices(orchestrator.results), worker="w", clock=RealClock(), slots=1)
    await pool.start()
    while (await orchestrator.summary(execution)).status != "waiting":  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.005)
    await pool.stop(grace=0)
    return execution


# ── commands ────────────────────────────────────────────────────────────────────────────


def test_a_command_that_is_not_possible_is_a_conflict_with_its_reason():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        await orchestrator.pause(execution, "stop it")
        assert (await orchestrator.summary(execution)).status == "paused"
        await orchestrator.resume(execution)
        assert (await orchestrator.summary(execution)).status == "running"
        await orchestrator.cancel(execution, "enough")
        ended = await orchestrator.wait(execution)
        assert (ended.status, ended.error) == ("cancelled", "enough")
        with pytest.raises(Conflict, match=rf"^execution {execution}: "):
            await orchestrator.cancel(execution)
        with pytest.raises(NotFound, match=r"^there is no execution 99$"):
            await orchestrator.pause("99")

    run(scenario)


def test_a_rejection_without_a_reason_has_a_default_one():
    async def scenario(orchestrator):
        orchestrator.cache.send = lambda *_: answer(SimpleNamespace(accepted=False, reason="", problem=""))
        with pytest.raises(Conflict, match=r"^execution 7: this is not possible now$"):
            await orchestrator.pause("7")

    async def answer(reply):
        return reply

    run(scenario)


def test_an_execution_that_cannot_be_decided_is_given_up_once():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        await orchestrator.give_up(execution, error_info("limit", "it takes too long"))
        ended = await orchestrator.wait(execution)
        assert (ended.status, ended.error) == ("failed", "it takes too long")
        await orchestrator.give_up(execution, error_info("limit", "again"))
        await orchestrator.give_up("99", error_info("limit", "unknown"))
        assert await orchestrator.summary(execution) == ended

    run(scenario)


def test_a_signal_needs_the_role_and_data_of_its_wait():
    async def scenario(orchestrator):
        execution = await waiting_for_an_answer(orchestrator)
        with pytest.raises(RoleRequired, match=rf"^execution {execution}: .*author"):
            await orchestrator.signal(execution, "answer", {"n": 1}, roles=["viewer"])
        with pytest.raises(RequestRefused, match=rf"^execution {execution}: .*does not fit the form"):
            await orchestrator.signal(execution, "answer", {}, roles=["author"])
        with pytest.raises(Conflict, match="has been answered or has ended"):
            await orchestrator.signal(execution, wait="77:none:1", roles=["author"])
        entries, following = await orchestrator.inbox()
        assert ([each.execution_id for each in entries], following) == ([execution], None)
        await orchestrator.signal(execution, "answer", {"n": 1}, roles=["author"], by="ada")
        assert (await orchestrator.inbox())[0] == []

    run(scenario)


def test_the_inbox_has_pages_of_executions_newest_first():
    async def scenario(orchestrator):
        ids = [await waiting_for_an_answer(orchestrator) for _ in range(3)]
        first, following = await orchestrator.inbox(limit=2)
        assert ([each.execution_id for each in first], following) == ([ids[2], ids[1]], ids[1])
        second, following = await orchestrator.inbox(before=following, limit=2)
        assert ([each.execution_id for each in second], following) == ([ids[0]], None)
        assert (await orchestrator.inbox(limit=3))[1] is None

    run(scenario)


def test_a_command_without_effect_is_not_appended():
    class Counting(MemoryEventStore):
        appends = 0

        async def append(self, append):
            assert append.events
            self.appends += 1
            await super().append(append)

    store = Counting()

    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        await orchestrator.pause(execution)
        before = store.appends
        await orchestrator.pause(execution)
        await orchestrator.work.give_back("w", [(f"{execution}:start:1", 7)])
        await asyncio.sleep(0.01)
        assert store.appends == before

    run(scenario, store=store)


# ── waiting for the end ─────────────────────────────────────────────────────────────────


def test_a_caller_that_is_woken_before_the_end_goes_on_waiting():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        waiting = asyncio.create_task(orchestrator.wait(execution, 20))
        await asyncio.sleep(0)
        for _ in range(3):
            orchestrator.ends.notify(execution)
            await asyncio.sleep(0)
        assert not waiting.done()
        async with working(Hand(orchestrator.work)):
            assert (await waiting).status == "success"
        with pytest.raises(NotFound):
            await orchestrator.wait("99")

    run(scenario)


def test_a_caller_sees_an_end_that_another_process_wrote():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        waiting = asyncio.create_task(orchestrator.wait(execution, 20))
        await asyncio.sleep(0)
        other = make_orchestrator(orchestrator.store, orchestrator.catalog.playbooks)
        await other.cancel(execution)
        orchestrator.ends.notify(execution)  # as its poll does
        assert (await waiting).status == "cancelled"
        await other.close()

    run(scenario)


def test_a_summary_may_be_cached_and_an_ended_one_always_is():
    class Counting(MemoryEventStore):
        reads = 0

        async def summary(self, execution_id):
            self.reads += 1
            return await super().summary(execution_id)

    store = Counting()

    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        store.reads = 0
        await orchestrator.summary(execution, newest=False)
        assert store.reads == 0
        await orchestrator.summary(execution)
        assert store.reads == 1
        await orchestrator.cancel(execution)
        store.reads = 0
        assert (await orchestrator.summary(execution)).status == "cancelled"
        assert store.reads == 0

    run(scenario, store=store)


def test_the_log_of_an_unknown_execution_is_not_found_and_a_page_may_be_empty():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        log = await orchestrator.events(execution)
        assert [each.seq for each in await orchestrator.events(execution, 1, 2)] == [2, 3]
        assert await orchestrator.events(execution, len(log)) == []
        with pytest.raises(NotFound, match=r"^there is no execution 99$"):
            await orchestrator.events("99")
        await orchestrator.cancel(execution)
        followed = [each.seq async for each in orchestrator.subscribe(execution, 2)]
        assert followed == list(range(3, len(await orchestrator.events(execution)) + 1))

    run(scenario)


# ── what blocks an execution ────────────────────────────────────────────────────────────


def test_runs_that_no_worker_can_take_are_reported_until_one_is_alive():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=GPU))
        row = await orchestrator.summary(execution)
        (text,) = await until(lambda: orchestrator.waits_for(row))
        assert "the pool gpu has no live worker" in text
        await orchestrator.work.claim(Claim("w", 1), wait=0)  # of another pool
        assert len(await orchestrator.waits_for(row)) == 1
        await orchestrator.work.claim(Claim("g", 0, "gpu"), wait=0)
        assert await orchestrator.waits_for(row) == []
        await orchestrator.cancel(execution)
        assert await orchestrator.waits_for(await orchestrator.summary(execution)) == []

    run(scenario)


def test_a_process_that_runs_no_workers_reports_no_missing_ones():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=GPU))
        row = await orchestrator.summary(execution)
        assert len(await until(lambda: orchestrator.waits_for(row))) == 1
        orchestrator.effects.enabled = False  # another process runs the workers, and knows them
        assert await orchestrator.waits_for(row) == []
        assert not any(each.subject == "placement" for each in await orchestrator.why(execution))

    run(scenario)


def test_labels_that_no_live_worker_has_are_reported():
    labelled = HEAD + "workflow: [{step: start, spec: {placement: {labels: {zone: eu}}}, tool: {kind: noop}}]\n"

    async def scenario(orchestrator):
        await orchestrator.work.claim(Claim("w", 1), wait=0)
        execution = await orchestrator.submit(Submission(text=labelled))
        row = await orchestrator.summary(execution)
        (text,) = await until(lambda: orchestrator.waits_for(row))
        assert "zone=eu" in text
        await orchestrator.work.claim(Claim("e", 0, labels=("zone=eu",)), wait=0)
        assert await orchestrator.waits_for(row) == []

    run(scenario)


def test_a_reached_limit_is_reported_now_but_not_for_an_earlier_instant():
    async def scenario(orchestrator):
        await orchestrator.limits.set("pool", "default", 0)
        execution = await orchestrator.submit(Submission(text=CHAIN))
        await orchestrator.work.claim(Claim("w", 1), wait=0)
        (text,) = await orchestrator.waits_for(await orchestrator.summary(execution))
        assert "the limit of pool default: 0 of 0 slots in use" in text
        log = await orchestrator.events(execution)
        assert not any(each.subject == "limit" for each in await orchestrator.why(execution, len(log)))
        assert any("the limit of pool default" in each for each in (await orchestrator.explain(execution)).because)

    run(scenario, triggers=MemoryTriggerStore())


def test_limits_that_were_set_before_the_start_are_watched():
    rows = MemoryTriggerStore()

    async def set_one(orchestrator):
        await orchestrator.load_limits()
        assert orchestrator.limits._watch is None  # there are none
        await orchestrator.limits.set("pool", "default", 1)

    async def scenario(orchestrator):
        assert orchestrator.limiter.most == {}
        await orchestrator.load_limits()
        assert orchestrator.limiter.most == {"pool default": 1}
        assert orchestrator.limits._watch is not None

    run(set_one, triggers=rows)
    run(scenario, triggers=rows)
    run(lambda orchestrator: orchestrator.load_limits())  # an installation without limits


def test_whether_there_are_limits_is_read_from_the_store_before_they_are_watched():
    rows = MemoryTriggerStore()

    async def scenario(orchestrator):
        assert not await orchestrator.limits.any()
        await make_orchestrator(triggers=rows).limits.set("pool", "a b", 1)
        assert await orchestrator.limits.any()
        for name in ("a\x1fb", " a", "", "x" * 901):
            with pytest.raises(RequestRefused, match="a name has 1 to 900 characters"):
                await orchestrator.limits.set("pool", name, 1)
        await orchestrator.limits.set("pool", "x" * 900, 1)

    run(scenario, triggers=rows)


def test_a_closed_orchestrator_leaves_no_task():
    async def scenario():
        orchestrator = make_orchestrator(triggers=MemoryTriggerStore(), lease_seconds=10.0)
        orchestrator.start()
        await orchestrator.limits.set("pool", "default", 0)
        orchestrator.timers.set("1", 1e12)
        orchestrator.background.run_until_done("waiting", asyncio.Event().wait)
        await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) >= 5  # this one, the leases, the limits, the timers and the background task
        await orchestrator.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_the_explanation_of_a_failure_includes_that_of_the_child():
    child = HEAD.replace("path: p", "path: child") + "workflow: [{step: inner, tool: {kind: noop}}]\n"
    calls = HEAD + "workflow: [{step: start, tool: {kind: playbook, path: child}}]\n"

    async def scenario(orchestrator):
        from noetl.runtime.clock import RealClock
        from noetl.server.orchestrator.catalog import Source
        from noetl.worker.factory import create_pool
        from noetl.worker.host import HostServices

        await orchestrator.catalog.register(Source(child.replace("kind: noop", "kind: python, code: 1/0")), 0.0)
        execution = await orchestrator.submit(Submission(text=calls))
        pool = create_pool(
            orchestrator.work, HostServices(orchestrator.results), worker="w", clock=RealClock(), slots=2
        )
        await pool.start()
        assert (await orchestrator.wait(execution, 20)).status == "failed"
        await pool.stop(grace=0)
        because = (await orchestrator.explain(execution)).because
        below = [each for each in because if each.startswith("child execution ")]
        assert below and any("inner" in each for each in below)
        (gone,) = {each.split()[2].rstrip(":") for each in below}
        await orchestrator.store.drop([gone])
        assert not any(each.startswith("child execution ") for each in (await orchestrator.explain(execution)).because)

    run(scenario)


def test_a_child_whose_answer_was_lost_is_found_after_a_restart(monkeypatch):
    child = HEAD.replace("path: p", "path: child") + "workflow: [{step: inner, tool: {kind: noop}}]\n"
    calls = HEAD + "workflow: [{step: start, tool: {kind: playbook, path: child}}]\n"
    store, playbooks = MemoryEventStore(), MemoryPlaybookStore()

    async def with_worker(orchestrator, until):
        from noetl.runtime.clock import RealClock
        from noetl.worker.factory import create_pool
        from noetl.worker.host import HostServices

        services = HostServices(orchestrator.results)
        pool = create_pool(orchestrator.work, services, worker="w", clock=RealClock(), slots=2)
        await pool.start()
        try:
            return await until
        finally:
            await pool.stop(grace=0)

    async def begin(orchestrator):
        from noetl.server.orchestrator.catalog import Source

        await orchestrator.catalog.register(Source(child), 0.0)
        lost = asyncio.Event()

        async def lose(effect):
            lost.set()

        monkeypatch.setattr(Children, "_answer_parent", lambda self, effect: lose(effect))
        execution = await orchestrator.submit(Submission(text=calls))
        await with_worker(orchestrator, lost.wait())
        monkeypatch.undo()
        return execution

    execution = run(begin, store=store, playbooks=playbooks)

    async def continued(orchestrator):
        assert await recovery.resume(orchestrator) == [execution]
        return await with_worker(orchestrator, orchestrator.wait(execution, 20))

    assert run(continued, store=store, playbooks=playbooks).status == "success"


def test_a_command_whose_appends_always_conflict_is_refused_as_unavailable():
    class Conflicting(MemoryEventStore):
        appends = 0
        conflicts = False

        async def append(self, append):
            if self.conflicts:
                self.appends += 1
                raise VersionConflict(append.execution_id, append.events[0].seq)
            await super().append(append)

    store = Conflicting()

    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        store.conflicts = True
        with pytest.raises(StoreUnavailable, match="50 appends in a row conflicted"):
            await orchestrator.pause(execution)
        assert store.appends == 50
        store.conflicts = False
        await orchestrator.pause(execution)
        assert (await orchestrator.summary(execution)).status == "paused"

    run(scenario, store=store)


# ── changes by other processes ──────────────────────────────────────────────────────────


class Shared(MemoryEventStore):
    """A store that other local processes write to."""

    changed = True
    found: tuple = ()
    asked: list

    async def touched(self):
        return self.changed

    async def lengths(self, executions):
        self.asked = [*executions]
        return list(self.found)


def polled(store, lengths, *, after=None, running=1, owned=None, others=()):
    """The executions whose effects a poll performed, and the orchestrator."""

    async def scenario():
        orchestrator = make_orchestrator(store)
        caught = []

        async def catch_up(execution_id):
            caught.append(execution_id)

        async def unfinished(*, waiting=True):
            assert waiting is False
            return list(others)

        store.unfinished = unfinished
        orchestrator.effects.catch_up = catch_up
        orchestrator.cache = _Cache(running, lengths, lengths if after is None else after)
        await orchestrator.poll_external_changes(owned)
        return caught, orchestrator

    return asyncio.run(scenario())


class _Cache:
    def __init__(self, running, *lengths):
        self.running, self._lengths = running, list(lengths)

    def lengths(self):
        return self._lengths.pop(0) if len(self._lengths) > 1 else self._lengths[0]

    def __contains__(self, execution_id):
        return execution_id in self._lengths[0]


def test_effects_are_performed_for_executions_whose_log_has_grown():
    store = Shared()
    store.found = (("1", 5), ("2", 5), ("3", 5), ("4", 5))
    caught, orchestrator = polled(store, {"1": 4, "2": 5, "3": -1}, after={"1": 4, "2": 5, "3": -1})
    assert caught == ["1"]  # 2 is unchanged, 3 is being written by this process, 4 is unknown here
    assert store.asked == ["1", "2", "3"]
    assert orchestrator._changed_outside is True  # a change of 3 could not be detected


def test_what_this_process_wrote_meanwhile_is_no_external_change():
    store = Shared()
    store.found = (("1", 6),)
    caught, orchestrator = polled(store, {"1": 4}, after={"1": 6})
    assert (caught, orchestrator._changed_outside) == ([], False)


def test_an_untouched_store_is_not_read():
    store = Shared()
    store.changed, store.asked = False, []
    assert polled(store, {"1": 4})[0] == [] and store.asked == []


@pytest.mark.parametrize(("running", "expected"), [(0, []), (1, ["1"])])
def test_a_process_without_executions_does_not_look(running, expected):
    store = Shared()
    store.found = (("1", 5),)
    assert polled(store, {"1": 4}, running=running)[0] == expected


def test_a_process_continues_executions_that_it_owns_and_a_signal_has_woken():
    store = Shared()
    asked = []

    def owned(executions):
        asked.append(executions)
        return executions[:1]

    assert polled(store, {"1": 4}, running=0, owned=owned, others=["1", "8", "9"])[0] == ["8"]
    assert asked == [["8", "9"]]
    assert polled(store, {"1": 4}, running=0, owned=owned, others=["1"])[0] == [] and len(asked) == 1


def test_a_store_that_others_cannot_write_to_is_not_polled():
    assert polled(MemoryEventStore(), {"1": 4})[0] == []


# ── reruns ──────────────────────────────────────────────────────────────────────────────


def test_a_rerun_repeats_the_request_with_changes():
    async def scenario(orchestrator):
        first = await orchestrator.submit(Submission(text=LOOP, payload={"items": [1], "deep": {"a": 1, "b": 2}}))
        async with working(Hand(orchestrator.work)):
            await orchestrator.wait(first, 10)
        same = await orchestrator.rerun(RerunRequest(first), key="again", by="ada")
        assert await orchestrator.rerun(RerunRequest(first), key="again") == same
        state = await orchestrator.state(same)
        assert state.request.payload == {"items": [1], "deep": {"a": 1, "b": 2}}
        assert state.request.requested_by == "ada" and state.request.rerun.execution_id == first
        changed = RerunRequest(first, changes={"items": [2]}, merge={"deep": {"b": 3}})
        state = await orchestrator.state(await orchestrator.rerun(changed))
        assert state.request.payload == {"items": [2], "deep": {"a": 1, "b": 3}}
        state = await orchestrator.state(await orchestrator.rerun(RerunRequest(first, payload={"items": []})))
        assert state.request.payload == {"items": []}
        plan = await orchestrator.plan_rerun(RerunRequest(first))
        assert plan is not None and len(await orchestrator.store.unfinished()) == 2
        with pytest.raises(NotFound):
            await orchestrator.rerun(RerunRequest("99"))

    run(scenario)


# ── actors ──────────────────────────────────────────────────────────────────────────────


def test_an_actor_whose_state_is_dropped_reads_everything_again():
    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        actor = orchestrator.cache.get(execution)
        assert actor.state is not None and actor.summary is not None and actor._progress is not None
        stored = structs.replace(await orchestrator.store.summary(execution), error="of another process")
        orchestrator.store._summaries[execution] = stored
        assert (await orchestrator.summary(execution, newest=False)).error is None  # of this process
        actor.reset()
        assert (actor.state, actor.summary, actor._progress) == (None, None, None)
        assert await orchestrator.summary(execution, newest=False) == stored

    run(scenario)


def test_only_the_table_of_an_ended_execution_has_a_known_length():
    async def scenario(orchestrator):
        lengths = []

        async def get(execution_id, length):
            lengths.append(length)

        orchestrator.step_tables.get = get
        execution = await orchestrator.submit(Submission(text=CHAIN))
        await orchestrator.progress(execution)
        await orchestrator.cancel(execution)
        ended = await orchestrator.wait(execution)
        await orchestrator.progress(execution)
        await orchestrator.progress("99")
        assert lengths == [None, ended.seq, None]

    run(scenario)


@pytest.mark.parametrize(
    ("policy", "traced"),
    [
        ("{enabled: true, sample: 1.0, attributes: {team: '{{ workload.team }}'}}", True),
        ("{enabled: true, sample: 0.0}", False),
        ("{enabled: false}", False),
    ],
)
def test_the_span_of_an_ended_execution_is_recorded_if_it_is_sampled(policy, traced):
    async def scenario(orchestrator):
        text = CHAIN + f"executor: {{spec: {{tracing: {policy}}}}}\nworkload: {{team: data}}\n"
        execution = await orchestrator.submit(Submission(text=text))
        actor, spans = orchestrator.cache.get(execution), []
        active = SimpleNamespace(execution=lambda trace, id, **fields: spans.append((trace.sampled, id, fields)))
        actor.trace(active)
        assert spans == []  # it has not ended
        state = actor.state
        actor.summary = ended = structs.replace(actor.summary, status="failed", ended_at=7.0)
        actor.state = None
        actor.trace(active)
        actor.state = state
        actor.trace(active)
        fields = {"attributes": {"team": "data"}, "path": "tests/chain", "status": "failed"}
        instants = {"started_at": ended.started_at, "ended_at": 7.0}
        assert spans == ([(True, execution, fields | instants)] if traced else [])

    run(scenario)


def test_the_ends_of_executions_are_reported_to_lineage_once(monkeypatch):
    ended = []
    monkeypatch.setattr(lineage, "ENDED", ended.append)

    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        assert ended == []
        async with working(Hand(orchestrator.work)):
            await orchestrator.wait(execution, 10)
        assert ended == [execution]

    run(scenario)


def test_few_requests_read_whole_logs_at_a_time():
    class SlowStore(MemoryEventStore):
        reading = most = 0

        async def read(self, execution_id, after=0, limit=None):
            self.reading += 1
            self.most = max(self.most, self.reading)
            await asyncio.sleep(0.001)
            self.reading -= 1
            return await super().read(execution_id, after, limit)

    store = SlowStore()

    async def scenario(orchestrator):
        execution = await orchestrator.submit(Submission(text=CHAIN))
        requests = [orchestrator.why(execution, at=2) for _ in range(6)]
        requests += [orchestrator.compare(execution, execution) for _ in range(6)]
        found = await asyncio.gather(*requests)
        assert found[1:6] == found[:5]
        return store.most

    assert run(scenario, store=store) == 2
