"""Concurrency limits: how many runs of a pool, with a credential or with a label, or executions of a playbook, run at
once; and the weights and bounds of tenants.

Limits are stored beside schedules and webhooks, so all servers of an installation have the same. This module
sets, removes and shows them, and reloads them after changes; `limiter` enforces them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import Struct, field

from noetl.core.engine.concurrency_keys import SUSPECTS
from noetl.core.engine.state import State
from noetl.core.model.events import instant
from noetl.errors import Conflict, NoetlError, NotFound, RequestRefused, unknown
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel, keep_running, sleep_unless_set
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.storage.ports.events import EventStore, ExecutionSummary
from noetl.storage.ports.queue import MAX_WEIGHT, LimitDepth, RunQueue
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

log = logging.getLogger("noetl.control")

KIND = "limit"
POLL_SECONDS = 1.0  # maximum delay of a change or a free slot without notification
CHANNEL = "noetl_limits"
MOST = 1_000_000
POOLS = "the workers' setting worker.pool (default=3,reports=1)"
PAGE = 1000
VALUES = ("most", "weight", "max_waiting")
MAX_ATTEMPTS = 20
MAX_HOLDERS = 20  # in a document
MAX_NAMED = 5  # holders in a message

Subject = Literal["pool", "credential", "playbook", "label"]


class ChangeNotifier(Protocol):
    """Notifications between the servers of one store, as `PostgresDatabase` implements them."""

    def publish(self, channel: str, message: str, *, always: bool = False) -> None:
        """Send a notification; `always`: also while no other server is known."""

    def subscribe(self, channel: str, on_message: Any) -> None:
        """Call `on_message` for every notification of a channel."""


class Limit(Struct, frozen=True, omit_defaults=True):
    """At most `most` at once (None: unlimited): runs of a pool, with a credential, or of executions with a label,
    executions of a playbook.

    While runs wait for workers, executions of a playbook get `weight` times the turns of others, and a tenant `weight`
    times the share of others. While `max_waiting` runs of a tenant wait, its requests are refused."""

    subject: Subject
    name: str
    most: int | None = None
    weight: int = 1
    max_waiting: int | None = None
    changed_at: float = 0.0
    changed_by: str = ""

    @property
    def key(self) -> str:
        """The name under which it is counted and stored."""
        return f"{self.subject} {self.name}"


class Limits(Struct, eq=False):
    """The limits of an installation; every change is passed to the limiter."""

    _triggers: TriggerStore
    _limiter: ConcurrencyLimiter
    _store: EventStore
    _queue: RunQueue
    _clock: Clock
    _notifier: ChangeNotifier | None = None
    _watch: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)  # another server changed a limit

    def __post_init__(self) -> None:
        if self._notifier is not None:
            self._notifier.subscribe(CHANNEL, lambda _: self._changed.set())

    def start(self) -> None:
        """Start to watch for changes and free slots."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(keep_running(self._poll))

    async def close(self) -> None:
        """Stop watching."""
        await cancel(self._watch)

    async def set(
        self,
        subject: str,
        name: str,
        most: int | None = None,
        *,
        weight: int | None = None,
        max_waiting: int | None = None,
        by: str = "",
    ) -> Limit:
        """Set or change a limit or a weight; what is not given is unchanged. Runs above a lowered limit finish."""
        limit = Limit(_subject(subject), _name(name), changed_at=self._clock.now(), changed_by=by)
        tenant = _tenant(limit, self._limiter.tenant_label)
        given: dict[str, Any] = {}
        if most is not None:
            given["most"] = _most(most)
        if weight is not None:
            given["weight"] = _weight(limit, weight, tenant, self._limiter.tenant_label)
        if max_waiting is not None:
            if tenant is None:
                raise RequestRefused(f"only tenants have max_waiting: labels {self._limiter.tenant_label}=NAME")
            given["max_waiting"] = _most(max_waiting)
        if not given:
            raise RequestRefused(f"the limit of {limit.key} needs a maximum (most) or a weight")
        for _ in range(MAX_ATTEMPTS):
            known = await self._triggers.get(KIND, limit.key)
            before = {} if known is None else {name: getattr(_decode(known), name) for name in VALUES}
            limit = msgspec.structs.replace(limit, **before | given)
            data = msgspec.json.encode(limit)
            if known is None:
                try:
                    await self._triggers.add(StoredTrigger(KIND, limit.key, data))
                except Conflict:
                    continue
                break
            if await self._triggers.save(StoredTrigger(KIND, limit.key, data, known.revision + 1)):
                break
        else:
            raise Conflict(f"the limit of {limit.key} was changed at the same time by another request; try again")
        await self._publish()
        return limit

    async def remove(self, subject: str, name: str) -> None:
        """Remove a limit; runs that wait for it are released."""
        key = f"{_subject(subject)} {_name(name)}"
        if not await self._triggers.remove(KIND, key):
            raise await self._unknown(key)
        await self._publish()

    async def get(self, subject: str, name: str) -> Limit:
        """The limit of a subject; NotFound when there is none."""
        found = await self._triggers.get(KIND, f"{_subject(subject)} {_name(name)}")
        if found is None:
            raise await self._unknown(f"{subject} {name}")
        return _decode(found)

    async def _unknown(self, key: str) -> NotFound:
        known = [row.name for row in await self._triggers.list(KIND, limit=1000)]
        return unknown("limit", key, known, "`noetl limit list` shows all limits")

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[Limit]:
        """One page of limits, by key."""
        found = await self._triggers.list(KIND, after=(after or "").replace("\x00", ""), limit=limit)
        return [_decode(each) for each in found]

    async def any(self) -> bool:
        """Whether there are limits."""
        if self._watch is None:
            await self.refresh()
        return bool(self._limiter.most)

    async def refresh(self) -> None:
        """Reload all limits, and release runs if they have changed."""
        most: dict[str, int] = {}
        weights: dict[str, int] = {}
        tenants: dict[str, Limit] = {}
        after: str | None = None
        while page := await self.list(after=after, limit=PAGE):
            most |= {each.key: each.most for each in page if each.most is not None}
            weights |= {each.name: each.weight for each in page if each.weight != 1 and each.subject == "playbook"}
            named = ((_tenant(each, self._limiter.tenant_label), each) for each in page)
            tenants |= {tenant: each for tenant, each in named if tenant is not None}
            after = page[-1].key
        self._limiter.weights = weights
        self._limiter.max_waiting = {
            name: each.max_waiting for name, each in tenants.items() if each.max_waiting is not None
        }
        self._queue.set_weights({name: each.weight for name, each in tenants.items() if each.weight != 1})
        if most != self._limiter.most:
            self._limiter.most = most
            await self._limiter.release_runs()

    async def check(self) -> None:
        """Reload all limits and release runs; an unreachable store is logged."""
        try:
            await self.refresh()
            await self._limiter.release_runs()
        except NoetlError as problem:
            log.warning("the limits could not be checked: %s", problem)

    async def reached(self, state: State) -> dict[str, str]:
        """The reached limits that an execution may wait for, each with a description that names the holders."""
        if state.finished is not None:
            return {}
        await self.any()
        keys = self._limiter.limited_keys(state)
        held = await self._store.held(keys) if keys else {}
        found = {}
        for key, count in held.items():
            most = self._limiter.limit_of(key)
            if most is not None and count >= most:
                found_holders = (await self._store.holders([key]))[key]
                holders = [each for each in found_holders if each.execution_id != state.execution_id]
                found[key] = _description(key, count, most, holders)
        return found

    async def document(self, limit: Limit) -> dict[str, Any]:
        """A limit with the slots in use, their holders and the waiting runs."""
        return (await self.documents([limit]))[0]

    async def documents(self, limits: Sequence[Limit]) -> Sequence[dict[str, Any]]:
        """Limits with the slots in use, their holders and the waiting runs: three or four queries for any number."""
        keys = [each.key for each in limits]
        holders = await self._store.holders(keys) if keys else {}
        waiting = {each.key: each for each in await self._queue.limit_depths()} if keys else {}
        tenants = [_tenant(each, self._limiter.tenant_label) for each in limits]
        queued = await self._queue.tenant_depths() if any(each is not None for each in tenants) else {}
        found = []
        for limit, tenant in zip(limits, tenants, strict=True):
            own = None if tenant is None else queued.get(tenant, 0)
            found.append(self._document(limit, holders[limit.key], waiting.get(limit.key), own))
        return found

    @staticmethod
    def _document(
        limit: Limit, holders: Sequence[ExecutionSummary], waiting: LimitDepth | None, queued: int | None
    ) -> dict[str, Any]:
        held = sum((each.held or {}).get(limit.key, 0) for each in holders)
        bound = {} if queued is None else {"max_waiting": limit.max_waiting, "queued": queued}
        return {
            "subject": limit.subject,
            "name": limit.name,
            "most": limit.most,
            "weight": limit.weight,
            "held": held,
            **bound,
            "waiting": waiting.runs if waiting else 0,
            "waiting_since": instant(waiting.since) if waiting and waiting.since else None,
            "holders": [
                {"execution_id": each.execution_id, "path": each.path, "held": (each.held or {}).get(limit.key, 0)}
                for each in holders[:MAX_HOLDERS]
            ],
            "changed_at": instant(limit.changed_at),
            "changed_by": limit.changed_by or None,
        }

    async def _publish(self) -> None:
        await self.refresh()
        if self._notifier is not None:
            self._notifier.publish(CHANNEL, "changed", always=True)

    async def _poll(self) -> None:
        while True:
            await sleep_unless_set(self._changed, self._clock, POLL_SECONDS)
            self._changed.clear()
            await self.check()


