"""Task logs: the lines that the tasks of an execution print."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse

from noetl.core.model.task_log import LogFilter, StoredLine
from noetl.server.http.dependencies import App, AppState, Viewer
from noetl.server.http.response_models import json_response, page
from noetl.server.http.routes.executions import ExecutionId
from noetl.server.http.routes.operations import operations_of
from noetl.server.http.streams import STREAM_ROUTE, After, EventStream, LastEventId, start_after
from noetl.server.read_models.task_logs import line_document, line_text

router = APIRouter(tags=["executions"])

MAX_BATCH = 5_000
LINGER = 0.1
PAGE = 5_000


async def _filter(
    step: str | None = None,
    task: str | None = None,
    iteration: Annotated[str | None, Query(pattern=r"^[0-9.]*$", description="`7`, in nested loops `7.2`")] = None,
    attempt: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    stream: Literal["stdout", "stderr"] | None = None,
    search: Annotated[str | None, Query(max_length=1000)] = None,
) -> LogFilter:
    return LogFilter(step, task, iteration, attempt, stream, search)


Filter = Annotated[LogFilter, Depends(_filter)]


@router.get("/api/executions/{execution_id}/logs", summary="Lines that tasks have printed")
async def logs(
    state: App,
    _: Viewer,
    execution_id: ExecutionId,
    where: Filter,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """One page of lines with seq > after, in order. A line with `dropped` counts lines that are missing there."""
    await state.orchestrator.summary(execution_id, newest=False)
    found = await state.orchestrator.task_logs.read(execution_id, after, limit, where)
    items = [line_document(each) for each in found.lines]
    return json_response(page(items, None if found.next is None else str(found.next)))


@router.get(
    "/api/executions/{execution_id}/logs/stream",
    summary="Stream the lines of tasks (server-sent events)",
    **STREAM_ROUTE,
)
async def logs_stream(
    request: Request,
    state: App,
    _: Viewer,
    execution_id: ExecutionId,
    where: Filter,
    after: After = 0,
    last: LastEventId = None,
) -> StreamingResponse:
    """A message has a list of lines; its id is the last seq in it. Ends with the execution."""
    await state.orchestrator.summary(execution_id, newest=False)
    return EventStream(
        _lines(state, execution_id, start_after(after, last), where),
        state,
        operations_of(request),
        _encode_lines,
        MAX_BATCH,
        LINGER,
    )


@router.get(
    "/api/executions/{execution_id}/logs/text",
    summary="Download the lines of tasks as text",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}}},
)
async def logs_text(state: App, _: Viewer, execution_id: ExecutionId, where: Filter) -> StreamingResponse:
    """One line each: time, step, task, stream, text."""
    await state.orchestrator.summary(execution_id, newest=False)

    async def body() -> AsyncIterator[bytes]:
        after: int | None = 0
        while after is not None:
            found = await state.orchestrator.task_logs.read(execution_id, after, PAGE, where)
            yield "".join(f"{line_text(each)}\n" for each in found.lines).encode()
            after = found.next

    headers = {"Content-Disposition": f'attachment; filename="{execution_id}.log"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(body(), media_type="text/plain; charset=utf-8", headers=headers)


async def _lines(state: AppState, execution_id: str, after: int, where: LogFilter) -> AsyncIterator[StoredLine]:
    async for lines in state.orchestrator.task_logs.follow(execution_id, after, where):
        for line in lines:
            yield line


def _encode_lines(lines: Sequence[StoredLine]) -> bytes:
    data = msgspec.json.encode([line_document(each) for each in lines])
    return b"id: %d\nevent: lines\ndata: %b\n\n" % (lines[-1].seq, data)
