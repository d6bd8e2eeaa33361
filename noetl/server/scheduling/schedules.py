"""Schedules: which playbook starts when, and what happens to ticks that come late or meet a running execution.

    catch_up   ticks that were missed while no server ran
      none     are gone
      last     the newest one is made up for (the default)
      all      every one is made up for, oldest first
    overlap    a tick that comes while the execution of the one before still runs
      allow    starts another one beside it (the default)
      skip     is gone
      queue    waits for its turn
      cancel   cancels the running one and starts

`control/scheduler.py` carries them out.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, field

from noetl.core.model.events import instant
from noetl.core.templates.template import compile_value
from noetl.errors import Conflict, NotFound, RequestRefused, TemplateError
from noetl.runtime.clock import Clock
from noetl.server.orchestrator.catalog import Catalog
from noetl.server.scheduling.cron import Cron
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

KIND = "schedule"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
TRIES = 20

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]


class Schedule(Struct, frozen=True, omit_defaults=True):
    """A schedule and how far it is."""

    id: str  # its own, so that one of the same name that comes later has ticks of its own
    name: str
    path: str
    cron: str
    tz: str = "UTC"
    version: int | None = None  # None: the newest when a tick comes
    payload: dict[str, Any] = field(default_factory=dict)
    catch_up: CatchUp = "last"
    overlap: Overlap = "allow"
    paused: bool = False
    created_at: float = 0.0
    created_by: str = ""
    next_at: float | None = None  # the first tick that nobody has looked at
    queued: tuple[float, ...] = ()  # ticks that wait for their turn
    fired: int = 0
    skipped: int = 0
    last_tick: float | None = None
    last_execution: str | None = None
    last_error: str | None = None  # of the last tick, when nothing could be started

    def key(self, tick: float) -> str:
        """The idempotency key of a tick: however many servers look at it, it starts one execution."""
        return f"schedule:{self.id}:{tick:.3f}"

    def payload_at(self, tick: float) -> dict[str, Any]:
        """The payload; templates in it may read `tick` (on the schedule's clock) and `schedule`."""
        compiled = compile_value(self.payload)
        if compiled.static:
            return dict(self.payload)
        names = {"tick": Cron(self.cron, self.tz).shown(tick), "schedule": self.name}
        rendered: dict[str, Any] = compiled.evaluate(names)
        return rendered


class Schedules:
    """The schedules of an installation."""

    def __init__(self, store: TriggerStore, catalog: Catalog, clock: Clock) -> None:
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self.changed = asyncio.Event()  # somebody added or woke one: look at once

    async def add(
        self,
        path: str,
        cron: str,
        *,
        name: str | None = None,
        tz: str = "UTC",
        version: int | None = None,
        payload: Mapping[str, Any] | None = None,
        catch_up: str = "last",
        overlap: str = "allow",
        paused: bool = False,
        by: str = "",
    ) -> Schedule:
        """Keep a new one; its first tick is the next one. Without a name it is called after its path."""
        now = self._clock.now()
        schedule = await self._checked(
            path, cron, name, tz, version, payload or {}, _one_of(CatchUp, "catch-up", catch_up),
            _one_of(Overlap, "overlap", overlap), paused, by, now,
        )  # fmt: skip
        for number in range(1, TRIES):
            named = schedule if number == 1 else msgspec.structs.replace(schedule, name=f"{schedule.name}-{number}")
            try:
                await self._store.add(row_of(named, 1))
            except Conflict:
                if name is not None:
                    raise
                continue
            self.changed.set()
            return named
        raise Conflict(f"there are {TRIES} schedules named {schedule.name!r} already; give this one a name")

    async def get(self, name: str) -> Schedule:
        """One of them; NotFound when there is none."""
        return schedule_of(await self._row(name))

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Schedule]:
        """By name, one page."""
        return [schedule_of(row) for row in await self._store.list(KIND, after=after, limit=limit)]

    async def pause(self, name: str) -> Schedule:
        """Tick no more; ticks that pass meanwhile are gone."""
        return await self._change(name, paused=True)

    async def resume(self, name: str) -> Schedule:
        """Tick again, from now on."""
        schedule = await self.get(name)
        following = Cron(schedule.cron, schedule.tz).next(self._clock.now())
        changed = await self._change(name, paused=False, **({"next_at": following} if schedule.paused else {}))
        self.changed.set()
        return changed

    async def remove(self, name: str) -> None:
        """Forget it; executions that it started go on."""
        if not await self._store.remove(KIND, name):
            raise _unknown(name)

    async def _change(self, name: str, **fields: Any) -> Schedule:
        for _ in range(TRIES):
            row = await self._row(name)
            changed = msgspec.structs.replace(schedule_of(row), **fields)
            if await self._store.save(row_of(changed, row.revision + 1)):
                return changed
        raise Conflict(f"schedule {name!r} is being changed by others; try again")

    async def _row(self, name: str) -> StoredTrigger:
        row = await self._store.get(KIND, name)
        if row is None:
            raise _unknown(name)
        return row

    async def _checked(
        self,
        path: str,
        cron: str,
        name: str | None,
        tz: str,
        version: int | None,
        payload: Mapping[str, Any],
        catch_up: CatchUp,
        overlap: Overlap,
        paused: bool,
        by: str,
        now: float,
    ) -> Schedule:
        ticking = Cron(cron, tz)
        first = ticking.next(now)
        if first is None:
            raise RequestRefused(f"{cron!r} never ticks")
        if name is not None and not NAME.fullmatch(name):
            raise RequestRefused(f"{name!r} is no name: letters, digits, _ . and -, a letter or digit first")
        if await self._catalog.registered(path, version) is None:
            which = f"playbook {path!r}" + (f" version {version}" if version is not None else "")
            raise NotFound(f"there is no {which} in the catalog; register it with `noetl register FILE`")
        schedule = Schedule(
            id=secrets.token_hex(8),
            name=name or name_after(path),
            path=path,
            cron=ticking.expression,
            tz=tz,
            version=version,
            payload=dict(payload),
            catch_up=catch_up,
            overlap=overlap,
            paused=paused,
            created_at=now,
            created_by=by,
            next_at=first,
        )
        try:
            schedule.payload_at(first)
        except TemplateError as problem:
            raise RequestRefused(
                f"the payload cannot be rendered: {problem.message}; it may read `tick` and `schedule`"
            ) from None
        return schedule


