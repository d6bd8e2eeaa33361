"""Deliveries: from the receipt of a tick, request, message, object or end of an execution to the execution it starts.

A delivery is recorded first, under a key that identifies it, then acknowledged to its sender, then started. The key is
also the idempotency key of the execution. So a process that stops anywhere in between leaves a pending row that is
started later, and several servers that act on one row start one execution.

Invariant: the deliveries of a schedule, and of a trigger whose executions may not overlap, are acted on in order of
their `due` time; one that waits holds back the later ones.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from noetl.core.model.events import instant
from noetl.core.model.secret_names import mask_secret_names
from noetl.errors import Conflict, NoetlError, NotFound, Overloaded, StoreUnavailable
from noetl.observability import metrics
from noetl.runtime.clock import Clock
from noetl.server.lifecycle.children import FINAL
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.server.scheduling.trigger_service import Triggers
from noetl.server.scheduling.triggers import Trigger
from noetl.storage.ports.deliveries import Delivery, DeliveryFilter, DeliveryStore

log = logging.getLogger("noetl.triggers")

BATCH = 100  # deliveries of one trigger per pass
SIDE_BY_SIDE = 32  # deliveries of one trigger that are started at the same time
BACKLOG_SECONDS = 1.0  # how long a reading of the backlog is valid


class DeliveryLimits(Struct):
    """What an installation allows (settings `deliveries.*`)."""

    max_pending: int = 10_000  # deliveries of one trigger; its source is not read while there are more
    max_backlog: int = 1_000  # runs that wait for a worker; no delivery is started while there are more
    retention: float = 30 * 86_400.0  # of ended deliveries


class ProblemReporter(Protocol):
    """Receives the problems of triggers."""

    async def trigger_failed(self, trigger: Trigger, problem: str, key: str) -> None:
        """A trigger could not start an execution or receive anything; `key` identifies the occurrence."""


class Deliveries:
    """Records deliveries and starts their executions."""

    def __init__(
        self,
        store: DeliveryStore,
        triggers: Triggers,
        orchestrator: Orchestrator,
        clock: Clock,
        reporter: ProblemReporter | None = None,
    ) -> None:
        self.limits = DeliveryLimits()
        self.store = store
        self.triggers = triggers
        self._orchestrator = orchestrator
        self._clock = clock
        self._reporter = reporter
        self._last_id = 0
        self._backlog = 0  # runs that wait for a worker: the last reading, and what was started since
        self._backlog_at = float("-inf")

    # ── receipt ─────────────────────────────────────────────────────────────────────────

    async def receive(
        self,
        trigger: Trigger,
        key: str,
        payload: Mapping[str, Any],
        *,
        due: float | None = None,
        **document: Any,
    ) -> Delivery:
        """Record a delivery and return it after the commit; one with a known key is the recorded one.

        `document` has what the history shows beside the payload."""
        now = self._clock.now()
        delivery = Delivery(
            self._next_id(now),
            trigger.KIND,
            trigger.name,
            trigger.key(key),
            now,
            msgspec.json.encode({"payload": dict(payload), **document}),
            due=now if due is None else due,
        )
        while not await self.store.add(delivery):
            known = await self.store.by_key(delivery.key)
            if known is not None:
                return await self._reopened(known, delivery) if known.status == "failed" else known
            delivery = msgspec.structs.replace(delivery, id=self._next_id(now))
        return delivery

    async def _reopened(self, failed: Delivery, again: Delivery) -> Delivery:
        """A delivery that could not start and has arrived again: it is tried again."""
        reopened = msgspec.structs.replace(failed, status="pending", due=again.due, data=again.data)
        return reopened if await self.store.save(reopened, was="failed") else await self.store.get(failed.id) or failed

    async def reject(self, trigger: Trigger, key: str, reason: str, **document: Any) -> Delivery:
        """Record a delivery whose payload cannot be made, as failed."""
        delivery = await self.receive(trigger, key, {}, **document)
        return await self._fail(trigger, delivery, reason)

    async def skip(self, trigger: Trigger, key: str, reason: str, **document: Any) -> None:
        """Record something that starts no execution, also when it arrives again."""
        await self._end(await self.receive(trigger, key, {}, due=float("inf"), **document), "skipped", reason)

    async def check_later(self, trigger: Trigger, kind: str, key: str, due: float, **document: Any) -> None:
        """Record a check of a delivery at a later time, as a row of another kind."""
        now = self._clock.now()
        data = msgspec.json.encode(document)
        await self.store.add(
            Delivery(self._next_id(now), kind, trigger.name, f"{kind}:{trigger.key(key)}", now, data, due=due)
        )

    async def has_room(self, trigger: Trigger) -> bool:
        """Whether the source of a trigger may be read: not too many of its deliveries are pending."""
        return (await self.store.counts(trigger.KIND, trigger.name)).get("pending", 0) < self.limits.max_pending

    async def check_room(self, trigger: Trigger) -> None:
        """Overloaded when too many deliveries of a trigger are pending."""
        if not await self.has_room(trigger):
            raise Overloaded(
                f"{self.limits.max_pending} deliveries of {trigger.KIND} {trigger.name!r} are pending; try again later"
            )

    async def replay(self, id: str, by: str = "") -> Delivery:
        """Start another execution with the payload of a delivery."""
        known = await self.get(id)
        trigger = await self._trigger(known.kind, known.name)
        if trigger is None:
            raise NotFound(f"the {known.kind} {known.name!r} of this delivery does not exist any more")
        document = {**msgspec.json.decode(known.data), "replay_of": id, "by": by}
        payload = document.pop("payload")
        document.pop("error", None)
        delivery = await self.receive(trigger, f"replay:{secrets.token_hex(8)}", payload, **document)
        return await self.start(trigger, delivery)

    async def get(self, id: str) -> Delivery:
        """The delivery of an id; NotFound when there is none."""
        found = await self.store.get(id)
        if found is None or found.kind not in self.triggers.kinds:
            raise NotFound(f"there is no delivery {id!r}; `noetl trigger deliveries NAME` lists them")
        return found

    # ── start ───────────────────────────────────────────────────────────────────────────

    async def process_due(self) -> int:
        """Act on the pending deliveries that are due; returns the number of triggers that have some."""
        owners = [each for each in await self.store.owners(self._clock.now()) if each[0] in self.triggers.kinds]
        for kind, name in owners:
            try:
                await self._process(kind, name)
            except StoreUnavailable:
                raise
            except Exception as problem:  # a defect of one trigger must not stop the others
                is_defect = not isinstance(problem, NoetlError)
                log.error("%s %s could not be processed: %s", kind, name, problem, exc_info=is_defect)
        return len(owners)

    async def start(self, trigger: Trigger, delivery: Delivery) -> Delivery:
        """Start the execution of a delivery at once, whatever else is running; a refusal is recorded."""
        if delivery.status != "pending":
            return delivery
        document = msgspec.json.decode(delivery.data)
        try:
            execution_id = await self._orchestrator.submit(
                Submission(
                    path=trigger.path,
                    version=trigger.version,
                    payload=document["payload"],
                    key=delivery.key,
                    requested_by=f"{trigger.KIND} {trigger.name}",
                    labels=trigger.labels,
                    due=document.get("tick"),
                )
            )
        except StoreUnavailable:
            raise
        except NoetlError as problem:
            return await self._fail(trigger, delivery, str(problem))
        self._backlog += 1
        log.info("%s %s started execution %s", trigger.KIND, trigger.name, execution_id)
        return await self._started(trigger, delivery, execution_id)

    async def start_unless_full(self, trigger: Trigger, delivery: Delivery) -> Delivery:
        """Start a delivery now if its trigger has nothing that waits or runs; otherwise it stays pending."""
        if trigger.overlap == "allow" and not trigger.paused and not await self._is_full():
            return await self.start(trigger, delivery)
        self.triggers.changed.set()
        await self._process(trigger.KIND, trigger.name)
        return await self.store.get(delivery.id) or delivery

    def list_ends(self) -> None:
        """List ends of executions as news from now on, without waiting for the next look at the triggers."""
        self._orchestrator.actors.news.enabled = True

    def list_custom_events(self) -> None:
        """List custom events as news from now on, without waiting for the next look at the triggers."""
        self._orchestrator.actors.news.custom = True

    async def drop_pending(self, kind: str, name: str, reason: str) -> None:
        """Skip all pending deliveries of a trigger."""
        while found := await self.store.pending(kind, name, float("inf"), BATCH):
            for each in found:
                await self._end(each, "skipped", reason)

    async def clean(self) -> int:
        """Delete old deliveries."""
        return await self.store.drop(self.oldest())

    def oldest(self) -> float:
        """The instant before which deliveries are deleted, so that a repetition of them cannot be recognised."""
        return self._clock.now() - self.limits.retention

    async def _process(self, kind: str, name: str) -> None:
        trigger = await self._trigger(kind, name)
        if trigger is None:
            await self.drop_pending(kind, name, f"the {kind} was removed")
            return
        if trigger.paused:
            return
        while found := await self.store.pending(kind, name, self._clock.now(), BATCH):
            if (
                trigger.overlap == "allow" and kind != "schedule"
            ):  # they run side by side, so they may start side by side
                if await self._is_full():
                    return
                found = found[: max(1, min(SIDE_BY_SIDE, self.limits.max_backlog - self._backlog))]
                await asyncio.gather(*(self._act(trigger, each) for each in found))
                continue
            for delivery in found:
                if not await self._act(trigger, delivery):
                    return

    async def _act(self, trigger: Trigger, delivery: Delivery) -> bool:
        """Start or skip a delivery; False when it has to wait."""
        known = await self._orchestrator.store.by_key(delivery.key)
        if known is not None:  # started before a crash, or by another server
            await self._started(trigger, delivery, known.execution_id)
            return True
        if trigger.KIND != "schedule" and await self._is_full():
            return False
        if trigger.overlap != "allow":
            running = [each for each in await self._running(trigger) if each.id != delivery.id]
            if len(running) >= trigger.concurrency:
                if trigger.overlap == "queue" or _waits(delivery, running):
                    return False
                if trigger.overlap == "skip":
                    await self._end(delivery, "skipped", None)
                    return True
                await self._cancel(trigger, running[0])
        await self.start(trigger, delivery)
        return True

    async def _running(self, trigger: Trigger) -> list[Delivery]:
        """The deliveries whose executions are running; those that have ended are released."""
        running = []
        for each in await self.store.holding(trigger.KIND, trigger.name):
            summary = await self._orchestrator.store.summary(each.execution_id or "")
            if summary is not None and summary.status not in FINAL:
                running.append(each)
            else:
                await self.store.save(msgspec.structs.replace(each, holds=False), was="started")
        return running

    async def _cancel(self, trigger: Trigger, oldest: Delivery) -> None:
        reason = f"superseded by the next delivery of {trigger.KIND} {trigger.name}"
        try:
            await self._orchestrator.cancel(oldest.execution_id or "", reason)
        except Conflict:
            return  # it ended meanwhile

    async def _is_full(self) -> bool:
        """Whether more runs wait for workers than triggers may add to."""
        if self._clock.monotonic() - self._backlog_at > BACKLOG_SECONDS:
            self._backlog = sum(each.runs for each in await self._orchestrator.queue.depths())
            self._backlog_at = self._clock.monotonic()
        return self._backlog >= self.limits.max_backlog

    async def _started(self, trigger: Trigger, delivery: Delivery, execution_id: str) -> Delivery:
        started = msgspec.structs.replace(
            delivery, status="started", due=None, holds=trigger.overlap != "allow", execution_id=execution_id
        )
        if await self.store.save(started):
            metrics.DELIVERIES.add(1, trigger.KIND, "started")
        return started

    async def _fail(self, trigger: Trigger, delivery: Delivery, reason: str) -> Delivery:
        log.error("%s %s could not start %s: %s", trigger.KIND, trigger.name, trigger.path, reason)
        if self._reporter is not None:
            await self._reporter.trigger_failed(trigger, reason, delivery.key)
        return await self._end(delivery, "failed", reason)

    async def _end(self, delivery: Delivery, status: Any, reason: str | None) -> Delivery:
        document = msgspec.json.decode(delivery.data)
        if reason is not None:
            document["error"] = reason
        ended = msgspec.structs.replace(delivery, status=status, due=None, data=msgspec.json.encode(document))
        if await self.store.save(ended):
            metrics.DELIVERIES.add(1, delivery.kind, status)
        return ended

    async def _trigger(self, kind: str, name: str) -> Trigger | None:
        try:
            return await self.triggers.get(kind, name)
        except NotFound:
            return None

    async def list(self, where: DeliveryFilter) -> list[Delivery]:
        """One page of the history of triggers, newest first."""
        kinds = tuple(self.triggers.kinds) if where.kind is None else (where.kind,)
        return await self.store.list(msgspec.structs.replace(where, kinds=kinds))

    def _next_id(self, now: float) -> str:
        """Text in order of receipt: microseconds, then random digits that tell servers apart."""
        self._last_id = max(self._last_id + 1, int(now * 1e6))
        return f"{self._last_id:013x}{secrets.token_hex(3)}"


class _Mark(Struct):
    """What decides of a delivery's document whether it waits."""

    make_up: bool = False


def _waits(delivery: Delivery, running: list[Delivery]) -> bool:
    """Whether a delivery is a missed tick, or follows one: then it waits, whatever `overlap` says."""
    return any(msgspec.json.decode(each.data, type=_Mark).make_up for each in (delivery, *running))


def delivery_document(delivery: Delivery, *, payload: bool = False) -> dict[str, Any]:
    """A delivery as a JSON document."""
    document = mask_secret_names(msgspec.json.decode(delivery.data))
    content = document.pop("payload", None)
    shown = {
        "id": delivery.id,
        "kind": delivery.kind,
        "name": delivery.name,
        "status": delivery.status,
        "received_at": instant(delivery.received_at),
        "due": instant(delivery.due) if delivery.due is not None else None,
        "execution_id": delivery.execution_id,
        "error": document.pop("error", None),
        **document,
    }
    return {**shown, "payload": content} if payload else shown
