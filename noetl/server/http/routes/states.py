"""The state that executions of a playbook share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import Response

from noetl.server.http.dependencies import App, Operator, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page
from noetl.server.orchestrator.playbook_states import path_document, state_document

router = APIRouter(tags=["state"])

PlaybookPath = Annotated[str, Path(min_length=1, max_length=500, description="path of a playbook")]


class StateBody(Body):
    """Values by key or dotted path; `versions` of keys (null: absent) must be the stored ones."""

    values: dict[Annotated[str, Field(max_length=500, pattern=r"^[^.\x00]+(\.[^.\x00]+)*$")], Any] = Field(
        json_schema_extra={"additionalProperties": False}
    )
    versions: dict[str, str | None] | None = None


@router.get("/api/state", summary="List the playbooks that have state")
async def states(
    state: App,
    _: Viewer,
    after: Annotated[str | None, Query(max_length=500, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """By path, with the number of keys and their size."""
    found = await state.orchestrator.states.paths(after or "", limit + 1)
    following = found[limit - 1].path if len(found) > limit else None
    return json_response(page([path_document(each) for each in found[:limit]], following))


@router.get("/api/state/{path:path}", summary="Get the state of a playbook")
async def read(state: App, _: Viewer, path: PlaybookPath) -> Response:
    """Its keys with value, version, time, and the execution that committed it. A playbook without state has none."""
    return json_response(state_document(path, await state.orchestrator.states.entries(path)))


@router.patch("/api/state/{path:path}", summary="Set values of the state of a playbook")
async def change(state: App, _: Operator, path: PlaybookPath, body: StateBody) -> Response:
    """Executions that have read a changed key fail with `state.conflict` when they commit it."""
    entries = await state.orchestrator.states.set(path, body.values, body.versions)
    return json_response(state_document(path, entries))


@router.delete("/api/state/{path:path}", status_code=204, summary="Remove the state of a playbook")
async def reset(
    state: App,
    _: Operator,
    path: PlaybookPath,
    key: Annotated[
        list[str] | None, Query(max_length=500, description="only these keys, or paths below them (a.b)")
    ] = None,
) -> Response:
    """The next execution starts without it, for example with the initial value of a cursor."""
    await state.orchestrator.states.reset(path, key or ())
    return Response(status_code=204)
