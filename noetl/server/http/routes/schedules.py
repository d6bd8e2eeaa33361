"""Schedules: playbooks that start by the clock."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from noetl.errors import RequestRefused
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import answer, page
from noetl.server.scheduling.cron import Cron
from noetl.server.scheduling.schedules import Schedule, Schedules, schedule_document

router = APIRouter(tags=["schedules"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]
Zone = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_+/-]+$")]
Expression = Annotated[str, Field(min_length=1, max_length=200)]


class ScheduleBody(Body):
    """Which playbook starts when; a payload may read `{{ tick }}` and `{{ schedule }}`."""

    path: str = Field(min_length=1, max_length=1000)
    cron: Expression
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")
    tz: Zone = "UTC"
    version: int | None = Field(None, ge=1, le=2**31)
    payload: dict[str, Any] = {}
    catch_up: Literal["none", "last", "all"] = "last"
    overlap: Literal["allow", "skip", "queue", "cancel"] = "allow"
    paused: bool = False


class CronBody(Body):
    """An expression to try."""

    cron: Expression
    tz: Zone = "UTC"
    count: int = Field(5, ge=1, le=100)


@router.get("/api/schedules", summary="All schedules, by name")
async def schedules(
    request: Request,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page."""
    found = await _schedules(request).list(after=after, limit=limit + 1)
    following = found[limit - 1].name if len(found) > limit else None
    return answer(page([_document(each) for each in found[:limit]], following))


@router.post("/api/schedules", status_code=201, summary="Start a playbook by the clock")
async def add(request: Request, body: ScheduleBody, caller: Caller = requires_role("operator")) -> Response:
    """Its first tick is the next one; without a name it is called after its path."""
    added = await _schedules(request).add(**body.model_dump(), by=caller.name)
    return answer(_document(added), 201, {"Location": f"/api/schedules/{added.name}"})


@router.post("/api/schedules/preview", summary="When an expression ticks")
async def preview(request: Request, body: CronBody, _: Caller = requires_role("viewer")) -> Response:
    """Nothing is kept."""
    cron = Cron(body.cron, body.tz)
    ticks = [cron.shown(tick) for tick in cron.upcoming(time.time(), body.count)]
    return answer({"cron": cron.expression, "tz": body.tz, "description": cron.description, "upcoming": ticks})


@router.get("/api/schedules/{name}", summary="One schedule, with its next ticks")
async def schedule(
    request: Request,
    name: Name,
    count: Annotated[int, Query(ge=1, le=100, description="how many of the next ticks")] = 3,
    _: Caller = requires_role("viewer"),
) -> Response:
    """How far it is, and what came of the last tick."""
    return answer(_document(await _schedules(request).get(name), count))


@router.delete("/api/schedules/{name}", status_code=204, summary="Forget a schedule")
async def remove(request: Request, name: Name, _: Caller = requires_role("operator")) -> Response:
    """Executions that it started go on."""
    await _schedules(request).remove(name)
    return Response(status_code=204)


@router.post("/api/schedules/{name}/pause", summary="Tick no more")
async def pause(request: Request, name: Name, _: Caller = requires_role("operator")) -> Response:
    """Ticks that pass meanwhile are gone."""
    return answer(_document(await _schedules(request).pause(name)))


@router.post("/api/schedules/{name}/resume", summary="Tick again")
async def resume(request: Request, name: Name, _: Caller = requires_role("operator")) -> Response:
    """From now on."""
    return answer(_document(await _schedules(request).resume(name)))


def _schedules(request: Request) -> Schedules:
    found = app_state(request).schedules
    if found is None:
        raise RequestRefused("this server keeps no schedules")
    return found


def _document(schedule: Schedule, count: int = 3) -> dict[str, Any]:
    return schedule_document(schedule, time.time(), count)
