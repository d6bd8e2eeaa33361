"""Errors as problem documents (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
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
    DecisionFailed,
    InvalidPlaybook,
    NoetlError,
    NotFound,
    Overloaded,
    PayloadUnavailable,
    RequestRefused,
    RoleRequired,
    SecretUnavailable,
    StoreUnavailable,
    TemplateError,
    TooManyRequests,
)
from noetl.runtime.disk_errors import disk_error

log = logging.getLogger("noetl.api")

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 20  # that the response to an invalid request lists

INTERNAL_ERROR = "internal error; see the server log"

_TITLES = {
    400: "Bad request",
    401: "Authentication required",
    403: "Permission denied",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Request too large",
    415: "Unsupported media type",
    416: "Range not satisfiable",
    417: "Expectation failed",
    421: "Misdirected request",
    422: "Invalid request",
    429: "Too many requests",
    431: "Request header fields too large",
    500: "Internal server error",
    503: "Service unavailable",
}


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, kind: str = "about:blank", **more: Any
) -> Response:
    """A problem document as a response."""
    document = encoded_problem(status, detail, kind=kind, **more)
    return Response(document, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def encoded_problem(status: int, detail: str, *, kind: str = "about:blank", **more: Any) -> bytes:
    """A problem document as JSON."""
    return msgspec.json.encode(
        {"type": kind, "title": _TITLES.get(status, "Error"), "status": status, "detail": detail, **more}
    )


def unauthorized(*, wrong_token: bool) -> Response:
    """The response to a request without a valid token."""
    return problem(401, no_caller(wrong_token), headers={"WWW-Authenticate": "Bearer"})


def no_caller(wrong_token: bool) -> str:
    """Why a request has no caller."""
    return "token not recognised" if wrong_token else "no token: send the header `Authorization: Bearer TOKEN`"


def problem_of(error: Exception) -> Response:
    """The problem document of one of our exceptions."""
    if isinstance(error, InvalidPlaybook):
        diagnostics = [each.as_dict() for each in error.diagnostics]
        return problem(422, "the playbook has errors", kind="urn:noetl:invalid-playbook", diagnostics=diagnostics)
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            seconds = error.retry_after if isinstance(error, TooManyRequests) else 10 if kind is Overloaded else None
            headers = None if seconds is None else {"Retry-After": str(seconds)}
            return problem(status, str(error), headers=headers)
    raise error


_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (RoleRequired, 403),
    (AccessRefused, 401),
    (Conflict, 409),
    (TooManyRequests, 429),
    (Overloaded, 503),
    (SecretUnavailable, 422),
    (RequestRefused, 400),
    (TemplateError, 422),
    (PayloadUnavailable, 410),
    (StoreUnavailable, 503),
    (CorruptLog, 500),
    (DecisionFailed, 500),
)


async def on_noetl_error(request: Request, error: Exception) -> Response:
    """Handler of our own exceptions."""
    assert isinstance(error, NoetlError)
    if isinstance(error, CorruptLog):
        log.error("%s %s: %s", request.method, request.url.path, error)
    return problem_of(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Handler of HTTP exceptions of the framework (unknown route, wrong method)."""
    assert isinstance(error, HTTPException)
    detail, headers = error.detail, dict(error.headers or {})
    if error.status_code == 405:
        allowed = _methods_at(request)
        detail = f"{request.url.path} does not support {request.method}; supported: {', '.join(allowed)}"
        headers["Allow"] = ", ".join(allowed)
    if error.status_code == 404 and detail == "Not Found":
        detail = f"no resource at {request.url.path}"
    return problem(error.status_code, detail, headers=headers)


def _methods_at(request: Request) -> list[str]:
    """All methods of the routes that match the path."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", "").rstrip("/"))
    found: set[str] = set()
    exact: set[str] = set()  # of literal routes: `/api/schedules/preview` takes precedence over `/{name}`
    for route in flat_routes(request.app.routes):
        pattern, methods = getattr(route, "path_regex", None), getattr(route, "methods", None)
        if pattern is not None and methods and pattern.match(path):
            found |= methods
            if route.path == path:
                exact |= methods
    return sorted(exact or found)


def flat_routes(routes: Iterable[Any]) -> Iterator[Any]:
    """Routes of an application, including those of included routers."""
    for route in routes:
        inner = getattr(getattr(route, "original_router", None), "routes", None) or getattr(route, "routes", None)
        if inner:
            yield from flat_routes(inner)
        else:
            yield route


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Handler of requests that do not match the declared parameters and body."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    errors = [{"in": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in found[:MAX_ERRORS]]
    if any(each["in"] == "path.execution_id" for each in errors):
        return problem(404, f"there is no execution {request.path_params['execution_id']!r}: ids are decimal numbers")
    detail = "; ".join(f"{each['in']}: {each['message']}" for each in errors) or "invalid request"
    detail += f"; and {len(found) - MAX_ERRORS:,} more" if len(found) > MAX_ERRORS else ""
    return problem(422, detail, errors=errors)


async def on_os_error(request: Request, error: Exception) -> Response:
    """Handler of errors of the operating system: a full or broken disk is no bug, and may be repaired."""
    assert isinstance(error, OSError)
    found = disk_error(error)
    return await on_internal_error(request, error) if found is None else problem(503, found)


async def on_internal_error(request: Request, error: Exception) -> Response:
    """Handler of bugs: the traceback is logged and not sent."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, INTERNAL_ERROR)


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    NoetlError: on_noetl_error,
    HTTPException: on_http_exception,
    RequestValidationError: on_invalid_request,
    OSError: on_os_error,
    Exception: on_internal_error,
}


async def response_to(request: Request, error: Exception) -> Response:
    """The response to an exception of a raw route, which the framework does not see."""
    return await next(handle for kind, handle in HANDLERS.items() if isinstance(error, kind))(request, error)
