"""History: playbooks over days, the next runs of schedules, and the load of the installation."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from noetl.server.http.dependencies import App, AppState, Viewer
from noetl.server.http.response_models import json_response
from noetl.server.http.routes.operations import operations_of
from noetl.server.read_models.documents import when
from noetl.server.read_models.statistics import activity_document, history_document
from noetl.server.scheduling.schedules import Schedule
from noetl.storage.ports.events import ExecutionFilter

router = APIRouter(tags=["history"])

UPCOMING = 10  # next runs
SCHEDULES = 1_000  # that are looked at

Days = Annotated[int, Query(ge=1, le=400, description="number of days (UTC) up to today")]


@router.get("/api/history", summary="Playbooks of the last days and the next runs")
async def history(state: App, _: Viewer, days: Days = 7) -> Response:
    """Success rate, durations and the newest executions of the latest playbooks; the next ticks of schedules, and how
    late their executions started."""
    now = state.now()
    return json_response(
        {
            **await activity_document(state.orchestrator.store, now, days),
            "upcoming": await _upcoming(state),
        }
    )


@router.get("/api/history/playbook", summary="One playbook over many days")
async def playbook(
    state: App, _: Viewer, path: Annotated[str, Query(min_length=1, max_length=1000)], days: Days = 30
) -> Response:
    """Executions by day and status (deleted ones included), success rate, durations, the newest executions, and the
    durations of their steps."""
    return json_response(await history_document(state.orchestrator.store, path, state.now(), days))


@router.get("/api/history/load", summary="Queue, workers and throughput over days")
async def load(request: Request, _: Viewer, days: Days = 7) -> Response:
    """One row for each interval: the maximum over all servers of the queue, workers and slots, and what ended."""
    return json_response({"samples": await operations_of(request).load_history(days)})


async def _upcoming(state: AppState) -> list[dict[str, Any]]:
    schedules = [each for each in await state.schedules.list(limit=SCHEDULES) if not each.paused and each.next_at]
    schedules.sort(key=lambda each: each.next_at or 0.0)
    return [await _next_run(state, each) for each in schedules[:UPCOMING]]


async def _next_run(state: AppState, schedule: Schedule) -> dict[str, Any]:
    store = state.orchestrator.store
    newest = await store.executions(
        ExecutionFilter(path=schedule.path, trigger=f"schedule {schedule.name}", limit=UPCOMING)
    )
    late = [each.late for each in newest if each.late is not None]
    return {
        "schedule": schedule.name,
        "path": schedule.path,
        "next_at": when(schedule.next_at),
        "last_execution": newest[0].execution_id if newest else None,
        "last_status": newest[0].status if newest else None,
        "last_late_s": late[0] if late else None,
        "most_late_s": max(late) if late else None,
    }
