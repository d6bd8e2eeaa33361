"""Schedules: when playbooks start, and the rule for missed ticks.

    catch_up   ticks that were missed while no server ran
      none     are dropped
      last     only the newest one starts an execution (the default)
      all      every one starts an execution, oldest first; those that overlap wait, whatever `overlap` says

`scheduler` records the ticks as deliveries, and `deliveries` starts the executions.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from noetl.core.model.events import instant
from noetl.core.templates.lookup import View, lookup
from noetl.errors import RequestRefused
from noetl.runtime.clock import Clock
from noetl.server.scheduling.cron import Cron
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.trigger_service import Triggers
from noetl.server.scheduling.triggers import Trigger, check_template, trigger_document
from noetl.storage.ports.deliveries import Delivery

KIND = "schedule"
LATE = "late"  # kind of rows that check the deadline of a tick
MAX_JITTER = 86_400.0
READABLE = "`tick` (with `tick.start` and `tick.end`) and `schedule`"

CatchUp = Literal["none", "last", "all"]


class Schedule(Trigger, frozen=True, omit_defaults=True, kw_only=True):
    """A schedule and its next tick."""

    KIND: ClassVar[str] = KIND
    DURATIONS: ClassVar[tuple[str, ...]] = ("jitter", "deadline")
    INTERNAL: ClassVar[frozenset[str]] = Trigger.INTERNAL | {"next_at", "queued"}

    cron: str
    tz: str = "UTC"
    catch_up: CatchUp = "last"
    jitter: float = 0.0  # seconds; each tick starts up to that much later, always the same for one tick
    deadline: float | None = None  # seconds after a tick until its execution must have succeeded
    next_at: float | None = None  # the first tick that is not recorded
    queued: tuple[float, ...] = ()  # ticks that an earlier release queued here

    def tick_key(self, tick: float) -> str:
        """The part of the idempotency key that identifies a tick."""
        return f"{tick:.3f}"

    def due(self, tick: float) -> float:
        """When the execution of a tick starts."""
        if not self.jitter:
            return tick
        digest = hashlib.blake2b(self.key(self.tick_key(tick)).encode(), digest_size=8).digest()
        return tick + self.jitter * int.from_bytes(digest) / 2**64

    def wake(self) -> float | None:
        """The next tick; a schedule with queued ticks is due at any time."""
        if self.paused:
            return None
        return 0.0 if self.queued else self.next_at

    def prepared(self, known: Trigger | None, now: float) -> Schedule:
        """With its next tick, which an edit of the expression or a resumption moves to the first one after now."""
        cron = Cron(self.cron, self.tz)
        if isinstance(known, Schedule) and (known.cron, known.tz, known.paused) == (self.cron, self.tz, self.paused):
            return self
        return msgspec.structs.replace(self, cron=cron.expression, next_at=cron.next(now))

    def check(self) -> None:
        """RequestRefused when the expression matches no date or the payload cannot be rendered."""
        super().check()
        first = Cron(self.cron, self.tz).next(self.created_at)
        if first is None:
            raise RequestRefused(f"{self.cron!r} matches no date")
        if not 0 <= self.jitter <= MAX_JITTER:
            raise RequestRefused(f"jitter is a duration from 0 to {MAX_JITTER:g} seconds")
        if self.deadline is not None and self.deadline <= 0:
            raise RequestRefused("deadline is a duration greater than 0")
        check_template(self, self.names(first), READABLE)

    def names(self, tick: float) -> dict[str, Any]:
        """The names that templates of the payload may read."""
        cron = Cron(self.cron, self.tz)
        start, end = cron.interval(tick)
        return {"tick": TickView(cron.shown(tick), cron.shown(start), cron.shown(end)), "schedule": self.name}

    def payload_at(self, tick: float) -> dict[str, Any]:
        """The payload of a tick."""
        return self.render(self.names(tick), {})


class TickView(View):
    """A tick in templates: its instant as ISO text in the time zone of the schedule, with `start` and `end` of the time
    since the previous tick."""

    __slots__ = ("_fields", "_text")

    def __init__(self, text: str, start: str, end: str) -> None:
        self._text = text
        self._fields = {"start": start, "end": end}

    def field(self, key: Any) -> Any:
        """`start`, `end`, or a part of the text."""
        return self._fields[key] if key in ("start", "end") else lookup(self._text, key)

    def fields(self) -> list[str]:
        """The names of the fields."""
        return list(self._fields)

    def value(self) -> Any:
        """The instant."""
        return self._text


class Progress(Struct, frozen=True):
    """What a schedule has done, from the history of its deliveries."""

    fired: int = 0
    skipped: int = 0
    queued: tuple[float, ...] = ()
    last_tick: float | None = None
    last_execution: str | None = None
    last_error: str | None = None
    late: int = 0  # ticks whose executions had not succeeded by their deadline


class Schedules:
    """The schedules of an installation."""

    def __init__(self, triggers: Triggers, deliveries: Deliveries, clock: Clock) -> None:
        self._triggers = triggers
        self._deliveries = deliveries
        self._clock = clock
        self.changed = triggers.changed  # a schedule was added or changed: process due ticks at once

    async def add(self, path: str, cron: str, *, name: str | None = None, by: str = "", **fields: Any) -> Schedule:
        """Store a new schedule; its first tick is the next one. The default name is derived from the path."""
        return _schedule(await self._triggers.add(KIND, {"path": path, "cron": cron, **fields}, name=name, by=by))

    async def edit(self, name: str, fields: Mapping[str, Any]) -> Schedule:
        """Change fields of a schedule; with another `cron` or `tz` the next tick is the first one after now."""
        return _schedule(await self._triggers.edit(KIND, name, fields))

    async def get(self, name: str) -> Schedule:
        """The schedule of a name; NotFound when there is none."""
        return _schedule(await self._triggers.get(KIND, name))

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Schedule]:
        """One page of schedules, by name."""
        return [_schedule(each) for each in await self._triggers.list(KIND, after=after, limit=limit)]

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule; ticks during the pause are dropped."""
        return _schedule(await self._triggers.pause(KIND, name))

    async def resume(self, name: str) -> Schedule:
        """Resume a schedule from now on."""
        return _schedule(await self._triggers.resume(KIND, name))

    async def remove(self, name: str) -> None:
        """Remove a schedule; executions that it started continue."""
        await self._triggers.remove(KIND, name)

    async def request(self, schedule: Schedule, key: str | None = None, by: str = "") -> Delivery:
        """Record a tick at this time; a repeated `key` returns the same delivery."""
        now = self._clock.now()
        id = f"manual:{key or secrets.token_hex(8)}"
        return await self._deliveries.receive(schedule, id, schedule.payload_at(now), tick=now, by=by)

    async def run_now(self, name: str, key: str | None = None, by: str = "") -> Delivery:
        """Start an execution as a tick at this time does, whatever else is running."""
        schedule = await self.get(name)
        return await self._deliveries.start(schedule, await self.request(schedule, key, by))

    async def progress(self, schedules: Sequence[Schedule]) -> Sequence[Progress]:
        """What schedules have done so far, as far as their deliveries are kept: five queries for any number of them."""
        store = self._deliveries.store
        names = [each.name for each in schedules]
        counts = await store.counts_of(KIND, names)
        newest = await store.newest(KIND, names, ("started", "skipped", "failed"))
        started = await store.newest(KIND, names, ("started",))
        waiting = await store.pending_of(KIND, [name for name in names if counts.get(name, {}).get("pending")], 1_000)
        late = await store.counts_of(LATE, [each.name for each in schedules if each.deadline])
        found = []
        for name in names:
            count = counts.get(name, {})
            last = msgspec.json.decode(newest[name].data) if name in newest else {}
            found.append(
                Progress(
                    fired=count.get("started", 0),
                    skipped=count.get("skipped", 0) + count.get("failed", 0),
                    queued=tuple(msgspec.json.decode(each.data)["tick"] for each in waiting.get(name, ())),
                    last_tick=last.get("tick"),
                    last_execution=started[name].execution_id if name in started else None,
                    last_error=last.get("error"),
                    late=late.get(name, {}).get("sent", 0),
                )
            )
        return found

    async def documents(self, schedules: Sequence[Schedule], count: int = 3) -> Sequence[dict[str, Any]]:
        """Schedules as JSON documents, with their progress and their next ticks."""
        now, found = self._clock.now(), await self.progress(schedules)
        return [schedule_document(*each, now, count) for each in zip(schedules, found, strict=True)]

    async def document(self, schedule: Schedule, count: int = 3) -> dict[str, Any]:
        """A schedule as a JSON document."""
        return (await self.documents([schedule], count))[0]


def schedule_document(schedule: Schedule, progress: Progress, now: float, count: int = 3) -> dict[str, Any]:
    """A schedule as a JSON document, with its next ticks."""
    cron = Cron(schedule.cron, schedule.tz)
    document = trigger_document(schedule) | msgspec.structs.asdict(progress)
    document["last_tick"] = instant(progress.last_tick) if progress.last_tick is not None else None
    document["queued"] = [instant(tick) for tick in (*schedule.queued, *progress.queued)]
    following = None if schedule.paused else schedule.next_at
    document["next_at"] = instant(following) if following is not None else None
    document["upcoming"] = [] if schedule.paused else [cron.shown(tick) for tick in cron.upcoming(now, count)]
    document["description"] = cron.description
    return document


def _schedule(trigger: Trigger) -> Schedule:
    assert isinstance(trigger, Schedule)
    return trigger
