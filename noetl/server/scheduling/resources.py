"""Definitions of triggers as resources: stored, described and removed by kind and name.

`put` takes the mapping of a `*.resource.yaml` file or of a request, validates all of it, and stores it as it is; a
trigger that exists keeps its identity, its history and its progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct

from noetl.errors import NotFound
from noetl.server.scheduling.deliveries import Deliveries, delivery_document
from noetl.server.scheduling.event_triggers import CustomEventTrigger, ExecutionTrigger
from noetl.server.scheduling.schedules import Schedule, Schedules
from noetl.server.scheduling.triggers import Trigger, definition, trigger_document
from noetl.server.scheduling.webhooks import Webhook, Webhooks, webhook_document
from noetl.storage.ports.deliveries import Status

# Kinds whose definition uses neither credentials nor addresses of the installation.
OPERATOR_KINDS = frozenset({"schedule", "execution", "event"})


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
        return (await self.documents([trigger]))[0]

    async def documents(self, triggers: Sequence[Trigger]) -> list[dict[str, Any]]:
        """Triggers as JSON documents; the number of queries depends on the number of kinds only."""
        store, found = self._deliveries.store, dict[tuple[str, str], dict[str, Any]]()
        for kind in dict.fromkeys(each.KIND for each in triggers):
            alike = [each for each in triggers if kind == each.KIND]
            names = [each.name for each in alike]
            counts, newest = await store.counts_of(kind, names), await store.newest(kind, names, get_args(Status))
            for each, own in zip(alike, await self._own_documents(alike), strict=True):
                last = newest.get(each.name)
                found[kind, each.name] = {
                    **own,
                    "deliveries": counts.get(each.name, {}),
                    "last_delivery": None if last is None else delivery_document(last),
                }
        return [found[each.KIND, each.name] for each in triggers]

    async def _own_documents(self, alike: Sequence[Trigger]) -> Sequence[dict[str, Any]]:
        schedules = [each for each in alike if isinstance(each, Schedule)]
        if schedules:
            return await self._schedules.documents(schedules)
        return [webhook_document(each) if isinstance(each, Webhook) else trigger_document(each) for each in alike]
