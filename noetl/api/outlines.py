"""The log in outline, for pages that show a whole execution at any of its moments."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from noetl.api.access import Caller
from noetl.api.documents import answer
from noetl.api.executions import ExecutionId
from noetl.api.parts import needs, parts_of
from noetl.api.streams import KEEP_ALIVE, STREAM, After, LastEventId, streamed
from noetl.control.outline import outline_document
from noetl.model.events import Recorded

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
    _: Caller = needs("viewer"),
) -> Response:
    """Columns of the events with seq > after; `next` goes into `after`, null when the log ends here."""
    found = await parts_of(request).orchestrator.events(execution_id, after, limit + 1)
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
    _: Caller = needs("viewer"),
) -> StreamingResponse:
    """What came in a tenth of a second comes as one outline; its id is the last seq in it."""
    return await streamed(request, execution_id, after, last, _batches)


async def _batches(events: AsyncIterator[Recorded], stopping: asyncio.Event) -> AsyncIterator[bytes]:
    queue: asyncio.Queue[Recorded | None] = asyncio.Queue(MOST_IN_A_BATCH)

    async def pump() -> None:
        async for recorded in events:
            await queue.put(recorded)
        await queue.put(None)

    pumping = asyncio.ensure_future(pump())
    told = asyncio.ensure_future(stopping.wait())
    following = asyncio.ensure_future(queue.get())
    try:
        yield b"retry: 1000\n\n"
        while True:
            await asyncio.wait((following, told, pumping), timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
            if pumping.done() and (problem := pumping.exception()) is not None:
                raise problem
            if told.done():
                return  # the reader comes back with Last-Event-ID
            if not following.done():
                if not pumping.done():
                    yield b": still here\n\n"
                continue
            if not pumping.done():
                await asyncio.sleep(GATHER)
            batch = [following.result()]
            while batch[-1] is not None and not queue.empty() and len(batch) < MOST_IN_A_BATCH:
                batch.append(queue.get_nowait())
            rows = [each for each in batch if each is not None]
            if rows:
                document = msgspec.json.encode(outline_document(rows))
                yield b"id: %d\nevent: rows\ndata: %b\n\n" % (rows[-1].seq, document)
            if batch[-1] is None:
                yield b"event: end\ndata: {}\n\n"
                return
            following = asyncio.ensure_future(queue.get())
    finally:
        for task in (told, following, pumping):
            task.cancel()
        await asyncio.gather(following, pumping, return_exceptions=True)
        await events.aclose()  # type: ignore[attr-defined]
