"""Credentials of the installation: create, list by name and delete; values are never returned."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response

from noetl.errors import unknown
from noetl.server.http.dependencies import Admin, App
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page

router = APIRouter(tags=["credentials"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,199}$")]


class CredentialBody(Body):
    """The fields of a credential."""

    type: str = Field("generic", max_length=100)
    data: dict[str, Any] = Field(min_length=1)


@router.get("/api/credentials", summary="List credentials: names and types")
async def credentials(state: App, _: Admin) -> Response:
    """Values are never returned."""
    found = await state.credentials.list()
    return json_response(page([{"name": name, "type": kind} for name, kind in found], None))


@router.get("/api/credentials/{name}", summary="Get the type of a credential")
async def credential(state: App, _: Admin, name: Name) -> Response:
    """Values are never returned."""
    known = dict(await state.credentials.list())
    if name not in known:
        raise unknown("credential", name, known, "`noetl credential list` lists them")
    return json_response({"name": name, "type": known[name]})


@router.put("/api/credentials/{name}", summary="Store a credential, encrypted")
async def put(state: App, _: Admin, name: Name, body: CredentialBody) -> Response:
    """Replaces an existing credential of the same name."""
    await state.credentials.set(name, body.type, body.data)
    return json_response({"name": name, "type": body.type})


@router.delete("/api/credentials/{name}", status_code=204, summary="Delete a credential")
async def delete(state: App, _: Admin, name: Name) -> Response:
    """Values that running executions have already read stay valid."""
    if not await state.credentials.delete(name):
        known = dict(await state.credentials.list())
        raise unknown("credential", name, known, "`noetl credential list` lists them")
    return Response(status_code=204)
