"""The access log: request id, caller, status and duration of every request.

The id is the `X-Request-ID` of the request if that is valid; it is returned in the response and added to every log
record of the request. Requests that change something are logged at INFO, others at DEBUG.
"""

from __future__ import annotations

import logging
import random
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl.observability import logging as logs
from noetl.observability import metrics
from noetl.server.http.access import Caller
from noetl.server.http.middleware.security import route_path

log = logging.getLogger("noetl.access")

HEADER = b"x-request-id"
_VALID_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_LONG_POLLS = frozenset({"/api/work/claim", "/api/work/revoked"})
_WORKER_PATHS = "/api/work/"
_EXECUTIONS = b"/api/executions/"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class AccessLogMiddleware:
    """The outermost middleware, so that rejected requests are logged too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count and log one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        status = 500
        response_headers: list[tuple[bytes, bytes]] = []

        async def observe_response(message: Message) -> None:
            nonlocal status, response_headers
            if message["type"] == "http.response.start":
                status = message["status"]
                response_headers = message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
                if route_path(scope) not in _LONG_POLLS:
                    metrics.REQUEST.observe(time.perf_counter() - started)
            await send(message)

        with logs.log_context(request_id=request_id):
            try:
                await self._app(scope, receive, observe_response)
            finally:
                method = scope["method"] if scope["method"] in _METHODS else "other"
                metrics.REQUESTS.add(1, method, _route(scope), str(status))
                self._log_request(scope, method, status, time.perf_counter() - started, response_headers)

    def _log_request(
        self, scope: Scope, method: str, status: int, seconds: float, response_headers: list[tuple[bytes, bytes]]
    ) -> None:
        changes = method not in ("GET", "HEAD", "OPTIONS") and not route_path(scope).startswith(_WORKER_PATHS)
        level = logging.INFO if changes else logging.DEBUG
        if not log.isEnabledFor(level):
            return
        caller: Caller | None = scope.get("state", {}).get("caller")
        fields = {"method": method, "path": scope["path"], "status": status, "duration_ms": round(1000 * seconds, 3)}
        if caller is not None:
            fields["caller"] = caller.name
        execution_id = scope.get("path_params", {}).get("execution_id") or _started_execution(response_headers)
        if execution_id is not None:
            fields["execution_id"] = execution_id
        log.log(level, "%s %s %d", method, scope["path"], status, extra=fields)


def _started_execution(response_headers: list[tuple[bytes, bytes]]) -> str | None:
    """The id of the execution that the request started, from the Location header."""
    for name, value in response_headers:
        if name.lower() == b"location" and value.startswith(_EXECUTIONS):
            return value.removeprefix(_EXECUTIONS).decode("latin-1")
    return None


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == HEADER:
            text: str = value.decode("latin-1")
            if _VALID_ID.fullmatch(text):
                return text
    return f"{random.getrandbits(64):016x}"  # an identifier, not a secret


def _route(scope: Scope) -> str:
    """The pattern of the route, because a label must have few values."""
    pattern = getattr(scope.get("route"), "path", None)
    if pattern is not None:
        return str(pattern)
    path = route_path(scope)
    if "endpoint" in scope and path.startswith(_WORKER_PATHS):
        return _WORKER_PATHS + path.removeprefix(_WORKER_PATHS).partition("/")[0]
    return "none"
