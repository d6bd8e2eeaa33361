"""The kinds of triggers."""

from __future__ import annotations

from noetl.server.scheduling.event_triggers import CustomEventTrigger, ExecutionTrigger, NatsTrigger, ObjectTrigger
from noetl.server.scheduling.schedules import Schedule
from noetl.server.scheduling.triggers import Trigger
from noetl.server.scheduling.webhooks import Webhook

KINDS: dict[str, type[Trigger]] = {
    each.KIND: each for each in (Schedule, Webhook, NatsTrigger, ObjectTrigger, ExecutionTrigger, CustomEventTrigger)
}
