"""The event index: the log as short rows, for the web page."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from noetl.core.model.events import Recorded
from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.response_models import json_response
from noetl.server.http.routes.executions import ExecutionId
from noetl.server.http.streams import STREAM_ROUTE, After, LastEventId, stream_events
from noetl.server.read_models.event_index import outline_document

router = APIRouter(tags=["executions"])

MIN_COMPRESSED = 64 * 1024
LINGER = 0.1  # seconds; events within it share one message
MAX_BATCH = 5_000


@router.get("/api/executions/{execution_id}/outline", summary="The event index: one short row per event")
async def outline(
    request: Request,
    state: App,
    _: Viewer,
    execution_id: ExecutionId,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=50_000)] = 20_000,
) -> Response:
    """Columns of the events with seq > after; pass `next` as `after`, null at the end of the log."""
    rows = await state.orchestrator.events(execution_id, after, limit)
    following = rows[-1].seq if rows.more else None
    # In a thread, because a long log would block the event loop.
    response = await run_in_threadpool(lambda: json_response({**outline_document(rows), "next": following}))
    if len(response.body) > MIN_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        packed = await run_in_threadpool(gzip.compress, bytes(response.body), 1)
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(packed, media_type="application/json", headers=headers)
    return response


@router.get(
    "/api/executions/{execution_id}/outline/stream",
    summary="Stream the event index (server-sent events)",
    **STREAM_ROUTE,
)
async def outline_stream(
    request: Request, _: Viewer, execution_id: ExecutionId, after: After = 0, last: LastEventId = None
) -> StreamingResponse:
    """Events within a tenth of a second share one message; its id is the last seq in it."""
    return await stream_events(request, execution_id, after, last, _encode_rows, max_batch=MAX_BATCH, linger=LINGER)


def _encode_rows(events: Sequence[Recorded]) -> bytes:
    return b"id: %d\nevent: rows\ndata: %b\n\n" % (events[-1].seq, msgspec.json.encode(outline_document(events)))
