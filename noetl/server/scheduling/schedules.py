"""Schedules: when playbooks start, and the rules for missed ticks and for ticks during a running execution.

    catch_up   ticks that were missed while no server ran
      none     are dropped
      last     only the newest one starts an execution (the default)
      all      every one starts an execution, oldest first
    overlap    a tick while the execution of the previous tick is running
      allow    starts a second execution (the default)
      skip     is dropped
      queue    waits until the running execution has ended
      cancel   cancels the running execution and starts a new one

`scheduler` starts the executions.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack, get_args

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
MAX_ATTEMPTS = 20

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]


class Schedule(Struct, frozen=True, omit_defaults=True):
    """A schedule and its progress."""

    id: str  # part of idempotency keys: a later schedule of the same name starts its own executions
    name: str
    path: str
    cron: str
    tz: str = "UTC"
    version: int | None = None  # None: the newest at the time of the tick
    payload: dict[str, Any] = field(default_factory=dict)
    catch_up: CatchUp = "last"
    overlap: Overlap = "allow"
    paused: bool = False
    created_at: float = 0.0
    created_by: str = ""
    next_at: float | None = None  # the first tick that is not processed
    queued: tuple[float, ...] = ()  # ticks that wait for the running execution
    fired: int = 0
    skipped: int = 0
    last_tick: float | None = None
    last_execution: str | None = None
    last_error: str | None = None  # why the last tick started no execution

    def key(self, tick: float) -> str:
        """The idempotency key of a tick: it starts one execution, however many servers process it."""
        return f"schedule:{self.id}:{tick:.3f}"

    def payload_at(self, tick: float) -> dict[str, Any]:
        """The payload of a tick; its templates may read `tick` (in the time zone of the schedule) and `schedule`."""
        compiled = compile_value(self.payload)
        if compiled.static:
            return dict(self.payload)
        names = {"tick": Cron(self.cron, self.tz).shown(tick), "schedule": self.name}
        rendered: dict[str, Any] = compiled.evaluate(names)
        return rendered


class ScheduleFields(TypedDict, total=False):
    """Optional fields of a new schedule."""

    name: str | None
    tz: str
    version: int | None
    payload: Mapping[str, Any] | None
    catch_up: str
    overlap: str
    paused: bool
    by: str


class Schedules:
    """The schedules of an installation."""

    def __init__(self, store: TriggerStore, catalog: Catalog, clock: Clock) -> None:
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self.changed = asyncio.Event()  # a schedule was added or resumed: process due ticks at once

    async def add(self, path: str, cron: str, **fields: Unpack[ScheduleFields]) -> Schedule:
        """Store a new schedule; its first tick is the next one. The default name is derived from the path."""
        schedule = await self._validated(path, cron, fields)
        for number in range(1, MAX_ATTEMPTS):
            named = schedule if number == 1 else msgspec.structs.replace(schedule, name=f"{schedule.name}-{number}")
            try:
                await self._store.add(row_of(named, 1))
            except Conflict:
                if fields.get("name") is not None:
                    raise
                continue
            self.changed.set()
            return named
        raise Conflict(f"there are {MAX_ATTEMPTS} schedules named {schedule.name!r}; give this one a name")

    async def get(self, name: str) -> Schedule:
        """The schedule of a name; NotFound when there is none."""
        return schedule_of(await self._row(name))

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Schedule]:
        """One page of schedules, by name."""
        return [schedule_of(row) for row in await self._store.list(KIND, after=after, limit=limit)]

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule; ticks during the pause are dropped."""
        return await self._change(name, paused=True)

    async def resume(self, name: str) -> Schedule:
        """Resume a schedule from now on."""
        schedule = await self.get(name)
        following = Cron(schedule.cron, schedule.tz).next(self._clock.now())
        changed = await self._change(name, paused=False, **({"next_at": following} if schedule.paused else {}))
        self.changed.set()
        return changed

    async def remove(self, name: str) -> None:
        """Remove a schedule; executions that it started continue."""
        if not await self._store.remove(KIND, name):
            raise _unknown(name)

    async def _change(self, name: str, **fields: Any) -> Schedule:
        for _ in range(MAX_ATTEMPTS):
            row = await self._row(name)
            changed = msgspec.structs.replace(schedule_of(row), **fields)
            if await self._store.save(row_of(changed, row.revision + 1)):
                return changed
        raise Conflict(f"schedule {name!r} was changed at the same time by another request; try again")

    async def _row(self, name: str) -> StoredTrigger:
        row = await self._store.get(KIND, name)
        if row is None:
            raise _unknown(name)
        return row

    async def _validated(self, path: str, expression: str, fields: ScheduleFields) -> Schedule:
        name, version = fields.get("name"), fields.get("version")
        now = self._clock.now()
        cron = Cron(expression, fields.get("tz", "UTC"))
        first = cron.next(now)
        if first is None:
            raise RequestRefused(f"{expression!r} matches no date")
        if name is not None:
            check_name(name)
        await check_registered(self._catalog, path, version)
        schedule = Schedule(
            id=secrets.token_hex(8),
            name=name or name_after(path),
            path=path,
            cron=cron.expression,
            tz=cron.tz,
            version=version,
            payload=dict(fields.get("payload") or {}),
            catch_up=_one_of(CatchUp, "catch-up", fields.get("catch_up", "last")),
            overlap=_one_of(Overlap, "overlap", fields.get("overlap", "allow")),
            paused=fields.get("paused", False),
            created_at=now,
            created_by=fields.get("by", ""),
            next_at=first,
        )
        try:
            schedule.payload_at(first)
        except TemplateError as problem:
            raise RequestRefused(
                f"the payload cannot be rendered: {problem.message}; it may read `tick` and `schedule`"
            ) from None
        return schedule


def check_name(name: str) -> None:
    """RequestRefused when a name of a schedule or webhook is not valid."""
    if not NAME.fullmatch(name):
        raise RequestRefused(
            f"{name!r} is not a valid name: use letters, digits, _ . and -, and begin with a letter or a digit"
        )


async def check_registered(catalog: Catalog, path: str, version: int | None) -> None:
    """NotFound when the catalog does not have the playbook."""
    if await catalog.registered(path, version) is None:
        which = f"playbook {path!r}" + (f" version {version}" if version is not None else "")
        raise NotFound(f"there is no {which} in the catalog; register it with `noetl register FILE`")


def schedule_of(row: StoredTrigger) -> Schedule:
    """The schedule of a row."""
    return msgspec.json.decode(row.data, type=Schedule)


def row_of(schedule: Schedule, revision: int) -> StoredTrigger:
    """The row of a schedule; one with queued ticks is due at any time."""
    wake = None if schedule.paused else schedule.next_at
    if schedule.queued and not schedule.paused:
        wake = 0.0
    return StoredTrigger(KIND, schedule.name, msgspec.json.encode(schedule), revision, wake)


def schedule_document(schedule: Schedule, now: float, count: int = 3) -> dict[str, Any]:
    """A schedule as a JSON document, with its next ticks."""
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
    """The default name of a schedule or webhook, derived from the path of its playbook."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", path).strip("-._")[:180] or KIND


def _one_of(choices: Any, what: str, value: str) -> Any:
    if value not in get_args(choices):
        raise RequestRefused(f"{what} is one of {', '.join(get_args(choices))}, not {value!r}")
    return value


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r}; `noetl schedule list` shows all schedules")
