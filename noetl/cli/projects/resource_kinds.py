"""The kinds of resource files. A new kind is one more `resource_kind(...)` here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from noetl.cli.backend.base import Backend, Document
from noetl.cli.output.terminal import terminal
from noetl.cli.projects.resources import ResourceKind, Spec, resource_kind
from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from noetl.client import Client


def _fields_of(kind: str) -> dict[str, Any]:
    """The fields of a kind of trigger with their defaults."""
    import msgspec

    from noetl.server.scheduling.kinds import KINDS

    of = KINDS[kind]
    defaults: dict[str, Any] = {}
    for each in msgspec.structs.fields(of):
        if each.name not in of.INTERNAL:
            made = each.default_factory() if each.default_factory is not msgspec.NODEFAULT else each.default
            defaults[each.name] = ... if each.required else msgspec.json.decode(msgspec.json.encode(made))
    return defaults


def _checked_trigger(kind: str) -> Callable[[str, Spec], None]:
    def check(name: str, spec: Spec) -> None:
        from noetl.server.scheduling.kinds import KINDS
        from noetl.server.scheduling.triggers import define

        define(KINDS[kind], name, spec, now=0.0)

    return check


SCHEDULE: dict[str, Any] = _fields_of("schedule")
LIMIT: dict[str, Any] = {"subject": ..., "name": ..., "most": None, "weight": None, "max_waiting": None}


def _spec(document: Document, fields: dict[str, Any]) -> Spec:
    return {field: document.get(field) for field in fields}


async def _schedules(backend: Backend) -> dict[str, Spec]:
    return {one["name"]: _spec(one, SCHEDULE) for one in await backend.schedules()}


async def _put_schedule(backend: Backend, name: str, spec: Spec, exists: bool) -> None:
    if exists:
        await backend.edit_schedule(name, spec)
        return
    options = {field: value for field, value in spec.items() if field not in ("path", "cron")}
    await backend.add_schedule(spec["path"], spec["cron"], name=name, **options)


async def _remove_schedule(backend: Backend, name: str) -> None:
    await backend.remove_schedule(name)


resource_kind(
    ResourceKind(
        "Schedule",
        SCHEDULE,
        _schedules,
        _put_schedule,
        _remove_schedule,
        lambda spec: str(spec["path"]),
        check=_checked_trigger("schedule"),
    )
)


def _client(backend: Backend) -> Client:
    client: Client | None = getattr(backend, "client", None)
    if client is None:
        raise RequestRefused(
            "webhooks, triggers and notifications need a server: apply the project with --server, or start `noetl dev`"
        )
    return client


def _register_trigger(kind: str, resource: str) -> None:
    """Register the resource of a kind of trigger that only a server has."""
    fields = _fields_of(kind)

    async def current(backend: Backend) -> dict[str, Spec]:
        client = _client(backend)
        found = await asyncio.to_thread(lambda: list(client.triggers(kind)))
        return {one["name"]: _spec(one, fields) for one in found}

    async def put(backend: Backend, name: str, spec: Spec, exists: bool) -> None:
        given = {field: value for field, value in spec.items() if value is not None}
        stored = await asyncio.to_thread(_client(backend).put_trigger, kind, name, given)
        for text in stored.get("warnings", ()):
            terminal.warn(f"{resource} {name}: {text}")

    async def remove(backend: Backend, name: str) -> None:
        await asyncio.to_thread(_client(backend).remove_trigger, kind, name)

    check = _checked_trigger(kind)
    resource_kind(ResourceKind(resource, fields, current, put, remove, lambda spec: str(spec["path"]), check=check))


def _register_triggers() -> None:
    from noetl.server.scheduling.kinds import PLUGINS

    _register_trigger("webhook", "Webhook")
    _register_trigger("event", "CustomEventTrigger")
    for kind in ("nats", "object", "execution", *PLUGINS):
        _register_trigger(kind, f"{kind.title().replace('_', '')}Trigger")


_register_triggers()


NOTIFICATION: dict[str, Any] = {
    "on": ..., "to": ..., "paths": ["*"], "labels": {}, "group": 60.0, "answer_url": "", "paused": False,
}  # fmt: skip


async def _notifications(backend: Backend) -> dict[str, Spec]:
    client = _client(backend)
    found = await asyncio.to_thread(lambda: list(client.notifications()))
    return {one["name"]: _spec(one, NOTIFICATION) for one in found}


async def _put_notification(backend: Backend, name: str, spec: Spec, exists: bool) -> None:
    await asyncio.to_thread(_client(backend).put_notification, name, spec)


async def _remove_notification(backend: Backend, name: str) -> None:
    await asyncio.to_thread(_client(backend).remove_notification, name)


def _check_notification(name: str, spec: Spec) -> None:
    from noetl.server.notifications.rules import define_rule

    define_rule(name, spec, now=0.0)


resource_kind(
    ResourceKind(
        "Notification",
        NOTIFICATION,
        _notifications,
        _put_notification,
        _remove_notification,
        lambda spec: None,
        check=_check_notification,
    )
)


async def _limits(backend: Backend) -> dict[str, Spec]:
    return {f"{one['subject']} {one['name']}": _spec(one, LIMIT) for one in await backend.limits()}


async def _put_limit(backend: Backend, name: str, spec: Spec, exists: bool) -> None:
    values = {"weight": spec["weight"], "max_waiting": spec["max_waiting"]}
    await backend.set_limit(spec["subject"], spec["name"], spec["most"], **values)


async def _remove_limit(backend: Backend, name: str) -> None:
    subject, _, subject_name = name.partition(" ")
    await backend.remove_limit(subject, subject_name)


def _limited_playbook(spec: Spec) -> str | None:
    return str(spec["name"]) if spec["subject"] == "playbook" else None


def _limit_key(name: str, spec: Spec) -> str:
    return f"{spec['subject']} {spec['name']}"


resource_kind(ResourceKind("Limit", LIMIT, _limits, _put_limit, _remove_limit, _limited_playbook, _limit_key))
