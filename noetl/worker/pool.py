"""The worker pool: claims runs, executes several at once, extends their leases and drains on stop.

A run occupies a slot from its claim until its last report is acknowledged, except while it only waits (the delay
of a retry). The pool sends the heartbeats itself, so a tool that hangs does not lose its lease; a tool whose
lease is lost is cancelled and stops its work.

A run on which workers were lost (`RunOrder.alone`) is executed alone: the pool claims nothing, gives queued runs back,
and starts it when its other runs have ended. Its start is stored first, so that the server knows that it had begun.

Orders arrive with claims and with the acknowledgements of reports. Runs have no task of their own: a few slot tasks
take orders from a queue, so a run that never waits costs no task.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct

from noetl.core.model.outcome import error_info
from noetl.core.model.work import Claim, ReportAck, RunOrder
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel
from noetl.storage.ports.work_link import WorkLink
from noetl.worker.reports import Reporter, RunEnded, RunReports
from noetl.worker.runner import Runner, failure_of

CLAIM_WAIT = 20.0  # seconds of the long poll
REVOKED_WAIT = 20.0
FALSE_HINT_PAUSE = 1.0
HEARTBEATS_PER_LEASE = 4  # per duration of a lease
HEARTBEAT = 5.0
FIRST_PAUSE, MAX_PAUSE = 0.1, 10.0  # seconds after a call that failed
STOP_SECONDS = 5.0  # that a cancelled tool may take to stop
FIRST_CHECK = 0.5  # seconds after a lost response
MAX_RECENT = 10_000  # leases of each kind that are remembered
RUNS_PER_TURN = 64  # runs that a slot executes before it yields to the event loop

_log = logging.getLogger("noetl.work")


class _RecentLeases:
    """A bounded set of leases (run id, epoch)."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, int], None] = {}

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[tuple[str, int]]) -> None:
        """Add leases, and drop the oldest above the bound."""
        self._keys.update(dict.fromkeys(keys))
        for key in list(islice(self._keys, max(0, len(self._keys) - MAX_RECENT))):
            del self._keys[key]


class HeldRun(Struct, eq=False):
    """A run whose lease this worker holds."""

    order: RunOrder
    reports: RunReports
    slot: asyncio.Task[None] | None = None
    lost: bool = False


