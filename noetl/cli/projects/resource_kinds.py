"""The kinds of resource files. A new kind is one more `resource_kind(...)` here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from noetl.cli.backend.base import Backend, Document
from noetl.cli.projects.resources import ResourceKind, Spec, resource_kind
from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from noetl.client import Client

SCHEDULE: dict[str, Any] = {
    "path": ...,
    "cron": ...,
    "tz": "UTC",
    "version": None,
    "payload": {},
    "catch_up": "last",
    "overlap": "allow",
    "paused": False,
}
WEBHOOK: dict[str, Any] = {"path": ..., "credential": ..., "version": None, "payload": {}, "window": 300.0}
LIMIT: dict[str, Any] = {"subject": ..., "name": ..., "most": None, "weight": None}


def _spec(document: Document, fields: dict[str, Any]) -> Spec:
    return {field: document.get(field) for field in fields}


async def _schedules(backend: Backend) -> dict[str, Spec]:
    return {one["name"]: _spec(one, SCHEDULE) for one in await backend.schedules()}


async def _put_schedule(backend: Backend, name: str, spec: Spec, exists: bool) -> None:
    options = {field: value for field, value in spec.items() if field not in ("path", "cron")}
    if exists:
        await backend.remove_schedule(name)
    await backend.add_schedule(spec["path"], spec["cron"], name=name, **options)


async def _remove_schedule(backend: Backend, name: str) -> None:
    await backend.remove_schedule(name)


resource_kind(
    ResourceKind("Schedule", SCHEDULE, _schedules, _put_schedule, _remove_schedule, lambda spec: str(spec["path"]))
)


def _client(backend: Backend) -> Client:
    client: Client | None = getattr(backend, "client", None)
    if client is None:
        raise RequestRefused("webhooks need a server: apply the project with --server, or start `noetl dev`")
    return client


async def _webhooks(backend: Backend) -> dict[str, Spec]:
    client = _client(backend)
    found = await asyncio.to_thread(lambda: list(client.webhooks()))
    return {one["name"]: _spec(one, WEBHOOK) for one in found}


async def _put_webhook(backend: Backend, name: str, spec: Spec, exists: bool) -> None:
    client = _client(backend)
    if exists:
        await asyncio.to_thread(client.remove_webhook, name)
    options = {field: value for field, value in spec.items() if field != "path"}
    await asyncio.to_thread(lambda: client.add_webhook(spec["path"], name=name, **options))


async def _remove_webhook(backend: Backend, name: str) -> None:
    await asyncio.to_thread(_client(backend).remove_webhook, name)


resource_kind(
    ResourceKind("Webhook", WEBHOOK, _webhooks, _put_webhook, _remove_webhook, lambda spec: str(spec["path"]))
)


async def _limits(backend: Backend) -> dict[str, Spec]:
    return {f"{one['subject']} {one['name']}": _spec(one, LIMIT) for one in await backend.limits()}


async def _put_limit(backend: Backend, name: str, spec: Spec, exists: bool) -> None:
    await backend.set_limit(spec["subject"], spec["name"], spec["most"], weight=spec["weight"])


async def _remove_limit(backend: Backend, name: str) -> None:
    subject, _, subject_name = name.partition(" ")
    await backend.remove_limit(subject, subject_name)


def _limited_playbook(spec: Spec) -> str | None:
    return str(spec["name"]) if spec["subject"] == "playbook" else None


def _limit_key(name: str, spec: Spec) -> str:
    return f"{spec['subject']} {spec['name']}"


resource_kind(ResourceKind("Limit", LIMIT, _limits, _put_limit, _remove_limit, _limited_playbook, _limit_key))
