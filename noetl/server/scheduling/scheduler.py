"""Carrying schedules out: each tick starts one execution, whoever looks, however often, whatever dies.

A tick's execution has an idempotency key made of the schedule and the tick. So the order is: start, then write down
that it was started. Who dies in between, or looks at the same moment as another server, starts it again and is
given the same execution. The duty `timers` only saves the others the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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

LOOK_SECONDS = 2.0  # how soon a schedule is noticed that another process added
DUTY, DUTY_SECONDS = "timers", 5.0
ON_TIME = 60.0  # a tick this late is not missed: servers restart
MOST = 1_000  # ticks of one schedule that are made up for, or wait for their turn
TURN_SECONDS = 0.5  # how soon a tick that waits for its turn notices that it has come
WINDOWS = (3600.0, 86_400.0, 32 * 86_400.0, 1_000 * 86_400.0, float("inf"))


class Scheduler:
    """Looks at what is due."""

    def __init__(
        self, store: TriggerStore, orchestrator: Orchestrator, clock: Clock, duties: LeaderLease | None = None
    ) -> None:
        self._store = store
        self._orchestrator = orchestrator
        self._clock = clock
        self._duties = duties

    async def look(self) -> int:
        """Start what is due; how many schedules were due."""
        if self._duties is not None and not await self._duties.acquire_leadership(DUTY, DUTY_SECONDS):
            return 0
        due = await self._store.due(KIND, self._clock.now())
        for row in due:
            try:
                await self._serve(row)
            except StoreUnavailable:
                raise
            except NoetlError as problem:
                log.error("schedule %s could not be carried out: %s", row.name, problem)
        return len(due)

    async def pause(self) -> float:
        """Seconds until the next look."""
        wake = await self._store.next_wake(KIND)
        if wake is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, wake - self._clock.now()) if wake > self._clock.now() else TURN_SECONDS

    async def _serve(self, row: StoredTrigger) -> None:
        schedule = schedule_of(row)
        cron = Cron(schedule.cron, schedule.tz)
        now = self._clock.now()
        ticks = _ticks(schedule, cron, now)
        schedule = msgspec.structs.replace(schedule, next_at=cron.next(now) if ticks else schedule.next_at)
        chosen = _caught_up(schedule, ticks, now)
        if len(chosen) < len(ticks):
            log.info("schedule %s: %d missed ticks are not made up for", schedule.name, len(ticks) - len(chosen))
        for tick in chosen:
            schedule = await self._tick(schedule, tick)
        while schedule.queued and not await self._runs(schedule.last_execution):
            waiting = msgspec.structs.replace(schedule, queued=schedule.queued[1:])
            schedule = await self._start(waiting, schedule.queued[0])
        if msgspec.json.encode(schedule) != row.data:
            # Somebody else may have written first: they started the same executions.
            await self._store.save(row_of(schedule, row.revision + 1))

    async def _tick(self, schedule: Schedule, tick: float) -> Schedule:
        known = await self._orchestrator.store.by_key(schedule.key(tick))
        if known is not None:  # started before a crash, or by another server
            return _fired(schedule, tick, known.execution_id)
        if schedule.overlap == "queue":
            if len(schedule.queued) >= MOST:
                return _skipped(schedule, tick, f"{MOST} ticks wait for their turn already")
            return msgspec.structs.replace(schedule, queued=(*schedule.queued, tick))
        if schedule.overlap != "allow" and await self._runs(schedule.last_execution):
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

    async def _runs(self, execution_id: str | None) -> bool:
        if execution_id is None:
            return False
        summary = await self._orchestrator.store.summary(execution_id)
        return summary is not None and summary.status not in FINAL

    async def _cancel(self, schedule: Schedule) -> None:
        assert schedule.last_execution is not None
        try:
            await self._orchestrator.cancel(
                schedule.last_execution, f"the next tick of schedule {schedule.name} has come"
            )
        except Conflict:
            return  # it ended first


@asynccontextmanager
async def scheduling(scheduler: Scheduler, schedules: Schedules) -> AsyncIterator[None]:
    """Look for as long as the block lasts."""
    task = asyncio.get_running_loop().create_task(_look_for_ever(scheduler, schedules))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _look_for_ever(scheduler: Scheduler, schedules: Schedules) -> None:
    away = False
    while True:
        pause = LOOK_SECONDS
        try:
            await scheduler.look()
            pause = await scheduler.pause()
            away = False
        except StoreUnavailable as problem:
            if not away:
                log.warning("schedules wait for the store: %s", problem)
            away = True
        try:
            await asyncio.wait_for(schedules.changed.wait(), pause)
        except TimeoutError:
            continue
        schedules.changed.clear()


def _ticks(schedule: Schedule, cron: Cron, now: float) -> list[float]:
    """The ticks that have come since the schedule was last looked at, as many of the newest as can count."""
    first = schedule.next_at
    if first is None or first > now:
        return []
    wanted = MOST if schedule.catch_up == "all" else 1
    for window in WINDOWS:  # looking back in growing steps: a second's ticks of a year are not all walked through
        start = max(first, now - window)
        ticks = list(takewhile(lambda tick: tick <= now, cron.after(start)))
        if start == first:
            return [first, *ticks][-MOST:]
        if len(ticks) >= wanted:
            return ticks[-MOST:]
    raise AssertionError("the last window reaches back for ever")


def _caught_up(schedule: Schedule, ticks: Sequence[float], now: float) -> list[float]:
    """Those of the ticks that count."""
    if schedule.catch_up == "all" or not ticks:
        return list(ticks)
    newest = ticks[-1]
    return [newest] if schedule.catch_up == "last" or now - newest <= ON_TIME else []


def _fired(schedule: Schedule, tick: float, execution_id: str) -> Schedule:
    return msgspec.structs.replace(
        schedule, fired=schedule.fired + 1, last_tick=tick, last_execution=execution_id, last_error=None
    )


def _skipped(schedule: Schedule, tick: float, reason: str | None) -> Schedule:
    return msgspec.structs.replace(schedule, skipped=schedule.skipped + 1, last_tick=tick, last_error=reason)
