"""The worker-facing service, the limiter and the admission: exactly which commands, leases and queue entries follow."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from noetl.core.engine.commands import ClaimAnyRun, ClaimRun, ExpireLease, Reply, ReportRun, ReturnRun
from noetl.core.model import events as ev
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunContext, RunOrder
from noetl.errors import CorruptLog, NotFound, SecretUnavailable, StoreUnavailable, TooManyRequests
from noetl.server.composition import Stores, build_orchestrator
from noetl.server.concurrency import admission as admission_module
from noetl.server.concurrency.admission import Admission
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.orchestrator.reply import ReplyFuture
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.events import ExecutionSummary
from noetl.storage.ports.queue import LimitDepth, QueuedRun
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.tools.registry import specs
from tests.server.conftest import NoResults


class Clock:
    time = 100.0

    def monotonic(self):
        return self.time

    async def sleep(self, seconds):
        self.time += seconds
        await asyncio.sleep(0)


class Background:
    """Runs nothing by itself: `run` does what was begun."""

    def __init__(self):
        self.begun = []

    def run_until_done(self, name, work):
        self.begun.append((name, work))

    def run_single(self, name, work):
        if name not in self.names:
            self.begun.append((name, work))

    @property
    def names(self):
        return [name for name, _ in self.begun]

    async def run(self):
        while self.begun:
            _, work = self.begun.pop(0)
            await work()


class Executions:
    """Actors that note commands and answer as scripted, by the id of the run or the execution."""

    def __init__(self, **states):
        self.sent = []
        self.answers = {}
        self.states = states

    def send(self, execution_id, command):
        self.sent.append((execution_id, command))
        reply = ReplyFuture()
        key = getattr(command, "run_id", None) or execution_id
        reply.set_result(self.answers.get(key, Reply(True)))
        return reply

    def get(self, execution_id):
        async def load():
            if execution_id not in self.states:
                raise NotFound(f"there is no execution {execution_id}")
            return self.states[execution_id]

        state = self.states.get(execution_id)
        send = partial(self.send, execution_id)
        return SimpleNamespace(send=send, load=load, refresh=load, state=state)


class Queue:
    def __init__(self, *runs, depths=(), tenants=None):
        self.runs = list(runs)
        self.taken = []
        self.parked = []
        self.released = []
        self.depths = list(depths)
        self.tenants = tenants or {}
        self.counts = 0

    async def take(self, claim):
        self.taken.append(claim)
        runs, self.runs = self.runs, []
        return runs

    async def put(self, runs):
        self.parked += runs

    async def limit_depths(self):
        return self.depths

    async def release_waiting(self, limit, most, *, whole=False, also=()):
        self.released.append((limit, most, whole, list(also)))

    def waiting_tenants(self, pool):
        return set(self.tenants)

    async def tenant_depths(self):
        self.counts += 1
        return self.tenants


class Limits:
    def __init__(self):
        self.unused, self.put = [], []

    def tenant_of(self, labels):
        return labels.get("tenant", "")

    def slot_unused(self, run):
        self.unused.append(run.run_id)

    async def park(self, run, limit):
        self.put.append((run.run_id, limit))


def order(run_id, epoch=1):
    return RunOrder(run_id, epoch, RunContext(id="c", playbook="d", execution_id="1", step="s", step_run_id=run_id))


def service(executions=None, queue=None, **fields):
    """A service to which the worker w has sent a claim before."""
    work = WorkerService(
        executions=executions or Executions(), queue=queue or Queue(), catalog=None, limiter=Limits(), quotas=None,
        background=Background(), clock=Clock(), task_logs=None, **fields,
    )  # fmt: skip
    work._dispatcher._last["w"] = Claim("w", 1)
    return work


def report(run_id, epoch=1):
    return Report(run_id, epoch, 1, ())


# ── reports and claims ──────────────────────────────────────────────────────────────────


def test_a_report_sends_its_events_then_claims_for_the_executions_and_from_the_queue():
    queued = QueuedRun("3", "3:s:1")
    executions, queue = Executions(), Queue(queued)
    executions.answers = {
        "1": Reply(True, orders=(order("1:b:1"),)),
        "2": Reply(True, orders=(order("2:b:1"),)),
        "3:s:1": Reply(True, orders=(order("3:s:1"),)),
    }
    work = service(executions, queue)
    reports = [report("1:a:1"), report("2:a:1"), report("1:a:1:0")]
    acks, orders = asyncio.run(work.report("w", reports, free=4))
    assert acks == [ReportAck(each.run_id, True) for each in reports]
    assert [each.run_id for each in orders] == ["3:s:1", "1:b:1", "2:b:1"]
    assert executions.sent == [
        ("1", ReportRun(reports[0], "w")),
        ("2", ReportRun(reports[1], "w")),
        ("1", ReportRun(reports[2], "w")),
        ("1", ClaimAnyRun("w", 2, None, 1)),  # three slots are left, in equal shares
        ("2", ClaimAnyRun("w", 1, None, 1)),
        ("3", ClaimRun("w", "3:s:1")),
    ]
    assert [claim.slots for claim in queue.taken] == [1]


def test_a_report_without_free_slots_claims_nothing():
    executions, queue = Executions(), Queue(QueuedRun("3", "3:s:1"))
    acks, orders = asyncio.run(service(executions, queue).report("w", [report("1:a:1")]))
    assert (len(acks), orders, queue.taken) == (1, [], [])
    assert executions.sent == [("1", ReportRun(report("1:a:1"), "w"))]


def test_a_report_of_a_worker_whose_pool_is_not_known_gets_no_runs():
    executions, queue = Executions(), Queue(QueuedRun("3", "3:s:1"))
    acks, orders = asyncio.run(service(executions, queue).report("other", [report("1:a:1")], free=4))
    assert (len(acks), orders, queue.taken) == (1, [], [])
    assert executions.sent == [("1", ReportRun(report("1:a:1"), "other"))]


@pytest.mark.parametrize(("free", "share"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_one_in_eight_slots_is_for_the_queue(free, share):
    queue = Queue()
    asyncio.run(service(queue=queue).report("w", [report("1:a:1")], free=free))
    assert [claim.slots for claim in queue.taken] == [share]


@pytest.mark.parametrize(
    ("waiting", "reporting", "share"),
    [(("a",), ("a",), 2), (("a", "b"), ("a",), 16), (("b",), ("a",), 16), (("",), ("a",), 16), (("a",), ("a", ""), 16)],
)
def test_all_slots_are_for_the_queue_if_several_tenants_can_use_them(waiting, reporting, share):
    queue = Queue(tenants=dict.fromkeys(waiting, 1))
    states = {
        str(n): SimpleNamespace(request=SimpleNamespace(labels={"tenant": each})) for n, each in enumerate(reporting)
    }
    reports = [report(f"{execution_id}:a:1") for execution_id in (*states, "9")]  # 9 is not in memory
    asyncio.run(service(Executions(**states), queue).report("w", reports, free=16))
    assert [claim.slots for claim in queue.taken] == [share]


def test_slots_are_shared_by_cost_and_executions_without_a_share_get_no_claim():
    executions, queue = Executions(), Queue(QueuedRun("3", "3:s:1", cost=2))
    asyncio.run(service(executions, queue).report("w", [report("1:a:1"), report("2:a:1")], free=3))
    claims = [(to, command.slots) for to, command in executions.sent if isinstance(command, ClaimAnyRun)]
    assert claims == [("1", 1)]


def test_a_report_on_an_unknown_execution_is_refused_and_another_error_returns_the_orders():
    executions = Executions()
    executions.answers = {"1": NotFound("gone")}
    acks, _ = asyncio.run(service(executions).report("w", [report("1:a:1")]))
    assert acks == [ReportAck("1:a:1", False)]

    executions, queue = Executions(), Queue(QueuedRun("3", "3:s:1"))
    executions.answers = {"1": StoreUnavailable("down"), "3:s:1": Reply(True, orders=(order("3:s:1", 4),))}
    work = service(executions, queue)
    with pytest.raises(StoreUnavailable):
        asyncio.run(work.report("w", [report("1:a:1")], free=1))
    assert work.background.names == ["returning 1 runs"]
    asyncio.run(work.background.run())
    assert executions.sent[-1] == ("3", ReturnRun("3:s:1", 4, False))


def test_runs_that_cannot_be_leased_are_parked_enqueued_again_or_dropped():
    names = ("taken", "lost", "limited", "reserved", "gone", "corrupt", "down", "bug")
    runs = [QueuedRun("1", name, limit="pool gpu", turn=3) for name in names]
    executions = Executions()
    executions.answers = {
        "taken": Reply(True, orders=(order("taken"),)), "lost": Reply(False), "limited": Reply(False, limit="pool gpu"),
        "reserved": Reply(False, reserved=True), "gone": NotFound("gone"), "corrupt": CorruptLog("bad"),
        "down": StoreUnavailable("down"), "bug": ValueError("bug"),
    }  # fmt: skip
    work = service(executions, queue := Queue())
    leased = asyncio.run(work._lease_runs(Claim("w", 8), runs))
    assert [each.run_id for each in leased] == ["taken"]
    assert work.limiter.unused == ["lost", "limited", "reserved"]
    again = [f"enqueueing {name} again" for name in ("reserved", "down", "bug")]
    assert work.background.names == ["parking limited", *again]
    asyncio.run(work.background.run())
    assert work.limiter.put == [("limited", "pool gpu")]
    assert queue.parked == [QueuedRun("1", name, limit=None, turn=3) for name in ("reserved", "down", "bug")]


def test_orders_of_a_worker_that_disconnects_are_returned_when_they_arrive():
    async def scenario():
        executions = Executions()
        pending = {}

        def send(execution_id, command):
            executions.sent.append((execution_id, command))
            pending[getattr(command, "run_id", execution_id)] = reply = ReplyFuture()
            return reply

        executions.send = send
        work = service(executions, Queue(QueuedRun("3", "3:s:1"), QueuedRun("3", "3:s:2")))
        reporting = asyncio.create_task(work.report("w", [report("1:a:1")], free=4))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reporting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reporting
        pending["3:s:1"].set_result(Reply(True, orders=(order("3:s:1", 2),)))
        pending["3:s:2"].set_result(StoreUnavailable("down"))
        pending["1"].set_result(Reply(True, orders=(order("1:b:1", 3),)))
        assert work.background.names == ["returning 1 runs", "enqueueing 3:s:2 again", "returning 1 runs"]
        given = len(executions.sent)
        executions.send = Executions().send
        work.executions = back = Executions()
        await work.background.run()
        assert back.sent == [("3", ReturnRun("3:s:1", 2, False)), ("1", ReturnRun("1:b:1", 3, False))]
        assert work.queue.parked == [QueuedRun("3", "3:s:2")]
        assert given == 4

    asyncio.run(scenario())


def test_a_worker_returns_runs_and_says_which_have_begun():
    executions = Executions()
    asyncio.run(service(executions).give_back("w", [("1:a:1", 1), ("2:a:1", 5)], begun={"2:a:1"}))
    assert executions.sent == [("1", ReturnRun("1:a:1", 1, False)), ("2", ReturnRun("2:a:1", 5, True))]


@pytest.mark.parametrize(("problem", "raised"), [(NotFound("gone"), False), (StoreUnavailable("down"), True)])
def test_a_run_of_an_execution_that_cannot_continue_is_not_returned_and_another_error_is_raised(problem, raised):
    executions = Executions()
    executions.answers = {"1:a:1": problem}
    returned = service(executions).give_back("w", [("1:a:1", 1), ("2:a:1", 5)])
    if raised:
        with pytest.raises(StoreUnavailable):
            asyncio.run(returned)
    else:
        asyncio.run(returned)
    assert [execution_id for execution_id, _ in executions.sent] == ["1", "2"]


# ── leases ──────────────────────────────────────────────────────────────────────────────


def recorded(*bodies):
    return [SimpleNamespace(body=body) for body in bodies]


def held(work):
    return sorted((lease.run_id, lease.epoch, lease.worker) for lease in work.leases._leases.values())


def test_leases_follow_the_events():
    work = service(term=30.0)
    start = {"step": "s", "step_run_id": "1:s:1", "worker": "w", "epoch": 2}
    runs = [ev.StepStarted(**start), ev.IterationStarted(**{**start, "step_run_id": "1:l:1"}, path=(3,))]
    work.follow(recorded(*runs, ev.StepStarted(**{**start, "step_run_id": "1:b:1"}, by_server=True)))
    assert held(work) == [("1:l:1/3", 2, "w"), ("1:s:1", 2, "w")]
    call = {"step": "s", "step_run_id": "1:s:1", "task": "t", "playbook": "p"}
    work.follow(recorded(ev.ChildRequested(**call, wait=False)))
    assert len(held(work)) == 2
    work.follow(recorded(ev.ChildRequested(**call, wait=True)))
    assert held(work) == [("1:l:1/3", 2, "w")]


def lease_state(*leased, execution_id="1"):
    """A state with these leases: run, epoch, worker."""
    open_runs = {
        run: SimpleNamespace(id=run, status="leased", epoch=epoch, worker=worker, position=None)
        for run, epoch, worker in leased
    }
    return SimpleNamespace(execution_id=execution_id, open=open_runs)


def test_a_folded_log_grants_revokes_and_expires_leases(monkeypatch):
    def leases(state):
        return [(run.id, run.epoch, run.worker) for run in state.open.values()]

    monkeypatch.setattr("noetl.server.dispatch.worker_service.leases", leases)
    work = service(executions := Executions(), term=30.0)
    work.leases.grant("1:a:1", 1, "w")
    work.clock.time += 20
    work.adopt(lease_state(("1:a:1", 1, "w"), ("1:b:1", 2, "v")))
    assert held(work) == [("1:a:1", 1, "w"), ("1:b:1", 2, "v")]
    work.clock.time += 10
    assert [lease.run_id for lease in work.leases.expired()] == ["1:a:1"]  # its term was not extended
    work.leases.grant("2:a:1", 1, "w")
    work.revoke_others(lease_state(("1:b:1", 2, "v")))
    assert held(work) == [("1:b:1", 2, "v"), ("2:a:1", 1, "w")]
    assert asyncio.run(work.revoked("w", wait=0)) == ["1:a:1"]
    work.expire_all(lease_state(("1:b:1", 2, "v")))
    asyncio.run(work.background.run())
    assert executions.sent == [("1", ExpireLease("1:b:1", 2, stopped=True))]


def test_a_heartbeat_names_runs_that_are_lost_ended_and_unreported():
    state = lease_state(("1:mine:1", 2, "w"), ("1:moved:1", 5, "v"), ("1:old:1", 9, "w"))
    state.open["1:queued:1"] = SimpleNamespace(status="queued", epoch=1, worker="w")
    work = service(Executions(**{"1": state}), term=30.0)
    work.leases.grant("1:kept:1", 1, "w")
    work.leases.grant("1:fresh:1", 1, "w")
    work.leases._leases["1:kept:1"].since -= 1.0  # exactly the time that a delivery may take
    runs = [("1:mine:1", 2), ("1:moved:1", 4), ("1:old:1", 8), ("1:queued:1", 1), ("1:ended:1", 1), ("7:x:1", 1)]
    reply = asyncio.run(work.extend("w", runs))
    lost = ["1:moved:1", "1:old:1", "1:queued:1", "1:ended:1", "7:x:1"]
    assert reply == HeartbeatReply(lost, [("1:kept:1", 1)], 30.0, ended=["1:ended:1"])
    assert ("1:mine:1", 2, "w") in held(work)


def test_a_lease_expires_exactly_at_its_end_and_its_worker_is_dismissed():
    async def scenario():
        work = service(executions := Executions(), term=2.0)
        work.leases.grant("1:a:1", 3, "w")
        assert not work.watches_leases
        work.start()
        assert work.watches_leases
        for _ in range(20):
            await asyncio.sleep(0)
        await work.background.run()
        assert executions.sent == [("1", ExpireLease("1:a:1", 3))]
        assert held(work) == []
        watch = work._watch
        await work.close()
        assert watch.cancelled() and work._watch is None

    asyncio.run(scenario())


def test_a_lease_table_without_term_watches_nothing():
    work = service()
    work.start()  # without an event loop
    assert work.watches_leases and work._watch is None


class Heartbeats:
    def __init__(self, silent):
        self.silent, self.recorded = silent, []

    async def record_heartbeat(self, worker, runs):
        self.recorded.append((worker, runs))

    async def seconds_since_heartbeat(self, worker, run_id, epoch):
        if isinstance(self.silent, Exception):
            raise self.silent
        return self.silent

    async def silent_together(self, worker, seconds):
        if isinstance(self.silent, Exception):
            raise self.silent
        return seconds == self.silent


@pytest.mark.parametrize(
    ("silent", "left"), [(4.0, 6.0), (9.5, 0.5), (10.0, None), (None, None), (StoreUnavailable("down"), 10.0)]
)
def test_a_heartbeat_on_another_server_prolongs_a_lease(silent, left):
    async def scenario():
        work = service(term=10.0, heartbeats=Heartbeats(silent))
        work.leases.grant("1:a:1", 1, "w")
        work.clock.time += 10
        (lease,) = work.leases.expired()
        seen = await work._seen_elsewhere(work.heartbeats, lease, 10.0)
        assert seen is (left is not None)
        assert work.leases.remaining(lease) == (left if seen else 0.0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("silent", "together"), [(5.0, True), (10.5, False), (StoreUnavailable("down"), True)])
def test_workers_are_lost_together_that_are_silent_for_half_of_a_term(silent, together):
    work = service(term=10.0, heartbeats=Heartbeats(silent))
    assert asyncio.run(work._lost_together("w", 10.0)) is together


@pytest.mark.parametrize(
    ("run", "current"),
    [(("1:a:1", 2, "w"), True), (("1:a:1", 3, "w"), False), (("1:b:1", 2, "w"), False), (None, True)],
)
def test_a_lease_is_current_if_the_log_has_it_or_cannot_be_read(run, current):
    states = {} if run is None else {"1": lease_state(run)}
    work = service(Executions(**states), term=10.0, heartbeats=Heartbeats(None))
    work.leases.grant("1:a:1", 2, "w")
    (lease,) = work.leases.of_execution("1")
    assert asyncio.run(work._is_current(lease)) is current
    assert asyncio.run(work.extend("w", [])).unknown == []  # it is not older than a delivery takes
    lease.since -= 5
    assert asyncio.run(work.extend("w", [])).unknown == ([("1:a:1", 2)] if current else [])
    assert len(work.leases) == current


def test_without_a_keychain_each_name_has_an_error():
    with pytest.raises(SecretUnavailable) as problem:
        asyncio.run(service().secrets("1", ["a", "b"]))
    assert problem.value.reasons == dict.fromkeys(["a", "b"], "this installation has no keychain")


# ── limits ──────────────────────────────────────────────────────────────────────────────


def row(execution_id, path, parent=None, held=None, status="running"):
    return ExecutionSummary(execution_id, path, status, 0.0, parent=parent, held=held)


class Store:
    def __init__(self, *rows, held=None):
        self.rows = {each.execution_id: each for each in rows}
        self.slots = held or {}

    async def held(self, keys):
        return {key: self.slots.get(key, 0) for key in keys}

    async def holders(self, keys):
        return {key: [each for each in self.rows.values() if (each.held or {}).get(key)] for key in keys}

    async def executions(self, where):
        return [each for each in self.rows.values() if each.path == where.path and each.status in where.status]

    async def summary(self, execution_id):
        return self.rows.get(execution_id)


def limiter(store, queue, **most):
    made = ConcurrencyLimiter(store, queue, Background())
    made.most = {key.replace("_", " "): value for key, value in most.items()}
    return made


def test_as_many_runs_are_released_as_slots_are_free():
    depths = [LimitDepth("pool gpu", 5), LimitDepth("pool full", 5), LimitDepth("pool removed", 7)]
    made = limiter(Store(held={"pool gpu": 1, "pool full": 2}), queue := Queue(depths=depths), pool_gpu=3, pool_full=2)
    asyncio.run(made.release_runs())
    assert queue.released == [("pool gpu", 2, False, []), ("pool removed", 7, False, [])]
    queue.released.clear()
    asyncio.run(made.release_runs({"pool gpu"}))
    assert queue.released == [("pool gpu", 2, False, [])]


def test_children_that_wait_for_their_own_callers_are_released_beyond_the_limit():
    rows = [
        row("1", "a", held={"playbook a": 1}),
        row("2", "b", parent="1", held={"playbook b": 1}),
        row("3", "a", parent="2"),  # its caller's caller has the slot
        row("4", "a"),  # waits without a caller
        row("5", "a", parent="9"),  # of another playbook that is not limited
        row("9", "z"),
    ]
    store = Store(*rows, held={"playbook a": 1})
    made = limiter(store, queue := Queue(depths=[LimitDepth("playbook a", 3)]), playbook_a=1)
    asyncio.run(made.release_runs())
    assert queue.released == [("playbook a", 0, True, ["1", "3"])]
    queue.released.clear()
    asyncio.run(made.release_runs({"playbook a"}))  # a check of some limits does not search for cycles
    assert queue.released == [("playbook a", 0, True, ["1"])]
    made.most = {"playbook a": 2}
    queue.released.clear()
    asyncio.run(made.release_runs())
    assert queue.released == [("playbook a", 1, True, ["1"])]


def test_a_cycle_over_children_of_several_playbooks_is_found():
    rows = [
        row("1", "a", held={"playbook a": 1}),
        row("2", "b", held={"playbook b": 1}),
        row("3", "b", parent="1"),  # a waits for b
        row("4", "a", parent="2"),  # b waits for a
    ]
    made = limiter(Store(*rows), Queue(), playbook_a=1, playbook_b=1)
    assert asyncio.run(made._is_in_cycle(rows[2])) and asyncio.run(made._is_in_cycle(rows[3]))
    assert asyncio.run(made._limited_callers(rows[2])) == {"a"}
    made.most = {"playbook a": 1}
    assert not asyncio.run(made._is_in_cycle(rows[2]))


def test_an_append_rechecks_the_limits_whose_slots_it_freed_and_those_of_executions_that_begin():
    made = limiter(Store(), Queue(), pool_gpu=1, pool_cpu=1, playbook_p=1)
    made.slots_changed({"pool gpu": 2, "pool cpu": 1, "pool none": 4}, {"pool gpu": 1, "pool cpu": 1})
    assert made._to_recheck == {"pool gpu"}
    made.slots_changed(None, {"playbook p": 1, "pool cpu": 1})
    assert made._to_recheck == {"pool gpu", "playbook p"}
    assert made._background.names == ["releasing runs that wait for a limit"]


def test_a_parked_run_keeps_its_turn_only_for_the_same_limit():
    made = limiter(Store(), queue := Queue(), pool_gpu=1)
    run = QueuedRun("1", "1:a:1", limit="pool gpu", turn=7)
    asyncio.run(made.park(run, "pool gpu"))
    asyncio.run(made.park(run, "pool cpu"))
    assert [(each.limit, each.turn) for each in queue.parked] == [("pool gpu", 7), ("pool cpu", None)]
    assert made._to_recheck == {"pool gpu", "pool cpu"}
    made._to_recheck.clear()
    made.slot_unused(QueuedRun("1", "1:a:1"))
    assert made._to_recheck == set()
    made.slot_unused(run)
    assert made._to_recheck == {"pool gpu"}


def test_a_failed_release_is_repeated_for_the_same_limits():
    made = limiter(Store(), Queue(), pool_gpu=1)

    async def failing(keys):
        raise StoreUnavailable("down")

    made.release_runs = failing
    made.recheck(["pool gpu"])
    with pytest.raises(StoreUnavailable):
        asyncio.run(made._recheck_pending())
    assert made._to_recheck == {"pool gpu"}


# ── admission ───────────────────────────────────────────────────────────────────────────


def admission(queue, max_waiting=None, pending=(), **tenants):
    made = limiter(Store(), queue)
    made.max_waiting = tenants
    return Admission(queue, made, Background(), Clock(), max_waiting, lambda: pending)


def test_requests_are_refused_while_too_many_runs_wait_and_counted_again():
    made = admission(queue := Queue(tenants={"": 1}), 3, pending=[QueuedRun("1", "1:a:1")])
    asyncio.run(made.check(""))
    assert (queue.counts, made._background.names) == (0, ["counting waiting runs"])
    asyncio.run(made._background.run())
    assert (queue.counts, made._waiting) == (1, {"": 2})
    asyncio.run(made.check(""))  # the third
    assert made._background.names == []  # it was counted in this second
    made._clock.time += 0.5
    queue.tenants = {"": 5}
    with pytest.raises(TooManyRequests) as refused:
        asyncio.run(made.check(""))
    assert str(refused.value).startswith("6 runs wait (at most 3, server.max_waiting_runs)")
    assert queue.counts == 2
    queue.tenants = {}
    made._clock.time += 0.5
    asyncio.run(made.check(""))  # another process took them: one is pending, and this request
    assert (queue.counts, made._waiting) == (3, {"": 2})


def test_a_tenant_has_its_own_bound():
    made = admission(Queue(tenants={"t": 2, "u": 9}), t=2)
    asyncio.run(made._count())
    with pytest.raises(
        TooManyRequests, match=r"^2 runs of tenant t wait \(at most 2, set by `noetl limit set label`\)"
    ):
        asyncio.run(made.check("t"))
    asyncio.run(made.check("u"))
    assert made._waiting == {"t": 2, "u": 10}


def test_without_bounds_nothing_is_counted():
    made = admission(queue := Queue())
    asyncio.run(made.check(""))
    assert (queue.counts, made._waiting, made._background.names) == (0, {}, [])


def test_a_tenant_may_store_as_many_requests_at_once_as_are_left_for_others(monkeypatch):
    monkeypatch.setattr(admission_module, "MAX_STARTING", 4)
    made = admission(Queue())
    labels = {"tenant": "t"}
    with made.start(labels):
        with made.start(labels) as second:
            asyncio.run(second.check(labels))
            assert (made.starting, made.accepted) == ({"t": 2}, {"t": 1})
            with pytest.raises(TooManyRequests, match=r"^2 requests of tenant t are being stored"):
                made.start(labels).__enter__()
            with made.start({}):
                assert made.starting == {"t": 2, "": 1}
        assert (made.starting, made.accepted) == ({"t": 1}, {})
    assert made.starting == {}


@pytest.mark.parametrize(
    ("worker", "epoch", "names", "refused"),
    [
        ("w", 1, ["api"], []),
        ("w", 1, ["api", "other"], ["other"]),
        ("w", 2, ["api"], ["api"]),
        ("x", 1, ["api"], ["api"]),
    ],
)
def test_a_worker_gets_the_secrets_that_its_leased_runs_declare(worker, epoch, names, refused):
    class OneKeychain:
        async def check(self, entries):
            return {}

        async def resolve(self, entries, names, **_):
            return dict.fromkeys(names, "value")

    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\n"
        "keychain: [{name: api, kind: env, var: A}, {name: other, kind: env, var: B}]\n"
        "workflow: [{step: start, tool: {kind: python, code: 'result = 1', input: {a: '{{ keychain.api }}'}}}]\n"
    )

    async def scenario():
        stores = Stores(MemoryEventStore(), MemoryPlaybookStore(), NoResults(), MemoryRunQueue())
        orchestrator = build_orchestrator(stores, specs, keychain=OneKeychain())
        try:
            execution = await orchestrator.submit(Submission(text=text))
            (order,) = await orchestrator.work.claim(Claim("w", 1), wait=1)
            runs = [(order.run_id, epoch)]
            if not refused:
                found = await orchestrator.work.secrets_of_runs(execution, worker, runs, names)
                assert found == dict.fromkeys(names, "value")
                return
            with pytest.raises(SecretUnavailable) as problem:
                await orchestrator.work.secrets_of_runs(execution, worker, runs, names)
            assert list(problem.value.reasons) == refused
        finally:
            await orchestrator.close()

    asyncio.run(scenario())
