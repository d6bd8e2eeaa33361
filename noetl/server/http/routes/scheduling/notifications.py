"""Notification rules, tests of their channels, and the log of messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Body, HTTPException, Path, Query
from starlette.responses import Response

from noetl.core.model.events import instant
from noetl.server.http.definition_schemas import definition_body
from noetl.server.http.dependencies import Admin, App, Viewer
from noetl.server.http.response_models import json_response, page_of
from noetl.server.notifications.channels import NotSent
from noetl.server.notifications.rules import KIND, Rule, rule_document
from noetl.storage.ports.deliveries import Delivery, DeliveryFilter

router = APIRouter(tags=["notifications"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/api/notifications", summary="List notification rules")
async def rules(
    state: App,
    _: Viewer,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the previous page")] = None,
    limit: Limit = 100,
) -> Response:
    """One page, by name."""
    found = await state.notifier.rules.list(after=after, limit=limit + 1)
    return json_response(page_of(found, limit, lambda each: each.name, rule_document))


@router.get("/api/notifications/{name}", summary="Get a notification rule")
async def rule(state: App, _: Viewer, name: Name) -> Response:
    """What it matches and where it sends."""
    return json_response(rule_document(await state.notifier.rules.get(name)))


@router.put(
    "/api/notifications/{name}",
    summary="Create a notification rule, or replace it",
    openapi_extra=definition_body(Rule, lists=("on", "paths"), durations=("group",)),
)
async def put(state: App, caller: Admin, name: Name, definition: Annotated[dict[str, Any], Body()]) -> Response:
    """`on` (failed, late, waiting, recovered, dead_trigger, `event:NAME` of a custom event), `to` (a channel: kind
    mail, slack or http), `paths`, `labels`, `group`, `paused`."""
    return json_response(rule_document(await state.notifier.put_rule(name, definition, caller.name)))


@router.delete("/api/notifications/{name}", status_code=204, summary="Delete a notification rule")
async def remove(state: App, _: Admin, name: Name) -> Response:
    """Messages that are not sent yet are dropped."""
    await state.notifier.rules.remove(name)
    return Response(status_code=204)


@router.post(
    "/api/notifications/{name}/test",
    summary="Send a test message",
    responses={502: {"description": "The channel did not accept the message"}},
)
async def test(state: App, _: Admin, name: Name) -> Response:
    """Responds when the channel has accepted the message."""
    try:
        return json_response({"name": name, "answer": await state.notifier.test(name)})
    except NotSent as problem:
        raise HTTPException(502, f"the message was not sent: {problem}") from None


@router.get("/api/notifications/{name}/deliveries", summary="List the messages of a notification rule, newest first")
async def deliveries(
    state: App,
    _: Viewer,
    name: Name,
    status: Literal["pending", "sent", "failed", "skipped"] | None = None,
    before: Annotated[str | None, Query(pattern=r"^[0-9a-f]{1,40}$", description="`next` of the previous page")] = None,
    limit: Limit = 100,
) -> Response:
    """Every occurrence with its status, the number of attempts, and the answer of the channel or the error."""
    where = DeliveryFilter(KIND, name, (status,) if status else (), before, limit + 1)
    found = await state.deliveries.store.list(where)
    if not found:
        await state.notifier.rules.get(name)  # the messages of a deleted rule stay visible
    return json_response(page_of(found, limit, lambda each: each.id, _document))


def _document(delivery: Delivery) -> dict[str, Any]:
    document = msgspec.json.decode(delivery.data)
    incident = document["incident"]
    sent_at = document.get("sent_at")
    return {
        "id": delivery.id,
        "rule": delivery.name,
        "status": delivery.status,
        "on": incident["on"],
        "path": incident["path"],
        "title": incident["title"],
        "details": incident.get("details", {}),
        "received_at": instant(delivery.received_at),
        "due": instant(delivery.due) if delivery.due is not None else None,
        "sent_at": instant(sent_at) if sent_at is not None else None,
        "attempts": document.get("attempts", 0),
        "answer": document.get("answer"),
        "error": document.get("error"),
    }
