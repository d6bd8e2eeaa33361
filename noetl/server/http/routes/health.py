"""Liveness, readiness, workers and tool kinds."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.response_models import json_response, page
from noetl.server.http.routes.worker_protocol import WorkerRegistry, workers_document

router = APIRouter(tags=["health"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="Liveness of the process")
async def healthz() -> Response:
    """Requires no token."""
    return json_response({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Readiness of the server", responses={503: {"description": "Not ready, with reasons"}})
async def readyz(request: Request) -> Response:
    """Not ready, with reasons, if the store is not writable or has tables of another version, leases are not monitored,
    unfinished executions are still being taken over, or the server is shutting down. `warnings` lists what needs
    action although the server is ready: a wrong clock, runs that wait for a limit or in a pool without workers.
    Requires no token."""
    problems: list[str] = await request.app.state.readiness()
    warnings = [] if problems else await request.app.state.operations.warnings()
    document = {"ready": not problems, "problems": problems, "warnings": warnings}
    return json_response(document, 503 if problems else 200)


@router.get("/api/workers", summary="List workers")
async def workers(request: Request, state: App, _: Viewer) -> Response:
    """Workers that recently claimed runs, with slots, pools, leases and time of the last request."""
    workers: WorkerRegistry = request.app.state.workers
    return json_response(page(workers_document(workers.all(state.now()), state.orchestrator), None))


@router.get("/api/tools", summary="List tool kinds")
async def tools(state: App, _: Viewer) -> Response:
    """The installed kinds with their parameters."""
    import msgspec

    specs = state.specs()
    items: list[Any] = [msgspec.to_builtins(specs[kind]) for kind in sorted(specs)]
    return json_response(page(items, None))