def schedule_of(row: StoredTrigger) -> Schedule:
    """The schedule of a row."""
    return msgspec.json.decode(row.data, type=Schedule)


def row_of(schedule: Schedule, revision: int) -> StoredTrigger:
    """The row of a schedule; one whose ticks wait for their turn is looked at all the time."""
    wake = None if schedule.paused else schedule.next_at
    if schedule.queued and not schedule.paused:
        wake = 0.0
    return StoredTrigger(KIND, schedule.name, msgspec.json.encode(schedule), revision, wake)


def schedule_document(schedule: Schedule, now: float, count: int = 3) -> dict[str, Any]:
    """A schedule for people and scripts, with its next ticks."""
    cron = Cron(schedule.cron, schedule.tz)
    document: dict[str, Any] = msgspec.structs.asdict(schedule)
    del document["id"]
    for name in ("created_at", "next_at", "last_tick"):
        document[name] = instant(document[name]) if document[name] is not None else None
    document["queued"] = [instant(tick) for tick in schedule.queued]
    document["next_at"] = document["next_at"] if not schedule.paused else None
    document["upcoming"] = [] if schedule.paused else [cron.shown(tick) for tick in cron.upcoming(now, count)]
    document["description"] = cron.description
    return document


def name_after(path: str) -> str:
    """A name for what starts a playbook: its path, as a name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", path).strip("-._")[:180] or KIND


def _one_of(choices: Any, what: str, value: str) -> Any:
    if value not in get_args(choices):
        raise RequestRefused(f"{what} is one of {', '.join(get_args(choices))}, not {value!r}")
    return value


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r}; `noetl schedule list` shows what there is")
