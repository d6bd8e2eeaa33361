"""Planted bugs, each of which removes one rule: the simulation must catch every one.

A simulation without violations is evidence only if it finds existing bugs. Each planted bug is a small
patch of production code (or of the simulated store); `first_violation` runs seeds with it until an
invariant is violated. A patched function is named by reference, so that renaming it elsewhere cannot
leave a patch without effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec

from noetl.core.engine import accept, advance, decide, outstanding, snapshot
from noetl.core.engine.commands import CancelExecution, ExpireLease, FireTimer, Reply, ReportRun, SendSignal
from noetl.core.engine.effects import EnqueueRun, SetTimer, StartChild
from noetl.core.engine.evolve import runs, steps
from noetl.core.engine.handlers import admission, compensation, execution_completion, loops, reduce, routing
from noetl.core.model.events import CompensationDone, ExecutionResumed, PlaybookProcessed
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.dispatch.leases import Leases
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.lifecycle import children, recovery
from noetl.server.lifecycle.wait_timers import WaitTimers
from noetl.server.orchestrator.effect_handler import EffectHandler
from noetl.server.orchestrator.execution_actor import ExecutionActor
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events import memory
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.events import Append
from noetl.worker import runner
from noetl.worker.reports import RunReports
from tests.simulation.cluster import Cluster
from tests.simulation.effects import EffectLedger
from tests.simulation.planted_edits import EDITS, edited
from tests.simulation.scenarios import ScenarioResult, simulate
from tests.simulation.stores import FaultyStore

PlantedBug = Callable[[], AbstractContextManager[Any]]
PLANTED_BUGS: dict[str, PlantedBug] = {}


def _planted(name: str) -> Callable[[PlantedBug], PlantedBug]:
    def register(bug: PlantedBug) -> PlantedBug:
        PLANTED_BUGS[name] = bug
        return bug

    return register


PLANTED_BUGS.update({name: partial(edited, name) for name in EDITS})


def first_violation(name: str, seeds: Sequence[int] = range(400), faults: int = 60) -> ScenarioResult | None:
    """The first result in which the planted bug violates an invariant; None if there is none."""
    for seed in seeds:
        with PLANTED_BUGS[name]():
            result = simulate(seed, faults, executions=4)
        if result.violations:
            return result
    return None


def _replace(owner: Any, original: Any, replacement: Any) -> Any:
    """Patch the attribute of `owner` that has the name of the function `original`."""
    return patch.object(owner, original.__name__, replacement)


# ── leases and reports ──────────────────────────────────────────────────────────────────


@_planted("reports of an old epoch are accepted")
def _() -> Any:
    handle = accept.COMMAND_HANDLERS[ReportRun]

    def unfenced(state: Any, command: Any, env: Any, record: Any) -> Reply:
        run = state.open.get(command.report.run_id)
        if run is not None:
            command = msgspec.structs.replace(command, report=msgspec.structs.replace(command.report, epoch=run.epoch))
        return handle(state, command, env, record)

    return patch.dict(accept.COMMAND_HANDLERS, {ReportRun: unfenced})


@_planted("a claim does not raise the epoch")
def _() -> Any:
    def first_epoch(claim: Any) -> Any:
        def claimed(*arguments: Any) -> Any:
            events, cause = claim(*arguments)
            return [msgspec.structs.replace(event, epoch=1) for event in events], cause

        return claimed

    return _all_of(
        _replace(accept, accept.claim, first_epoch(accept.claim)),
        _replace(advance, advance.claim, first_epoch(advance.claim)),
    )


@_planted("repeated events are accepted as new ones")
def _() -> Any:
    return _replace(accept, accept.checksums_seen, lambda run: {})


@_planted("leases never expire")
def _() -> Any:
    return _replace(Leases, Leases.expired, lambda self: [])


@_planted("leases are not watched after a restart")
def _() -> Any:
    return _replace(WorkerService, WorkerService.adopt, lambda self, state: None)


@_planted("an expired lease is dropped, but the run is not queued again")
def _() -> Any:
    return patch.dict(accept.COMMAND_HANDLERS, {ExpireLease: lambda state, command, env, record: Reply(True)})


@_planted("a lease whose order was lost stays until it expires")
def _() -> Any:
    return _replace(Leases, Leases.unreported, lambda self, worker, runs, grace: [])


@_planted("a run with a lost lease is not enqueued again")
def _() -> Any:
    perform = EffectHandler._perform

    def forgetful(self: Any, execution_id: str, effects: Any, path: str, **more: Any) -> None:
        state = self.executions.get(execution_id).state
        lost = {run.id for run in state.open.values() if run.epoch} if state else set()
        rest = [each for each in effects if not (isinstance(each, EnqueueRun) and each.run_id in lost)]
        perform(self, execution_id, rest, path, **more)

    return _replace(EffectHandler, perform, forgetful)


@_planted("a new lease restarts at the first task")
def _() -> Any:
    order_of = advance.order_of
    return _replace(advance, order_of, lambda state, run: msgspec.structs.replace(order_of(state, run), position=None))


# ── attempts ────────────────────────────────────────────────────────────────────────────


@_planted("a lost worker uses up no attempt")
def _() -> Any:
    return _order_with(lambda order: msgspec.structs.replace(order, lost=0))


@_planted("the start of a task is not stored before its tool runs")
def _() -> Any:
    async def queued(self: Any, events: Any = ()) -> None:
        self.queue(events)

    return _replace(RunReports, RunReports.flush, queued)


@_planted("a tool runs twice in one attempt")
def _() -> Any:
    call_tool = runner.call_tool

    async def twice(*arguments: Any) -> Any:
        await call_tool(*arguments)
        return await call_tool(*arguments)

    return _replace(runner, call_tool, twice)


@_planted("an expired lease counts as a returned run")
def _() -> Any:
    lose_lease = accept.lose_lease
    return _replace(accept, lose_lease, lambda state, run, **how: lose_lease(state, run, returned=True))


@_planted("a worker that stops does not say that a tool had begun")
def _() -> Any:
    give_back = WorkerService.give_back
    lose_lease = accept.lose_lease

    async def silent(self: Any, worker: str, runs: Any, *, begun: Any = ()) -> None:
        await give_back(self, worker, runs)

    def unaware(state: Any, run: Any, **how: Any) -> Any:
        return msgspec.structs.replace(lose_lease(state, run, **how), begun=False)

    return _all_of(_replace(WorkerService, give_back, silent), _replace(accept, lose_lease, unaware))


@_planted("a late report starts the next task")
def _() -> Any:
    return _replace(accept, accept._accept_late, accept._accept_events)


@_planted("a task with at_most_once runs again after a lost worker")
def _() -> Any:
    def certain(order: Any) -> Any:
        unclear = order.resume is not None and order.resume.error and order.resume.error.kind == "ambiguous"
        return msgspec.structs.replace(order, resume=None, lost=0) if unclear else order

    return _all_of(_order_with(certain), _replace(accept, accept._reused_number, lambda run, new: None))


def _order_with(change: Any) -> Any:
    order_of = advance.order_of
    return _replace(advance, order_of, lambda state, run: change(order_of(state, run)))


# ── commands of users ───────────────────────────────────────────────────────────────────


@_planted("a cancellation is acknowledged and forgotten")
def _() -> Any:
    return patch.dict(accept.COMMAND_HANDLERS, {CancelExecution: lambda state, command, env, record: Reply(True)})


@_planted("a paused execution leases runs")
def _() -> Any:
    reject = accept.claim_rejection

    def unpaused(state: Any, run_id: str) -> Any:
        why = reject(state, run_id)
        return None if why == "the execution is paused" else why

    return _replace(accept, reject, unpaused)


@_planted("a resumed execution does not enqueue its runs")
def _() -> Any:
    return _all_of(
        patch.dict(advance._TRAITS, {ExecutionResumed: (*advance._TRAITS[ExecutionResumed][:-1], None)}),
        _replace(recovery, recovery.outstanding, lambda state: []),
    )


@_planted("a signal is acknowledged and dropped")
def _() -> Any:
    return patch.dict(accept.COMMAND_HANDLERS, {SendSignal: lambda state, command, env, record: Reply(True)})


@_planted("timers never fire")
def _() -> Any:
    return _all_of(
        patch.dict(accept.COMMAND_HANDLERS, {FireTimer: lambda state, command, env, record: Reply(True)}),
        _order_with(lambda order: msgspec.structs.replace(order, timeout_s=None)),
    )


@_planted("a failed iteration does not stop its loop")
def _() -> Any:
    return _replace(loops, loops.most_failures, lambda step, count: None)


# ── several servers, snapshots ──────────────────────────────────────────────────────────


@_planted("a server believes its stale cache when it refuses")
def _() -> Any:
    async def current(self: Any, seq: int) -> bool:
        return False

    return _replace(ExecutionActor, ExecutionActor._is_behind, current)


@_planted("a snapshot forgets the attempts that were used up")
def _() -> Any:
    encode_run = snapshot._run
    return _replace(snapshot, encode_run, lambda run: msgspec.structs.replace(encode_run(run), lost=0))


# ── limits ──────────────────────────────────────────────────────────────────────────────


@_planted("an append does not check the limits")
def _() -> Any:
    return _replace(memory, memory.check_capacity, lambda append, counts: None)


@_planted("the run of a lost worker still holds its slot")
def _() -> Any:
    return _replace(runs, runs.release_lease, lambda state, run: None)


@_planted("runs that wait for a limit are never released")
def _() -> Any:
    async def idle(self: Any, only: Any = None) -> None:
        return

    return _replace(ConcurrencyLimiter, ConcurrencyLimiter.release_runs, idle)


# ── restarts ────────────────────────────────────────────────────────────────────────────


@_planted("a new server ignores outstanding effects")
def _() -> Any:
    return _replace(recovery, recovery.outstanding, lambda state: [])


@_planted("timers are not set after a take-over")
def _() -> Any:
    def without_timers(state: Any) -> Any:
        return [each for each in outstanding.outstanding(state) if not isinstance(each, SetTimer)]

    return _all_of(
        _replace(recovery, recovery.outstanding, without_timers),
        _order_with(lambda order: msgspec.structs.replace(order, timeout_s=None)),  # the worker measures it, too
    )


@_planted("a new server does not resume unfinished executions")
def _() -> Any:
    async def nothing(orchestrator: Any, **options: Any) -> list[str]:
        return []

    return _replace(recovery, recovery.resume, nothing)


@_planted("outstanding child executions are dropped")
def _() -> Any:
    return _all_of(
        _replace(
            recovery,
            recovery.outstanding,
            lambda state: [each for each in outstanding.outstanding(state) if not isinstance(each, StartChild)],
        ),
        _replace(children.Children, children.Children._start, _unreliable(children.Children._start)),
    )


def _unreliable(start: Any) -> Any:
    """Lose the start of every third child, as in a crash of the server."""
    count = 0

    async def started(self: Any, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count % 3:
            await start(self, *arguments)

    return started


@_planted("an ended child does not answer its caller")
def _() -> Any:
    return _all_of(
        _replace(outstanding, outstanding.answer_parent, lambda state: iter(())),
        _replace(advance, advance.answer_parent, lambda state: iter(())),
    )


@_planted("a child is started with a new idempotency key each time")
def _() -> Any:
    return _replace(children, Submission, lambda **fields: Submission(**{**fields, "key": None}))


# ── storage ─────────────────────────────────────────────────────────────────────────────


@_planted("appends are acknowledged before they are durable")
def _() -> Any:
    crash = Cluster.crash_server

    def losing(self: Cluster, server: Any) -> None:
        for log in self.store._logs.values():
            del log[max(1, len(log) - 1) :]
        crash(self, server)

    return _replace(Cluster, crash, losing)


@_planted("an idempotency key is not stored")
def _() -> Any:
    append = MemoryEventStore.append

    async def keyless(self: Any, one: Append) -> None:
        await append(self, msgspec.structs.replace(one, summary=msgspec.structs.replace(one.summary, key=None)))

    return _replace(MemoryEventStore, append, keyless)


@_planted("the projection is not written with the events")
def _() -> Any:
    append = FaultyStore.append

    async def torn(self: Any, one: Append) -> None:
        before = self._summaries.get(one.execution_id)
        await append(self, one)
        if before is not None and isinstance(one.events[-1].body, PlaybookProcessed):
            self._summaries[one.execution_id] = before

    return _replace(FaultyStore, append, torn)


# ── decisions ───────────────────────────────────────────────────────────────────────────


@_planted("a join does not wait for the other branch")
def _() -> Any:
    return _replace(admission, admission._others_can_reach, lambda state, step: False)


@_planted("a parked token is not examined again")
def _() -> Any:
    examine = decide.examine_waiting_tokens
    return _replace(decide, examine, lambda state, env: examine(state, env) if state.unexamined else [])


@_planted("an execution finishes twice")
def _() -> Any:
    finish = execution_completion._finish
    return _replace(execution_completion, finish, lambda status, last: [last, *finish(status, last)])


@_planted("the contributions of iterations are not reduced")
def _() -> Any:
    return _replace(reduce, reduce.join, lambda reducer, left, right: right)


@_planted("writes to ctx are dropped")
def _() -> Any:
    def dropping(state: Any, run: Any, event: Any, record: Any) -> None:
        record([event], run.seq)

    return _replace(accept, accept._accept_writes, dropping)


@_planted("an arc without a guard handles a failure")
def _() -> Any:
    choose = routing._choose

    def always_success(env: Any, step: Any, step_run: Any, boundary: str, names: Any) -> Any:
        return choose(env, step, step_run, "step.done", names)

    return _replace(routing, choose, always_success)


# ── keys of arcs ────────────────────────────────────────────────────────────────────────


def _keyed(change: Callable[[list[Any]], list[Any]]) -> Any:
    """Patch the tokens with keys that wait before a step."""
    examine = admission._examine_keyed
    return _replace(admission, examine, lambda state, env, step, group: examine(state, env, step, change(list(group))))


@_planted("tokens of one partition run at the same time")
def _() -> Any:
    return _keyed(lambda group: [msgspec.structs.replace(token, partition=None) for token in group])


@_planted("tokens of one partition enter in reverse order")
def _() -> Any:
    return _keyed(lambda group: group[::-1])


@_planted("tokens with an equal key run both")
def _() -> Any:
    return _keyed(lambda group: [msgspec.structs.replace(token, dedupe=None) for token in group])


@_planted("a run that waits for a worker does not hold its partition")
def _() -> Any:
    examine = admission._examine_keyed

    def forgetful(state: Any, env: Any, step: Any, group: Any) -> Any:
        lost = [run.step_run for run in state.open.values() if run.epoch > 1 or run.status == "queued"]
        before = [(run, run.partition) for run in lost]
        for run in lost:
            run.partition = None
        try:
            return examine(state, env, step, group)
        finally:
            for run, partition in before:
                run.partition = partition

    return _replace(admission, examine, forgetful)


# ── compensation ────────────────────────────────────────────────────────────────────────


def _recording(change: Callable[[list[Any]], None]) -> Any:
    """Patch what is recorded for compensation when a step ends."""
    record = steps._record_completed

    def changed(state: Any, step_run: Any, event: Any) -> None:
        record(state, step_run, event)
        change(state.completed)

    return _replace(steps, record, changed)


@_planted("a completed step is forgotten by the compensation")
def _() -> Any:
    return _recording(lambda completed: completed.pop() if len(completed) == 2 else None)


@_planted("a completed step is undone twice")
def _() -> Any:
    return _recording(lambda completed: completed.append(completed[-1]) if len(completed) == 1 else None)


@_planted("completed steps are undone in the order of completion")
def _() -> Any:
    return _recording(lambda completed: completed.insert(0, completed.pop()))


@_planted("iterations are undone in the order of completion")
def _() -> Any:
    def forward(completed: list[Any]) -> None:
        completed[-1] = msgspec.structs.replace(completed[-1], runs=completed[-1].runs[::-1])

    return _recording(forward)


@_planted("a compensation counts as done although it never ran")
def _() -> Any:
    started = compensation._is_needed
    return _all_of(
        _replace(compensation, started, lambda *_: False),
        _replace(compensation, CompensationDone, lambda *ids, skipped=False: CompensationDone(*ids)),
    )


@_planted("a task counts as done although its tool never ran")
def _() -> Any:
    return _replace(EffectLedger, EffectLedger.mark, lambda self, task_run: None)


@contextmanager
def _all_of(*patches: Any) -> Iterator[None]:
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()


@_planted("a signal that arrives before its wait is not taken")
def _() -> Any:
    return _replace(accept, accept.take_kept, lambda state, event, record: None)


@_planted("the timers of waiting executions are not read from the store")
def _() -> Any:
    async def load(self: WaitTimers) -> int:
        return 0

    return _replace(WaitTimers, WaitTimers.load, load)


@_planted("a signal that is sent again has a second effect")
def _() -> Any:
    signal = Orchestrator.signal

    async def without_id(self: Orchestrator, *values: Any, **fields: Any) -> None:
        await signal(self, *values, **{**fields, "id": ""})

    return _replace(Orchestrator, signal, without_id)
