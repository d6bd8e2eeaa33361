"""The log in outline, for pages that show a whole execution at any of its moments."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from noetl.core.model.events import Recorded
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.response_models import answer
from noetl.server.http.routes.executions import ExecutionId
from noetl.server.http.streams import STREAM, After, LastEventId, streamed
from noetl.server.read_models.event_index import outline_document

router = APIRouter(tags=["executions"])

WORTH_PACKING = 64 * 1024
GATHER = 0.1  # seconds in which events are gathered into one message
MOST_IN_A_BATCH = 5_000


@router.get("/api/executions/{execution_id}/outline", summary="The log in outline: one short row per event")
async def outline(
    request: Request,
    execution_id: ExecutionId,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=50_000)] = 20_000,
    _: Caller = requires_role("viewer"),
) -> Response:
    """Columns of the events with seq > after; `next` goes into `after`, null when the log ends here."""
    found = await app_state(request).orchestrator.events(execution_id, after, limit + 1)
    rows = found[:limit]
    following = rows[-1].seq if len(found) > limit else None
    # Made in a thread: a long log must not hold up who else asks.
    response = await run_in_threadpool(lambda: answer({**outline_document(rows), "next": following}))
    if len(response.body) > WORTH_PACKING and "gzip" in request.headers.get("accept-encoding", ""):
        packed = await run_in_threadpool(gzip.compress, bytes(response.body), 1)
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(packed, media_type="application/json", headers=headers)
    return response


@router.get(
    "/api/executions/{execution_id}/outline/stream",
    summary="The outline as it grows (server-sent events)",
    **STREAM,
)
async def outline_stream(
    request: Request,
    execution_id: ExecutionId,
    after: After = 0,
    last: LastEventId = None,
    _: Caller = requires_role("viewer"),
) -> StreamingResponse:
    """What came in a tenth of a second comes as one outline; its id is the last seq in it."""
    return await streamed(request, execution_id, after, last, _rows, most=MOST_IN_A_BATCH, linger=GATHER)


def _rows(events: Sequence[Recorded]) -> bytes:
    return b"id: %d\nevent: rows\ndata: %b\n\n" % (events[-1].seq, msgspec.json.encode(outline_document(events)))
