"""The kinds of triggers."""

from __future__ import annotations

from noetl.server.scheduling.event_triggers import CustomEventTrigger, ExecutionTrigger, NatsTrigger, ObjectTrigger
from noetl.server.scheduling.plugin_triggers import found_kinds
from noetl.server.scheduling.schedules import Schedule
from noetl.server.scheduling.triggers import Trigger
from noetl.server.scheduling.webhooks import Webhook

BUILT_IN: dict[str, type[Trigger]] = {
    each.KIND: each for each in (Schedule, Webhook, NatsTrigger, ObjectTrigger, ExecutionTrigger, CustomEventTrigger)
}
PLUGINS = {kind: each for kind, each in found_kinds().items() if kind not in BUILT_IN}
KINDS: dict[str, type[Trigger]] = {**BUILT_IN, **PLUGINS}
