"""The application: routes, errors, the guard before them, and the pages of the web interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.errors import NoetlError
from noetl.server.http import openapi, problems  # fmt: skip
from noetl.server.http import web_page as pages
from noetl.server.http.access import Tokens
from noetl.server.http.dependencies import AppState
from noetl.server.http.middleware.access_log import AccessLogMiddleware
from noetl.server.http.middleware.fast_path import FastPathMiddleware
from noetl.server.http.middleware.security import SecurityMiddleware
from noetl.server.http.routes import (
    credentials,
    execute,
    executions,
    health,
    limits,
    operations,
    playbooks,
    results,
    schedules,
    session,
    webhooks,
)
from noetl.server.http.routes import diagnostic_docs as manual
from noetl.server.http.routes import editor as editing
from noetl.server.http.routes import event_index as outlines
from noetl.server.http.routes import worker_protocol as work

Readiness = Callable[[], Awaitable[list[str]]]


def create_app(
    parts: Callable[[], AppState],
    tokens: Tokens,
    *,
    readiness: Readiness,
    version: str,
    hosts: Iterable[str] = (),
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
    root_path: str = "",
) -> FastAPI:
    """The ASGI application of a server."""
    app = FastAPI(
        title="NoETL",
        version=version,
        summary="Run playbooks, and see exactly what happened.",
        lifespan=lifespan,
        openapi_url=None,  # ours needs a token, like every other route
    )
    for module in (
        executions, outlines, playbooks, editing, manual, credentials, schedules, webhooks, limits, results, session,
        health, operations, openapi, pages,
    ):  # fmt: skip
        app.include_router(module.router)
    app.state.roster = work.WorkerRegistry()
    app.state.readiness = readiness
    raw_routes = [execute.ROUTE, *work.raw_routes(parts, app.state.roster)]
    app.router.routes[:0] = [*raw_routes, work.playbook_route(parts)]
    app.add_exception_handler(NoetlError, problems.on_noetl_error)
    app.add_exception_handler(HTTPException, problems.on_http_exception)
    app.add_exception_handler(RequestValidationError, problems.on_invalid_request)
    app.add_exception_handler(Exception, problems.on_mistake)
    app.add_middleware(FastPathMiddleware, routes=raw_routes)
    app.add_middleware(SecurityMiddleware, tokens=tokens, hosts=hosts)
    app.add_middleware(AccessLogMiddleware)
    if root_path:
        app.add_middleware(_Below, prefix=root_path)
    return app


class _Below:
    """ASGI middleware: the path below which a proxy shows us, whether or not the proxy takes it away."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say where we are."""
        scope["root_path"] = self._prefix
        await self._app(scope, receive, send)
