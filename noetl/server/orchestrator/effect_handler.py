"""Performs the effects of stored decisions: queue, timers, leases, child executions.

An effect is performed only after the events that cause it are in the log, and every effect may be
performed twice. What is lost when the process stops is found again by `outstanding(state)`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from noetl.core.engine.decision import Decision
from noetl.core.engine.effects import CancelRun, ContinueLater, Effect, EnqueueRun, ReturnTurns, SetTimer
from noetl.core.engine.lease_rules import claim_rejection
from noetl.core.engine.outstanding import next_due, outstanding
from noetl.core.engine.state import State
from noetl.core.model.events import PlaybookProcessed
from noetl.core.model.quotas.token_bucket import QuotaCall
from noetl.errors import NoetlError
from noetl.observability import lineage, metrics, tracing
from noetl.runtime.clock import Clock
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.dispatch.enqueuer import Enqueuer
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.lifecycle.children import Children
from noetl.server.lifecycle.timers import HORIZON, Timers
from noetl.server.orchestrator.execution_actor import ExecutionActor, SlotOffer
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.storage.ports.queue import QueuedRun

log = logging.getLogger("noetl.control")

POLL_SECONDS = 1.0  # between polls for ends of executions that other processes wrote

Lengths = Callable[[Sequence[str]], Awaitable[list[tuple[str, int]]]]  # execution ids -> the ids and their lengths


class EndNotifier:
    """Wakes callers that wait for the end of an execution: at once if it ends in this process, otherwise when one poll
    for all of them finds that its log has grown."""

    def __init__(self, lengths: Lengths | None = None) -> None:
        self._lengths = lengths  # None: no other process appends
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._poller: asyncio.Task[None] | None = None

    @contextmanager
    def subscribed(self, execution_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when the execution ends, for the duration of the block."""
        ended = asyncio.Event()
        waiting = self._waiting.setdefault(execution_id, [])
        waiting.append(ended)
        if self._lengths is not None and self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll(self._lengths))
        try:
            yield ended
        finally:
            waiting.remove(ended)
            if not waiting:
                del self._waiting[execution_id]
            if not self._waiting and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    def notify(self, execution_id: str) -> None:
        """The execution has ended."""
        for ended in self._waiting.get(execution_id, ()):
            ended.set()

    async def _poll(self, lengths: Lengths) -> None:
        known: dict[str, int] = {}
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                found = dict(await lengths(list(self._waiting)))
            except NoetlError:
                found = {}  # every caller reads, and raises the error
            for execution_id in list(self._waiting):
                if found.get(execution_id) is None or found[execution_id] != known.get(execution_id):
                    self.notify(execution_id)
            known = found


