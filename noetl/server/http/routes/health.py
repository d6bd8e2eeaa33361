"""Is it alive, is it making progress, what does it count; workers and tool kinds."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.response_models import answer, page
from noetl.server.http.routes.worker_protocol import WorkerRegistry, workers_document

router = APIRouter(tags=["health"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="The process answers")
async def healthz() -> Response:
    """Needs no token."""
    return answer({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Progress is possible", responses={503: {"description": "and why not"}})
async def readyz(request: Request) -> Response:
    """Not ready, with the reasons, when the store cannot be written, its tables are another version's, leases are not
    watched over, unfinished executions are still being taken over, or the server is about to stop. `warnings`
    are what somebody else has to do: runs that wait in a pool without workers. Needs no token."""
    problems: list[str] = await request.app.state.readiness()
    warnings = [] if problems else await request.app.state.operations.stuck()
    document = {"ready": not problems, "problems": problems, "warnings": warnings}
    return answer(document, 503 if problems else 200)


@router.get("/api/workers", summary="Workers that asked for work lately")
async def workers(request: Request, _: Caller = requires_role("viewer")) -> Response:
    """Slots, pools, leases, last sign of life."""
    roster: WorkerRegistry = request.app.state.roster
    return answer(page(workers_document(roster.all(time.time()), app_state(request).orchestrator), None))


@router.get("/api/tools", summary="Tool kinds of this installation")
async def tools(request: Request, _: Caller = requires_role("viewer")) -> Response:
    """Their parameters, for completion and forms."""
    import msgspec

    specs = app_state(request).specs()
    items: list[Any] = [msgspec.to_builtins(specs[kind]) for kind in sorted(specs)]
    return answer(page(items, None))
