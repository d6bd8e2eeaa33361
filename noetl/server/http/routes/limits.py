"""Concurrency limits of pools, credentials, playbooks and labels, and the weights of tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

from noetl.errors import RequestRefused
from noetl.server.concurrency.limits import MOST, VALUES, Limits, Subject
from noetl.server.http.dependencies import App, AppState, Operator, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page
from noetl.storage.ports.queue import MAX_WEIGHT

router = APIRouter(tags=["limits"])

Name = Annotated[
    str,
    Path(min_length=1, max_length=900, description="name of a pool or credential, path of a playbook, or NAME=VALUE"),
]


class LimitBody(Body):
    """Maximum number at once (0 stops everything), the weight of a playbook's executions or of a tenant in the queue,
    and the number of a tenant's waiting runs at which its requests are refused; omitted values stay unchanged."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "anyOf": [{"required": [name], "properties": {name: {"type": "integer"}}} for name in VALUES]
        },
    )

    most: int | None = Field(None, ge=0, le=MOST)
    weight: int | None = Field(None, ge=1, le=MAX_WEIGHT)
    max_waiting: int | None = Field(None, ge=0, le=MOST)


@router.get("/api/limits", summary="List limits with holders and waiting runs")
async def limits(
    state: App,
    _: Viewer,
    after: Annotated[str | None, Query(max_length=1000, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """One page of limits."""
    limits = _limits(state)
    found = await limits.list(after=after, limit=limit + 1)
    following = found[limit - 1].key if len(found) > limit else None
    return json_response(page(await limits.documents(found[:limit]), following))


@router.get("/api/limits/{subject}/{name:path}", summary="Get a limit")
async def limit(state: App, _: Viewer, subject: Subject, name: Name) -> Response:
    """With holders and the number of waiting runs."""
    limits = _limits(state)
    return json_response(await limits.document(await limits.get(subject, name)))


@router.put("/api/limits/{subject}/{name:path}", summary="Create or change a limit")
async def put(state: App, caller: Operator, subject: Subject, name: Name, body: LimitBody) -> Response:
    """After lowering, runs above the limit finish; after raising, waiting runs start."""
    limits = _limits(state)
    values = {"weight": body.weight, "max_waiting": body.max_waiting}
    return json_response(await limits.document(await limits.set(subject, name, body.most, by=caller.name, **values)))


@router.delete("/api/limits/{subject}/{name:path}", status_code=204, summary="Delete a limit")
async def remove(state: App, _: Operator, subject: Subject, name: Name) -> Response:
    """Waiting runs start."""
    await _limits(state).remove(subject, name)
    return Response(status_code=204)


def _limits(state: AppState) -> Limits:
    found = state.orchestrator.limits
    if found is None:
        raise RequestRefused("this server does not support limits")
    return found
