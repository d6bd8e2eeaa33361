"""The scheduler: records one delivery per tick of a schedule, then starts what is due.

The key of a delivery consists of the schedule and the tick. The ticks are recorded first, and the progress of the
schedule is stored afterwards: a server that stops in between, or processes the schedule at the same time as another
one, records the same ticks again, which changes nothing. Leadership only avoids duplicate work.

A clock that was ahead may have moved the progress of a schedule into the future. When the clock is set back, and
whenever a process begins to schedule, such a schedule continues with the first tick after the last pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

import msgspec

from noetl.core.model.events import instant
from noetl.errors import NoetlError, StoreUnavailable, TemplateError
from noetl.runtime.clock import Clock
from noetl.server.scheduling.cron import Cron
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.schedules import KIND, LATE, Schedule
from noetl.server.scheduling.triggers import decode
from noetl.storage.ports.cluster import LeaderLease
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

log = logging.getLogger("noetl.schedules")

POLL_SECONDS = 2.0  # maximum delay until a schedule that another process added is found
LEADER_ROLE, LEADER_SECONDS = "timers", 5.0
ON_TIME_SECONDS = 60.0  # a tick that is late by less, as after a restart, is not a missed one
LATE_SECONDS = 10.0  # if the oldest due tick is late by less, none was missed: of a schedule of seconds several are due
BATCH = 100  # schedules that are processed together
MAX_TICKS = 1_000  # missed ticks of one schedule
QUEUED_POLL_SECONDS = 0.5  # maximum delay until a pending delivery starts
SET_BACK_SECONDS = 1.0  # of a clock; smaller corrections are ignored
WINDOWS = (3600.0, 86_400.0, 32 * 86_400.0, 1_000 * 86_400.0, float("inf"))


class Scheduler(msgspec.Struct, eq=False):
    """Records due ticks and starts the executions of due deliveries."""

    _store: TriggerStore
    _deliveries: Deliveries
    _clock: Clock
    _leadership: LeaderLease | None = None
    _last_pass: tuple[float, float] | None = None  # when it began, on the clock and on the monotonic clock

    @property
    def changed(self) -> asyncio.Event:
        """Set when a trigger was added or changed, or a delivery was recorded."""
        return self._deliveries.triggers.changed

    async def run_due(self) -> int:
        """Record due ticks and start due deliveries; returns the number of due schedules, up to `BATCH`."""
        leadership = self._leadership
        if leadership is not None and not await leadership.acquire_leadership(LEADER_ROLE, LEADER_SECONDS):
            self._last_pass = None
            return 0
        now, monotonic = self._clock.now(), self._clock.monotonic()
        last, last_monotonic = self._last_pass or (float("inf"), monotonic)
        if now < last - SET_BACK_SECONDS:
            await self._rewind(now - (monotonic - last_monotonic))
        self._last_pass = (now, monotonic)
        due = await self._store.due(KIND, now, BATCH)
        await self._for_each(due, self._process)
        await self._deliveries.process_due()
        return len(due)

    async def seconds_until_next(self) -> float:
        """Seconds until `run_due` should be called again."""
        now = self._clock.now()
        wakes = [await self._store.next_wake(KIND), await self._deliveries.store.next_due()]
        wake = min((each for each in wakes if each is not None), default=now + POLL_SECONDS)
        return min(POLL_SECONDS, wake - now) if wake > now else QUEUED_POLL_SECONDS

    async def _for_each(self, rows: Sequence[StoredTrigger], act: Callable[[StoredTrigger], Awaitable[None]]) -> None:
        for row in rows:
            try:
                await act(row)
            except StoreUnavailable:
                raise
            except Exception as problem:  # a defect of one schedule must not stop the others
                is_defect = not isinstance(problem, NoetlError)
                log.error("schedule %s could not be processed: %s", row.name, problem, exc_info=is_defect)

    async def _rewind(self, since: float) -> None:
        """Let schedules whose next tick is later than the first one after `since` continue with that one.

        A schedule has no ticks before it was created."""

        async def rewind(row: StoredTrigger) -> None:
            schedule = decode(Schedule, row)
            next_at = Cron(schedule.cron, schedule.tz).next(max(since, schedule.created_at))
            if next_at is None or schedule.next_at is None or schedule.next_at <= next_at:
                return
            log.warning(
                "the clock was ahead when schedule %s was processed: ticks from %s to %s that have not started start "
                "at their time", schedule.name, instant(next_at), instant(schedule.next_at),
            )  # fmt: skip
            await self._store.save(msgspec.structs.replace(schedule, next_at=next_at).row(row.revision + 1))

        after: str | None = None
        while page := await self._store.list(KIND, after=after, limit=BATCH):
            await self._for_each(page, rewind)
            after = page[-1].name

    async def _process(self, row: StoredTrigger) -> None:
        schedule = decode(Schedule, row)
        cron = Cron(schedule.cron, schedule.tz)
        now = self._clock.now()
        ticks = _ticks(schedule, cron, now)
        chosen = _caught_up(schedule, ticks, now)
        if len(chosen) < len(ticks):
            log.info("schedule %s: %d missed ticks are dropped", schedule.name, len(ticks) - len(chosen))
        if schedule.deadline is not None:
            for tick in dict.fromkeys((*chosen, *ticks[-1:])):
                await self._deliveries.check_later(
                    schedule, LATE, schedule.tick_key(tick), tick + schedule.deadline, tick=tick
                )
        for tick in (*schedule.queued, *chosen):
            await self._record(schedule, tick, missed=now - tick > ON_TIME_SECONDS)
        next_at = cron.next(now) if ticks else schedule.next_at
        changed = msgspec.structs.replace(schedule, next_at=next_at, queued=())
        if changed != schedule:
            # If another server wrote first, it has recorded the same ticks.
            await self._store.save(changed.row(row.revision + 1))

    async def _record(self, schedule: Schedule, tick: float, *, missed: bool) -> None:
        make_up = {"make_up": True} if missed and schedule.catch_up == "all" else {}
        try:
            payload = schedule.payload_at(tick)
        except TemplateError as problem:
            await self._deliveries.reject(schedule, schedule.tick_key(tick), str(problem), tick=tick)
            return
        await self._deliveries.receive(
            schedule, schedule.tick_key(tick), payload, due=schedule.due(tick), tick=tick, **make_up
        )


async def run_schedules(scheduler: Scheduler) -> None:
    """Run the scheduler until cancelled."""
    unreachable = False
    while True:
        pause = POLL_SECONDS
        try:
            more = await scheduler.run_due() == BATCH
            pause = 0.0 if more else await scheduler.seconds_until_next()
            unreachable = False
        except StoreUnavailable as problem:
            if not unreachable:
                log.warning("schedules are not processed, the store is unreachable: %s", problem)
            unreachable = True
        try:
            async with asyncio.timeout(pause):  # not wait_for, which may swallow a cancellation before Python 3.12
                await scheduler.changed.wait()
        except TimeoutError:
            continue
        scheduler.changed.clear()


def _ticks(schedule: Schedule, cron: Cron, now: float) -> list[float]:
    """The ticks since the schedule was last processed, limited to the newest that can matter."""
    first = schedule.next_at
    if first is None or first > now:
        return []
    wanted = MAX_TICKS if schedule.catch_up == "all" else 1
    for window in WINDOWS:  # growing windows: not every tick of a year of seconds is enumerated
        start = max(first, now - window)
        ticks = list(takewhile(lambda tick: tick <= now, cron.after(start)))
        if start == first:
            return [first, *ticks][-MAX_TICKS:]
        if len(ticks) >= wanted:
            return ticks[-MAX_TICKS:]
    raise AssertionError("the last window is unlimited")


def _caught_up(schedule: Schedule, ticks: Sequence[float], now: float) -> list[float]:
    """The ticks that start an execution under the rule `catch_up`."""
    if schedule.catch_up == "all" or not ticks or now - ticks[0] <= LATE_SECONDS:
        return list(ticks)
    newest = ticks[-1]
    return [newest] if schedule.catch_up == "last" or now - newest <= ON_TIME_SECONDS else []
