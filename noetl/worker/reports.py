"""Reports of events to the server: one call carries the reports of many runs, each run's in order.

Reports that become ready during a call are sent together in the next one, so batches grow with the load: the
group commit of the data plane. Events that a run waits for, and the events that end a run, are sent at
once, or after the next turns of the event loop while these add more reports. All others linger for a moment,
because most runs end within it and then need one report instead of two. A call that fails is repeated
unchanged until the server responds; the server recognises a repeated report by its number.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from noetl.core.model.events import Event
from noetl.core.model.excerpt import unencodable
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.core.model.work import Report, ReportAck, RunOrder
from noetl.errors import RequestRefused
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel
from noetl.storage.ports.work_link import WorkLink

LINGER = 0.1  # seconds that events may be delayed if no run waits for them
MAX_REPORTS = 512  # in one call
FIRST_PAUSE, MAX_PAUSE = 0.05, 5.0  # between repeated calls

_log = logging.getLogger("noetl.work")


class RunEnded(Exception):
    """The run ended or was leased to another worker: stop, and report nothing more."""


class RunReports(Struct, eq=False):
    """The reports of one run."""

    run_id: str
    epoch: int
    _reporter: Reporter
    _failure: Callable[[ErrorInfo], Event]  # the event that ends the run with an error
    cost: int = 1  # slots that the run occupies
    number: int = 0
    pending: list[Event] = field(default_factory=list)
    in_flight: bool = False
    ending: bool = False  # the run's last events are in `pending` or in flight
    closed: bool = False  # rejected, revoked or complete: nothing more is sent
    begun: bool = False  # a tool has begun whose end may not be stored
    failed: bool = False  # an event could not be encoded: the report ends the run with that error
    revoked: bool = False  # the server has ended the run: no other worker continues it
    doubtful: bool = False  # the lease may have expired before that: another worker may have continued the run
    _waiter: asyncio.Future[None] | None = None

    def queue(self, events: Sequence[Event]) -> None:
        """Send these events within `LINGER` seconds."""
        if events and not self.closed:
            self.pending.extend(events)
            self._reporter.schedule(self, urgent=False)

    async def flush(self, events: Sequence[Event] = ()) -> None:
        """Send these events and all before them, and wait until they are stored; RunEnded if they are rejected."""
        if self.closed:
            raise RunEnded
        self.pending.extend(events)
        if not self.pending and not self.in_flight:
            return
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        self._reporter.schedule(self, urgent=True)
        await self._waiter
        self.begun = False

    async def confirm(self, events: Sequence[Event]) -> None:
        """Store the start of an `at_most_once` task and extend the lease; RunEnded unless it is certainly held now.

        After a lost lease the server records the outcome `ambiguous`, and the tool must not run any more."""
        await self.flush(events)
        if not await self._reporter.extend_in_time() or self.closed:
            await asyncio.sleep(0)  # the reply may have revoked the lease, and cancelled this task
            raise RunEnded

    def finish(self, events: Sequence[Event]) -> None:
        """Add the run's last events; the caller sends them with `Reporter.flush_inline` or `wake`.

        The lease ends when they are stored."""
        if not self.closed:
            self.pending.extend(events)
            self.ending = True
            self._reporter.mark_ready(self)

    @property
    def urgent(self) -> bool:
        """Whether the pending events must not linger."""
        return self.ending or self._waiter is not None

    def acknowledge(self, *, accepted: bool, ended: bool = False) -> None:
        """Process the acknowledgement of a report; `ended`: it was rejected because the server has ended the run."""
        self.in_flight = False
        self.revoked = self.revoked or ended
        if not accepted or self.failed:
            self.closed = True
            self.pending.clear()
        if self._waiter is not None and (self.closed or not self.pending):
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                if self.closed:
                    waiter.set_exception(RunEnded())
                else:
                    waiter.set_result(None)

    def repaired(self, report: Report) -> Report:
        """The report with an error of the run in place of the first event that cannot be encoded."""
        for index, event in enumerate(report.events):
            problem = unencodable(event, event.NAME)
            if problem is not None:
                _log.error("run %s fails: %s", self.run_id, problem)
                self.failed = True
                return replace(report, events=(*report.events[:index], self._failure(error_info("unknown", problem))))
        return report

    def refused(self, report: Report, problem: RequestRefused) -> Report:
        """An error of the run in place of a report that the server cannot read: it would refuse it again after every
        lease, and the run would end as lost."""
        message = f"the server refused a report of the worker: {problem}; servers must be as new as their workers"
        _log.error("run %s fails: %s", self.run_id, message)
        self.failed = True
        return replace(report, events=(self._failure(error_info("unknown", message)),))

    def close(self) -> None:
        """Drop pending events, because the lease is gone."""
        self.closed = True
        self.pending.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(RunEnded())
        self._waiter = None


class Reporter(Struct, eq=False):
    """Sends the reports of all runs of this worker, one call at a time."""

    link: WorkLink
    worker: str
    clock: Clock
    free_slots: Callable[[int], int]
    active: Callable[[], int]
    on_end: Callable[[RunReports, ReportAck], None]
    on_orders: Callable[[Sequence[RunOrder]], None]
    extend: Callable[[], Awaitable[float | None]]  # all leases; returns their duration
    extended_at: float = 0.0  # when the last heartbeat that was answered had been sent (monotonic)
    term: float | None = None  # the duration of a lease, if it can expire
    _ready: dict[RunReports, None] = field(default_factory=dict)  # to be sent now
    _lingering: dict[RunReports, None] = field(default_factory=dict)  # to be sent when the timer expires
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None
    _sender: asyncio.Task[None] | None = None
    _calling: bool = False
    _stopping: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start the sender task."""
        self._sender = asyncio.get_running_loop().create_task(self._send_forever())

    async def stop(self) -> None:
        """Send what is pending, then stop; the caller limits the time."""
        self._stopping = asyncio.get_running_loop().create_future()
        self._flush_lingering()
        if self._ready or self._calling:
            await self._stopping
        await self.abandon()

    async def abandon(self) -> None:
        """Stop at once; pending events are lost, and the leases expire."""
        await cancel(self._sender)
        self._sender = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def schedule(self, run: RunReports, *, urgent: bool) -> None:
        """Send the pending events of a run, now or after `LINGER` seconds."""
        if urgent:
            self.mark_ready(run)
            self.wake()
        elif run not in self._ready:
            self._lingering[run] = None
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LINGER, self._flush_lingering)

    def mark_ready(self, run: RunReports) -> None:
        """Include a run in the next call."""
        self._lingering.pop(run, None)
        self._ready[run] = None

    def wake(self) -> None:
        """Wake the sender task."""
        self._wakeup.set()

    async def flush_inline(self, on_orders: Callable[[Sequence[RunOrder]], None]) -> None:
        """Send what is ready from the calling task, unless a call is in flight: then the next call carries it.

        A slot that has just finished a run thus needs no task switch, and receives the next orders directly.
        While less than half of the runs are ready the sender task is woken instead, so that it can wait for a
        larger batch."""
        if 2 * len(self._ready) < self.active():
            self.wake()
        elif not self._calling and (batch := self._next_batch()):
            await self._send(batch, on_orders)

    def may_have_expired(self) -> bool:
        """Whether leases may have expired since the last heartbeat."""
        return self.term is not None and self.clock.monotonic() - self.extended_at >= self.term

    async def extend_in_time(self) -> bool:
        """Extend all leases; False if the reply took longer than a lease, so that they may have expired again."""
        pause = FIRST_PAUSE
        while True:
            sent_at = self.clock.monotonic()
            try:
                term = await self.extend()
            except Exception as problem:  # noqa: BLE001 - the server may be unreachable for a while
                _log.warning("extending the leases failed, retrying: %s: %s", type(problem).__name__, problem)
                await self.clock.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE)
                continue
            return term is None or self.clock.monotonic() - sent_at < term

    # ── sending ─────────────────────────────────────────────────────────────────────────

    def _flush_lingering(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ready.update(self._lingering)
        self._lingering.clear()
        self._wakeup.set()

    async def _send_forever(self) -> None:
        while True:
            if self._ready and not self._calling:
                await self._wait_for_batch()
            batch = [] if self._calling else self._next_batch()
            if batch:
                await self._send(batch, self.on_orders)
                continue
            if self._stopping is not None and not self._stopping.done() and not self._ready and not self._calling:
                self._stopping.set_result(None)
            self._wakeup.clear()
            if self._calling or all(run.in_flight for run in self._ready):
                await self._wakeup.wait()

    async def _wait_for_batch(self) -> None:
        """Wait while every turn of the event loop adds reports, up to half of all runs.

        Consecutive turns add reports only while the process is busy; then a larger call saves more than the
        delay costs. The other half of the runs is executed while the call is in flight."""
        ready = len(self._ready)
        while 2 * ready < self.active():
            await asyncio.sleep(0)
            before, ready = ready, len(self._ready)
            if ready <= before:
                return

    def _next_batch(self) -> list[RunReports]:
        """The runs of the next call, without those whose previous report is still in flight."""
        batch = [run for run in self._ready if not run.in_flight][:MAX_REPORTS]
        for run in batch:
            del self._ready[run]
        return [run for run in batch if run.pending and not run.closed]

    async def _send(self, runs: Sequence[RunReports], on_orders: Callable[[Sequence[RunOrder]], None]) -> None:
        self._calling = True
        try:
            await self._exchange(runs, on_orders)
        finally:
            self._calling = False
            if self._ready or self._stopping is not None:
                self.wake()

    async def _exchange(self, runs: Sequence[RunReports], on_orders: Callable[[Sequence[RunOrder]], None]) -> None:
        reports: list[Report] = []
        finished = 0
        for run in runs:
            run.number += 1
            reports.append(Report(run.run_id, run.epoch, run.number, tuple(run.pending)))
            run.pending.clear()
            run.in_flight = True
            finished += run.cost if run.ending else 0
        acks, orders = await self._deliver(runs, reports, finished)
        for run, ack in zip(runs, acks, strict=True):
            accepted = ack.accepted and ack.error is None
            run.acknowledge(accepted=accepted, ended=ack.ended or ack.error is not None)
            run.doubtful = run.doubtful or self.may_have_expired()
            if run.pending:
                self.schedule(run, urgent=run.urgent)
            elif run.ending or run.failed or not accepted:
                run.closed = True
                self.on_end(run, ack)
        if orders:
            on_orders(orders)

    async def _deliver(
        self, runs: Sequence[RunReports], reports: Sequence[Report], finished: int
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Send the reports, repeatedly until the server responds."""
        pause = FIRST_PAUSE
        while True:
            try:
                acks, orders = await self.link.report(self.worker, reports, free=self.free_slots(finished))
                return _in_order(reports, acks), list(orders)
            except RequestRefused as problem:
                if len(reports) == 1:
                    repaired = [runs[0].repaired(reports[0])]
                    if repaired != list(reports) or not runs[0].failed:
                        reports = repaired if repaired != list(reports) else [runs[0].refused(reports[0], problem)]
                        continue
                    _log.error("the server rejected a report of run %s: %s", reports[0].run_id, problem)
                    return [ReportAck(reports[0].run_id, False)], []
                return await self._deliver_each(runs, reports)
            except Exception as problem:  # noqa: BLE001 - whatever the cause, the events must arrive
                repaired = [run.repaired(report) for run, report in zip(runs, reports, strict=True)]
                if repaired != list(reports):
                    reports = repaired
                    continue
                _log.warning("sending reports failed, retrying: %s: %s", type(problem).__name__, problem)
            await self.clock.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, MAX_PAUSE)

    async def _deliver_each(
        self, runs: Sequence[RunReports], reports: Sequence[Report]
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Send the reports one by one, because one of them was rejected."""
        acks: list[ReportAck] = []
        orders: list[RunOrder] = []
        for run, report in zip(runs, reports, strict=True):
            some, more = await self._deliver([run], [report], 1)
            acks += some
            orders += more
        return acks, orders


def _in_order(reports: Sequence[Report], acks: Sequence[ReportAck]) -> list[ReportAck]:
    """An acknowledgement per report; a missing one counts as a rejection."""
    if [ack.run_id for ack in acks] == [report.run_id for report in reports]:
        return list(acks)
    by_run = {ack.run_id: ack for ack in acks}
    return [by_run.get(report.run_id, ReportAck(report.run_id, accepted=False)) for report in reports]
