"""Limits: at most so many runs of a pool, with a credential, or executions of a playbook at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from noetl.errors import RequestRefused
from noetl.server.concurrency.limits import MOST, Limits, Subject
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import answer, page
from noetl.storage.ports.queue import MAX_WEIGHT

router = APIRouter(tags=["limits"])

Name = Annotated[str, Path(min_length=1, max_length=900, description="of a pool, a credential or a playbook's path")]


class LimitBody(Body):
    """How many at once (0 holds everything back), and how many turns a playbook's executions get where others get one;
    what is not given stays as it is."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "anyOf": [{"required": [name], "properties": {name: {"type": "integer"}}} for name in ("most", "weight")]
        },
    )

    most: int | None = Field(None, ge=0, le=MOST)
    weight: int | None = Field(None, ge=1, le=MAX_WEIGHT)


@router.get("/api/limits", summary="All limits, who holds what they limit, and how many wait")
async def limits(
    request: Request,
    after: Annotated[str | None, Query(max_length=1000, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page."""
    kept = _limits(request)
    found = await kept.list(after=after, limit=limit + 1)
    following = found[limit - 1].key if len(found) > limit else None
    return answer(page([await kept.document(each) for each in found[:limit]], following))


@router.get("/api/limits/{subject}/{name:path}", summary="One limit")
async def limit(request: Request, subject: Subject, name: Name, _: Caller = requires_role("viewer")) -> Response:
    """Who holds what it limits, and how many wait."""
    kept = _limits(request)
    return answer(await kept.document(await kept.get(subject, name)))


@router.put("/api/limits/{subject}/{name:path}", summary="Set a limit, or change it")
async def put(
    request: Request, subject: Subject, name: Name, body: LimitBody, caller: Caller = requires_role("operator")
) -> Response:
    """A lower one lets those finish who hold more; a higher one lets those go on who wait."""
    kept = _limits(request)
    return answer(await kept.document(await kept.set(subject, name, body.most, weight=body.weight, by=caller.name)))


@router.delete("/api/limits/{subject}/{name:path}", status_code=204, summary="Remove a limit")
async def remove(request: Request, subject: Subject, name: Name, _: Caller = requires_role("operator")) -> Response:
    """Who waits for it goes on."""
    await _limits(request).remove(subject, name)
    return Response(status_code=204)


def _limits(request: Request) -> Limits:
    found = app_state(request).orchestrator.limits
    if found is None:
        raise RequestRefused("this server keeps no limits")
    return found
