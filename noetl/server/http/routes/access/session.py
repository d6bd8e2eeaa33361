"""Browser sessions: a token is stored in a cookie that scripts cannot read."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.middleware.security import COOKIE
from noetl.server.http.problems import no_caller, problem
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response

router = APIRouter(tags=["session"])

MONTH = 30 * 24 * 3600


class TokenBody(Body):
    """The text of a token."""

    token: str = Field(max_length=500)


@router.post("/api/session", summary="Sign in with a token")
async def sign_in(request: Request, state: App, body: TokenBody) -> Response:
    """Sets the cookie, and returns name and role of the token."""
    caller = state.tokens.caller(body.token)
    if caller is None:
        return problem(401, no_caller(wrong_token=True))
    response = json_response({"name": caller.name, "role": caller.role})
    response.set_cookie(
        COOKIE,
        body.token,
        max_age=MONTH,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=request.scope.get("root_path") or "/",
    )
    return response


@router.get("/api/session", summary="Get the current caller")
async def who(caller: Viewer) -> Response:
    """Name and role of the caller."""
    return json_response({"name": caller.name, "role": caller.role})


@router.delete("/api/session", status_code=204, summary="Sign out")
async def sign_out(request: Request, _: Viewer) -> Response:
    """Deletes the cookie."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path=request.scope.get("root_path") or "/")
    return response
