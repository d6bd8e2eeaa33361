"""Lineage of data: the graph of datasets and tasks, and the OpenLineage events of an execution."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from noetl.errors import NotFound
from noetl.observability import lineage as settings
from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.response_models import json_response
from noetl.server.lineage.emitter import lineage_events
from noetl.server.lineage.graph import graph

router = APIRouter(tags=["lineage"])


@router.get("/api/lineage", summary="Get the graph of datasets and tasks")
async def lineage(
    state: App,
    _: Viewer,
    path: Annotated[
        str | None, Query(min_length=1, max_length=500, description="only of this playbook; default: all playbooks")
    ] = None,
) -> Response:
    """Tables, files and topics that tasks read and wrote in the newest executions, with the tasks between them."""
    return json_response(await graph(state.orchestrator.store, path))


@router.get("/api/executions/{execution_id}/lineage", summary="Get the OpenLineage events of an execution")
async def events(state: App, _: Viewer, execution_id: Annotated[str, Path(min_length=1, max_length=100)]) -> Response:
    """The events that the setting `lineage` sends when the execution ends; none if no task has datasets."""
    async with state.orchestrator.whole_logs:
        found = await lineage_events(state.orchestrator.store, execution_id, settings.NAMESPACE)
    if found is None:
        raise NotFound(f"there is no execution {execution_id}")
    return json_response({"events": found})
