"""Kinds of triggers that plug-ins add (entry points of `noetl.triggers`).

The fields that a plug-in declares are fields of a trigger like those of the built-in kinds. A plug-in that cannot be
used is reported in the log, and its kind does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec

from noetl.core.model.connector import TriggerCall, TriggerSpec
from noetl.core.model.tool import Field
from noetl.errors import RequestRefused, TemplateError
from noetl.runtime import plugins
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.triggers import Trigger

log = logging.getLogger("noetl.triggers")

_TYPES: dict[str, Any] = {
    "string": str,
    "code": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "mapping": dict[str, Any],
    "list": list[Any],
}


class PluginTrigger(Trigger, frozen=True, omit_defaults=True, kw_only=True):
    """A trigger of a plug-in; each kind is a subclass with the declared fields."""

    SPEC: ClassVar[TriggerSpec]

    credential: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The values of the declared fields."""
        return {name: getattr(self, name) for name in self.SPEC.fields}

    def check(self) -> None:
        """RequestRefused when a declared field is missing or not one of its choices."""
        super().check()
        for name, declared in self.SPEC.fields.items():
            value = getattr(self, name)
            if declared.required and value in (None, ""):
                raise RequestRefused(f"a trigger of kind {self.KIND} needs {name}")
            if declared.choices and value not in (None, *declared.choices):
                raise RequestRefused(f"{name} is one of {', '.join(declared.choices)}, not {value!r}")


def found_kinds() -> dict[str, type[PluginTrigger]]:
    """The kinds of all installed plug-ins."""
    found: dict[str, type[PluginTrigger]] = {}
    for plugin in plugins.plugins(plugins.TRIGGERS):
        spec, reason = plugins.imported(plugin)
        if reason is None and not isinstance(spec, TriggerSpec):
            reason = "is not a noetl.tool.TriggerSpec"
        if reason is None and spec.kind in found:
            reason = f'declares the kind "{spec.kind}", which already exists'
        if reason is not None:
            log.warning("the trigger %s of the plug-in %s %s", plugin.name, plugin.distribution, reason)
            continue
        found[spec.kind] = kind_of(spec)
    return found


def kind_of(spec: TriggerSpec) -> type[PluginTrigger]:
    """The class of a kind of trigger."""
    taken = set(PluginTrigger.__struct_fields__)
    fields = [_field(name, declared) for name, declared in spec.fields.items() if name not in taken]
    made: Any = msgspec.defstruct(
        f"{spec.kind.title().replace('_', '')}Trigger",
        fields,
        bases=(PluginTrigger,),
        namespace={"KIND": spec.kind, "SPEC": spec, "__doc__": spec.doc},
        frozen=True,
        omit_defaults=True,
        kw_only=True,
    )
    return made  # type: ignore[no-any-return]


def _field(name: str, declared: Field) -> tuple[str, Any, Any]:
    type = _TYPES.get(declared.type, Any)
    if declared.required:
        return name, type, msgspec.field()
    if isinstance(declared.default, dict | list):
        return name, type | None, msgspec.field(default_factory=partial(type, declared.default))
    return name, type | None if type is not Any else Any, declared.default


async def listen(
    trigger: PluginTrigger,
    deliveries: Deliveries,
    credential: Mapping[str, Any],
    connected: Callable[[], Awaitable[None]],
) -> None:
    """Run the listener of the plug-in until it is cancelled or fails."""

    async def deliver(id: str, data: Any, event: Mapping[str, Any]) -> None:
        received = data if isinstance(data, dict) else {"body": data}
        shown = {"id": id, **event}
        try:
            payload = trigger.render({"event": {**shown, "data": data}}, received)
        except TemplateError as problem:
            await deliveries.reject(trigger, id, str(problem), event=shown)
            return
        await deliveries.receive(trigger, id, payload, event=shown)
        deliveries.triggers.changed.set()

    await trigger.SPEC.listen(
        TriggerCall(
            kind=trigger.KIND,
            name=trigger.name,
            id=trigger.id,
            fields=trigger.fields,
            credential=credential,
            deliver=deliver,
            connected=connected,
            has_room=lambda: deliveries.has_room(trigger),
        )
    )