@dataclass(eq=False, repr=False)
class EffectHandler:
    """The `ExecutionHost` of all actors: offers slots before a decision and performs its effects after the append."""

    executions: ExecutionCache
    work: WorkerService
    limiter: ConcurrencyLimiter
    enqueuer: Enqueuer
    timers: Timers
    children: Children
    background: BackgroundTasks
    ends: EndNotifier
    clock: Clock
    enabled: bool  # False: effects are left to the process that runs the execution
    shared: bool  # other servers append to the same executions and perform their own effects
    stored_timers: bool  # the store has the timers of waiting executions (`lifecycle.wait_timers`)

    # ── ExecutionHost ───────────────────────────────────────────────────────────────────

    def slot_offers(self, execution: ExecutionActor) -> list[SlotOffer]:
        """Free slots of open long polls; none for a paused execution."""
        return [] if self.work.costly.is_paused(execution.id) else self.work.slot_offers()

    def events_written(self, execution: ExecutionActor, decision: Decision) -> None:
        """Update leases from the events and perform the effects of a stored decision."""
        self.work.follow(decision.events)
        pause = 0.0
        if self.executions.running > 1:
            pause = self.work.costly.pause_after(execution.id, decision.operations)
        self._perform(execution.id, decision.effects, execution.state, waiting=execution.waits, pause=pause)
        if self.stored_timers and execution.waited != execution.waits and execution.state is not None:
            self._set_timer(execution.id, next_due(execution.state), waiting=execution.waits)
        if self.enabled and execution.waited != execution.waits and execution.state is not None:
            self.children.report_wait(execution.state, waiting=execution.waits)
        if execution.overtaken:
            execution.overtaken = False
            if self.enabled and not self.shared:
                self.background.run_until_done(f"catching up with {execution.id}", lambda: self.catch_up(execution.id))
        if decision.events and isinstance(last := decision.events[-1].body, PlaybookProcessed):
            self._record_end(execution, last.outcome)

    # ── take-over ───────────────────────────────────────────────────────────────────────

    def take_over(self, state: State, effects: Sequence[Effect], *, orphaned: bool = False) -> None:
        """Continue an execution that another process began.

        `orphaned`: its workers stopped with that process, so their leases expire at once."""
        if orphaned:
            self.work.expire_all(state)
        else:
            self.work.adopt(state)
        self._perform(state.execution_id, effects, state, waiting=state.status == "waiting")
        if self.enabled:
            self.children.check_wait(state)
        if any(isinstance(effect, ContinueLater) for effect in effects):
            self.executions.get(state.execution_id).wake()

    async def catch_up(self, execution_id: str) -> None:
        """Perform the effects of a decision that another process appended without performing them."""
        state = await self.executions.get(execution_id).refresh()
        self.work.revoke_others(state)
        self.take_over(state, list(outstanding(state)))
        if state.finished is not None:
            self._end(execution_id)

    # ── internals ───────────────────────────────────────────────────────────────────────

    def _set_timer(self, execution_id: str, at: float | None, *, waiting: bool) -> None:
        """Set the timer of an execution, unless it only waits and the store has its timer."""
        if waiting and self.stored_timers and at is not None and at > self.clock.now() + HORIZON:
            at = None
        self.timers.set(execution_id, at)

    def _perform(
        self, execution_id: str, effects: Iterable[Effect], state: State | None, *, waiting: bool, pause: float = 0.0
    ) -> None:
        if not self.enabled:
            return
        queued: list[QueuedRun] = []
        weights, request = self.limiter.weights, state.request if state is not None else None
        weight = weights.get(state.playbook.path, 1) if weights and state is not None else 1
        tenant = self.limiter.tenant_of(request.labels) if request is not None else ""
        for effect in effects:
            if isinstance(effect, EnqueueRun):
                pool = effect.pool or "default"
                now = self.clock.now()
                queued.append(
                    QueuedRun(
                        execution_id, effect.run_id, pool, effect.affinity, now, effect.limit, None, weight,
                        effect.priority, effect.labels, effect.cost, tenant,
                    )
                )  # fmt: skip
            elif isinstance(effect, SetTimer):
                self._set_timer(execution_id, effect.at, waiting=waiting)
            elif isinstance(effect, CancelRun):
                self.work.leases.revoke(effect.run_id, effect.epoch, effect.worker)
            elif isinstance(effect, ReturnTurns):
                call = QuotaCall(effect.demand, unused=effect.instants)
                self.background.run_until_done("returning turns of a quota", partial(self.work.quotas.call, call))
            else:
                self.children.perform(execution_id, effect)
        if queued and pause:
            name = f"enqueueing runs of {execution_id} after a pause"
            self.background.run_until_done(name, lambda: self._enqueue_later(execution_id, queued, pause))
        elif queued:
            self.enqueuer.put(execution_id, queued)

    async def _enqueue_later(self, execution_id: str, queued: list[QueuedRun], pause: float) -> None:
        """Enqueue the runs that can still be claimed after a pause."""
        await self.clock.sleep(pause)
        state = await self.executions.get(execution_id).load()
        if ready := [run for run in queued if claim_rejection(state, run.run_id) is None]:
            self.enqueuer.put(execution_id, ready)

    def _record_end(self, execution: ExecutionActor, outcome: str) -> None:
        metrics.ENDED.add(1, outcome)
        level = logging.DEBUG if outcome == "success" else logging.INFO
        summary = execution.summary
        fields = (execution.id, summary.path if summary else "", outcome, (summary and summary.error) or "")
        log.log(level, "execution %s of %s ended: %s %s", *fields, extra={"execution_id": execution.id})
        if tracing.ACTIVE is not None:
            execution.trace(tracing.ACTIVE)
        if lineage.ENDED is not None:
            lineage.ENDED(execution.id)
        self._end(execution.id)
        execution.state = None  # no further decision; a later read folds the log

    def _end(self, execution_id: str) -> None:
        self.timers.set(execution_id, None)
        self.executions.mark_ended(execution_id)
        self.enqueuer.remove_ended(execution_id)
        self.ends.notify(execution_id)
