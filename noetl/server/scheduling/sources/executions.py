"""New statuses and custom events of executions: deliveries of triggers, and what notification rules want to know.

The news are part of the append that changed the status, and marked as read after everything that follows from them is
recorded. So a process that stops in between repeats them, and the keys of what follows make that harmless. Which custom
events of a running execution have been recorded is known in memory only (`CustomEvents`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from noetl.core.model.events import CustomEvent, Recorded, instant
from noetl.errors import NoetlError, StoreUnavailable, TemplateError
from noetl.server.lifecycle.children import FINAL
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.read_models.log_pages import log_events
from noetl.server.read_models.stored_values import restored
from noetl.server.read_models.summaries import output_document
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.event_triggers import CustomEventTrigger, ExecutionTrigger
from noetl.storage.ports.events import ExecutionSummary

log = logging.getLogger("noetl.triggers")

PAGE = 100
MAX_DEPTH = 32  # executions that start each other
MAX_READ = 10_000  # running executions whose custom events are not read twice


class StatusListener(Protocol):
    """Receives new statuses of executions."""

    async def is_active(self) -> bool:
        """Whether it wants to know of them."""

    async def status_changed(self, execution: ExecutionSummary) -> None:
        """An execution has ended or waits; called at least once, until it returns."""

    async def wants_events(self, path: str | None = None) -> bool:
        """Whether it wants custom events, of any playbook or of this one."""

    async def custom_event(self, execution: ExecutionSummary, recorded: Recorded, body: CustomEvent) -> None:
        """A step has emitted a custom event; called at least once, until it returns."""


class _Depth(msgspec.Struct):
    """Of a delivery's document: how many executions started each other before it."""

    depth: int = 0


class CustomEvents:
    """The triggers of custom events, and how far the log of each running execution has been read for them."""

    def __init__(self) -> None:
        self.triggers: list[CustomEventTrigger] = []
        self._read: OrderedDict[str, int] = OrderedDict()

    async def process(
        self,
        orchestrator: Orchestrator,
        deliveries: Deliveries,
        execution: ExecutionSummary,
        listener: StatusListener | None = None,
    ) -> None:
        """Record the custom events of an execution that triggers and rules want; one that is recorded again changes
        nothing."""
        triggers = [each for each in self.triggers if fnmatchcase(execution.path, each.of)]
        after = self._read.pop(execution.execution_id, 0)
        informed = listener if listener is not None and await listener.wants_events(execution.path) else None
        if triggers or informed is not None:
            oldest = deliveries.oldest()
            async for recorded in log_events(orchestrator.store, execution.execution_id, after):
                body = recorded.body
                if type(body) is CustomEvent and body.error is None and recorded.at >= oldest:
                    for trigger in triggers:
                        if recorded.at >= trigger.created_at and trigger.wants(execution, body.name):
                            await _record_custom(orchestrator, deliveries, trigger, execution, recorded, body)
                    if informed is not None:
                        await informed.custom_event(execution, recorded, body)
        if execution.status not in FINAL:
            self._read[execution.execution_id] = execution.seq
            while len(self._read) > MAX_READ:
                self._read.popitem(last=False)


async def process_news(
    orchestrator: Orchestrator,
    deliveries: Deliveries,
    triggers: Sequence[ExecutionTrigger],
    listener: StatusListener | None = None,
    custom: CustomEvents | None = None,
) -> int:
    """Record what follows from all unread news; returns their number."""
    total = 0
    while found := await orchestrator.store.news(PAGE):
        for execution in found:
            try:
                await _process(orchestrator, deliveries, triggers, listener, execution)
                if custom is not None:
                    await custom.process(orchestrator, deliveries, execution, listener)
            except StoreUnavailable:
                raise
            except Exception as problem:  # of this execution alone, such as a damaged log
                fields = execution.execution_id, problem
                is_defect = not isinstance(problem, NoetlError)
                log.error("the end of execution %s could not be processed: %s", *fields, exc_info=is_defect)
        await orchestrator.store.mark_read(found)
        total += len(found)
        if len(found) < PAGE:
            break
    if total:
        deliveries.triggers.changed.set()
    return total


async def _process(
    orchestrator: Orchestrator,
    deliveries: Deliveries,
    triggers: Sequence[ExecutionTrigger],
    listener: StatusListener | None,
    execution: ExecutionSummary,
) -> None:
    if execution.status in FINAL:
        for trigger in triggers:
            if trigger.wants(execution):
                await _record(orchestrator, deliveries, trigger, execution)
    if listener is not None and (execution.status in FINAL or execution.status == "waiting"):
        await listener.status_changed(execution)


async def _record(
    orchestrator: Orchestrator, deliveries: Deliveries, trigger: ExecutionTrigger, execution: ExecutionSummary
) -> None:
    event = await execution_event(orchestrator, execution)
    shown = {name: value for name, value in event.items() if name != "output"}
    await _deliver(deliveries, trigger, execution, execution.execution_id, event, {"execution": event}, shown)


async def _record_custom(
    orchestrator: Orchestrator,
    deliveries: Deliveries,
    trigger: CustomEventTrigger,
    execution: ExecutionSummary,
    recorded: Recorded,
    body: CustomEvent,
) -> None:
    known = await restored(orchestrator.results, {"data": body.data})
    shown = {
        "name": body.name,
        "step": body.step,
        "at": instant(recorded.at),
        "seq": recorded.seq,
        "execution_id": execution.execution_id,
        "path": execution.path,
        "version": execution.version,
    }
    event = {**shown, "data": known["data"]}
    given = known["data"] if isinstance(known["data"], dict) else {"body": known["data"]}
    id = f"{execution.execution_id}:{recorded.seq}"
    await _deliver(deliveries, trigger, execution, id, event, given, shown)


async def _deliver(
    deliveries: Deliveries,
    trigger: ExecutionTrigger | CustomEventTrigger,
    execution: ExecutionSummary,
    id: str,
    event: Mapping[str, Any],
    given: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    depth = await _depth(deliveries, execution)
    if depth > MAX_DEPTH:
        reason = f"{MAX_DEPTH} executions have started each other; see the triggers of kind {trigger.KIND}"
        await deliveries.reject(trigger, id, reason, event=shown, depth=depth)
        return
    try:
        payload = trigger.render({"event": event}, given)
    except TemplateError as problem:
        await deliveries.reject(trigger, id, str(problem), event=shown, depth=depth)
        return
    await deliveries.receive(trigger, id, payload, event=shown, depth=depth)


async def _depth(deliveries: Deliveries, execution: ExecutionSummary) -> int:
    known = await deliveries.store.by_key(execution.key) if execution.key else None
    return 1 if known is None else msgspec.json.decode(known.data, type=_Depth).depth + 1


async def execution_event(orchestrator: Orchestrator, execution: ExecutionSummary) -> Mapping[str, Any]:
    """What triggers and notifications can read of an execution."""
    output: Any = None
    if execution.status in FINAL:
        try:
            progress = await orchestrator.progress(execution.execution_id)
            output = output_document(progress.output, progress.error if execution.status != "success" else None)
        except StoreUnavailable:
            raise
        except NoetlError:
            output = None  # a damaged log has no output
    return {
        "execution_id": execution.execution_id,
        "path": execution.path,
        "version": execution.version,
        "status": execution.status,
        "error": execution.error,
        "started_at": instant(execution.started_at),
        "ended_at": instant(execution.ended_at) if execution.ended_at is not None else None,
        "parent": execution.parent,
        "output": output,
    }
