"""Lineage of data: the graph of datasets and tasks, and the OpenLineage events of an execution."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from noetl.errors import NotFound
from noetl.observability import lineage as settings
from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.response_models import json_response
from noetl.server.lineage.graph import graph
from noetl.server.lineage.open_lineage import execution_events, has_lineage
from noetl.server.read_models.log_pages import log_events

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
    store = state.orchestrator.store
    summary = await store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}")
    tasks = [each async for each in log_events(store, execution_id) if has_lineage(each)]
    found = execution_events(summary, tasks, settings.NAMESPACE)
    return json_response({"events": found})
