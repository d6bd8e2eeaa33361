"""Schedules: playbooks that start at the times of a cron expression."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import Response

from noetl.core.model.events import instant
from noetl.errors import RequestRefused
from noetl.server.http.dependencies import App, Operator, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page
from noetl.server.http.routes.executions import Key
from noetl.server.http.routes.scheduling.webhooks import accepted_response
from noetl.server.orchestrator.submissions import caller_key
from noetl.server.scheduling.cron import Cron
from noetl.server.scheduling.deliveries import delivery_document

router = APIRouter(tags=["schedules"])

MAX_CALENDAR = 1_000  # schedules
MAX_TICKS = 500  # of a schedule in the calendar

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]
Zone = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_+/-]+$")]
Duration = Annotated[float | int | str, Field(description="seconds, or text such as 90s, 15m, 2h")]
Expression = Annotated[str, Field(min_length=1, max_length=200)]


class ScheduleBody(Body):
    """A playbook and its start times; the payload can use `{{ tick }}`, `{{ tick.start }}`, `{{ tick.end }}` and
    `{{ schedule }}`."""

    path: str = Field(min_length=1, max_length=1000)
    cron: Expression
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")
    tz: Zone = "UTC"
    version: int | None = Field(None, ge=1, le=2**31)
    payload: dict[str, Any] = {}
    catch_up: Literal["none", "last", "all"] = "last"
    overlap: Literal["allow", "skip", "queue", "cancel"] = "allow"
    concurrency: int = Field(1, ge=1, le=10_000)
    jitter: Duration = 0
    deadline: Duration | None = None
    labels: dict[str, str] = {}
    paused: bool = False


class ScheduleChange(Body):
    """Fields of a schedule to change; the others stay as they are."""

    path: str | None = Field(None, min_length=1, max_length=1000)
    cron: Expression | None = None
    tz: Zone | None = None
    version: int | None = Field(None, ge=1, le=2**31)
    payload: dict[str, Any] | None = None
    catch_up: Literal["none", "last", "all"] | None = None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None = None
    concurrency: int | None = Field(None, ge=1, le=10_000)
    jitter: Duration | None = None
    deadline: Duration | None = None
    labels: dict[str, str] | None = None
    paused: bool | None = None


class CronBody(Body):
    """A cron expression to preview."""

    cron: Expression
    tz: Zone = "UTC"
    count: int = Field(5, ge=1, le=100)


@router.get("/api/schedules", summary="List schedules")
async def schedules(
    state: App,
    _: Viewer,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """One page, sorted by name."""
    found = await state.schedules.list(after=after, limit=limit + 1)
    following = found[limit - 1].name if len(found) > limit else None
    return json_response(page(await state.schedules.documents(found[:limit]), following))


@router.post("/api/schedules", status_code=201, summary="Create a schedule")
async def add(state: App, caller: Operator, body: ScheduleBody) -> Response:
    """The first tick is the next one of the expression. The default name is derived from the path."""
    added = await state.schedules.add(**body.model_dump(), by=caller.name)
    return json_response(await state.schedules.document(added), 201, {"Location": f"/api/schedules/{added.name}"})


@router.post("/api/schedules/preview", summary="Preview the ticks of a cron expression")
async def preview(state: App, _: Viewer, body: CronBody) -> Response:
    """Nothing is stored."""
    cron = Cron(body.cron, body.tz)
    ticks = [cron.shown(tick) for tick in cron.upcoming(state.now(), body.count)]
    return json_response({"cron": cron.expression, "tz": body.tz, "description": cron.description, "upcoming": ticks})


@router.get("/api/schedules/calendar", summary="The ticks of all schedules in the next days")
async def calendar(state: App, _: Viewer, days: Annotated[int, Query(ge=1, le=62)] = 14) -> Response:
    """Schedules that are not paused, by name, with at most 500 ticks each; `more` if there are others."""
    now = state.now()
    until = now + days * 86_400
    entries = []
    for each in await state.schedules.list(limit=MAX_CALENDAR):
        cron = Cron(each.cron, each.tz)
        ticks = list(islice(takewhile(lambda tick: tick < until, cron.after(now)), MAX_TICKS + 1))
        if ticks and not each.paused:
            shown = [cron.shown(tick) for tick in ticks[:MAX_TICKS]]
            entries.append({"schedule": each.name, "path": each.path, "ticks": shown, "more": len(ticks) > MAX_TICKS})
    return json_response({"until": instant(until), "entries": entries})


@router.get("/api/schedules/{name}", summary="Get a schedule with its next ticks")
async def schedule(
    state: App,
    _: Viewer,
    name: Name,
    count: Annotated[int, Query(ge=1, le=100, description="number of next ticks")] = 3,
) -> Response:
    """Includes the result of the last tick."""
    return json_response(await state.schedules.document(await state.schedules.get(name), count))


@router.delete("/api/schedules/{name}", status_code=204, summary="Delete a schedule")
async def remove(state: App, _: Operator, name: Name) -> Response:
    """Executions that it started continue."""
    await state.schedules.remove(name)
    return Response(status_code=204)


@router.post("/api/schedules/{name}/pause", summary="Pause a schedule")
async def pause(state: App, _: Operator, name: Name) -> Response:
    """Ticks while it is paused are skipped."""
    return json_response(await state.schedules.document(await state.schedules.pause(name)))


@router.post("/api/schedules/{name}/resume", summary="Resume a schedule")
async def resume(state: App, _: Operator, name: Name) -> Response:
    """The next tick is the first one after now."""
    return json_response(await state.schedules.document(await state.schedules.resume(name)))


@router.patch("/api/schedules/{name}", summary="Change a schedule")
async def edit(state: App, _: Operator, name: Name, body: ScheduleChange) -> Response:
    """Fields that are not given stay as they are; null sets `version` or `deadline` to none."""
    given = body.model_dump(exclude_unset=True)
    fields = {each: value for each, value in given.items() if value is not None or each in ("version", "deadline")}
    return json_response(await state.schedules.document(await state.schedules.edit(name, fields)))


@router.post("/api/schedules/{name}/run", status_code=202, summary="Start the playbook of a schedule now")
async def run_now(
    state: App,
    caller: Operator,
    name: Name,
    key: Key = None,
) -> Response:
    """With the payload of a tick at this time; `overlap` does not apply."""
    delivery = await state.schedules.run_now(name, caller_key(caller.name, key), caller.name)
    if delivery.status == "failed":
        raise RequestRefused(delivery_document(delivery)["error"])
    return accepted_response(delivery)
