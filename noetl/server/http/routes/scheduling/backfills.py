"""Backfills: one execution for each slot of a time range."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

from noetl.server.http.dependencies import App, Operator, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page
from noetl.server.scheduling.backfills import MAX_CONCURRENCY

router = APIRouter(tags=["backfills"])

Name = Annotated[str, Path(min_length=1, max_length=200)]


class BackfillBody(Body):
    """A playbook, a range, and the length of a slot (`1d`)."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    path: str = Field(min_length=1, max_length=1000)
    start: str | float = Field(alias="from", description="instant or date, inclusive")
    end: str | float = Field(alias="to", description="instant or date, exclusive")
    every: str | float = Field(description="length of a slot: `15m`, `6h`, `1d`, `1 week`, `1 month`, `1 year`")
    timezone: str | None = Field(
        None, max_length=100, description="zone of days, weeks, months and years, and of instants without an offset"
    )
    variable: str = Field("slot", alias="as", max_length=200, description="key of the workload that has the slot")
    concurrency: int = Field(1, ge=1, le=MAX_CONCURRENCY)
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")
    version: int | str | None = None
    payload: dict[str, Any] = {}


@router.post("/api/backfills", status_code=201, summary="Start a backfill")
async def add(state: App, caller: Operator, body: BackfillBody) -> Response:
    """Each slot starts one execution, whose workload has the slot: `start`, `end`, `date` and `index`."""
    fields = body.model_dump()
    backfill = await state.backfills.add(
        fields.pop("path"), fields.pop("start"), fields.pop("end"), fields.pop("every"), by=caller.name, **fields
    )
    document = await state.backfills.document(backfill)
    return json_response(document, 201, {"Location": f"/api/backfills/{backfill.name}"})


@router.get("/api/backfills", summary="List backfills with their progress")
async def backfills(
    state: App,
    _: Viewer,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """One page, by name."""
    found = await state.backfills.list(after=after, limit=limit + 1)
    following = found[limit - 1].name if len(found) > limit else None
    return json_response(page(await state.backfills.documents(found[:limit]), following))


@router.get("/api/backfills/{name}", summary="Get a backfill")
async def backfill(state: App, _: Viewer, name: Name) -> Response:
    """With running executions and failed slots."""
    return json_response(await state.backfills.document(await state.backfills.get(name)))


@router.post("/api/backfills/{name}/pause", status_code=202, summary="Pause a backfill")
async def pause(state: App, _: Operator, name: Name) -> Response:
    """Running executions continue; no slot starts."""
    return json_response(await state.backfills.document(await state.backfills.pause(name)), 202)


@router.post("/api/backfills/{name}/resume", status_code=202, summary="Resume a backfill")
async def resume(state: App, _: Operator, name: Name) -> Response:
    """Slots start again."""
    return json_response(await state.backfills.document(await state.backfills.resume(name)), 202)


@router.post("/api/backfills/{name}/cancel", status_code=202, summary="Cancel a backfill")
async def cancel(state: App, _: Operator, name: Name) -> Response:
    """Cancels the running executions as well."""
    return json_response(await state.backfills.document(await state.backfills.cancel(name)), 202)


@router.post("/api/backfills/{name}/retry", status_code=202, summary="Repeat the failed slots of a backfill")
async def retry(state: App, _: Operator, name: Name) -> Response:
    """Each failed slot starts a new execution."""
    return json_response(await state.backfills.document(await state.backfills.retry(name)), 202)
