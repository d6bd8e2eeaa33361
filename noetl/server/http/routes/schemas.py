"""Registered result schemas."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from noetl.errors import RequestRefused
from noetl.server.http.dependencies import App, AppState, Author, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page
from noetl.server.orchestrator.schema_registry import SchemaRegistry, document

router = APIRouter(tags=["schemas"])

Name = Annotated[str, Path(min_length=1, max_length=220, description="name of a schema")]
NewName = Annotated[
    str,
    Path(max_length=200, pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$", description="name of a schema without a version"),
]


class SchemaBody(Body):
    """A JSON Schema, and whether it must accept everything that the newest version accepts."""

    json_schema: dict[str, Any]
    compatible: Literal["backward", "none"] = "backward"


@router.get("/api/schemas", summary="List schemas")
async def schemas(
    state: App,
    _: Viewer,
    after: Annotated[str | None, Query(max_length=220, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """The newest version of each schema, by name."""
    found = await _registry(state).list(after=after, limit=limit + 1)
    following = found[limit - 1].name if len(found) > limit else None
    return json_response(page([document(each) for each in found[:limit]], following))


@router.get("/api/schemas/{name:path}", summary="Get a schema")
async def schema(state: App, _: Viewer, name: Name) -> Response:
    """A version (`orders/v2`) or the newest one (`orders`), with the numbers of all versions."""
    registry = _registry(state)
    found = await registry.find(name)
    numbers = [each.version for each in await registry.versions(found.name)]
    return json_response({**document(found), "versions": numbers})


@router.put("/api/schemas/{name:path}", status_code=201, summary="Register a version of a schema")
async def register(state: App, caller: Author, name: NewName, body: SchemaBody) -> Response:
    """The same schema again is the same version."""
    found = await _registry(state).register(name, body.json_schema, compatible=body.compatible, by=caller.name)
    return json_response(document(found), 201)


def _registry(state: AppState) -> SchemaRegistry:
    found = state.orchestrator.schemas
    if found is None:
        raise RequestRefused("this server has no schema registry")
    return found
