"""Triggers of every kind, and the history of their deliveries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, HTTPException, Path, Query
from pydantic import StringConstraints
from starlette.responses import Response

from noetl.errors import RequestRefused
from noetl.server.http.access import Caller
from noetl.server.http.definition_schemas import definition_body
from noetl.server.http.dependencies import App, AppState, Operator, Viewer
from noetl.server.http.response_models import json_response, page, page_of
from noetl.server.http.routes.scheduling.webhooks import accepted_response
from noetl.server.scheduling.deliveries import delivery_document
from noetl.server.scheduling.kinds import KINDS
from noetl.server.scheduling.resources import OPERATOR_KINDS
from noetl.storage.ports.deliveries import DeliveryFilter

router = APIRouter(tags=["triggers"])

# `schedule`, `webhook`, `nats`, `object`, `execution`, `event`, or a kind of a plug-in; the service knows them.
Kind = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,49}$")]
Status = Literal["pending", "started", "skipped", "failed"]
Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]
Id = Annotated[str, Path(pattern=r"^[0-9a-f]{10,40}$")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Before = Annotated[str | None, Query(pattern=r"^[0-9a-f]{1,40}$", description="`next` of the previous page")]


@router.get("/api/triggers", summary="List triggers of all kinds")
async def triggers(
    state: App,
    _: Viewer,
    kind: Kind | None = None,
    after: Annotated[str | None, Query(max_length=250, description="`next` of the previous page")] = None,
    limit: Limit = 100,
) -> Response:
    """One page, by kind and name."""
    first, _slash, name = (after or "").partition("/")
    kinds = [each for each in sorted(KINDS) if kind in (None, each) and each >= first]
    found: list[Any] = []
    for each in kinds:
        position = (name or None) if each == first else None
        found += await state.triggers.list(each, after=position, limit=limit + 1 - len(found))
        if len(found) > limit:
            break
    following = f"{found[limit - 1].KIND}/{found[limit - 1].name}" if len(found) > limit else None
    return json_response(page(await state.resources.documents(found[:limit]), following))


@router.get("/api/triggers/{kind}/{name}", summary="Get a trigger")
async def trigger(state: App, _: Viewer, kind: Kind, name: Name) -> Response:
    """With the number of its deliveries by status and the newest one."""
    return await _document(state, kind, name)


@router.put(
    "/api/triggers/{kind}/{name}",
    summary="Create a trigger, or replace its definition",
    openapi_extra=definition_body(*KINDS.values()),
)
async def put(
    state: App, caller: Operator, kind: Kind, name: Name, definition: Annotated[dict[str, Any], Body()]
) -> Response:
    """The body has `path` and the fields of the kind. Triggers other than `schedule`, `execution` and `event` require
    the role admin. The response contains `secret` if one was generated, and `warnings`."""
    _check_role(caller, kind)
    stored, secret = await state.resources.put(kind, name, definition, by=caller.name)
    document = {**await state.resources.document(stored), "warnings": await state.triggers.warnings(stored)}
    return json_response(document if secret is None else {**document, "secret": secret})


@router.delete("/api/triggers/{kind}/{name}", status_code=204, summary="Delete a trigger")
async def remove(state: App, caller: Operator, kind: Kind, name: Name) -> Response:
    """Executions that it started continue; its pending deliveries are skipped."""
    _check_role(caller, kind)
    await state.resources.remove(kind, name)
    return Response(status_code=204)


@router.post("/api/triggers/{kind}/{name}/pause", summary="Pause a trigger")
async def pause(state: App, _: Operator, kind: Kind, name: Name) -> Response:
    """It receives nothing, and its pending deliveries wait."""
    await state.triggers.pause(kind, name)
    return await _document(state, kind, name)


@router.post("/api/triggers/{kind}/{name}/resume", summary="Resume a trigger")
async def resume(state: App, _: Operator, kind: Kind, name: Name) -> Response:
    """A schedule continues with its next tick, a stream with its next message."""
    await state.triggers.resume(kind, name)
    return await _document(state, kind, name)


@router.get("/api/deliveries", summary="List deliveries, newest first")
async def deliveries(
    state: App,
    _: Viewer,
    kind: Kind | None = None,
    name: Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")] = None,
    status: Status | None = None,
    before: Before = None,
    limit: Limit = 100,
) -> Response:
    """What triggers have received, with the executions that were started."""
    where = DeliveryFilter(kind, name, (status,) if status else (), before, limit + 1)
    found = await state.deliveries.list(where)
    return json_response(page_of(found, limit, lambda each: each.id, delivery_document))


@router.get("/api/deliveries/{id}", summary="Get a delivery with its payload")
async def delivery(state: App, _: Viewer, id: Id) -> Response:
    """With what was received and what it started."""
    return json_response(delivery_document(await state.deliveries.get(id), payload=True))


@router.post(
    "/api/deliveries/{id}/replay", status_code=202, summary="Start another execution with a delivery's payload"
)
async def replay(state: App, caller: Operator, id: Id) -> Response:
    """The delivery stays as it is; a new one is added."""
    started = await state.deliveries.replay(id, caller.name)
    if started.status == "failed":
        raise RequestRefused(delivery_document(started)["error"])
    return accepted_response(started)


async def _document(state: AppState, kind: str, name: str) -> Response:
    return json_response(await state.resources.document(await state.triggers.get(kind, name)))


def _check_role(caller: Caller, kind: str) -> None:
    if kind not in OPERATOR_KINDS and not caller.may("admin"):
        raise HTTPException(403, f"triggers of kind {kind} use credentials; the role admin is required")
