"""Definitions of triggers as resources: stored, described and removed by kind and name.

`put` takes the mapping of a `*.resource.yaml` file or of a request, validates all of it, and stores it as it is; a
trigger that exists keeps its identity, its history and its progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from noetl.errors import NotFound
from noetl.server.scheduling.deliveries import Deliveries, delivery_document
from noetl.server.scheduling.event_triggers import CustomEventTrigger, ExecutionTrigger
from noetl.server.scheduling.schedules import Schedule, Schedules
from noetl.server.scheduling.triggers import Trigger, definition, trigger_document
from noetl.server.scheduling.webhooks import Webhook, Webhooks, webhook_document
from noetl.storage.ports.deliveries import DeliveryFilter

# Kinds whose definition uses credentials or addresses of the installation.
ADMIN_KINDS = frozenset({"webhook", "nats", "object"})


class TriggerResources(Struct, eq=False):
    """The triggers of an installation as resources."""

    _deliveries: Deliveries
    _schedules: Schedules
    _webhooks: Webhooks

    async def put(self, kind: str, name: str, fields: Mapping[str, Any], *, by: str = "") -> tuple[Trigger, str | None]:
        """Store a trigger with exactly this definition; a secret that was generated for it is returned only here."""
        triggers = self._deliveries.triggers
        if kind == Webhook.KIND:
            return await self._webhooks.put(name, fields, by=by)
        trigger = await triggers.put(kind, name, fields, by=by)
        if isinstance(trigger, ExecutionTrigger):
            self._deliveries.list_ends()
        elif isinstance(trigger, CustomEventTrigger):
            self._deliveries.list_custom_events()
        return trigger, None

    async def remove(self, kind: str, name: str) -> None:
        """Remove a trigger, and the credential that was created for it."""
        if kind == Webhook.KIND:
            await self._webhooks.remove(name)
        else:
            await self._deliveries.triggers.remove(kind, name)

    async def definition(self, kind: str, name: str) -> dict[str, Any] | None:
        """The definition of a trigger without its defaults; None when there is no such trigger."""
        try:
            return definition(await self._deliveries.triggers.get(kind, name))
        except NotFound:
            return None

    async def document(self, trigger: Trigger) -> dict[str, Any]:
        """A trigger as a JSON document, with the numbers of its deliveries and the newest one."""
        store = self._deliveries.store
        newest = await store.list(DeliveryFilter(trigger.KIND, trigger.name, limit=1))
        return {
            **await self._own_document(trigger),
            "deliveries": await store.counts(trigger.KIND, trigger.name),
            "last_delivery": delivery_document(newest[0]) if newest else None,
        }

    async def _own_document(self, trigger: Trigger) -> dict[str, Any]:
        if isinstance(trigger, Schedule):
            return await self._schedules.document(trigger)
        if isinstance(trigger, Webhook):
            return webhook_document(trigger)
        return trigger_document(trigger)
