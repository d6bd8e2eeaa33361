"""Events on their way to the server: many runs' reports in one call, each run's in order.

While one call is under way others collect, so the busier a worker is the larger its batches: the
group commit of the data plane. What somebody waits for, and what ends a run, is sent at once, or
together with what the next turns of the loop bring while many runs end one after another. The
rest lingers a while: most runs end before that is over, and then they have one report and not two.
A call that fails is repeated as it was until the server answers; the server knows a repeated report
by its number.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from noetl.core.model.events import Event
from noetl.core.model.work import Report, ReportAck, RunOrder
from noetl.errors import RequestRefused
from noetl.runtime.clock import Clock
from noetl.storage.ports.work_link import WorkLink

LINGER = 0.1  # seconds that events nobody waits for may stay here
MOST_REPORTS = 512  # in one call
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # between repeated calls

_log = logging.getLogger("noetl.work")


class RunEnded(Exception):
    """The run was ended or given to another worker: stop, and say nothing more."""


class RunReports:
    """One run's way to the server."""

    __slots__ = ("_reporter", "_waiter", "ending", "epoch", "in_flight", "number", "over", "pending", "run_id")

    def __init__(self, order: RunOrder, reporter: Reporter) -> None:
        self.run_id = order.run_id
        self.epoch = order.epoch
        self.number = 0
        self.pending: list[Event] = []
        self.in_flight = False
        self.ending = False  # the run's last events are among `pending` or on their way
        self.over = False  # refused, revoked or answered: nothing more is sent
        self._reporter = reporter
        self._waiter: asyncio.Future[None] | None = None

    def queue(self, events: Sequence[Event]) -> None:
        """Send these before long; nobody waits."""
        if events and not self.over:
            self.pending.extend(events)
            self._reporter.note(self, urgent=False)

    async def flush(self, events: Sequence[Event] = ()) -> None:
        """Send these and all before them; returns when they are on disk. RunOver when they are not wanted."""
        if self.over:
            raise RunEnded
        self.pending.extend(events)
        if not self.pending and not self.in_flight:
            return
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        self._reporter.note(self, urgent=True)
        await self._waiter

    def finish(self, events: Sequence[Event]) -> None:
        """Have the run's last events ready; the caller sees to it that they leave (`Reporter.lead` or `ring`).

        The lease ends when they are on disk."""
        if not self.over:
            self.pending.extend(events)
            self.ending = True
            self._reporter.ready(self)

    @property
    def awaited(self) -> bool:
        """Whether what is pending must not wait for company."""
        return self.ending or self._waiter is not None

    def answered(self, *, wanted: bool) -> None:
        """A report of this run came back."""
        self.in_flight = False
        if not wanted:
            self.over = True
            self.pending.clear()
        if self._waiter is not None and (self.over or not self.pending):
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                if self.over:
                    waiter.set_exception(RunEnded())
                else:
                    waiter.set_result(None)

    def close(self) -> None:
        """The run is no longer this worker's: nothing more is sent."""
        self.over = True
        self.pending.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(RunEnded())
        self._waiter = None


