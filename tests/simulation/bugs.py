"""Planted bugs, each of which takes one rule away: the simulation must catch every one.

A simulation that finds nothing proves something only if it would have found it. Each bug here is a
small patch of the real code (or of the disk beneath it); `catches` tells stories under it until one breaks
a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from noetl.core.engine import accept, advance, decide, outstanding
from noetl.core.engine.commands import ExpireLease, Reply, ReportRun
from noetl.core.engine.effects import EnqueueRun, StartChild
from noetl.core.engine.handlers import admission, reduce, routing
from noetl.core.engine.handlers import execution_completion as completion
from noetl.core.engine.handlers.admission import examine_waiting_tokens
from noetl.core.engine.lease_rules import claim
from noetl.core.engine.run_orders import order_of
from noetl.core.model.events import PlaybookProcessed
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.dispatch import worker_service as workers
from noetl.server.dispatch.leases import Leases
from noetl.server.lifecycle import children, recovery
from noetl.server.orchestrator.effect_handler import EffectHandler
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.events import Append
from tests.simulation.stories import Story, simulate
from tests.simulation.world import FaultyStore, Ledger, World

Bug = Callable[[], AbstractContextManager[Any]]
BUGS: dict[str, Bug] = {}


def _bug(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        BUGS[name] = make
        return make

    return register


def catches(name: str, seeds: range = range(400), faults: int = 60) -> Story | None:
    """The first story that shows the bug; None when none does."""
    for seed in seeds:
        with BUGS[name]():
            story = simulate(seed, faults, executions=4)
        if story.violations:
            return story
    return None


# ── leases and reports ──────────────────────────────────────────────────────────────────


@_bug("reports of an old epoch are believed")
def _() -> Any:
    judge = accept.JUDGES[ReportRun]

    def believing(state: Any, fact: Any, env: Any, record: Any) -> Reply:
        run = state.open.get(fact.report.run_id)
        if run is not None:
            fact = msgspec.structs.replace(fact, report=msgspec.structs.replace(fact.report, epoch=run.epoch))
        return judge(state, fact, env, record)

    return patch.dict(accept.JUDGES, {ReportRun: believing})


@_bug("a claim does not raise the epoch")
def _() -> Any:
    def flat(real: Any) -> Any:
        def claimed(*arguments: Any) -> Any:
            events, cause = real(*arguments)
            return [msgspec.structs.replace(event, epoch=1) for event in events], cause

        return claimed

    return _both(patch.object(accept, "claim", flat(claim)), patch.object(advance, "claim", flat(claim)))


@_bug("repeated events are taken for new ones")
def _() -> Any:
    return patch.object(accept, "checksums_seen", lambda run: {})


@_bug("leases never run out")
def _() -> Any:
    return patch.object(Leases, "expired", lambda self: [])


@_bug("leases are not watched again after a restart")
def _() -> Any:
    return patch.object(workers.WorkerService, "adopt", lambda self, state: None)


@_bug("an expired lease is forgotten instead of taken back")
def _() -> Any:
    return patch.dict(accept.JUDGES, {ExpireLease: lambda state, fact, env, record: Reply(True)})


@_bug("a lease whose order got lost waits for its end")
def _() -> Any:
    return patch.object(Leases, "unreported", lambda self, worker, runs, grace: [])


@_bug("a run that was taken back is not queued again")
def _() -> Any:
    perform = EffectHandler._perform

    def forgetful(self: Any, execution_id: str, effects: Any, path: str) -> None:
        state = self._executions.get(execution_id).state
        lost = {run.id for run in state.open.values() if run.epoch} if state else set()
        kept = [each for each in effects if not (isinstance(each, EnqueueRun) and each.run_id in lost)]
        perform(self, execution_id, kept, path)

    return patch.object(EffectHandler, "_perform", forgetful)


@_bug("a new lease begins at the first task")
def _() -> Any:
    return patch.object(
        advance, "order_of", lambda state, run: msgspec.structs.replace(order_of(state, run), position=None)
    )


# ── limits ──────────────────────────────────────────────────────────────────────────────


@_bug("an append does not look whether a slot is left")
def _() -> Any:
    return patch("noetl.storage.events.memory.check_capacity", lambda append, counts: None)


@_bug("a worker that is lost keeps its slot")
def _() -> Any:
    return patch("noetl.core.engine.evolve.runs.unlease", lambda state, run: None)


@_bug("nobody is let out of a line")
def _() -> Any:
    async def idle(self: Any, only: Any = None) -> None:
        return

    return patch.object(ConcurrencyLimiter, "release_runs", idle)


# ── restarts ────────────────────────────────────────────────────────────────────────────


@_bug("a new server does not ask what is outstanding")
def _() -> Any:
    return patch.object(recovery, "outstanding", lambda state: [])


@_bug("a new server leaves unfinished executions alone")
def _() -> Any:
    async def nothing(orchestrator: Any) -> list[str]:
        return []

    return patch.object(recovery, "resume", nothing)


@_bug("children that are owed are forgotten")
def _() -> Any:
    return _both(
        patch.object(
            recovery,
            "outstanding",
            lambda state: [c for c in outstanding.outstanding(state) if not isinstance(c, StartChild)],
        ),
        patch.object(children.Children, "_start", _dying(children.Children._start)),
    )


def _dying(start: Any) -> Any:
    """Now and then a child's start gets lost on the way, as it does when a server dies."""
    count = 0

    async def started(self: Any, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count % 3:
            await start(self, *arguments)

    return started


@_bug("an ended child does not answer its caller")
def _() -> Any:
    return _both(
        patch.object(outstanding, "answer_parent", lambda state: iter(())),
        patch.object(advance, "answer_parent", lambda state: iter(())),
    )


@_bug("a child is started under a new name each time")
def _() -> Any:
    return patch.object(children, "Submission", lambda **fields: Submission(**{**fields, "key": None}))


# ── the disk ────────────────────────────────────────────────────────────────────────────


@_bug("appends are acknowledged before they are on disk")
def _() -> Any:
    crash = World.crash_server

    def losing(self: World) -> None:
        for log in self.store._logs.values():
            del log[max(1, len(log) - 1) :]
        crash(self)

    return patch.object(World, "crash_server", losing)


@_bug("an idempotency key is not kept")
def _() -> Any:
    append = MemoryEventStore.append

    async def keyless(self: Any, one: Append) -> None:
        await append(self, msgspec.structs.replace(one, summary=msgspec.structs.replace(one.summary, key=None)))

    return patch.object(MemoryEventStore, "append", keyless)


@_bug("the projection is not written with the events")
def _() -> Any:
    append = FaultyStore.append

    async def torn(self: Any, one: Append) -> None:
        before = self._summaries.get(one.execution_id)
        await append(self, one)
        if before is not None and isinstance(one.events[-1].body, PlaybookProcessed):
            self._summaries[one.execution_id] = before

    return patch.object(FaultyStore, "append", torn)


# ── decisions ───────────────────────────────────────────────────────────────────────────


@_bug("a join does not wait for the other branch")
def _() -> Any:
    return patch.object(admission, "_others_can_reach", lambda state, step: False)


@_bug("a parked token is not looked at again")
def _() -> Any:
    def once(state: Any, env: Any) -> Any:
        return examine_waiting_tokens(state, env) if state.fresh else []

    return patch.object(decide, "examine_waiting_tokens", once)


@_bug("an execution finishes twice")
def _() -> Any:
    finish = completion._finish
    return patch.object(completion, "_finish", lambda status, last: [last, *finish(status, last)])


@_bug("what iterations contribute is not added up")
def _() -> Any:
    return patch.object(reduce, "join", lambda reducer, left, right: right)


@_bug("writes to ctx are dropped")
def _() -> Any:
    def dropping(state: Any, run: Any, event: Any, record: Any) -> None:
        record([event], run.seq)

    return patch.object(accept, "_accept_writes", dropping)


@_bug("an arc without a guard takes a failure, too")
def _() -> Any:
    choose = routing._choose

    def careless(env: Any, step: Any, step_run: Any, boundary: str, names: Any) -> Any:
        return choose(env, step, step_run, "step.done", names)

    return patch.object(routing, "_choose", careless)


@_bug("a task counts as done although its tool never ran")
def _() -> Any:
    return patch.object(Ledger, "mark", lambda self, task_run: None)


@contextmanager
def _both(*patches: Any) -> Iterator[None]:
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()
