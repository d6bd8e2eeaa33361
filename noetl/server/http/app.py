"""The ASGI application: routes, error handlers and middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.server.http import openapi, problems, web_page
from noetl.server.http.access import Tokens
from noetl.server.http.dependencies import AppState
from noetl.server.http.middleware.access_log import AccessLogMiddleware
from noetl.server.http.middleware.fast_path import FastPathMiddleware
from noetl.server.http.middleware.idempotency import IdempotencyMiddleware
from noetl.server.http.middleware.replica_reads import ReplicaReadsMiddleware
from noetl.server.http.middleware.security import SecurityMiddleware
from noetl.server.http.routes import (
    bundles,
    credentials,
    diagnostic_docs,
    editor,
    event_index,
    execute,
    executions,
    health,
    history,
    inbox,
    limits,
    operations,
    playbooks,
    queries,
    results,
    schemas,
    states,
    task_logs,
    worker_protocol,
)
from noetl.server.http.routes.access import access_tokens, session
from noetl.server.http.routes.data import lineage
from noetl.server.http.routes.scheduling import backfills, notifications, schedules, triggers, webhooks

Readiness = Callable[[], Awaitable[list[str]]]


def create_app(
    state: Callable[[], AppState],
    tokens: Tokens,
    *,
    readiness: Readiness,
    version: str,
    hosts: Iterable[str] = (),
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
    root_path: str = "",
) -> FastAPI:
    """The ASGI application of a server."""
    app = Application(
        title="NoETL",
        version=version,
        summary="Run playbooks and inspect their executions.",
        lifespan=lifespan,
        openapi_url=None,  # replaced by a route that requires a token
    )
    for module in (
        executions, inbox, backfills, event_index, task_logs, playbooks, bundles, editor, diagnostic_docs, credentials,
        schedules, webhooks, triggers, notifications, limits, lineage, results, queries, schemas, states,
        session, health, operations, history, access_tokens, openapi, web_page,
    ):  # fmt: skip
        app.include_router(module.router)
    app.state.workers = worker_protocol.WorkerRegistry()
    app.state.readiness = readiness
    raw_routes = [execute.ROUTE, *worker_protocol.raw_routes(state, app.state.workers)]
    app.router.routes[:0] = [*raw_routes, *worker_protocol.content_routes(state)]
    for kind, handler in problems.HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(IdempotencyMiddleware, state=state)
    framework = ReplicaReadsMiddleware(app.framework)
    entry: ASGIApp = FastPathMiddleware(framework, routes=raw_routes, stream=executions.STREAM)
    entry = AccessLogMiddleware(SecurityMiddleware(entry, tokens=tokens, hosts=hosts))
    app.entry = RootPathMiddleware(entry, prefix=root_path) if root_path else entry
    return app


class Application(FastAPI):
    """The framework behind middleware of our own: raw routes are served without it."""

    entry: ASGIApp  # the outermost middleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the start and end of the server."""
        scope["app"] = self
        await (self.entry if scope["type"] == "http" else self.framework)(scope, receive, send)

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request in the framework."""
        await super().__call__(scope, receive, send)


class RootPathMiddleware:
    """Sets the path prefix of a reverse proxy, whether or not the proxy strips it from requests."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set `root_path`."""
        scope["root_path"] = self._prefix
        await self._app(scope, receive, send)
