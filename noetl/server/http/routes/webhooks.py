"""Webhooks: managed by an admin; deliveries are authenticated by their signature."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from noetl.errors import RequestRefused
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page
from noetl.server.scheduling.webhooks import SIGNATURE, TIMESTAMP, WINDOW, Webhooks, webhook_document

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
    request: Request,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page, sorted by name; without secrets."""
    found = await _webhooks(request).list(after=after, limit=limit + 1)
    following = found[limit - 1].name if len(found) > limit else None
    return json_response(page([webhook_document(each) for each in found[:limit]], following))


@router.post("/api/webhooks", status_code=201, summary="Create a webhook")
async def add(request: Request, body: WebhookBody, caller: Caller = requires_role("admin")) -> Response:
    """The response contains `secret` if it was generated; it is never returned again."""
    webhook, secret = await _webhooks(request).add(**body.model_dump(), by=caller.name)
    document = webhook_document(webhook)
    if secret is not None:
        document["secret"] = secret
    return json_response(document, 201, {"Location": document["url"]})


@router.get("/api/webhooks/{name}", summary="Get a webhook")
async def webhook(request: Request, name: Name, _: Caller = requires_role("viewer")) -> Response:
    """Without its secret."""
    return json_response(webhook_document(await _webhooks(request).get(name)))


@router.delete("/api/webhooks/{name}", status_code=204, summary="Delete a webhook")
async def remove(request: Request, name: Name, _: Caller = requires_role("admin")) -> Response:
    """Also deletes its generated secret."""
    await _webhooks(request).remove(name)
    return Response(status_code=204)


@router.post(
    "/api/webhooks/{name}",
    status_code=202,
    summary="Deliver a signed request; a repeated delivery returns the same execution",
    responses={401: {"description": "Missing, invalid or expired signature"}},
)
async def deliver(
    request: Request,
    name: Name,
    timestamp: Annotated[str | None, Header(alias=TIMESTAMP, max_length=20)] = None,
    signature: Annotated[str | None, Header(alias=SIGNATURE, max_length=200)] = None,
) -> Response:
    """Requires a signature instead of a token. A JSON object becomes the payload, any other body its field `body`."""
    execution_id = await _webhooks(request).deliver(name, timestamp, signature, await request.body())
    return json_response(
        {"execution_id": execution_id, "status": "running"}, 202, {"Location": f"/api/executions/{execution_id}"}
    )


def _webhooks(request: Request) -> Webhooks:
    found = app_state(request).webhooks
    if found is None:
        raise RequestRefused("this server does not support webhooks")
    return found
