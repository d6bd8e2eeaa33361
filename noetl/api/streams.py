"""What all streams of an execution share: where they go on, that they are counted, their form (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import Header, Query, Request
from starlette.responses import StreamingResponse

from noetl.api.operations import Operations, operations_of
from noetl.api.parts import parts_of
from noetl.model.events import Recorded

KEEP_ALIVE = 15.0  # seconds between comments on a silent stream
FORM = "text/event-stream"
STREAM: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": {200: {"content": {FORM: {}}}},
}  # of a route

After = Annotated[int, Query(ge=0, le=2**53)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
Told = Callable[[AsyncIterator[Recorded], asyncio.Event], AsyncIterator[bytes]]


async def streamed(request: Request, execution_id: str, after: int, last: str | None, told: Told) -> StreamingResponse:
    """The execution's events after `after`, or after the last one the reader had, as `told` tells them."""
    parts = parts_of(request)
    await parts.orchestrator.summary(execution_id)
    if last is not None and last.isdecimal() and len(last) < 17:
        after = max(after, int(last))
    body = told(parts.orchestrator.subscribe(execution_id, after), parts.stopping)
    return StreamingResponse(
        _counted(body, operations_of(request)),
        media_type=FORM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _counted(body: AsyncIterator[bytes], operations: Operations) -> AsyncIterator[bytes]:
    operations.streams += 1
    try:
        async for block in body:
            yield block
    finally:
        operations.streams -= 1
        await body.aclose()  # type: ignore[attr-defined]