class Pool:
    """The runs of one worker."""

    def __init__(
        self,
        link: WorkLink,
        runner: Runner,
        *,
        worker: str,
        clock: Clock,
        slots: int = 256,
        pool: str = "default",
        heartbeat: float = HEARTBEAT,
    ) -> None:
        self.worker = worker
        self.slots = slots
        self.runner = runner
        self._link = link
        self._clock = clock
        self._pool = pool
        self.labels: tuple[str, ...] = ()  # that steps can require
        self._heartbeat_seconds = heartbeat
        self._held: dict[tuple[str, int], HeldRun] = {}
        self._reporter = Reporter(
            link,
            worker,
            clock=clock,
            free_slots=self._free_slots_after,
            active=self._held.__len__,
            on_end=self._run_ended,
            on_orders=self._accept,
            extend=self._heartbeat,
        )
        self._queue: deque[HeldRun] = deque()
        self._suspects: deque[HeldRun] = deque()  # runs to execute alone
        self._isolated: HeldRun | None = None  # the run that is executed alone now
        self._returning: set[asyncio.Task[None]] = set()
        self._slots: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()  # slots that flush reports
        self._occupied = 0  # slots of the held runs
        self._waiting = 0  # slots of runs that only wait, and do not occupy them
        self._loops: list[asyncio.Task[None]] = []
        self._slot_free = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._starting_slots = False
        self._slots_to_start = 1  # at once
        self._stopped_runs = _RecentLeases()  # stopped here; the server may still have their leases
        self._returned_unseen = _RecentLeases()  # given back because their order never arrived; a late order is ignored
        self._reconciling: asyncio.Task[None] | None = None
        self._reconcile_pause = FIRST_CHECK
        self.finished = 0  # runs completed by this worker

    # ── lifecycle ───────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Start claiming and executing runs."""
        loop = asyncio.get_running_loop()
        self._slot_free.set()
        self._reporter.start()
        self._loops = [
            loop.create_task(self._repeat(self._claim)),
            loop.create_task(self._repeat(self._heartbeat_turn)),
            loop.create_task(self._repeat(self._poll_revoked)),
        ]

    async def stop(self, grace: float = 30.0) -> None:
        """Stop claiming, wait up to `grace` seconds for active runs, and give the rest back."""
        self._draining = True
        for claiming in self._loops[:1]:
            claiming.cancel()
        waiting = [*self._queue, *self._suspects]
        self._queue.clear()
        self._suspects.clear()
        await self._give_back(waiting)
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
                await self._reporter.stop()
        except TimeoutError:
            unfinished = list(self._held.values())
            for held in unfinished:
                self._cancel(held)
            if working := self._slots - self._sending:
                _, hanging = await asyncio.wait(working, timeout=STOP_SECONDS)
                if hanging:
                    _log.error("%d tools did not stop within %g s after cancellation", len(hanging), STOP_SECONDS)
            await self._give_back(unfinished)
            await self._reporter.abandon()
            for slot in self._sending:
                slot.cancel()
        if self._reconciling is not None:
            self._reconciling.cancel()
        await self.runner.services.observer.close()
        await cancel(*self._loops)

    async def abandon(self) -> None:
        """Stop at once without giving runs back, like a killed process; for tests."""
        self._draining = True
        await cancel(*self._loops, *self._slots, self._reconciling)
        await self._reporter.abandon()

    @property
    def busy(self) -> int:
        """The number of held leases."""
        return len(self._held)

    async def _give_back(self, runs: Sequence[HeldRun]) -> None:
        """Return unfinished runs to the server, which counts an attempt of those whose tool had begun."""
        returned = [held for held in runs if not held.reports.ending]
        begun = [held.order.run_id for held in returned if held.reports.begun]
        for held in returned:
            held.reports.close()
            self._release(held)
        if returned:
            leases = [(held.order.run_id, held.order.epoch) for held in returned]
            try:
                await self._link.give_back(self.worker, leases, begun=begun)
            except Exception as problem:  # noqa: BLE001 - the leases expire by themselves
                _log.warning("giving back %d runs failed: %s", len(returned), problem)

    # ── periodic calls ──────────────────────────────────────────────────────────────────

    async def _repeat(self, turn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `turn` in a loop; after a failure wait with exponential back-off."""
        pause = FIRST_PAUSE
        while True:
            try:
                await turn()
                pause = FIRST_PAUSE
            except Exception as problem:  # noqa: BLE001 - the server may be unreachable for a while
                _log.warning("worker %s: %s failed, retrying: %s: %s", self.worker, turn.__name__.strip("_"),
                             type(problem).__name__, problem)  # fmt: skip
                await self._clock.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, MAX_PAUSE)

    async def _claim(self) -> None:
        while not self._free_slots():  # a report may have returned orders meanwhile
            self._slot_free.clear()
            await self._slot_free.wait()
        claim = Claim(self.worker, self._free_slots(), self._pool, self.labels, self.slots)
        self._accept(await self._link.claim(claim, wait=CLAIM_WAIT))

    async def _heartbeat_turn(self) -> None:
        await self._heartbeat()  # before the first pause, because the reply has the lease duration
        await self._clock.sleep(self._heartbeat_seconds)

    async def _heartbeat(self) -> float | None:
        """Extend all leases, give back runs whose order never arrived, and return the duration of a lease.

        Such runs are ignored from then on, even if their order arrives late. A run that was stopped here is not
        given back: its tool may have had effects, so its lease has to expire."""
        sent_at = self._clock.monotonic()
        reply = await self._link.extend(self.worker, list(self._held))
        doubtful = self._reporter.may_have_expired()
        self._reporter.extended_at, self._reporter.term = sent_at, reply.term
        if reply.term is not None:
            self._heartbeat_seconds = min(self._heartbeat_seconds, reply.term / HEARTBEATS_PER_LEASE)
        self._cancel_lost(reply.ended, ended=True, doubtful=doubtful)
        self._cancel_lost(reply.lost)
        unseen = [key for key in reply.unknown if key not in self._held and key not in self._stopped_runs]
        if unseen:
            _log.warning("%d orders were lost in transit; giving their runs back", len(unseen))
            self._returned_unseen.add(unseen)
            await self._link.give_back(self.worker, unseen)
        return reply.term

    def reconcile_soon(self) -> None:
        """Compare leases with the server before the next heartbeat, because a response with orders may be lost."""
        self._reconcile_pause = FIRST_CHECK
        if self._reconciling is None and not self._draining:
            self._reconciling = asyncio.get_running_loop().create_task(self._reconcile())

    async def _reconcile(self) -> None:
        """Send heartbeats at growing intervals: the server may not have loaded its leases yet, or the response may
        still arrive."""
        while self._reconcile_pause < self._heartbeat_seconds:
            pause, self._reconcile_pause = self._reconcile_pause, 2 * self._reconcile_pause
            await self._clock.sleep(pause)
            try:
                await self._heartbeat()
            except Exception as problem:  # noqa: BLE001 - repeated by the next turn and by every heartbeat
                _log.warning("worker %s: heartbeat failed: %s: %s", self.worker, type(problem).__name__, problem)
        self._reconciling = None

    async def _poll_revoked(self) -> None:
        """A message that runs are revoked is a hint, which others may send too: the server is asked by a heartbeat."""
        hinted = set(await self._link.revoked(self.worker, wait=REVOKED_WAIT))
        named = [key for key in self._held if key[0] in hinted]
        if named:
            await self._heartbeat()
            if all(key in self._held for key in named):
                await self._clock.sleep(FALSE_HINT_PAUSE)

    def _cancel_lost(self, runs: Sequence[str], *, ended: bool = False, doubtful: bool = False) -> None:
        """Cancel runs whose lease is lost, or that the server has `ended`."""
        for run_id in runs:
            epochs = sorted(epoch for held_id, epoch in self._held if held_id == run_id)
            # A newer lease of the same run may have arrived meanwhile; the lost one is the older.
            for epoch in epochs[:1]:
                reports = self._held[run_id, epoch].reports
                reports.revoked, reports.doubtful = ended, doubtful
                self._cancel(self._held[run_id, epoch])

    def _cancel(self, held: HeldRun) -> None:
        held.lost = True
        self._stopped_runs.add([(held.order.run_id, held.order.epoch)])
        held.reports.close()
        if held.slot is not None:
            held.slot.cancel()
        self._release(held)

    # ── orders and slots ────────────────────────────────────────────────────────────────

    def _free_slots(self) -> int:
        if self._suspects or self._isolated is not None:
            return 0
        return max(0, self.slots - self._occupied + self._waiting)

    def _cost(self, order: RunOrder) -> int:
        """The slots that a run occupies, at most all."""
        return min(order.cost, self.slots)

    def _free_slots_after(self, finished: int) -> int:
        """The slots that an acknowledgement may fill: those of the runs that it completes."""
        if self._draining or self._suspects or self._isolated is not None:
            return 0
        return min(finished, self._free_slots() + finished)

    def _accept(self, orders: Sequence[RunOrder]) -> None:
        self._enqueue(orders)
        self._start_slots()

    def _enqueue(self, orders: Sequence[RunOrder]) -> None:
        for order in orders:
            key = order.run_id, order.epoch
            if key in self._returned_unseen:
                continue
            if key not in self._held:
                self._occupied += self._cost(order)
            reports = RunReports(
                order.run_id, order.epoch, self._reporter, partial(failure_of, order), self._cost(order)
            )
            self._held[key] = held = HeldRun(order, reports)
            (self._suspects if order.alone else self._queue).append(held)
        if orders:
            self._idle.clear()
            self._update_slot_free()
        if self._suspects or self._isolated is not None:
            self._isolate()

    def _isolate(self) -> None:
        """Give back what has not begun, and start the next run that must be alone once no other run is left."""
        others = [held for held in self._queue if held is not self._isolated]
        if others:
            self._queue = deque(held for held in self._queue if held is self._isolated)
            task = asyncio.get_running_loop().create_task(self._give_back(others))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)
        elif self._suspects and self._isolated is None and len(self._held) == len(self._suspects):
            self._isolated = self._suspects.popleft()
            self._queue.append(self._isolated)
            self._start_slots()

    def _update_slot_free(self) -> None:
        if self._free_slots() > 0 and not self._draining:
            self._slot_free.set()
        else:
            self._slot_free.clear()

    def _start_slots(self) -> None:
        """Start slot tasks while runs are queued.

        One task first, then twice as many with every turn of the event loop: runs that never wait are all executed
        by the first task, and others get a slot after a few turns."""
        free = self.slots - len(self._slots) + len(self._sending) + self._waiting
        if not self._queue or self._starting_slots or free <= 0:
            return
        loop = asyncio.get_running_loop()
        for _ in range(min(self._slots_to_start, free, len(self._queue))):
            task = loop.create_task(self._work())
            self._slots.add(task)
            task.add_done_callback(self._slot_done)
        self._starting_slots = True
        loop.call_soon(self._start_more_slots)

    def _slot_done(self, task: asyncio.Task[None]) -> None:
        self._slots.discard(task)
        self._start_slots()

    def _start_more_slots(self) -> None:
        # Called after the first turn of the new tasks, which was scheduled before.
        self._starting_slots = False
        self._slots_to_start = 2 * self._slots_to_start if self._queue else 1
        self._start_slots()

    async def _work(self) -> None:
        """Execute queued runs until the queue is empty, and flush the last report, which may return new orders."""
        slot = asyncio.current_task()
        assert slot is not None
        done = 0
        while self._queue:
            held = self._queue.popleft()
            if held.lost:
                continue
            held.slot = slot
            try:
                set_waiting = (
                    partial(self._set_waiting, cost=held.reports.cost) if held.reports.cost > 1 else self._set_waiting
                )
                await self.runner.run(held.order, held.reports, set_waiting)
            except RunEnded:
                self._stopped_runs.add([(held.order.run_id, held.order.epoch)])
                self._release(held)
            except asyncio.CancelledError:
                if not held.lost:
                    raise
                return
            except Exception as problem:  # noqa: BLE001 - a bug in this worker: logged, and the run fails
                _log.exception("internal error while executing run %s", held.order.run_id)
                info = error_info("unknown", f"internal error: {type(problem).__name__}: {problem}")
                held.reports.finish((failure_of(held.order, info),))
            finally:
                held.slot = None
            if not self._queue:
                await self._flush_from(slot)
                done = 0
                continue
            self._reporter.wake()
            done += 1
            if done >= RUNS_PER_TURN:
                done = 0
                await asyncio.sleep(0)

    async def _flush_from(self, slot: asyncio.Task[None]) -> None:
        """Flush reports from an idle slot, which then executes the first of the returned orders."""
        self._sending.add(slot)
        try:
            await self._reporter.flush_inline(self._enqueue)
        finally:
            self._sending.discard(slot)
        if len(self._queue) > 1:
            self._start_slots()

    def _set_waiting(self, waiting: bool, cost: int = 1) -> None:
        self._waiting += cost if waiting else -cost
        self._update_slot_free()
        self._start_slots()

    def _run_ended(self, reports: RunReports, ack: ReportAck) -> None:
        """Release a run whose last report was acknowledged; cancel one whose report was rejected."""
        held = self._held.get((reports.run_id, reports.epoch))
        if held is None:
            return
        if reports.ending:
            self.finished += 1
            self._release(held)
        else:
            self._cancel(held)

    def _release(self, held: HeldRun) -> None:
        if self._held.pop((held.order.run_id, held.order.epoch), None) is not None:
            self._occupied -= self._cost(held.order)
        if held is self._isolated:
            self._isolated = None
        elif held in self._suspects:
            self._suspects.remove(held)
        if self._suspects and not self._draining:
            self._isolate()
        self._update_slot_free()
        if not self._held:
            self._idle.set()
