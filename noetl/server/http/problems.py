"""Errors as problem documents (RFC 9457): what happened, to what, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from noetl.errors import (
    AccessRefused,
    Conflict,
    CorruptLog,
    InvalidPlaybook,
    NoetlError,
    NotFound,
    PayloadUnavailable,
    RequestRefused,
    SecretUnavailable,
    StoreUnavailable,
    TemplateError,
)

log = logging.getLogger("noetl.api")

MEDIA_TYPE = "application/problem+json"

_TITLES = {
    400: "The request cannot be served",
    401: "A token is needed",
    403: "This token may not do that",
    404: "Not found",
    405: "This method is not allowed here",
    409: "Conflict",
    410: "Gone",
    413: "The request is too large",
    415: "This media type is not understood",
    421: "This server does not answer for that host",
    422: "The request is not valid",
    429: "Too many requests",
    500: "The server made a mistake",
    503: "Not available right now",
}


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, kind: str = "about:blank", **more: Any
) -> Response:
    """A problem document as a response."""
    document = {"type": kind, "title": _TITLES.get(status, "Error"), "status": status, "detail": detail, **more}
    return Response(
        msgspec.json.encode(document), status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {})
    )


def unknown_caller(*, wrong_token: bool) -> Response:
    """Nobody said who they are, or somebody did wrongly."""
    words = "this token is not known here" if wrong_token else "send a token: Authorization: Bearer ..."
    return problem(401, words, headers={"WWW-Authenticate": "Bearer"})


def of_exception(error: Exception) -> Response:
    """The problem document of an exception this package raised on purpose."""
    if isinstance(error, InvalidPlaybook):
        diagnostics = [diagnostic_document(each) for each in error.diagnostics]
        return problem(422, "the playbook has errors", kind="urn:noetl:invalid-playbook", diagnostics=diagnostics)
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return problem(status, str(error))
    raise error


_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (AccessRefused, 401),
    (Conflict, 409),
    (SecretUnavailable, 422),
    (RequestRefused, 400),
    (TemplateError, 422),
    (PayloadUnavailable, 410),
    (StoreUnavailable, 503),
    (CorruptLog, 500),
)


def diagnostic_document(diagnostic: Any) -> dict[str, Any]:
    """A diagnostic as the command line's json format has it."""
    document: dict[str, Any] = diagnostic.as_dict()
    return document


async def on_noetl_error(request: Request, error: Exception) -> Response:
    """Handler of our own exceptions."""
    assert isinstance(error, NoetlError)
    if isinstance(error, CorruptLog):
        log.error("%s %s: %s", request.method, request.url.path, error)
    return of_exception(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Handler of the framework's own refusals (unknown route, wrong method)."""
    assert isinstance(error, HTTPException)
    detail, headers = error.detail, dict(error.headers or {})
    if error.status_code == 405:
        allowed = _methods_at(request)
        detail = f"{request.method} is not possible at {request.url.path}; {', '.join(allowed)} is"
        headers["Allow"] = ", ".join(allowed)
    if error.status_code == 404 and detail == "Not Found":
        detail = f"there is nothing at {request.url.path}"
    return problem(error.status_code, detail, headers=headers)


def _methods_at(request: Request) -> list[str]:
    """Every method of the path, whichever of its routes was met first."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", "").rstrip("/"))
    found: set[str] = set()
    exactly: set[str] = set()  # of routes that are written just so: `/api/schedules/preview` beside `/{name}`
    for route in flat_routes(request.app.routes):
        pattern, methods = getattr(route, "path_regex", None), getattr(route, "methods", None)
        if pattern is not None and methods and pattern.match(path):
            found |= methods
            if route.path == path:
                exactly |= methods
    return sorted(exactly or found)


def flat_routes(routes: Iterable[Any]) -> Iterator[Any]:
    """Routes of an application, also those of routers that were included."""
    for route in routes:
        inner = getattr(getattr(route, "original_router", None), "routes", None) or getattr(route, "routes", None)
        if inner:
            yield from flat_routes(inner)
        else:
            yield route


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Handler of requests whose shape is wrong."""
    assert isinstance(error, RequestValidationError)
    errors = [{"in": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in error.errors()]
    if any(each["in"] == "path.execution_id" for each in errors):
        return problem(404, f"there is no execution {request.path_params['execution_id']!r}: ids are decimal numbers")
    words = "; ".join(f"{each['in']}: {each['message']}" for each in errors) or "the request is not valid"
    return problem(422, words, errors=errors)


async def of_error(request: Request, error: Exception) -> Response:
    """The answer to any of them, for routes that are answered before the framework's handlers."""
    if isinstance(error, NoetlError):
        return await on_noetl_error(request, error)
    if isinstance(error, HTTPException):
        return await on_http_exception(request, error)
    if isinstance(error, RequestValidationError):
        return await on_invalid_request(request, error)
    return await on_mistake(request, error)


async def on_mistake(request: Request, error: Exception) -> Response:
    """Our own mistake: logged with its trace, told without it."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "the server made a mistake; its log says more")
