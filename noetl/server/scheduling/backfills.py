"""Backfills: one execution of a playbook for each slot of a time range, as two rows.

The first row is the definition and what users asked for (pause, cancel, retry); the second one is the progress, which
only the runner writes (`backfill_runner`). Slots are computed, so ten thousand of them cost nothing until they start.
The idempotency key of an execution consists of the backfill, the slot and the attempt: each slot starts once, also when
a process stops between the start and the record of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from noetl.core.model.events import instant
from noetl.core.templates.definitions import render_definition
from noetl.errors import Conflict, RequestRefused, TemplateError, unknown
from noetl.runtime.clock import Clock
from noetl.server.orchestrator.catalog import Catalog
from noetl.server.scheduling.slots import Step, begin_of, count_slots, local_text, read_instant, read_step
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

KIND, PROGRESS = "backfill", "backfill progress"
MAX_SLOTS = 100_000
MAX_CONCURRENCY = 1_000
MAX_CONFLICTS = 20

Status = Literal["running", "paused", "cancelled", "done"]


class Backfill(Struct, frozen=True, omit_defaults=True):
    """The definition of a backfill, and what users asked for."""

    name: str
    path: str
    start: float
    end: float  # exclusive
    every: float  # seconds; 0 with a `step` of calendar units
    variable: str = "slot"
    concurrency: int = 1
    version: int | str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    caller: str = ""  # folder against which a file is resolved
    created_at: float = 0.0
    created_by: str = ""
    paused: bool = False
    cancelled: bool = False
    retries: int = 0  # how often the failed slots were to be repeated
    step: Step | None = None  # calendar units
    timezone: str = ""  # of calendar units and of instants without an offset; UTC without one
    length: str = ""  # `every` as it was written

    @property
    def total(self) -> int:
        """The number of slots."""
        if self.step is not None:
            return count_slots(self.start, self.end, self.begin, MAX_SLOTS)
        return max(0, ceil((self.end - self.start) / self.every - 1e-9))

    def begin(self, index: int) -> float:
        """The instant at which a slot begins."""
        return begin_of(self.start, self.step or Step(self.every), self.timezone, index)

    def key(self, slot: int, attempt: int) -> str:
        """The idempotency key of the execution of a slot."""
        return f"{KIND}:{self.name}:{self.created_at:.3f}:{slot}:{attempt}"

    def slot(self, index: int) -> dict[str, Any]:
        """A slot as templates and the workload see it."""
        begin = local_text(self.begin(index), self.timezone)
        end = local_text(min(self.end, self.begin(index + 1)), self.timezone)
        return {"start": begin, "end": end, "date": begin[:10], "index": index}

    def payload_of(self, index: int) -> dict[str, Any]:
        """The payload of a slot's execution; TemplateError if a template of the payload cannot be evaluated."""
        slot = self.slot(index)
        return {self.variable: slot, **render_definition(self.payload, {self.variable: slot, "slot": slot})}


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a backfill is. `attempts` has the slots that were repeated."""

    cursor: int = 0  # slots below it have been started
    running: dict[int, str] = field(default_factory=dict)  # slot -> execution
    queue: tuple[int, ...] = ()  # failed slots that are to be repeated
    attempts: dict[int, int] = field(default_factory=dict)
    succeeded: int = 0
    failed: tuple[int, ...] = ()
    executions: dict[int, str] = field(default_factory=dict)  # of failed slots, the first ones
    errors: dict[int, str] = field(default_factory=dict)  # of slots that could not be started, the first ones
    retries: int = 0
    ended_at: float | None = None


_decode = msgspec.json.Decoder(Backfill).decode
_decode_progress = msgspec.json.Decoder(Progress).decode


class Backfills(Struct, eq=False):
    """Creates, lists and controls backfills."""

    store: TriggerStore
    catalog: Catalog
    clock: Clock

    async def add(
        self, path: str, start: Any, end: Any, every: Any, *, caller: str = "", by: str = "", **options: Any
    ) -> Backfill:
        """Create a backfill; the runner starts it. RequestRefused names what is wrong."""
        backfill = _checked(path, start, end, every, options)
        backfill = msgspec.structs.replace(
            backfill,
            name=options.get("name") or f"{path.rpartition('/')[2][:150] or 'backfill'}-{secrets.token_hex(3)}",
            caller=caller,
            created_at=self.clock.now(),
            created_by=by,
        )
        await self.catalog.find(path, backfill.version, caller)  # NotFound names the places that were searched
        try:
            backfill.payload_of(0)
        except TemplateError as problem:
            raise RequestRefused(f"the payload of a slot cannot be evaluated: {problem}") from None
        await self.store.add(StoredTrigger(KIND, backfill.name, msgspec.json.encode(backfill), wake=0.0))
        return backfill

    async def get(self, name: str) -> Backfill:
        """The backfill of a name."""
        return _decode((await self._row(name)).data)

    async def active(self) -> list[Backfill]:
        """Backfills that the runner has to look at."""
        return [_decode(row.data) for row in await self.store.due(KIND, self.clock.now(), 1_000)]

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Backfill]:
        """One page, by name."""
        return [_decode(row.data) for row in await self.store.list(KIND, after=after, limit=limit)]

    async def progress(self, name: str) -> tuple[Progress, int]:
        """The progress and the revision of its row (0: there is none yet)."""
        row = await self.store.get(PROGRESS, name)
        return (Progress(), 0) if row is None else (_decode_progress(row.data), row.revision)

    async def save_progress(self, name: str, progress: Progress, revision: int) -> int:
        """Store the progress after this revision; return the new one. Conflict if another process has stored one."""
        row = StoredTrigger(PROGRESS, name, msgspec.json.encode(progress), revision + 1)
        if revision == 0:
            await self.store.add(row)
        elif not await self.store.save(row):
            raise Conflict(f"another process runs the backfill {name}")
        return revision + 1

    async def pause(self, name: str) -> Backfill:
        """Start no more slots; those that run continue."""
        return await self._change(name, paused=True)

    async def resume(self, name: str) -> Backfill:
        """Continue a paused backfill."""
        return await self._change(name, paused=False)

    async def cancel(self, name: str) -> Backfill:
        """Start no more slots, and cancel those that run."""
        return await self._change(name, cancelled=True)

    async def retry(self, name: str) -> Backfill:
        """Start the failed slots again."""
        backfill, (progress, _) = await self.get(name), await self.progress(name)
        if backfill.cancelled:
            raise Conflict(f"the backfill {name} was cancelled; create another one")
        if not progress.failed:
            raise Conflict(f"no slot of the backfill {name} has failed")
        return await self._change(name, retries=progress.retries + 1, paused=False)

    async def finish(self, backfill: Backfill) -> bool:
        """The runner has nothing to do for it any more, until it is changed; False if it has been changed already."""
        row = await self._row(backfill.name)
        if _decode(row.data) != backfill:
            return False
        return await self.store.save(msgspec.structs.replace(row, revision=row.revision + 1, wake=None))

    async def document(self, backfill: Backfill) -> dict[str, Any]:
        """A backfill with its progress."""
        return backfill_document(backfill, (await self.progress(backfill.name))[0])

    async def documents(self, backfills: Sequence[Backfill]) -> Sequence[dict[str, Any]]:
        """Backfills with their progress, read by one query."""
        rows = await self.store.named(PROGRESS, [each.name for each in backfills])
        return [
            backfill_document(each, _decode_progress(rows[each.name].data) if each.name in rows else Progress())
            for each in backfills
        ]

    async def _change(self, name: str, **fields: Any) -> Backfill:
        for _ in range(MAX_CONFLICTS):
            row = await self._row(name)
            changed = msgspec.structs.replace(_decode(row.data), **fields)
            new = StoredTrigger(KIND, name, msgspec.json.encode(changed), row.revision + 1, wake=0.0)
            if await self.store.save(new):
                return changed
        raise Conflict(f"the backfill {name} was changed at the same time by another request; try again")

    async def _row(self, name: str) -> StoredTrigger:
        row = await self.store.get(KIND, name)
        if row is None:
            known = [each.name for each in await self.store.list(KIND, limit=1000)]
            raise unknown("backfill", name, known, "`noetl backfill list` shows all")
        return row


def backfill_document(backfill: Backfill, progress: Progress) -> dict[str, Any]:
    """A backfill with its progress as a JSON document."""
    failed = progress.failed[:100]
    return {
        "name": backfill.name,
        "path": backfill.path,
        "version": backfill.version,
        "from": local_text(backfill.start, backfill.timezone),
        "to": local_text(backfill.end, backfill.timezone),
        "every": backfill.length or f"{backfill.every:g}s",
        "every_s": backfill.every or None,
        "timezone": backfill.timezone or "UTC",
        "as": backfill.variable,
        "concurrency": backfill.concurrency,
        "payload": backfill.payload,
        "status": status_of(backfill, progress),
        "total": backfill.total,
        "started": progress.cursor,
        "running": len(progress.running),
        "succeeded": progress.succeeded,
        "failed": len(progress.failed),
        "waiting": backfill.total - progress.cursor + len(progress.queue),
        "executions": [
            {**backfill.slot(index), "execution_id": execution_id}
            for index, execution_id in sorted(progress.running.items())
        ],
        "failures": [
            {
                **backfill.slot(index),
                "execution_id": progress.executions.get(index),
                "error": progress.errors.get(index),
            }
            for index in failed
        ],
        "created_at": instant(backfill.created_at),
        "created_by": backfill.created_by,
        "ended_at": None if progress.ended_at is None else instant(progress.ended_at),
    }


def status_of(backfill: Backfill, progress: Progress) -> Status:
    """The status of a backfill."""
    if backfill.cancelled:
        return "cancelled"
    if is_complete(backfill, progress):
        return "done"
    return "paused" if backfill.paused else "running"


def is_complete(backfill: Backfill, progress: Progress) -> bool:
    """Whether every slot has ended, and none is to be repeated."""
    asked = backfill.retries > progress.retries and progress.failed
    return progress.cursor >= backfill.total and not progress.running and not progress.queue and not asked


def _checked(path: str, start: Any, end: Any, every: Any, options: Mapping[str, Any]) -> Backfill:
    timezone = str(options.get("timezone") or "")
    try:
        begin, until = read_instant(start, timezone), read_instant(end, timezone)
        step = read_step(every, zoned=bool(timezone))
    except ValueError as problem:
        raise RequestRefused(str(problem)) from None
    if step == Step():
        raise RequestRefused(f"every {every!r} must be a duration greater than 0")
    if until <= begin:
        raise RequestRefused(f"the range is empty: {start} is not before {end}")
    variable = options.get("variable") or "slot"
    if not str(variable).isidentifier():
        raise RequestRefused(f"{variable!r} is not a name of a workload key")
    concurrency = options.get("concurrency") or 1
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise RequestRefused(f"the concurrency must be 1 to {MAX_CONCURRENCY}")
    backfill = Backfill(
        name="",
        path=path,
        start=begin,
        end=until,
        every=step.seconds,
        step=step if step.days or step.months else None,
        timezone=timezone,
        length=str(every),
        variable=variable,
        concurrency=concurrency,
        version=options.get("version"),
        payload=dict(options.get("payload") or {}),
    )
    if backfill.total > MAX_SLOTS:
        raise RequestRefused(f"the range has more slots than the limit of {MAX_SLOTS:,}; write a longer `every`")
    return backfill
