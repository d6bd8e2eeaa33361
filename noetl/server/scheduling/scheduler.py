"""The scheduler: starts one execution per tick of a schedule.

The idempotency key of an execution consists of the schedule and the tick. So the execution is started first, and the
progress of the schedule is stored afterwards: a server that stops in between, or processes the tick at the same time
as another one, submits it again and gets the same execution. Leadership only avoids duplicate work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from noetl.errors import Conflict, InvalidPlaybook, NoetlError, RequestRefused, StoreUnavailable, TemplateError
from noetl.runtime.clock import Clock
from noetl.server.lifecycle.children import FINAL
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.server.scheduling.cron import Cron
from noetl.server.scheduling.schedules import KIND, Schedule, Schedules, row_of, schedule_of
from noetl.storage.ports.cluster import LeaderLease
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

log = logging.getLogger("noetl.schedules")

POLL_SECONDS = 2.0  # maximum delay until a schedule that another process added is found
LEADER_ROLE, LEADER_SECONDS = "timers", 5.0
ON_TIME_SECONDS = 60.0  # a tick that is late by less, as after a restart, is not a missed one
MAX_TICKS = 1_000  # missed or queued ticks of one schedule
QUEUED_POLL_SECONDS = 0.5  # maximum delay until a queued tick starts
WINDOWS = (3600.0, 86_400.0, 32 * 86_400.0, 1_000 * 86_400.0, float("inf"))


class Scheduler(msgspec.Struct, eq=False):
    """Starts the executions of due ticks."""

    _store: TriggerStore
    _orchestrator: Orchestrator
    _clock: Clock
    _leadership: LeaderLease | None = None

    async def run_due(self) -> int:
        """Start the executions of all due schedules; returns the number of due schedules."""
        leadership = self._leadership
        if leadership is not None and not await leadership.acquire_leadership(LEADER_ROLE, LEADER_SECONDS):
            return 0
        due = await self._store.due(KIND, self._clock.now())
        for row in due:
            try:
                await self._process(row)
            except StoreUnavailable:
                raise
            except NoetlError as problem:
                log.error("schedule %s could not be processed: %s", row.name, problem)
        return len(due)

    async def seconds_until_next(self) -> float:
        """Seconds until `run_due` should be called again."""
        wake = await self._store.next_wake(KIND)
        if wake is None:
            return POLL_SECONDS
        return min(POLL_SECONDS, wake - self._clock.now()) if wake > self._clock.now() else QUEUED_POLL_SECONDS

    async def _process(self, row: StoredTrigger) -> None:
        schedule = schedule_of(row)
        cron = Cron(schedule.cron, schedule.tz)
        now = self._clock.now()
        ticks = _ticks(schedule, cron, now)
        schedule = msgspec.structs.replace(schedule, next_at=cron.next(now) if ticks else schedule.next_at)
        chosen = _caught_up(schedule, ticks, now)
        if len(chosen) < len(ticks):
            log.info("schedule %s: %d missed ticks are dropped", schedule.name, len(ticks) - len(chosen))
        for tick in chosen:
            schedule = await self._tick(schedule, tick)
        while schedule.queued and not await self._is_running(schedule.last_execution):
            waiting = msgspec.structs.replace(schedule, queued=schedule.queued[1:])
            schedule = await self._start(waiting, schedule.queued[0])
        if msgspec.json.encode(schedule) != row.data:
            # If another server wrote first, it has started the same executions.
            await self._store.save(row_of(schedule, row.revision + 1))

    async def _tick(self, schedule: Schedule, tick: float) -> Schedule:
        known = await self._orchestrator.store.by_key(schedule.key(tick))
        if known is not None:  # started before a crash, or by another server
            return _fired(schedule, tick, known.execution_id)
        if schedule.overlap == "queue":
            if len(schedule.queued) >= MAX_TICKS:
                return _skipped(schedule, tick, f"{MAX_TICKS} ticks are queued already")
            return msgspec.structs.replace(schedule, queued=(*schedule.queued, tick))
        if schedule.overlap != "allow" and await self._is_running(schedule.last_execution):
            if schedule.overlap == "skip":
                return _skipped(schedule, tick, None)
            await self._cancel(schedule)
        return await self._start(schedule, tick)

    async def _start(self, schedule: Schedule, tick: float) -> Schedule:
        try:
            execution_id = await self._orchestrator.submit(
                Submission(
                    path=schedule.path,
                    version=schedule.version,
                    payload=schedule.payload_at(tick),
                    key=schedule.key(tick),
                    requested_by=f"schedule {schedule.name}",
                )
            )
        except (RequestRefused, InvalidPlaybook, TemplateError) as problem:
            log.error("schedule %s could not start %s: %s", schedule.name, schedule.path, problem)
            return _skipped(schedule, tick, str(problem))
        log.info("schedule %s started execution %s", schedule.name, execution_id)
        return _fired(schedule, tick, execution_id)

    async def _is_running(self, execution_id: str | None) -> bool:
        if execution_id is None:
            return False
        summary = await self._orchestrator.store.summary(execution_id)
        return summary is not None and summary.status not in FINAL

    async def _cancel(self, schedule: Schedule) -> None:
        assert schedule.last_execution is not None
        try:
            await self._orchestrator.cancel(
                schedule.last_execution, f"superseded by the next tick of schedule {schedule.name}"
            )
        except Conflict:
            return  # it ended meanwhile


async def run_schedules(scheduler: Scheduler, schedules: Schedules) -> None:
    """Run the scheduler until cancelled."""
    unreachable = False
    while True:
        pause = POLL_SECONDS
        try:
            await scheduler.run_due()
            pause = await scheduler.seconds_until_next()
            unreachable = False
        except StoreUnavailable as problem:
            if not unreachable:
                log.warning("schedules are not processed, the store is unreachable: %s", problem)
            unreachable = True
        try:
            async with asyncio.timeout(pause):  # not wait_for, which may swallow a cancellation before Python 3.12
                await schedules.changed.wait()
        except TimeoutError:
            continue
        schedules.changed.clear()


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
    if schedule.catch_up == "all" or not ticks:
        return list(ticks)
    newest = ticks[-1]
    return [newest] if schedule.catch_up == "last" or now - newest <= ON_TIME_SECONDS else []


def _fired(schedule: Schedule, tick: float, execution_id: str) -> Schedule:
    return msgspec.structs.replace(
        schedule, fired=schedule.fired + 1, last_tick=tick, last_execution=execution_id, last_error=None
    )


def _skipped(schedule: Schedule, tick: float, reason: str | None) -> Schedule:
    return msgspec.structs.replace(schedule, skipped=schedule.skipped + 1, last_tick=tick, last_error=reason)
