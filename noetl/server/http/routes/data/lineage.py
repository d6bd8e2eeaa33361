"""Lineage of data: the graph of datasets and tasks, and the OpenLineage events of an execution."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from noetl.errors import NotFound
from noetl.observability import lineage as settings
from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.response_models import json_response
from noetl.server.lineage.emitter import lineage_events
from noetl.server.lineage.graph import graph

router = APIRouter(tags=["lineage"])

MAX_PLAYBOOKS = 1000  # of the catalog, for the graph across playbooks
MAX_EVENTS = 10_000  # in one response


@router.get("/api/lineage", summary="Get the graph of datasets and tasks")
async def lineage(
    state: App,
    _: Viewer,
    path: Annotated[
        str | None, Query(min_length=1, max_length=500, description="only of this playbook; default: all playbooks")
    ] = None,
) -> Response:
    """Tables, files and topics that tasks read and wrote in the newest executions, with the tasks between them."""
    registered = await state.orchestrator.catalog.playbooks.list(limit=MAX_PLAYBOOKS) if path is None else []
    return json_response(await graph(state.orchestrator.store, [each.path for each in registered], path))


@router.get("/api/executions/{execution_id}/lineage", summary="Get the OpenLineage events of an execution")
async def events(state: App, _: Viewer, execution_id: Annotated[str, Path(min_length=1, max_length=100)]) -> Response:
    """The events that the setting `lineage` sends when the execution ends; none if no task has datasets.

    `truncated` is true if there are more than 10,000."""
    found: list[Any] = []
    if await state.orchestrator.store.summary(execution_id) is None:
        raise NotFound(f"there is no execution {execution_id}")
    async with (
        state.orchestrator.whole_logs,
        aclosing(lineage_events(state.orchestrator.store, execution_id, settings.NAMESPACE)) as events,
    ):
        async for event in events:
            found.append(event)
            if len(found) > MAX_EVENTS:
                break
    return json_response({"events": found[:MAX_EVENTS], "truncated": len(found) > MAX_EVENTS})
