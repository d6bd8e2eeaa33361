"""Limits: how many runs of a pool, with a credential, or executions of a playbook go on at once.

They are documents beside schedules and webhooks, so every server of an installation has the same.
`control/lines.py` holds runs to them; here they are set, removed and shown, and read again when somebody else has
changed them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import Struct

from noetl.core.engine.state import State
from noetl.core.model.events import instant
from noetl.errors import Conflict, NoetlError, NotFound, RequestRefused
from noetl.runtime.clock import Clock
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.storage.ports.events import EventStore, ExecutionSummary
from noetl.storage.ports.queue import MAX_WEIGHT, RunQueue
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

log = logging.getLogger("noetl.control")

KIND = "limit"
LOOK_SECONDS = 1.0  # how late a change, or a slot, is noticed of which nobody told
CHANNEL = "noetl_limits"
MOST = 1_000_000
POOLS = "the workers' setting worker.pool (default=3,reports=1)"
PAGE = 1000
TRIES = 20
SHOWN = 20  # holders in a document
NAMED = 5  # holders in a sentence

Subject = Literal["pool", "credential", "playbook"]


class ChangeNotifier(Protocol):
    """Messages between the servers of one store; `PostgresDatabase` implements it."""

    def publish(self, channel: str, message: str) -> None:
        """Send a message to all servers."""

    def subscribe(self, channel: str, on_message: Any) -> None:
        """Call `on_message` for every message."""


class Limit(Struct, frozen=True, omit_defaults=True):
    """At most `most` at once (None: any number): runs of a pool or with a credential, executions of a playbook.

    While runs wait for workers, an execution of a playbook gets `weight` turns where others get one."""

    subject: Subject
    name: str
    most: int | None = None
    weight: int = 1
    changed_at: float = 0.0
    changed_by: str = ""

    @property
    def key(self) -> str:
        """As it is counted and kept."""
        return f"{self.subject} {self.name}"


class Limits:
    """The limits of an installation; `lines` is told of every change."""

    def __init__(
        self,
        kept: TriggerStore,
        lines: ConcurrencyLimiter,
        store: EventStore,
        queue: RunQueue,
        clock: Clock,
        bell: ChangeNotifier | None = None,
    ) -> None:
        self._kept = kept
        self._lines = lines
        self._store = store
        self._queue = queue
        self._clock = clock
        self._bell = bell
        self._watched = False
        self._changed = asyncio.Event()  # somebody says that the limits are other ones now
        if bell is not None:
            bell.subscribe(CHANNEL, lambda _: self._changed.set())

    async def set(
        self, subject: str, name: str, most: int | None = None, *, weight: int | None = None, by: str = ""
    ) -> Limit:
        """Set a limit or a weight, or change it; what is not given stays. Who holds more than a lower limit allows,
        finishes."""
        limit = Limit(_subject(subject), _name(name), changed_at=self._clock.now(), changed_by=by)
        given: dict[str, Any] = {}
        if most is not None:
            given["most"] = _most(most)
        if weight is not None:
            given["weight"] = _weight(limit, weight)
        if not given:
            raise RequestRefused(f"say how many of {limit.key} may go on at once, or what it weighs")
        for _ in range(TRIES):
            known = await self._kept.get(KIND, limit.key)
            before = {} if known is None else {name: getattr(_decode(known), name) for name in ("most", "weight")}
            limit = msgspec.structs.replace(limit, **before | given)
            data = msgspec.json.encode(limit)
            if known is None:
                try:
                    await self._kept.add(StoredTrigger(KIND, limit.key, data))
                except Conflict:
                    continue
                break
            if await self._kept.save(StoredTrigger(KIND, limit.key, data, known.revision + 1)):
                break
        else:
            raise Conflict(f"the limit of {limit.key} is being changed by others; try again")
        await self._tell()
        return limit

    async def remove(self, subject: str, name: str) -> None:
        """Forget a limit: who waits for it goes on."""
        key = f"{_subject(subject)} {_name(name)}"
        if not await self._kept.remove(KIND, key):
            raise NotFound(f"{key} has no limit; `noetl limit list` shows those there are")
        await self._tell()

    async def get(self, subject: str, name: str) -> Limit:
        """One of them; NotFound when there is none."""
        found = await self._kept.get(KIND, f"{_subject(subject)} {_name(name)}")
        if found is None:
            raise NotFound(f"{subject} {name} has no limit")
        return _decode(found)

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Limit]:
        """By key, one page."""
        found = await self._kept.list(KIND, after=(after or "").replace("\x00", ""), limit=limit)
        return [_decode(each) for each in found]

    async def any(self) -> bool:
        """Whether anything is limited; who does not watch over the limits has to look."""
        if not self._watched:
            await self.refresh()
        return bool(self._lines.most)

    async def refresh(self) -> None:
        """Read them again, and let out who may go on now."""
        most: dict[str, int] = {}
        weights: dict[str, int] = {}
        after: str | None = None
        while page := await self.list(after=after, limit=PAGE):
            most |= {each.key: each.most for each in page if each.most is not None}
            weights |= {each.name: each.weight for each in page if each.weight != 1}
            after = page[-1].key
        self._lines.weights = weights
        if most != self._lines.most:
            self._lines.most = most
            await self._lines.look()

    async def watch(self, every: float = LOOK_SECONDS) -> None:
        """Hear of changes and look at the lines, for ever."""
        self._watched = True
        while True:
            heard = asyncio.ensure_future(self._changed.wait())
            slept = asyncio.ensure_future(self._clock.sleep(every))
            try:
                await asyncio.wait((heard, slept), return_when=asyncio.FIRST_COMPLETED)
            finally:
                heard.cancel()
                slept.cancel()
            self._changed.clear()
            await self.look()

    async def look(self) -> None:
        """Once: what others changed, and who may go on."""
        try:
            await self.refresh()
            await self._lines.look()
        except NoetlError as problem:
            log.warning("the limits could not be looked at: %s", problem)

    async def reached(self, state: State) -> dict[str, str]:
        """The limits an execution may wait for that are reached now, each with who holds what it limits, in words."""
        if state.finished is not None:
            return {}
        await self.any()
        keys = [key for key in state.net.every_need() if key in self._lines.most]
        held = await self._store.held(keys) if keys else {}
        found = {}
        for key, count in held.items():
            most = self._lines.most.get(key, count + 1)
            if count >= most:
                holders = [each for each in await self._store.holders(key) if each.execution_id != state.execution_id]
                found[key] = _in_words(key, count, most, holders)
        return found

    async def document(self, limit: Limit) -> dict[str, Any]:
        """A limit as people see it: how much of it is held, by whom, and who waits."""
        held = (await self._store.held([limit.key]))[limit.key]
        holders = await self._store.holders(limit.key)
        waiting = next((each for each in await self._queue.limit_depths() if each.key == limit.key), None)
        return {
            "subject": limit.subject,
            "name": limit.name,
            "most": limit.most,
            "weight": limit.weight,
            "held": held,
            "waiting": waiting.runs if waiting else 0,
            "waiting_since": instant(waiting.since) if waiting and waiting.since else None,
            "holders": [
                {"execution_id": each.execution_id, "path": each.path, "held": (each.held or {}).get(limit.key, 0)}
                for each in holders[:SHOWN]
            ],
            "changed_at": instant(limit.changed_at),
            "changed_by": limit.changed_by or None,
        }

    async def _tell(self) -> None:
        await self.refresh()
        if self._bell is not None:
            self._bell.publish(CHANNEL, "changed")


def _in_words(key: str, count: int, most: int, holders: Sequence[ExecutionSummary]) -> str:
    names = [f"{each.execution_id} ({each.path})" for each in holders[:NAMED]]
    if len(holders) > NAMED:
        names.append(f"{len(holders) - NAMED} more")
    by = f", by executions {', '.join(names)}" if len(names) > 1 else f", by execution {names[0]}" if names else ""
    return f"the limit of {key}: {count} of {most} are held{by}"


def _subject(word: str) -> Subject:
    if word not in get_args(Subject):
        raise RequestRefused(f"{word!r} cannot be limited: name a pool, a credential or a playbook")
    return word  # type: ignore[return-value]


def _name(name: str) -> str:
    if not name or len(name) > 900 or any(ord(each) < 32 for each in name) or name != name.strip():
        raise RequestRefused("the name of what is limited has 1 to 900 characters, no line breaks and no blanks around")
    return name


def _decode(kept: StoredTrigger) -> Limit:
    return msgspec.json.decode(kept.data, type=Limit)


def _weight(limit: Limit, weight: int) -> int:
    if limit.subject != "playbook":
        raise RequestRefused(f"only playbooks have a weight; the slots of pools are divided by {POOLS}")
    if not 1 <= weight <= MAX_WEIGHT:
        raise RequestRefused(f"a weight is a number from 1 to {MAX_WEIGHT}")
    return weight


def _most(most: int) -> int:
    if not 0 <= most <= MOST:
        raise RequestRefused(f"a limit is a number from 0 to {MOST}; `noetl limit remove` takes it away")
    return most
