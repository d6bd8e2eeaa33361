"""Tokens: who may use the server, and with which role."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response

from noetl.core.model.roles import Role
from noetl.errors import unknown
from noetl.server.http.access import TOKEN_NAME, Token
from noetl.server.http.dependencies import Admin, App
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page

router = APIRouter(tags=["tokens"])

Name = Annotated[str, Path(pattern=f"^{TOKEN_NAME}$")]


class NewTokenBody(Body):
    """A token to create; `pools` restrict a worker."""

    name: str = Field(pattern=f"^{TOKEN_NAME}$")
    role: Role = "viewer"
    pools: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(default=[], max_length=100)


@router.get("/api/tokens", summary="List tokens")
async def tokens(state: App, _: Admin) -> Response:
    """Names, roles and pools, by name; never the texts."""
    found = sorted(state.tokens.all(), key=lambda each: each.name)
    return json_response(page([_document(each) for each in found], None))


@router.post("/api/tokens", status_code=201, summary="Create a token")
async def create(state: App, _: Admin, body: NewTokenBody) -> Response:
    """The response has the text of the token, which is not shown again."""
    text = await state.run_in_thread(lambda: state.tokens.add(body.name, body.role, body.pools))
    return json_response({"name": body.name, "role": body.role, "pools": body.pools, "token": text}, 201)


@router.delete("/api/tokens/{name}", status_code=204, summary="Revoke a token")
async def revoke(state: App, _: Admin, name: Name) -> Response:
    """Its users are signed out. The only token with the role admin cannot be revoked."""
    if not await state.run_in_thread(lambda: state.tokens.remove(name)):
        known = await state.run_in_thread(lambda: [each.name for each in state.tokens.all()])
        raise unknown("token", name, known, "`noetl token list` lists them")
    return Response(status_code=204)


def _document(token: Token) -> dict[str, Any]:
    return {"name": token.name, "role": token.role, "pools": list(token.pools)}
