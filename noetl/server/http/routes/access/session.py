"""Browser sessions: a token is stored in a cookie that scripts cannot read."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.middleware.security import COOKIE, HOST_COOKIE
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
    name, path = _cookie(request)
    is_secure = name == HOST_COOKIE
    response.set_cookie(name, body.token, max_age=MONTH, httponly=True, samesite="strict", secure=is_secure, path=path)
    return response


def _cookie(request: Request) -> tuple[str, str]:
    """Name and path of the cookie: over https it is bound to this host (`__Host-`), for which its path must be `/`."""
    if request.url.scheme == "https":
        return HOST_COOKIE, "/"
    return COOKIE, request.scope.get("root_path") or "/"


@router.get("/api/session", summary="Get the current caller")
async def who(caller: Viewer) -> Response:
    """Name and role of the caller."""
    return json_response({"name": caller.name, "role": caller.role})


@router.delete("/api/session", status_code=204, summary="Sign out")
async def sign_out(request: Request, _: Viewer) -> Response:
    """Deletes the cookie."""
    response = Response(status_code=204)
    name, path = _cookie(request)
    response.delete_cookie(name, path=path, secure=name == HOST_COOKIE, httponly=True, samesite="strict")
    return response