class Reporter:
    """Sends what the outlets of this worker hold."""

    def __init__(
        self,
        link: WorkLink,
        worker: str,
        *,
        clock: Clock,
        free: Callable[[int], int],
        held: Callable[[], int],
        on_end: Callable[[RunReports, ReportAck], None],
        on_orders: Callable[[Sequence[RunOrder]], None],
        lanes: int = 1,
    ) -> None:
        self._link = link
        self._worker = worker
        self._clock = clock
        self._free = free
        self._held = held
        self._on_end = on_end
        self._on_orders = on_orders
        self._lanes = lanes
        self._dirty: dict[RunReports, None] = {}  # to be sent now
        self._lingering: dict[RunReports, None] = {}  # to be sent when the timer rings
        self._bell = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._senders: list[asyncio.Task[None]] = []
        self._under_way = 0
        self._stopping: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        loop = asyncio.get_running_loop()
        self._senders = [loop.create_task(self._send_forever()) for _ in range(self._lanes)]

    async def stop(self) -> None:
        """Send what is pending (as long as the caller waits), then no more."""
        self._stopping = asyncio.get_running_loop().create_future()
        self._hurry()
        if self._dirty or self._under_way:
            await self._stopping
        await self.abandon()

    async def abandon(self) -> None:
        """Stop at once; what is pending is lost, and the leases will run out."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        self._senders = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, outlet: RunReports, *, urgent: bool) -> None:
        """An outlet has something to send."""
        if urgent:
            self.ready(outlet)
            self.ring()
        elif outlet not in self._dirty:
            self._lingering[outlet] = None
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LINGER, self._hurry)

    def ready(self, outlet: RunReports) -> None:
        """An outlet has something that is to be sent now."""
        self._lingering.pop(outlet, None)
        self._dirty[outlet] = None

    def ring(self) -> None:
        """Wake who sends."""
        self._bell.set()

    async def lead(self, on_orders: Callable[[Sequence[RunOrder]], None]) -> None:
        """Send what is ready from here, unless others are at it: they will look again when they are back.

        Whoever has just finished a run need not wake a sender that way, and has the next orders in hand at once.
        While most of many runs are still at work a sender is woken all the same, and may wait for company."""
        if 2 * len(self._dirty) < self._held():
            self.ring()
        elif self._under_way < self._lanes and (batch := self._take()):
            await self._send(batch, on_orders)

    # ── sending ─────────────────────────────────────────────────────────────────────────

    def _hurry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._dirty.update(self._lingering)
        self._lingering.clear()
        self._bell.set()

    async def _send_forever(self) -> None:
        while True:
            if self._dirty and self._under_way < self._lanes:
                await self._with_company()
            batch = self._take() if self._under_way < self._lanes else []
            if batch:
                await self._send(batch, self._on_orders)
                continue
            if self._stopping is not None and not self._stopping.done() and not self._dirty and not self._under_way:
                self._stopping.set_result(None)
            self._bell.clear()
            if self._under_way >= self._lanes or all(outlet.in_flight for outlet in self._dirty):
                await self._bell.wait()

    async def _with_company(self) -> None:
        """Wait as long as every turn of the loop brings more to send, up to half of all runs.

        Turns that bring more come one after another only while the process is busy, and then a call that carries
        much saves more than it delays. The other half is at work while the first is on its way."""
        ready = len(self._dirty)
        while 2 * ready < self._held():
            await asyncio.sleep(0)
            before, ready = ready, len(self._dirty)
            if ready <= before:
                return

    def _take(self) -> list[RunReports]:
        """The outlets of the next call; one whose last report is still under way waits its turn."""
        batch = [outlet for outlet in self._dirty if not outlet.in_flight][:MOST_REPORTS]
        for outlet in batch:
            del self._dirty[outlet]
        return [outlet for outlet in batch if outlet.pending and not outlet.over]

    async def _send(self, outlets: Sequence[RunReports], on_orders: Callable[[Sequence[RunOrder]], None]) -> None:
        self._under_way += 1
        try:
            await self._exchange(outlets, on_orders)
        finally:
            self._under_way -= 1
            if self._dirty or self._stopping is not None:
                self.ring()

    async def _exchange(self, outlets: Sequence[RunReports], on_orders: Callable[[Sequence[RunOrder]], None]) -> None:
        reports: list[Report] = []
        finished = 0
        for outlet in outlets:
            outlet.number += 1
            reports.append(Report(outlet.run_id, outlet.epoch, outlet.number, tuple(outlet.pending)))
            outlet.pending.clear()
            outlet.in_flight = True
            finished += outlet.ending
        verdicts, orders = await self._deliver(reports, finished)
        for outlet, verdict in zip(outlets, verdicts, strict=True):
            wanted = verdict.accepted and verdict.error is None
            outlet.answered(wanted=wanted)
            if outlet.pending:
                self.note(outlet, urgent=outlet.awaited)
            elif outlet.ending or not wanted:
                outlet.over = True
                self._on_end(outlet, verdict)
        if orders:
            on_orders(orders)

    async def _deliver(self, reports: Sequence[Report], finished: int) -> tuple[list[ReportAck], list[RunOrder]]:
        """Hand the reports over, as often as it takes."""
        pause = FIRST_PAUSE
        while True:
            try:
                verdicts, orders = await self._link.report(self._worker, reports, free=self._free(finished))
                return _in_order(reports, verdicts), list(orders)
            except RequestRefused as problem:
                if len(reports) == 1:
                    _log.error("the server refused a report of run %s: %s", reports[0].run_id, problem)
                    return [ReportAck(reports[0].run_id, False)], []
                return await self._one_by_one(reports)
            except Exception as problem:  # noqa: BLE001 - whatever broke on the way, the events must arrive
                _log.warning("a report could not be delivered, trying again: %s: %s", type(problem).__name__, problem)
            await self._clock.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _one_by_one(self, reports: Sequence[Report]) -> tuple[list[ReportAck], list[RunOrder]]:
        """One of several was refused: find out which."""
        verdicts: list[ReportAck] = []
        orders: list[RunOrder] = []
        for report in reports:
            some, more = await self._deliver([report], 1)
            verdicts += some
            orders += more
        return verdicts, orders


def _in_order(reports: Sequence[Report], verdicts: Sequence[ReportAck]) -> list[ReportAck]:
    """A verdict for each report; one that was not judged was not accepted."""
    if [verdict.run_id for verdict in verdicts] == [report.run_id for report in reports]:
        return list(verdicts)
    by_run = {verdict.run_id: verdict for verdict in verdicts}
    return [by_run.get(report.run_id, ReportAck(report.run_id, accepted=False)) for report in reports]
