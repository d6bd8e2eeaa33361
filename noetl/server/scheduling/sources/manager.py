"""Runs the listeners of all triggers that need one, on one of several servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from noetl.connections.named_addresses import check_named_addresses
from noetl.errors import NoetlError, NotFound, StoreUnavailable
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.scheduling import plugin_triggers
from noetl.server.scheduling.deliveries import Deliveries, ProblemReporter
from noetl.server.scheduling.event_triggers import CustomEventTrigger, ExecutionTrigger, NatsTrigger, ObjectTrigger
from noetl.server.scheduling.kinds import PLUGINS
from noetl.server.scheduling.sources import nats, objects
from noetl.server.scheduling.sources.executions import CustomEvents, StatusListener, process_news
from noetl.server.scheduling.triggers import Trigger
from noetl.storage.ports.cluster import LeaderLease
from noetl.storage.ports.secrets import CredentialStore

log = logging.getLogger("noetl.triggers")

POLL_SECONDS = 1.0  # maximum delay until a new trigger or the end of an execution is noticed
LEADER_ROLE, LEADER_SECONDS = "triggers", 10.0
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
CLEAN_SECONDS = 3600.0
LISTENERS: dict[str, Any] = {
    NatsTrigger.KIND: nats.listen,
    ObjectTrigger.KIND: objects.listen,
    **dict.fromkeys(PLUGINS, plugin_triggers.listen),
}
# Fields that change while a listener runs, and do not restart it.
PROGRESS = frozenset({"problem", "cursor"})


class TriggerSources:
    """The listeners of this process."""

    def __init__(
        self,
        deliveries: Deliveries,
        orchestrator: Orchestrator,
        credentials: CredentialStore,
        clock: Clock,
        *,
        leadership: LeaderLease | None = None,
        listener: StatusListener | None = None,
        reporter: ProblemReporter | None = None,
        allows: Callable[[str], bool] | None = None,
    ) -> None:
        self._deliveries = deliveries
        self._triggers = deliveries.triggers
        self._orchestrator = orchestrator
        self._credentials = credentials
        self._clock = clock
        self._leadership = leadership
        self._listener = listener
        self._reporter = reporter
        self._allows = allows  # addresses in definitions; those of credentials are the choice of an administrator
        self._running: dict[tuple[str, str], tuple[Trigger, asyncio.Task[None]]] = {}
        self.connected: set[tuple[str, str]] = set()  # triggers (kind, name) whose listener receives
        self._custom = CustomEvents()
        self._cleaned_at = float("-inf")

    async def run(self) -> None:
        """Listen until cancelled."""
        unreachable = False
        try:
            while True:
                try:
                    await self.step()
                    unreachable = False
                except StoreUnavailable as problem:
                    if not unreachable:
                        log.warning("triggers are not processed, the store is unreachable: %s", problem)
                    unreachable = True
                except NoetlError as problem:
                    log.error("triggers could not be processed: %s", problem)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Stop all listeners."""
        await cancel(*(task for _, task in self._running.values()))
        self._running.clear()

    async def step(self) -> None:
        """Start, restart and stop listeners as the definitions say, and process ends of executions."""
        ends = [each for each in await self._triggers.all(ExecutionTrigger.KIND) if isinstance(each, ExecutionTrigger)]
        # Every server lists new statuses as news; one of them reads the news.
        self._orchestrator.actors.news.enabled = bool(ends) or (
            self._listener is not None and await self._listener.is_active()
        )
        events = [
            each for each in await self._triggers.all(CustomEventTrigger.KIND) if isinstance(each, CustomEventTrigger)
        ]
        news = self._orchestrator.actors.news
        news.custom = bool(events) or (self._listener is not None and await self._listener.wants_events())
        leadership = self._leadership
        if leadership is not None and not await leadership.acquire_leadership(LEADER_ROLE, LEADER_SECONDS):
            await self.stop()
            return
        await self._reconcile()
        if news.enabled or news.custom:
            active = [each for each in ends if not each.paused]
            self._custom.triggers = [each for each in events if not each.paused]
            await process_news(self._orchestrator, self._deliveries, active, self._listener, self._custom)
        if self._clock.monotonic() - self._cleaned_at > CLEAN_SECONDS:
            self._cleaned_at = self._clock.monotonic()
            await self._deliveries.clean()

    async def _reconcile(self) -> None:
        wanted = {
            (kind, each.name): each for kind in LISTENERS for each in await self._triggers.all(kind) if not each.paused
        }
        for key, (known, task) in list(self._running.items()):
            if key in wanted and _definition(known) == _definition(wanted[key]) and not task.done():
                continue
            await cancel(task)
            del self._running[key]
            if key not in wanted or wanted[key].id != known.id:
                await self._forget(known)
        for key, trigger in wanted.items():
            if key not in self._running:
                task = asyncio.get_running_loop().create_task(self._listen(trigger))
                self._running[key] = (trigger, task)

    async def _listen(self, trigger: Trigger) -> None:
        """Run the listener of a trigger; after a failure, record the problem and try again."""
        failures = 0

        async def connected(**progress: Any) -> None:
            nonlocal failures
            failures = 0
            self.connected.add((trigger.KIND, trigger.name))
            await self._triggers.change(trigger.KIND, trigger.name, problem=None, **progress)

        while True:
            try:
                current = await self._triggers.get(trigger.KIND, trigger.name)
                fields = await self._fields(getattr(current, "credential", ""))
                if not isinstance(current, ObjectTrigger):  # only its credential has an address
                    named = getattr(current, "fields", None) or {"url": getattr(current, "url", "")}
                    await check_named_addresses(named, lambda _: self._allows)
                await LISTENERS[trigger.KIND](current, self._deliveries, fields, connected)
            except NotFound:
                return  # it was removed
            except Exception as problem:  # noqa: BLE001 - whatever a driver raises is recorded with the trigger
                await self._failed(trigger, problem)
            finally:
                self.connected.discard((trigger.KIND, trigger.name))
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    async def _failed(self, trigger: Trigger, problem: Exception) -> None:
        text = str(problem) or type(problem).__name__
        if isinstance(problem, OSError) and problem.filename is not None:
            text = f"{problem.strerror}: {problem.filename}"
        log.warning("%s %s does not receive anything: %s", trigger.KIND, trigger.name, text)
        try:
            known = await self._triggers.get(trigger.KIND, trigger.name)
            if known.problem is None:
                await self._triggers.change(trigger.KIND, trigger.name, problem=text)
                if self._reporter is not None:
                    await self._reporter.trigger_failed(trigger, text, f"dead:{trigger.id}:{self._clock.now():.0f}")
        except NoetlError as unreachable:
            log.warning("the problem of %s %s is not recorded: %s", trigger.KIND, trigger.name, unreachable)

    async def _fields(self, credential: str) -> Mapping[str, Any]:
        if not credential:
            return {}
        found = await self._credentials.get(credential)
        if found is None:
            raise NoetlError(f"there is no credential {credential!r}")
        return found

    async def _forget(self, trigger: Trigger) -> None:
        """Remove what a removed trigger left at its source."""
        if not isinstance(trigger, NatsTrigger):
            return
        try:
            current = await self._triggers.get(trigger.KIND, trigger.name)
            if current.id == trigger.id:
                return  # it is paused
        except NotFound:
            pass
        try:
            await nats.forget(trigger, await self._fields(trigger.credential))
        except Exception as problem:  # noqa: BLE001 - a consumer that stays costs little
            log.info("the consumer %s could not be deleted: %s", trigger.durable, problem)


def _definition(trigger: Trigger) -> Trigger:
    fields = {name: None for name in PROGRESS if name in trigger.__struct_fields__}
    return msgspec.structs.replace(trigger, **fields)
