"""The workers' side of the control plane (`ports.WorkLink`): claim, report, heartbeat, secrets.

A worker's report is a fact told to its execution; the verdict comes back when the events are on
disk. With free slots the report asks for more in the same breath: first what others have been
waiting for in the queue, then whatever this very report starts, leased in the same append.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from noetl.core.engine.commands import ClaimAnyRun, ClaimRun, ExpireLease, ReportRun, ReturnRun
from noetl.core.engine.outstanding import leases
from noetl.core.engine.state import State
from noetl.core.model.events import (
    ChildRequested,
    Event,
    IterationDone,
    IterationFailed,
    IterationStarted,
    Recorded,
    StepDone,
    StepFailed,
    StepStarted,
    WorkerLost,
)
from noetl.core.model.ids import execution_of, iteration_id
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import CorruptLog, NotFound, SecretUnavailable, StoreUnavailable
from noetl.observability import metrics
from noetl.runtime.clock import Clock
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.dispatch.dispatcher import Dispatcher, pool_name
from noetl.server.dispatch.leases import Lease, Leases
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.orchestrator.catalog import Catalog
from noetl.server.orchestrator.execution_actor import ExecutionActor, SlotOffer
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.reply import ReplyFuture, all_of
from noetl.storage.ports.cluster import WorkerHeartbeats
from noetl.storage.ports.queue import QueuedRun, RunQueue
from noetl.storage.ports.secrets import Keychain

log = logging.getLogger("noetl.control")

QUEUE_SHARE = 8  # of the slots that a report frees, one in so many is for runs that wait in the queue

WATCH_SECONDS = 0.5  # how often leases are looked at: how late a silent worker is noticed
ON_THE_WAY_SECONDS = 1.0  # that an answer with orders may be on its way before its worker is asked about them
KEPT_SECONDS = 0.5  # how long a run that is kept for another worker stays out of the queue


class WorkerService:
    """`ports.WorkLink` over the executions of this process."""

    def __init__(
        self,
        *,
        queue: RunQueue,
        catalog: Catalog,
        keychain: Keychain | None,
        clock: Clock,
        deeds: BackgroundTasks,
        lease_seconds: float | None,
        lines: ConcurrencyLimiter,
        signs: WorkerHeartbeats | None = None,
    ) -> None:
        self.executions: ExecutionCache  # set by the orchestrator, which both belong to
        self.leases = Leases(clock, lease_seconds)
        self._queue = queue
        self._catalog = catalog
        self._keychain = keychain
        self._clock = clock
        self._deeds = deeds
        self._lines = lines
        self.term = lease_seconds  # seconds that a lease lives without a sign of life; None: for ever
        self._signs = signs  # where other servers work on the same store
        self._claims = Dispatcher(queue, self._lease, self._return)
        self._watch: asyncio.Task[None] | None = None

    # ── ports.WorkLink ──────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Runs this worker now holds the lease of; waits up to `wait` seconds for one."""
        return await self._claims.claim(claim, wait)

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Prolong the leases of all that a worker holds; says what is not its own, and what it does not know of."""
        self.leases.extend(worker, runs)
        asked = runs
        if self._signs is not None:
            # Others may have taken a run away or given it: the log knows, our table may not.
            await self._signs.record_heartbeat(worker, runs)
        else:
            asked = [(run_id, epoch) for run_id, epoch in runs if not self.leases.holds(worker, run_id, epoch)]
        lost = [run_id for run_id, epoch in asked if not await self._take_up(worker, run_id, epoch)]
        unknown = []
        for lease in self.leases.unsaid(worker, runs, ON_THE_WAY_SECONDS):
            if self._signs is None or await self._stands(lease):
                unknown.append((lease.run_id, lease.epoch))
            else:
                self.leases.release(lease.run_id, lease.epoch)  # its end was reported to another server
        return HeartbeatReply(lost, unknown, self.term)

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Runs taken away from this worker; waits up to `wait` seconds for one."""
        return await self.leases.revocations(worker, wait)

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Runs a worker lets go of; others may claim them at once."""
        told = [self.executions.tell(execution_of(run_id), ReturnRun(run_id, epoch)) for run_id, epoch in runs]
        for answer in told:
            await answer

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Take a worker's events in; answered after they are on disk, maybe with the next runs."""
        claim = Claim(worker, free, self._claims.pool_of(worker))
        waiting = await self._queue.take(_share(claim)) if free > 0 else []
        told, ids = self._tell(worker, reports)
        asked = self._ask_for_more(claim, ids, free - len(waiting))
        claimed = self._claim_runs(claim, waiting)
        await self._all(claim, told, asked, list(zip(waiting, claimed, strict=True)))
        orders = self._orders_of(zip(waiting, claimed, strict=True))
        for answer in asked:
            if answer.problem is None:
                orders.extend(answer.reply.orders)
        try:
            verdicts = [_verdict(report, answer) for report, answer in zip(reports, told, strict=True)]
        except BaseException:
            self._return(claim, orders)  # the worker hears of the problem and not of these
            raise
        accepted = sum(verdict.accepted for verdict in verdicts)
        metrics.REPORTS.add(accepted, "accepted")
        metrics.REPORTS.add(len(verdicts) - accepted, "refused")
        return verdicts, orders

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook (JSON of the IR)."""
        try:
            return await self._catalog.encoded(digest)
        except CorruptLog as problem:
            # For a worker that is all the same: asking again does not help, its run has to end.
            raise NotFound(str(problem)) from None

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Keychain values, handed to the worker that needs them."""
        if self._keychain is None:
            raise SecretUnavailable(dict.fromkeys(names, "this installation has no keychain"))
        state = await self.executions.of(execution_id).load()
        playbook = state.playbook
        return await self._keychain.resolve(playbook.keychain, names, workload=state.workload, file=playbook.file)

    async def close(self) -> None:
        """Stop watching over leases."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None

    # ── for the orchestrator ────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Watch over leases, where they can expire."""
        if self.term is not None and self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_leases(self.term))

    @property
    def watching(self) -> bool:
        """Whether leases that expire are noticed."""
        return self.term is None or (self._watch is not None and not self._watch.done())

    def offers(self) -> list[SlotOffer]:
        """Free slots of workers that wait, for a decision that is about to be made."""
        return self._claims.offers()

    def follow(self, events: Sequence[Recorded]) -> None:
        """Leases follow the log: what started is held, what ended is not."""
        for recorded in events:
            change = _LEASE_CHANGES.get(type(recorded.body))
            if change is not None:
                change(self.leases, recorded.body)

    def adopt(self, state: State) -> None:
        """Take up the leases of a folded log, with a full term each."""
        for run_id, epoch, worker in leases(state):
            if not self.leases.holds(worker, run_id, epoch):
                self.leases.grant(run_id, epoch, worker)

    def revoke_others(self, state: State) -> None:
        """Take away what the log says that nobody holds (any more): another process cancelled it."""
        held = {(run_id, epoch) for run_id, epoch, _ in leases(state)}
        for lease in self.leases.of_execution(state.execution_id):
            if (lease.run_id, lease.epoch) not in held:
                self.leases.revoke(lease.run_id, lease.epoch, lease.worker)

    def expire_all(self, state: State) -> None:
        """Take back every lease of a folded log: its workers are gone."""
        for run_id, epoch, _ in leases(state):
            self._expire(run_id, epoch)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _tell(self, worker: str, reports: Sequence[Report]) -> tuple[list[ReplyFuture], list[str]]:
        """Put the reports into their executions' mailboxes; most of many are of one loop. The executions' ids, too."""
        found: dict[str, ExecutionActor] = {}
        told = []
        for report in reports:
            execution_id = execution_of(report.run_id)
            execution = found.get(execution_id)
            if execution is None:
                execution = found[execution_id] = self.executions.of(execution_id)
            told.append(execution.tell(ReportRun(report, worker)))
        return told, list(found)

    def _ask_for_more(self, claim: Claim, ids: Sequence[str], slots: int) -> list[ReplyFuture]:
        """Lend the free slots to the executions just reported on, in equal shares."""
        if slots <= 0:
            return []
        asked = []
        for left, execution_id in zip(range(len(ids), 0, -1), ids, strict=True):
            share = -(-slots // left)
            if share > 0:
                slots -= share
                fact = ClaimAnyRun(worker=claim.worker, slots=share, pool=pool_name(claim.pool))
                asked.append(self.executions.tell(execution_id, fact))
        return asked

    async def _lease(self, claim: Claim, runs: Sequence[QueuedRun]) -> list[RunOrder]:
        claimed = self._claim_runs(claim, runs)
        await self._all(claim, (), (), list(zip(runs, claimed, strict=True)))
        return self._orders_of(zip(runs, claimed, strict=True))

    def _claim_runs(self, claim: Claim, runs: Sequence[QueuedRun]) -> list[ReplyFuture]:
        return [self.executions.tell(run.execution_id, ClaimRun(claim.worker, run.run_id)) for run in runs]

    async def _all(
        self,
        claim: Claim,
        told: Sequence[ReplyFuture],
        asked: Sequence[ReplyFuture],
        claimed: Sequence[tuple[QueuedRun, ReplyFuture]],
    ) -> None:
        """Wait for every answer; if the worker goes away meanwhile, what it would have got is given back."""
        try:
            await all_of((*told, *asked, *(answer for _, answer in claimed)))
        except asyncio.CancelledError:
            for answer in (*told, *asked):
                answer.hear(partial(self._nobody_waits, claim, None))
            for run, answer in claimed:
                answer.hear(partial(self._nobody_waits, claim, run))
            raise

    def _nobody_waits(self, claim: Claim, run: QueuedRun | None, answer: ReplyFuture) -> None:
        """The answer to a worker that has gone; a run that was taken out of the queue for it must not be lost."""
        if run is not None:
            self._return(claim, self._orders_of([(run, answer)]))
        elif answer.problem is None:
            self._return(claim, answer.reply.orders)

    def _orders_of(self, claimed: Iterable[tuple[QueuedRun, ReplyFuture]]) -> list[RunOrder]:
        """What a worker got of the runs that were taken out of the queue; what it could not get waits there again."""
        orders: list[RunOrder] = []
        for run, answer in claimed:
            problem = answer.problem
            if problem is None:
                reply = answer.reply
                orders.extend(reply.orders)  # none: somebody else was first, or it has ended
                if not reply.orders:
                    self._lines.passed_on(run)
                if reply.limit is not None:
                    deed = partial(self._lines.park_waiting, run, reply.limit)
                    self._deeds.run_until_done(f"letting {run.run_id} stand in line", deed)
                elif reply.kept:
                    self._deeds.run_until_done(f"keeping {run.run_id}", partial(self._put_later, run))
            elif isinstance(problem, NotFound | CorruptLog):
                ids = {"execution_id": run.execution_id, "run_id": run.run_id}
                log.error("run %s cannot be leased: %s", run.run_id, problem, extra=ids)
            else:
                if not isinstance(problem, StoreUnavailable):
                    log.error("run %s could not be leased and waits again: %s", run.run_id, problem, exc_info=problem)
                self._deeds.run_until_done(f"queueing {run.run_id} again", partial(self._put_later, run))
        return orders

    async def _put_later(self, run: QueuedRun) -> None:
        """It was kept for the worker that has its loop, or the store was away: soon it waits like any other."""
        await self._clock.sleep(KEPT_SECONDS)
        await self._queue.put([structs.replace(run, limit=None)])

    def _return(self, claim: Claim, orders: Sequence[RunOrder]) -> None:
        """The worker went away between its claim and the answer."""
        if not orders:
            return
        runs = [(order.run_id, order.epoch) for order in orders]
        self._deeds.run_until_done(f"giving back {len(runs)} runs", lambda: self.give_back(claim.worker, runs))

    async def _take_up(self, worker: str, run_id: str, epoch: int) -> bool:
        """A lease this process does not know of: the log says whether it stands."""
        try:
            execution = self.executions.of(execution_of(run_id))
            state = await (execution.load() if self._signs is None else execution.fresh())
        except NotFound:
            return False
        run = state.open.get(run_id)
        if run is None or run.status != "leased" or run.epoch != epoch or run.worker != worker:
            self.leases.release(run_id, epoch)
            return False
        self.leases.grant(run_id, epoch, worker)
        return True

    async def _watch_leases(self, term: float) -> None:
        while True:
            await self._clock.sleep(min(term / 4, WATCH_SECONDS))
            for lease in self.leases.expired():
                if self._signs is not None:
                    if await self._lives_elsewhere(self._signs, lease, term):
                        continue
                    if not await self._stands(lease):
                        self.leases.release(lease.run_id, lease.epoch)  # its end was reported to another server
                        continue
                metrics.EXPIRED.add()
                log.warning(
                    "worker %s fell silent: its run %s is taken back", lease.worker, lease.run_id,
                    extra={"execution_id": execution_of(lease.run_id), "run_id": lease.run_id, "worker": lease.worker},
                )  # fmt: skip
                self._claims.dismiss(lease.worker)
                self.leases.release(lease.run_id, lease.epoch)
                self._expire(lease.run_id, lease.epoch)

    async def _stands(self, lease: Lease) -> bool:
        """Whether the log still has a lease that other servers may have seen the end of."""
        try:
            state = await self.executions.of(execution_of(lease.run_id)).fresh()
        except (NotFound, StoreUnavailable):
            return True  # whoever takes it back finds out
        run = state.open.get(lease.run_id)
        return run is not None and run.status == "leased" and run.epoch == lease.epoch

    async def _lives_elsewhere(self, signs: WorkerHeartbeats, lease: Lease, term: float) -> bool:
        """Whether the worker of an expired lease was heard of by another server; its term runs from then."""
        try:
            silent = await signs.seconds_since_heartbeat(lease.worker, lease.run_id, lease.epoch)
        except StoreUnavailable:
            silent = 0.0  # nobody could say anything meanwhile: wait another term
        if silent is None or silent >= term:
            return False
        self.leases.prolong(lease, term - silent)
        return True

    def _expire(self, run_id: str, epoch: int) -> None:
        execution_id = execution_of(run_id)
        fact = ExpireLease(run_id, epoch)
        self._deeds.run_until_done(f"taking back {run_id}", lambda: self.executions.tell(execution_id, fact))


def _share(claim: Claim) -> Claim:
    """What the queue gets of freed slots: never nothing, so nobody starves, but the most of them stay where they were.

    An execution that keeps its slot starts its next step in the append that ends the last."""
    return Claim(claim.worker, -(-claim.slots // QUEUE_SHARE), claim.pool, claim.labels)


def _verdict(report: Report, answer: ReplyFuture) -> ReportAck:
    if isinstance(answer.problem, NotFound):
        return ReportAck(run_id=report.run_id, accepted=False)
    reply = answer.reply
    return reply.verdict or ReportAck(run_id=report.run_id, accepted=reply.accepted)


def _started(leases: Leases, body: StepStarted | IterationStarted) -> None:
    metrics.CLAIMED.add()
    leases.grant(_run_of(body), body.epoch, body.worker)


def _ended(leases: Leases, body: Event) -> None:
    leases.release(_run_of(body))


def _suspended(leases: Leases, body: ChildRequested) -> None:
    if body.wait:
        leases.release(_run_of(body))


def _run_of(body: Any) -> str:
    return iteration_id(body.step_run_id, getattr(body, "path", ()))


_LEASE_CHANGES: dict[type[Event], Callable[[Leases, Any], None]] = {
    StepStarted: _started,
    IterationStarted: _started,
    StepDone: _ended,
    StepFailed: _ended,
    IterationDone: _ended,
    IterationFailed: _ended,
    WorkerLost: _ended,
    ChildRequested: _suspended,
}
