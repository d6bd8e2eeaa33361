"""Signing in from a browser: a token becomes a cookie that scripts of the page cannot read."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.middleware.security import COOKIE
from noetl.server.http.problems import problem
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import answer

router = APIRouter(tags=["session"])

MONTH = 30 * 24 * 3600


class TokenBody(Body):
    """A token, as the installation gave it out."""

    token: str = Field(max_length=500)


@router.post("/api/session", summary="Sign in with a token")
async def sign_in(request: Request, body: TokenBody) -> Response:
    """Answers who the token belongs to, and sets the cookie."""
    caller = app_state(request).tokens.caller(body.token)
    if caller is None:
        return problem(401, "this token is not known here")
    response = answer({"name": caller.name, "role": caller.role})
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


@router.get("/api/session", summary="Who am I")
async def who(caller: Caller = requires_role("viewer")) -> Response:
    """Name and role of the caller."""
    return answer({"name": caller.name, "role": caller.role})


@router.delete("/api/session", status_code=204, summary="Sign out")
async def sign_out(request: Request, _: Caller = requires_role("viewer")) -> Response:
    """Forgets the cookie."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path=request.scope.get("root_path") or "/")
    return response