def _description(key: str, count: int, most: int, holders: Sequence[ExecutionSummary]) -> str:
    names = [f"{each.execution_id} ({each.path})" for each in holders[:MAX_NAMED]]
    if len(holders) > MAX_NAMED:
        names.append(f"{len(holders) - MAX_NAMED} more")
    by = f", by executions {', '.join(names)}" if len(names) > 1 else f", by execution {names[0]}" if names else ""
    if key == SUSPECTS:
        return f"such runs are executed one at a time, and the turn is taken{by}"
    return f"the limit of {key}: {count} of {most} slots in use{by}"


def _subject(name: str) -> Subject:
    if name not in get_args(Subject):
        raise RequestRefused(
            f"{name!r} cannot be limited; a limit applies to a pool, a credential, a playbook or a label"
        )
    return name  # type: ignore[return-value]


def _name(name: str) -> str:
    if not name or len(name) > 900 or any(ord(each) < 32 for each in name) or name != name.strip():
        raise RequestRefused("a name has 1 to 900 characters, no control characters and no surrounding blanks")
    return name


def _decode(row: StoredTrigger) -> Limit:
    return msgspec.json.decode(row.data, type=Limit)


def _tenant(limit: Limit, label: str) -> str | None:
    """The tenant that a limit of a label names; None for other labels and subjects."""
    if limit.subject != "label":
        return None
    name, equals, value = limit.name.partition("=")
    if not name or not equals:
        raise RequestRefused(f"{limit.name!r} is not a label: write NAME=VALUE, for example {label}=acme")
    return value if name == label else None


def _weight(limit: Limit, weight: int, tenant: str | None, label: str) -> int:
    if limit.subject == "label" and tenant is None:
        raise RequestRefused(f"a weight of a label is that of a tenant: {label}=NAME (setting server.tenant_label)")
    if limit.subject not in ("playbook", "label"):
        raise RequestRefused(f"only playbooks and tenants have a weight; slots are assigned to pools by {POOLS}")
    if not 1 <= weight <= MAX_WEIGHT:
        raise RequestRefused(f"a weight is a number from 1 to {MAX_WEIGHT}")
    return weight


def _most(most: int) -> int:
    if not 0 <= most <= MOST:
        raise RequestRefused(f"a limit is a number from 0 to {MOST}; `noetl limit remove` removes it")
    return most
