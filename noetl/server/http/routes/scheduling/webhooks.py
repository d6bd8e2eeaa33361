"""Webhooks: managed by an admin; deliveries are authenticated by their signature."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from noetl.errors import RequestRefused
from noetl.server.http.dependencies import Admin, App, Viewer, require_role
from noetl.server.http.problems import problem
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page_of
from noetl.server.scheduling.deliveries import delivery_document
from noetl.server.scheduling.signatures import Preset
from noetl.server.scheduling.webhooks import MAX_WAIT, WINDOW, webhook_document
from noetl.storage.ports.deliveries import Delivery

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
    preset: Preset = "noetl"
    signature: dict[str, Any] | None = None
    allow_unsigned: bool = False
    topic: str = Field("", max_length=2000)
    headers: list[str] = []
    raw_body: bool = False
    respond: Literal["accepted", "result"] = "accepted"
    wait: float = Field(30.0, gt=0, le=MAX_WAIT)
    overlap: Literal["allow", "skip", "queue", "cancel"] = "allow"
    concurrency: int = Field(1, ge=1, le=10_000)
    labels: dict[str, str] = {}


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


async def _reader(request: Request) -> None:
    """The role viewer, except for the question of a service whether it may send, which has its own token."""
    if "hub.mode" not in request.query_params:
        require_role(request.scope, "viewer")


_reader.role = "viewer"  # type: ignore[attr-defined]


@router.get(
    "/api/webhooks/{name}",
    summary="Get a webhook, or confirm a subscription",
    responses={200: {"description": "The webhook without its secret, or the value of `hub.challenge` as text"}},
)
async def webhook(request: Request, state: App, _: Annotated[None, Depends(_reader)], name: Name) -> Response:
    """Without its secret. With the parameters `hub.mode` and `hub.challenge` of WebSub or Meta it needs no token: it
    responds with the challenge if `hub.verify_token` is that of the credential, or `hub.topic` that of the webhook."""
    if "hub.mode" in request.query_params:
        return PlainTextResponse(await state.webhooks.challenge(name, request.query_params))
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
    responses={
        200: {"description": "The output of the execution, or the response to the check of an address"},
        401: {"description": "Missing, invalid or expired signature"},
        503: {"description": "The webhook is paused, or too many deliveries wait"},
    },
)
async def deliver(request: Request, state: App, name: Name) -> Response:
    """Requires a signature instead of a token. A JSON object or a form becomes the payload, any other body its field
    `body`. A webhook with `respond: result` waits for the execution and responds with its output."""
    answer = await state.webhooks.deliver(name, request.headers, await request.body())
    delivery = answer.delivery
    if delivery is None:
        return json_response(answer.document)
    if delivery.status == "failed":
        raise RequestRefused(delivery_document(delivery)["error"])
    if answer.webhook.respond == "result" and delivery.execution_id is not None:
        try:
            waiting = state.webhooks.wait(delivery.execution_id, answer.webhook.wait)
            output = await state.unless_stopping(waiting, None)
        except TimeoutError:
            output = None
        if output is not None:
            return result_response(delivery.execution_id, output)
    return accepted_response(delivery)


def accepted_response(delivery: Delivery) -> Response:
    """The response to a delivery that was recorded; `execution_id` is null while it waits."""
    execution_id = delivery.execution_id
    document = {
        "execution_id": execution_id,
        "status": "running" if execution_id else delivery.status,
        "delivery_id": delivery.id,
    }
    headers = {"Location": f"/api/executions/{execution_id}"} if execution_id else None
    return json_response(document, 202, headers)


def result_response(execution_id: str, output: dict[str, Any]) -> Response:
    """The data of a successful execution as it is; a problem document for another one."""
    headers = {"X-NoETL-Execution": execution_id}
    if output["status"] == "success":
        return json_response(output["data"] if output.get("ref") is None else output, 200, headers)
    message = (output.get("error") or {}).get("message") or "see the execution"
    return problem(500, f"execution {execution_id} ended as {output['status']}: {message}", headers=headers)
