"""Webhooks: managed by an admin; deliveries are authenticated by their signature."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from noetl.server.http.dependencies import Admin, App, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page_of, started_response
from noetl.server.scheduling.webhooks import SIGNATURE, TIMESTAMP, WINDOW, webhook_document

router = APIRouter(tags=["webhooks"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]


class WebhookBody(Body):
    """A playbook that signed requests start; without a credential, a secret is generated and returned once."""

    path: str = Field(min_length=1, max_length=1000)
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")
    credential: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,199}$")
    version: int | None = Field(None, ge=1, le=2**31)
    payload: dict[str, Any] = {}
    window: float = Field(WINDOW, gt=0, le=86_400)


@router.get("/api/webhooks", summary="List webhooks")
async def webhooks(
    state: App,
    _: Viewer,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """One page, sorted by name; without secrets."""
    found = await state.webhooks.list(after=after, limit=limit + 1)
    return json_response(page_of(found, limit, lambda each: each.name, webhook_document))


@router.post("/api/webhooks", status_code=201, summary="Create a webhook")
async def add(state: App, caller: Admin, body: WebhookBody) -> Response:
    """The response contains `secret` if it was generated; it is never returned again."""
    webhook, secret = await state.webhooks.add(**body.model_dump(), by=caller.name)
    document = webhook_document(webhook)
    if secret is not None:
        document["secret"] = secret
    return json_response(document, 201, {"Location": document["url"]})


@router.get("/api/webhooks/{name}", summary="Get a webhook")
async def webhook(state: App, _: Viewer, name: Name) -> Response:
    """Without its secret."""
    return json_response(webhook_document(await state.webhooks.get(name)))


@router.delete("/api/webhooks/{name}", status_code=204, summary="Delete a webhook")
async def remove(state: App, _: Admin, name: Name) -> Response:
    """Also deletes its generated secret."""
    await state.webhooks.remove(name)
    return Response(status_code=204)


@router.post(
    "/api/webhooks/{name}",
    status_code=202,
    summary="Deliver a signed request; a repeated delivery returns the same execution",
    responses={401: {"description": "Missing, invalid or expired signature"}},
)
async def deliver(
    request: Request,
    state: App,
    name: Name,
    timestamp: Annotated[str | None, Header(alias=TIMESTAMP, max_length=20)] = None,
    signature: Annotated[str | None, Header(alias=SIGNATURE, max_length=200)] = None,
) -> Response:
    """Requires a signature instead of a token. A JSON object becomes the payload, any other body its field `body`."""
    execution_id = await state.webhooks.deliver(name, timestamp, signature, await request.body())
    return started_response(execution_id)
