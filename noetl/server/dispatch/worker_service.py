"""The worker-facing service of the control plane (`WorkLink`): claim, report, heartbeat, secrets.

A report is a command to its execution, acknowledged after its events are durable. With free slots a report also
claims: first runs that wait in the queue, then the runs that the report itself starts, leased in the same append.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import structs

from noetl.core.engine.commands import ClaimAnyRun, ClaimRun, ExpireLease, ReportRun, ReturnRun
from noetl.core.engine.declared_secrets import ANY, declared_secrets
from noetl.core.engine.outstanding import leases
from noetl.core.engine.state import State
from noetl.core.model import events as ev
from noetl.core.model.ids import execution_of, iteration_id
from noetl.core.model.quotas.token_bucket import QuotaCall, QuotaReply
from noetl.core.model.task_log import LogChunk
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import (
    CorruptLog,
    DecisionFailed,
    InvalidPlaybook,
    NoetlError,
    NotFound,
    SecretUnavailable,
    StoreUnavailable,
)
from noetl.observability import metrics
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.concurrency.quotas import Quotas
from noetl.server.dispatch.costly_executions import CostlyExecutions
from noetl.server.dispatch.dispatcher import Dispatcher, pool_name
from noetl.server.dispatch.leases import TOGETHER, Lease, Leases
from noetl.server.dispatch.task_logs import TaskLogs
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.orchestrator.catalog import Catalog
from noetl.server.orchestrator.execution_actor import ExecutionActor, SlotOffer
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.reply import ReplyFuture, wait_all
from noetl.server.orchestrator.schema_registry import SchemaRegistry
from noetl.storage.ports.cluster import WorkerHeartbeats
from noetl.storage.ports.queue import QueuedRun, RunQueue
from noetl.storage.ports.secrets import Keychain

log = logging.getLogger("noetl.control")

QUEUE_SHARE = 8  # one in eight slots that a report frees is for runs that wait in the queue
WATCH_SECONDS = 0.5  # how often expired leases are searched, at most
DELIVERY_SECONDS = 1.0  # that a reply with orders may take before the lease is listed as unknown
# Errors of one execution that a repeated request meets again; the requests of a worker go on without it.
_CANNOT_CONTINUE = (NotFound, CorruptLog, DecisionFailed, InvalidPlaybook)
RETRY_SECONDS = 0.5  # before a run that could not be leased is enqueued again


@dataclass(eq=False, repr=False)
class WorkerService:
    """`WorkLink` over the executions of this process."""

    executions: ExecutionCache
    queue: RunQueue
    catalog: Catalog
    limiter: ConcurrencyLimiter
    quotas: Quotas
    background: BackgroundTasks
    clock: Clock
    task_logs: TaskLogs
    schemas: SchemaRegistry | None = None
    keychain: Keychain | None = None
    heartbeats: WorkerHeartbeats | None = None  # shared by several servers of one store
    term: float | None = None  # seconds of a lease without heartbeat; None: unlimited

    def __post_init__(self) -> None:
        self.leases = Leases(self.clock, self.term)
        self.costly = CostlyExecutions(self.clock)
        self._dispatcher = Dispatcher(self.queue, self._lease_runs, self._return_orders)
        self._watch: asyncio.Task[None] | None = None

    # ── WorkLink ────────────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Runs leased to this worker; waits up to `wait` seconds for one."""
        return await self._dispatcher.claim(claim, wait)

    def forget(self, worker: str) -> None:
        """Forget a worker that is not known any more."""
        self._dispatcher.forget(worker)
        self.leases.forget(worker)

    def withdraw_claims(self, worker: str) -> None:
        """Close the open claims of a worker without orders."""
        self._dispatcher.dismiss(worker)

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Extend all leases of a worker; the reply lists runs it has lost and runs it did not report."""
        self.leases.extend(worker, runs)
        self._dispatcher.seen(worker)
        doubtful = runs
        if self.heartbeats is not None:
            # Other servers may have granted or revoked a lease: check the log, not only this table.
            await self.heartbeats.record_heartbeat(worker, runs)
        else:
            doubtful = [(run_id, epoch) for run_id, epoch in runs if not self.leases.holds(worker, run_id, epoch)]
        lost, ended = [], []
        for run_id, epoch in doubtful:
            run = await self._confirm_lease(worker, run_id, epoch)
            if run != "held":
                lost.append(run_id)
            if run == "ended":
                ended.append(run_id)
        unknown = []
        for lease in self.leases.unreported(worker, runs, DELIVERY_SECONDS):
            if self.heartbeats is None or await self._is_current(lease):
                unknown.append((lease.run_id, lease.epoch))
            else:
                self.leases.release(lease.run_id, lease.epoch)  # the run ended on another server
        return HeartbeatReply(lost, unknown, self.term, ended=ended)

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Runs that were revoked from this worker; waits up to `wait` seconds for one."""
        return await self.leases.revocations(worker, wait)

    async def logs(self, worker: str, number: int, chunks: Sequence[LogChunk]) -> None:
        """Store lines that tasks have printed."""
        await self.task_logs.accept(worker, number, chunks)

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]], *, begun: Collection[str] = ()) -> None:
        """Return runs that a worker does not run any more; other workers may claim them at once."""
        replies = [
            self.executions.send(execution_of(run_id), ReturnRun(run_id, epoch, run_id in begun))
            for run_id, epoch in runs
        ]
        await wait_all(replies)
        for (run_id, _), reply in zip(runs, replies, strict=True):
            if isinstance(reply.exception, _CANNOT_CONTINUE):
                log.error("run %s cannot be returned: %s", run_id, reply.exception)
            elif reply.exception is not None:
                raise reply.exception

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Store a worker's events; acknowledged when they are durable, with the next runs for `free` slots."""
        dispatcher = self._dispatcher
        claim = dispatcher.shared(dispatcher.claim_of(worker, free))
        taken = await self.queue.take(self._queue_share(claim, reports)) if claim.slots > 0 else []
        reported, ids = self._send_reports(worker, reports)
        claimed_any = self._claim_any(claim, ids, claim.slots - sum(run.cost for run in taken))
        claimed = list(zip(taken, self._claim_runs(claim, taken), strict=True))
        await self._wait_all(claim, [*reported, *claimed_any], claimed)
        orders = self._leased_orders(claimed)
        for reply in claimed_any:
            if reply.exception is None:
                orders.extend(reply.reply.orders)
        if free > 0:
            orders += dispatcher.undelivered(worker)
        try:
            acks = [_ack(report, reply) for report, reply in zip(reports, reported, strict=True)]
        except BaseException:
            self._return_orders(claim, orders)  # the worker receives the error instead of the orders
            raise
        accepted = sum(ack.accepted for ack in acks)
        metrics.REPORTS.add(accepted, "accepted")
        metrics.REPORTS.add(len(acks) - accepted, "refused")
        return acks, orders

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook as JSON."""
        try:
            return await self.catalog.encoded(digest)
        except CorruptLog as problem:
            # A retry does not help the worker; NotFound ends its run.
            raise NotFound(str(problem)) from None

    async def bundle(self, digest: str) -> bytes:
        """The bundle of a playbook as JSON."""
        found = await self.catalog.playbooks.bundle(digest)
        if found is None:
            raise NotFound(f"there is no bundle {digest}")
        return msgspec.json.encode(found)

    async def bundle_file(self, digest: str) -> bytes:
        """The content of a file of a bundle."""
        found = await self.catalog.playbooks.file(digest)
        if found is None:
            raise NotFound(f"there is no file {digest}")
        return found

    def placement_problem(self, pool: str, labels: Sequence[str]) -> str | None:
        """Why no live worker can take a run of a pool with these labels; None: one can."""
        return self._dispatcher.placement_problem(pool, labels)

    async def schema(self, reference: str) -> bytes:
        """A registered schema as JSON."""
        if self.schemas is None:
            raise NotFound(f"this installation has no schema registry; {reference!r} is unknown")
        return msgspec.json.encode(await self.schemas.find(reference))

    async def quota(self, call: QuotaCall) -> QuotaReply:
        """Take a token of a quota, or pause it."""
        return await self.quotas.call(call)

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Keychain values for a run of an execution."""
        if self.keychain is None:
            raise SecretUnavailable(dict.fromkeys(names, "this installation has no keychain"))
        state = await self.executions.get(execution_id).load()
        playbook = state.playbook
        return await self.keychain.resolve(playbook.keychain, names, workload=state.workload, file=playbook.file)

    async def secrets_of_runs(
        self, execution_id: str, worker: str, runs: Sequence[tuple[str, int]], names: Sequence[str]
    ) -> dict[str, Any]:
        """Keychain values for runs of an execution that are leased to a worker: the names that their steps declare."""
        actor = self.executions.get(execution_id)
        state = await (actor.load() if self.heartbeats is None else actor.refresh())
        declared: set[str] = set()
        for run_id, epoch in runs:
            run = state.open.get(run_id)
            if run is not None and (run.status, run.epoch, run.worker) == ("leased", epoch, worker):
                declared |= declared_secrets(state.playbook, run.step_run.step)
        refused = [] if ANY in declared else [name for name in names if name not in declared]
        if refused:
            raise SecretUnavailable(dict.fromkeys(refused, "no run that is leased to this worker declares this name"))
        return await self.secrets(execution_id, names)

    async def close(self) -> None:
        """Stop watching leases, and claiming for open polls."""
        await self._dispatcher.close()
        await cancel(self._watch)
        self._watch = None

    # ── for the control plane ───────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start to watch leases, if they can expire."""
        if self.term is not None and self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_leases(self.term))

    @property
    def watches_leases(self) -> bool:
        """Whether expired leases are detected."""
        return self.term is None or (self._watch is not None and not self._watch.done())

    def slot_offers(self) -> list[SlotOffer]:
        """Free slots of open long polls, offered to one decision."""
        return self._dispatcher.slot_offers()

    def follow(self, events: Sequence[ev.Recorded]) -> None:
        """Update the leases from events: a start grants one, an end releases it."""
        for recorded in events:
            change = _LEASE_CHANGES.get(type(recorded.body))
            if change is not None:
                change(self.leases, recorded.body)

    def adopt(self, state: State) -> None:
        """Grant the leases of a folded log again, each for a full term."""
        for run_id, epoch, worker in leases(state):
            if not self.leases.holds(worker, run_id, epoch):
                self.leases.grant(run_id, epoch, worker, adopted=True)

    def revoke_others(self, state: State) -> None:
        """Revoke leases of an execution that the log does not have (any more): another process cancelled them."""
        current = {(run_id, epoch) for run_id, epoch, _ in leases(state)}
        for lease in self.leases.of_execution(state.execution_id):
            if (lease.run_id, lease.epoch) not in current:
                self.leases.revoke(lease.run_id, lease.epoch, lease.worker)

    def expire_all(self, state: State) -> None:
        """Expire every lease of a folded log: its workers stopped with the process that ran them."""
        for run_id, epoch, _ in leases(state):
            self._expire(ExpireLease(run_id, epoch, stopped=True))

    # ── internals ───────────────────────────────────────────────────────────────────────

    def _queue_share(self, claim: Claim, reports: Sequence[Report]) -> Claim:
        """The share of freed slots for the queue: at least one, so that it never starves.

        The others stay with their executions, which start the next step in the append that ends the last one. If
        several tenants could use the slots, all are for the queue, which shares them."""
        waiting = self.queue.waiting_tenants(claim.pool)
        if len(waiting) > 1 or (waiting and not self._tenants_of(reports) <= waiting):
            return claim
        return structs.replace(claim, slots=-(-claim.slots // QUEUE_SHARE))

    def _tenants_of(self, reports: Sequence[Report]) -> set[str]:
        """The tenants of the executions of these reports, as far as their states are in memory."""
        ids = dict.fromkeys(execution_of(report.run_id) for report in reports)
        states = (self.executions.get(each).state for each in ids)
        return {self.limiter.tenant_of(each.request.labels) for each in states if each is not None and each.request}

    def _send_reports(self, worker: str, reports: Sequence[Report]) -> tuple[list[ReplyFuture], list[str]]:
        """Send the reports to their executions; returns the replies and the ids of the executions."""
        actors: dict[str, ExecutionActor] = {}  # most reports of a batch belong to one loop
        replies = []
        for report in reports:
            execution_id = execution_of(report.run_id)
            actor = actors.get(execution_id)
            if actor is None:
                actor = actors[execution_id] = self.executions.get(execution_id)
            replies.append(actor.send(ReportRun(report, worker)))
        return replies, list(actors)

    def _claim_any(self, claim: Claim, ids: Sequence[str], slots: int) -> list[ReplyFuture]:
        """Offer free slots to the executions that were just reported on and are not paused, in equal shares."""
        ids = [each for each in ids if not self.costly.is_paused(each)]
        replies = []
        for left, execution_id in zip(range(len(ids), 0, -1), ids, strict=True):
            share = -(-slots // left)
            if share > 0:
                slots -= share
                pool = pool_name(claim.pool)
                command = ClaimAnyRun(claim.worker, share, pool, claim.workers, claim.labels, claim.capacity)
                replies.append(self.executions.send(execution_id, command))
        return replies

    async def _lease_runs(self, claim: Claim, runs: Sequence[QueuedRun]) -> list[RunOrder]:
        claimed = list(zip(runs, self._claim_runs(claim, runs), strict=True))
        await self._wait_all(claim, (), claimed)
        return self._leased_orders(claimed)

    def _claim_runs(self, claim: Claim, runs: Sequence[QueuedRun]) -> list[ReplyFuture]:
        return [self.executions.send(run.execution_id, ClaimRun(claim.worker, run.run_id)) for run in runs]

    async def _wait_all(
        self, claim: Claim, replies: Sequence[ReplyFuture], claimed: Sequence[tuple[QueuedRun, ReplyFuture]]
    ) -> None:
        """Wait for all replies; if the worker disconnects meanwhile, return its orders when they arrive."""
        try:
            await wait_all((*replies, *(reply for _, reply in claimed)))
        except asyncio.CancelledError:
            for reply in replies:
                reply.set_callback(partial(self._return_reply, claim, None))
            for run, reply in claimed:
                reply.set_callback(partial(self._return_reply, claim, run))
            raise

    def _return_reply(self, claim: Claim, run: QueuedRun | None, reply: ReplyFuture) -> None:
        """Return the orders of a reply whose worker disconnected; a run taken from the queue is not lost."""
        if run is not None:
            self._return_orders(claim, self._leased_orders([(run, reply)]))
        elif reply.exception is None:
            self._return_orders(claim, reply.reply.orders)

    def _leased_orders(self, claimed: Iterable[tuple[QueuedRun, ReplyFuture]]) -> list[RunOrder]:
        """The orders of runs taken from the queue; runs that could not be leased are enqueued again."""
        orders: list[RunOrder] = []
        for run, answer in claimed:
            if answer.exception is not None:
                self._retry_failed_claim(run, answer.exception)
                continue
            reply = answer.reply
            orders.extend(reply.orders)  # empty: another worker claimed it first, or it has ended
            if not reply.orders:
                self.limiter.slot_unused(run)
            if reply.limit is not None:
                park = partial(self.limiter.park, run, reply.limit)
                self.background.run_until_done(f"parking {run.run_id}", park)
            elif reply.reserved:
                self._enqueue_later(run)
        return orders

    def _retry_failed_claim(self, run: QueuedRun, problem: Exception) -> None:
        if isinstance(problem, _CANNOT_CONTINUE):
            ids = {"execution_id": run.execution_id, "run_id": run.run_id}
            log.error("run %s cannot be leased: %s", run.run_id, problem, extra=ids)
            return
        if not isinstance(problem, StoreUnavailable):
            log.error("run %s could not be leased and is enqueued again: %s", run.run_id, problem, exc_info=problem)
        self._enqueue_later(run)

    def _enqueue_later(self, run: QueuedRun) -> None:
        """Enqueue a run again after a pause: it is reserved for another worker, or the store was unreachable."""

        async def enqueue() -> None:
            await self.clock.sleep(RETRY_SECONDS)
            await self.queue.put([structs.replace(run, limit=None)])

        self.background.run_until_done(f"enqueueing {run.run_id} again", enqueue)

    def _return_orders(self, claim: Claim, orders: Sequence[RunOrder]) -> None:
        """Return orders that could not be delivered to their worker."""
        if not orders:
            return
        runs = [(order.run_id, order.epoch) for order in orders]
        self.background.run_until_done(f"returning {len(runs)} runs", lambda: self.give_back(claim.worker, runs))

    async def _confirm_lease(self, worker: str, run_id: str, epoch: int) -> Literal["held", "lost", "ended"]:
        """Whether the log has a lease that this table may not have; it is granted or released accordingly."""
        try:
            actor = self.executions.get(execution_of(run_id))
            state = await (actor.load() if self.heartbeats is None else actor.refresh())
        except _CANNOT_CONTINUE:
            return "lost"
        run = state.open.get(run_id)
        if run is None or run.status != "leased" or run.epoch != epoch or run.worker != worker:
            self.leases.release(run_id, epoch)
            return "ended" if run is None else "lost"
        self.leases.grant(run_id, epoch, worker)
        return "held"

    async def _watch_leases(self, term: float) -> None:
        while True:
            await self.clock.sleep(min(term / 4, WATCH_SECONDS))
            for lease in self.leases.expired():
                try:
                    await self._end_expired(lease, term)
                except Exception:  # a defect in one execution must not keep the leases of others from expiring
                    log.exception("the lease of run %s has expired and could not be ended", lease.run_id)

    async def _end_expired(self, lease: Lease, term: float) -> None:
        if self.heartbeats is not None:
            if await self._seen_elsewhere(self.heartbeats, lease, term):
                return
            if not await self._is_current(lease):
                self.leases.release(lease.run_id, lease.epoch)  # the run ended on another server
                return
        metrics.EXPIRED.add()
        log.warning(
            "no heartbeat of worker %s: the lease of run %s has expired", lease.worker, lease.run_id,
            extra={"execution_id": execution_of(lease.run_id), "run_id": lease.run_id, "worker": lease.worker},
        )  # fmt: skip
        self._dispatcher.dismiss(lease.worker)
        self.leases.release(lease.run_id, lease.epoch)
        together = await self._lost_together(lease.worker, term)
        self._expire(ExpireLease(lease.run_id, lease.epoch, together=together))

    async def _is_current(self, lease: Lease) -> bool:
        """Whether the log still has a lease that may have ended on another server."""
        try:
            state = await self.executions.get(execution_of(lease.run_id)).refresh()
        except NoetlError:
            return True  # the expiry command decides
        run = state.open.get(lease.run_id)
        return run is not None and run.status == "leased" and run.epoch == lease.epoch

    async def _seen_elsewhere(self, heartbeats: WorkerHeartbeats, lease: Lease, term: float) -> bool:
        """Whether another server had a heartbeat of the worker within the term; the lease is extended from then."""
        try:
            silent = await heartbeats.seconds_since_heartbeat(lease.worker, lease.run_id, lease.epoch)
        except StoreUnavailable:
            silent = 0.0  # heartbeats could not be stored either: wait for another term
        if silent is None or silent >= term:
            return False
        self.leases.prolong(lease, term - silent)
        return True

    async def _lost_together(self, worker: str, term: float) -> bool:
        """Whether other workers may have been lost with this one, by a run that one of them executed."""
        if self.heartbeats is None:
            return self.leases.lost_together(worker, term)
        try:
            return await self.heartbeats.silent_together(worker, TOGETHER * term)
        except StoreUnavailable:
            return True

    def _expire(self, command: ExpireLease) -> None:
        execution_id = execution_of(command.run_id)
        self.background.run_until_done(
            f"expiring the lease of {command.run_id}", lambda: self.executions.send(execution_id, command)
        )


def _ack(report: Report, answer: ReplyFuture) -> ReportAck:
    if isinstance(answer.exception, _CANNOT_CONTINUE):
        if not isinstance(answer.exception, NotFound):
            log.error("a report of run %s is refused: %s", report.run_id, answer.exception)
        return ReportAck(run_id=report.run_id, accepted=False, ended=isinstance(answer.exception, DecisionFailed))
    reply = answer.reply
    return reply.ack or ReportAck(run_id=report.run_id, accepted=reply.accepted)


def _started(leases: Leases, body: ev.StepStarted | ev.IterationStarted) -> None:
    if isinstance(body, ev.StepStarted) and body.by_server:
        return  # a loop, or a step without tasks: no worker has a lease
    metrics.CLAIMED.add()
    leases.grant(_run_of(body), body.epoch, body.worker)


def _ended(leases: Leases, body: ev.Event) -> None:
    leases.release(_run_of(body))


def _suspended(leases: Leases, body: ev.ChildRequested) -> None:
    if body.wait:
        leases.release(_run_of(body))


def _run_of(body: Any) -> str:
    return iteration_id(body.step_run_id, getattr(body, "path", ()))


_LEASE_CHANGES: dict[type[ev.Event], Callable[[Leases, Any], None]] = {
    ev.StepStarted: _started,
    ev.IterationStarted: _started,
    ev.StepDone: _ended,
    ev.StepFailed: _ended,
    ev.IterationDone: _ended,
    ev.IterationFailed: _ended,
    ev.WorkerLost: _ended,
    ev.ChildRequested: _suspended,
    ev.WaitStarted: _ended,
}
