"""What is written down about every request: an id, who asked, what was answered, how long it took.

The id comes from `X-Request-ID` where the caller sent a sensible one and goes back in the answer; every line that is
logged on the way carries it. What changes something is logged at INFO, what only looks at DEBUG.
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
_SENSIBLE = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_POLLED = frozenset({"/api/work/claim", "/api/work/revoked"})
_WORK = "/api/work/"
_EXECUTIONS = b"/api/executions/"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class AccessLogMiddleware:
    """ASGI middleware around everything else, so that refusals are told too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count it, name it, log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = _request_id(scope)
        status = 500
        sent: list[tuple[bytes, bytes]] = []

        async def watched(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
                if route_path(scope) not in _POLLED:
                    metrics.REQUEST.observe(time.perf_counter() - began)
            await send(message)

        with logs.log_context(request_id=request_id):
            try:
                await self._app(scope, receive, watched)
            finally:
                method = scope["method"] if scope["method"] in _METHODS else "other"
                metrics.REQUESTS.add(1, method, _route(scope), str(status))
                self._tell(scope, method, status, time.perf_counter() - began, sent)

    def _tell(self, scope: Scope, method: str, status: int, seconds: float, sent: list[tuple[bytes, bytes]]) -> None:
        changes = method not in ("GET", "HEAD", "OPTIONS") and not route_path(scope).startswith(_WORK)
        level = logging.INFO if changes else logging.DEBUG
        if not log.isEnabledFor(level):
            return
        caller: Caller | None = scope.get("state", {}).get("caller")
        facts = {"method": method, "path": scope["path"], "status": status, "duration_ms": round(1000 * seconds, 3)}
        if caller is not None:
            facts["caller"] = caller.name
        execution_id = scope.get("path_params", {}).get("execution_id") or _started(sent)
        if execution_id is not None:
            facts["execution_id"] = execution_id
        log.log(level, "%s %s answered %d", method, scope["path"], status, extra=facts)


def _started(sent: list[tuple[bytes, bytes]]) -> str | None:
    """The execution that an answer says was started."""
    for name, value in sent:
        if name.lower() == b"location" and value.startswith(_EXECUTIONS):
            return value.removeprefix(_EXECUTIONS).decode("latin-1")
    return None


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == HEADER:
            text: str = value.decode("latin-1")
            if _SENSIBLE.fullmatch(text):
                return text
    return f"{random.getrandbits(64):016x}"  # it names, and proves nothing


def _route(scope: Scope) -> str:
    """The route's pattern, never the path itself: a label must not grow with the requests."""
    pattern = getattr(scope.get("route"), "path", None)
    if pattern is not None:
        return str(pattern)
    path = route_path(scope)
    if "endpoint" in scope and path.startswith(_WORK):
        return _WORK + path.removeprefix(_WORK).partition("/")[0]
    return "none"
