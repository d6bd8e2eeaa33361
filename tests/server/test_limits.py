"""Limits: never exceeded, no waiting run is forgotten, and each waiting run names its limit."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from noetl.core.engine.concurrency_keys import concurrency_keys_of
from noetl.core.model.work import Claim
from noetl.errors import Conflict, NotFound, RequestRefused
from noetl.server.concurrency import limits as module
from noetl.server.concurrency.limits import CHANNEL, MAX_HOLDERS, MAX_NAMED, MOST
from noetl.server.orchestrator.catalog import Source
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.queue import MAX_WEIGHT
from noetl.storage.triggers.memory import MemoryTriggerStore
from tests.server.conftest import Hand, make_orchestrator
from tests.waiting import until

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: {name}}}\n"


def text(name, *steps):
    return HEAD.format(name=name) + "workflow:\n" + "\n".join(f"  - {step}" for step in steps)


WIDE = "{step: start, loop: {in: '{{ range(12) | list }}', iterator: n, spec: {mode: parallel}}, tool: {kind: noop}}"
USES_PG = "{step: start, tool: {kind: noop, input: {auth: pg_main}}}"
PLAIN = "{step: start, tool: {kind: noop}}"


class Counting(MemoryEventStore):
    """What was held at most, of each key, after every append; and how often it was requested."""

    def __init__(self):
        super().__init__()
        self.most = {}
        self.requested = 0

    async def append(self, append):
        await asyncio.sleep(0)  # others decide meanwhile
        await super().append(append)
        for summary in self._summaries.values():
            for key in summary.held or ():
                self.most[key] = max(self.most.get(key, 0), (await super().held([key]))[key])

    async def held(self, keys):
        self.requested += 1
        return await super().held(keys)


@asynccontextmanager
async def control_plane(**limits):
    store = Counting()
    orchestrator = make_orchestrator(store, triggers=MemoryTriggerStore())
    for key, most in limits.items():
        subject, _, name = key.partition("_")
        await orchestrator.limits.set(subject, name, most)
    try:
        yield orchestrator, store
    finally:
        await orchestrator.close()


async def finish(orchestrator, ids, *, slots=4, hands=2):
    working = [asyncio.create_task(Hand(orchestrator.work, worker=f"w{n}", slots=slots).run()) for n in range(hands)]
    try:
        return [(await orchestrator.wait(each, 10)).status for each in ids]
    finally:
        for each in working:
            each.cancel()
        await asyncio.gather(*working, return_exceptions=True)


def test_no_more_runs_of_a_pool_are_leased_than_its_limit_allows():
    async def scenario():
        async with control_plane(pool_default=3) as (orchestrator, store):
            ids = [await orchestrator.submit(Submission(text=text("wide", WIDE))) for _ in range(4)]
            assert await finish(orchestrator, ids, slots=8) == ["success"] * 4
            assert store.most["pool default"] == 3
            assert await store.held(["pool default", "playbook wide"]) == {"pool default": 0, "playbook wide": 0}
            assert await orchestrator.queue.limit_depths() == []

    asyncio.run(scenario())


def test_runs_with_other_credentials_overtake_runs_that_wait_for_a_limit():
    async def scenario():
        async with control_plane(credential_pg_main=1) as (orchestrator, store):
            held = [await orchestrator.submit(Submission(text=text("etl", USES_PG))) for _ in range(5)]
            (first,) = await orchestrator.work.claim(Claim("slow", 4), wait=0)
            free = [await orchestrator.submit(Submission(text=text("other", PLAIN))) for _ in range(5)]
            assert await finish(orchestrator, free) == ["success"] * 5
            assert {(await orchestrator.summary(each)).status for each in held} == {"running"}
            waiting = next(each for each in held if not first.run_id.startswith(each))
            (finding,) = await orchestrator.why(waiting)
            assert finding.subject == "limit"
            owner = first.run_id.partition(":")[0]
            assert f"the limit of credential pg_main: 1 of 1 slots in use, by execution {owner} (etl)" in finding.text
            await orchestrator.work.give_back("slow", [(first.run_id, first.epoch)])
            assert await finish(orchestrator, held) == ["success"] * 5
            assert store.most["credential pg_main"] == 1

    asyncio.run(scenario())


def test_executions_of_a_playbook_wait_in_order_of_arrival():
    async def scenario():
        async with control_plane(playbook_daily=1) as (orchestrator, store):
            steps = (
                "{step: start, tool: {kind: noop}, next: {arcs: [{step: then}]}}",
                WIDE.replace("start", "then"),
            )
            ids = [await orchestrator.submit(Submission(text=text("daily", *steps))) for _ in range(5)]
            ended = []
            watching = [asyncio.create_task(orchestrator.wait(each)) for each in ids]
            for execution_id, task in zip(ids, watching, strict=True):
                task.add_done_callback(lambda _, each=execution_id: ended.append(each))
            assert await finish(orchestrator, ids) == ["success"] * 5
            assert ended == ids
            assert store.most["playbook daily"] == 1

    asyncio.run(scenario())


def test_raising_or_removing_a_limit_releases_waiting_runs_and_lowering_it_revokes_nothing():
    async def scenario():
        async with control_plane(pool_default=0) as (orchestrator, _):
            await orchestrator.submit(Submission(text=text("wide", WIDE)))
            assert await orchestrator.work.claim(Claim("w", 20), wait=0.05) == []
            await orchestrator.limits.set("pool", "default", 5)
            first = await orchestrator.work.claim(Claim("w", 20), wait=5)
            assert len(first) == 5
            await orchestrator.limits.set("pool", "default", 1)
            hand = Hand(orchestrator.work)
            _, more = await orchestrator.work.report("w", [hand.report(order) for order in first[:4]], free=4)
            assert more == []
            document = await orchestrator.limits.document(await orchestrator.limits.get("pool", "default"))
            assert (document["most"], document["held"], document["waiting"]) == (1, 1, 7)
            await orchestrator.limits.remove("pool", "default")
            assert len(await orchestrator.work.claim(Claim("w", 20), wait=5)) == 7
            with pytest.raises(NotFound, match="noetl limit list"):
                await orchestrator.limits.remove("pool", "default")

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["lost", "cancelled", "returned"])
def test_a_slot_is_freed_however_its_run_ends(end):
    async def scenario():
        async with control_plane(pool_default=1) as (orchestrator, store):
            ids = [await orchestrator.submit(Submission(text=text("one", PLAIN))) for _ in range(2)]
            (order,) = await orchestrator.work.claim(Claim("gone", 4), wait=1)
            owner = order.run_id.partition(":")[0]
            if end == "cancelled":
                await orchestrator.cancel(owner)
                ids.remove(owner)
            elif end == "returned":
                await orchestrator.work.give_back("gone", [(order.run_id, order.epoch)])
            else:
                orchestrator.work.expire_all(await orchestrator.state(owner))
            assert await finish(orchestrator, ids) == ["success"] * len(ids)
            assert store.most["pool default"] == 1

    asyncio.run(scenario())


def call(path):
    return f"{{step: start, tool: {{kind: playbook, path: {path}}}}}"


async def play_children(orchestrator, texts, first):
    for source in texts.values():
        await orchestrator.catalog.register(Source(source), at=0.0)
    return [await orchestrator.submit(Submission(path=path)) for path in first]


def test_children_wait_for_the_limit_of_their_playbook_without_holding_a_slot_of_a_worker():
    from noetl.runtime.clock import RealClock
    from noetl.worker.factory import create_pool
    from noetl.worker.host import HostServices

    async def scenario():
        async with control_plane(playbook_child=1, playbook_parent=3) as (orchestrator, store):
            texts = {"parent": text("parent", call("child")), "child": text("child", PLAIN)}
            ids = await play_children(orchestrator, texts, ["parent"] * 6)
            pool = create_pool(
                orchestrator.work, HostServices(orchestrator.results), worker="w", clock=RealClock(), slots=2
            )
            await pool.start()
            try:
                assert [(await orchestrator.wait(each, 10)).status for each in ids] == ["success"] * 6
            finally:
                await pool.stop(grace=0)
            assert store.most["playbook child"] == 1
            assert store.most["playbook parent"] == 3

    asyncio.run(scenario())


def test_playbooks_that_call_each_other_in_a_cycle_do_not_deadlock():
    from noetl.runtime.clock import RealClock
    from noetl.worker.factory import create_pool
    from noetl.worker.host import HostServices

    def calls_while(path):
        tool = f"{{kind: playbook, path: {path}, input: {{n: '{{{{ workload.n - 1 }}}}'}}}}"
        return (
            "{step: start, next: {arcs: [{step: go, when: '{{ workload.n > 0 }}'}]}}",
            f"{{step: go, tool: {tool}}}",
        )

    async def scenario():
        async with control_plane(playbook_a=1, playbook_b=1) as (orchestrator, store):
            head = "workload: {n: 3}\nworkflow:"
            texts = {
                "a": text("a", *calls_while("b")).replace("workflow:", head),
                "b": text("b", *calls_while("a")).replace("workflow:", head),
            }
            orchestrator.start()
            ids = await play_children(orchestrator, texts, ["a", "b", "a", "b"])
            pool = create_pool(
                orchestrator.work, HostServices(orchestrator.results), worker="w", clock=RealClock(), slots=4
            )
            await pool.start()
            try:
                assert [(await orchestrator.wait(each, 20)).status for each in ids] == ["success"] * 4
            finally:
                await pool.stop(grace=0)
            assert await store.held(["playbook a", "playbook b"]) == {"playbook a": 0, "playbook b": 0}

    asyncio.run(scenario())


def test_runs_without_a_limit_cause_no_queries_for_limits():
    async def scenario():
        async with control_plane() as (orchestrator, store):
            ids = [await orchestrator.submit(Submission(text=text("wide", WIDE))) for _ in range(3)]
            assert await finish(orchestrator, ids) == ["success"] * 3
            assert store.requested == 0
            await orchestrator.limits.set("pool", "gpu", 1)
            store.requested = 0
            ids = [await orchestrator.submit(Submission(text=text("wide", WIDE))) for _ in range(3)]
            assert await finish(orchestrator, ids) == ["success"] * 3
            assert store.requested == 0

    asyncio.run(scenario())


def test_executions_of_a_weighted_playbook_get_their_share_of_the_turns():
    async def scenario():
        async with control_plane() as (orchestrator, store):
            assert (await orchestrator.limits.set("playbook", "heavy", weight=3)).most is None
            loop = WIDE.replace("range(12)", "range(40)")
            for name in ("heavy", "light"):
                await orchestrator.submit(Submission(text=text(name, loop)))
            hand, ran = Hand(orchestrator.work, slots=1), []
            orders = await orchestrator.work.claim(Claim("hand", 1), wait=5)
            while len(ran) < 40:
                ran += [(await orchestrator.summary(order.context.execution_id)).path for order in orders]
                _, orders = await orchestrator.work.report("hand", [hand.report(each) for each in orders], free=1)
            assert ran.count("heavy") in range(28, 33)
            assert store.requested == 0  # a weight is no limit
            changed = await orchestrator.limits.set("playbook", "heavy", 2)
            assert (changed.most, changed.weight) == (2, 3)
            with pytest.raises(RequestRefused, match="only playbooks and tenants have a weight"):
                await orchestrator.limits.set("pool", "default", weight=2)
            with pytest.raises(RequestRefused, match="needs a maximum"):
                await orchestrator.limits.set("pool", "default")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("subject", "name", "most", "words"),
    [
        ("worker", "w", 1, "a pool, a credential, a playbook or a label"),
        ("pool", "", 1, "1 to 900 characters"),
        ("pool", "a\nb", 1, "no control characters"),
        ("pool", "a\x1fb", 1, "no control characters"),
        ("pool", " a", 1, "no surrounding blanks"),
        ("pool", "a" * 901, 1, "1 to 900 characters"),
        ("pool", "gpu", -1, "from 0 to"),
        ("pool", "gpu", MOST + 1, "from 0 to"),
        ("label", "tenant", 1, "is not a label"),
        ("label", "=acme", 1, "is not a label"),
    ],
)
def test_an_invalid_limit_is_refused_with_a_reason(subject, name, most, words):
    async def scenario():
        async with control_plane() as (orchestrator, _):
            with pytest.raises(RequestRefused, match=words):
                await orchestrator.limits.set(subject, name, most)

    asyncio.run(scenario())


def test_a_step_needs_its_pool_and_the_credentials_that_its_text_names():
    source = HEAD.format(name="x") + (
        "keychain:\n"
        "  - {name: pg, kind: credential, credential: pg_main}\n"
        "  - {name: token, kind: env, var: T}\n"
        "workbook:\n"
        "  store: {tool: {kind: noop, input: {auth: lake}}}\n"
        "workflow:\n"
        "  - step: start\n"
        "    spec: {pool: gpu}\n"
        "    tool:\n"
        "      - {name: a, kind: noop, input: {auth: pg}}\n"
        "      - {name: b, kind: noop, input: {url: '{{ keychain.token }}', dsn: 'postgresql://h/d'}}\n"
        "      - {name: c, kind: workbook, block: store}\n"
        "      - {name: d, kind: noop, input: {auth: 'postgresql://h/d'}}\n"
    )
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    playbook = compile_playbook(source, file="", specs=specs()).playbook
    assert playbook is not None
    needs = concurrency_keys_of(playbook, playbook.steps[0])
    assert needs == ("pool gpu", "credential lake", "credential pg_main", "credential token")


def test_a_limit_that_is_removed_while_its_slots_are_counted_releases_its_runs():
    class Removing(Counting):
        limiter = None

        async def held(self, keys):
            found = await super().held(keys)
            if self.limiter is not None:
                self.limiter.most = {}  # another request has removed the limit meanwhile
            return found

    async def scenario():
        store = Removing()
        orchestrator = make_orchestrator(store, triggers=MemoryTriggerStore())
        try:
            await orchestrator.limits.set("pool", "default", 0)
            ids = [await orchestrator.submit(Submission(text=text("plain", PLAIN)))]
            await until(orchestrator.queue.limit_depths)
            store.limiter = orchestrator.limiter
            await orchestrator.limiter.release_runs()
            await orchestrator.limiter.release_runs()
            assert await finish(orchestrator, ids) == ["success"]
        finally:
            await orchestrator.close()

    asyncio.run(scenario())


def test_a_limit_lists_some_of_its_holders():
    async def scenario():
        async with control_plane(pool_default=30) as (orchestrator, _):
            for _ in range(MAX_HOLDERS + 1):
                await orchestrator.submit(Submission(text=text("one", PLAIN)))
            leased = 0
            while leased <= MAX_HOLDERS:
                leased += len(await orchestrator.work.claim(Claim("w", 30), wait=1))
            document = await orchestrator.limits.document(await orchestrator.limits.get("pool", "default"))
            assert document["held"] == MAX_HOLDERS + 1
            assert (len(document["holders"]), MAX_HOLDERS) == (20, 20)

    asyncio.run(scenario())


def test_limits_at_their_bounds_are_set_and_a_tenant_has_more_values():
    async def scenario():
        async with control_plane() as (orchestrator, _):
            limits = orchestrator.limits
            await limits.set("pool", "a b", 0)
            await limits.set("credential", "c" * 900, MOST)
            await limits.set("playbook", "p", weight=MAX_WEIGHT)
            await limits.set("label", "team=x", 3)
            await limits.set("label", "tenant=a", weight=2, max_waiting=0, by="ann")
            await limits.set("label", "tenant=a", 7)
            assert orchestrator.limiter.most == {
                "credential " + "c" * 900: MOST, "label team=x": 3, "label tenant=a": 7, "pool a b": 0,
            }  # fmt: skip
            assert (orchestrator.limiter.weights, orchestrator.limiter.max_waiting) == ({"p": MAX_WEIGHT}, {"a": 0})
            kept = await limits.get("label", "tenant=a")
            assert (kept.most, kept.weight, kept.max_waiting, kept.changed_by) == (7, 2, 0, "")
            for subject, name, values, words in (
                ("playbook", "p", {"weight": 0}, "a weight is a number from 1"),
                ("playbook", "p", {"weight": MAX_WEIGHT + 1}, "a weight is a number from 1"),
                ("label", "team=x", {"weight": 1}, "that of a tenant"),
                ("label", "team=x", {"max_waiting": 1}, "only tenants have max_waiting"),
                ("label", "tenant=a", {"max_waiting": -1}, "from 0 to"),
            ):
                with pytest.raises(RequestRefused, match=words):
                    await limits.set(subject, name, **values)
            for work in (limits.get("pool", "ab"), limits.remove("pool", "ab")):
                with pytest.raises(NotFound, match="pool a b"):
                    await work
            assert [each.key for each in await limits.list(after="label team=x", limit=2)] == [
                "label tenant=a",
                "playbook p",
            ]
            await limits.remove("label", "tenant=a")
            assert (orchestrator.limiter.max_waiting, len(orchestrator.limiter.most)) == ({}, 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", [1, 5, 100])
def test_a_limit_that_others_change_at_the_same_time_is_set_again_some_times(lost, monkeypatch):
    class Contended(MemoryTriggerStore):
        left = lost

        async def add(self, trigger):
            if self.left % 2:
                self.left -= 1
                raise Conflict("it exists now")
            await super().add(trigger)

        async def save(self, trigger):
            self.left -= 1
            return self.left < 0 and await super().save(trigger)

    async def scenario():
        triggers = Contended()
        orchestrator = make_orchestrator(triggers=triggers)
        monkeypatch.setattr(module, "MAX_ATTEMPTS", 8)
        try:
            triggers.left = 1
            await orchestrator.limits.set("pool", "gpu", 1)
            triggers.left = lost
            if lost > 8:
                with pytest.raises(Conflict, match="changed at the same time"):
                    await orchestrator.limits.set("pool", "gpu", 2)
            else:
                await orchestrator.limits.set("pool", "gpu", 2)
            assert orchestrator.limiter.most == {"pool gpu": 1 if lost > 8 else 2}
        finally:
            await orchestrator.close()

    asyncio.run(scenario())


def test_servers_notify_each_other_of_changed_limits(monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 600.0)

    class Notifier:
        def __init__(self):
            self.published = []
            self.subscribed = {}

        def publish(self, channel, message, *, always=False):
            self.published.append((channel, message, always))

        def subscribe(self, channel, on_message):
            self.subscribed[channel] = on_message

    async def scenario():
        notifier = Notifier()
        async with control_plane() as (orchestrator, _):
            limits = orchestrator.limits
            here = module.Limits(
                limits._triggers, orchestrator.limiter, limits._store, limits._queue, limits._clock, notifier
            )
            await here.set("pool", "gpu", 1)
            assert notifier.published == [(CHANNEL, "changed", True)]
            here.start()
            await limits._triggers.remove("limit", "pool gpu")
            await asyncio.sleep(0)
            notifier.subscribed[CHANNEL]("changed")
            await until(lambda: not orchestrator.limiter.most)
            await here.close()
            assert here._watch.done()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("others", "named"), [(0, 0), (1, 1), (2, 2), (MAX_NAMED, MAX_NAMED), (MAX_NAMED + 2, MAX_NAMED)]
)
def test_a_reached_limit_names_the_executions_that_hold_it(others, named):
    async def scenario():
        async with control_plane(pool_default=max(1, others)) as (orchestrator, _):
            ids = [await orchestrator.submit(Submission(text=text("one", PLAIN))) for _ in range(others)]
            taken = 0
            while taken < others:
                taken += len(await orchestrator.work.claim(Claim("w", 30), wait=1))
            waiting = await orchestrator.submit(Submission(text=text("one", PLAIN)))
            reached = await orchestrator.limits.reached(await orchestrator.state(waiting))
            if not others:
                assert reached == {}
                return
            names = [f"{each} (one)" for each in ids[:named]] + ([f"{others - named} more"] if others > named else [])
            what = "executions" if len(names) > 1 else "execution"
            assert reached == {
                "pool default": f"the limit of pool default: {others} of {others} slots in use, by {what} {', '.join(names)}"
            }

    asyncio.run(scenario())
