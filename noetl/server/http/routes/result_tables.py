"""Stored results as tables: pages, profiles, queries and exports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.responses import Response

from noetl.data.formats import format_of
from noetl.errors import RequestRefused
from noetl.server.http.dependencies import App, AppState, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response
from noetl.server.http.routes.results import decode
from noetl.server.read_models.result_tables import (
    MAX_ROWS,
    Order,
    ResultTable,
    ResultTables,
    View,
    arrow_table,
    check_size,
)

router = APIRouter(tags=["results"])

MAX_SQL = 20_000
MEDIA = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}

Limit = Annotated[int, Query(ge=1, le=MAX_ROWS)]
Offset = Annotated[int, Query(ge=0, le=2**53)]


async def _view(
    sort: Annotated[str | None, Query(max_length=500, description="name of a column")] = None,
    order: Order = "asc",
    filter: Annotated[str, Query(max_length=500, description="text in any column, without regard to case")] = "",
    sql: Annotated[str, Query(max_length=MAX_SQL, description="a SELECT over the table `result`")] = "",
) -> View:
    return View(filter, sort, order, sql)


Viewed = Annotated[View, Depends(_view)]


class QueryBody(Body):
    """A SELECT over the table `result`, and a page of its rows."""

    sql: str = Field(min_length=1, max_length=MAX_SQL)
    sort: str | None = Field(None, max_length=500)
    order: Order = "asc"
    limit: int = Field(100, ge=1, le=MAX_ROWS)
    offset: int = Field(0, ge=0, le=2**53)


@router.get("/api/results/{ref}/table", summary="Rows of a stored table, sorted and filtered")
async def table(
    state: App, _: Viewer, request: Request, ref: str, view: Viewed, limit: Limit = 100, offset: Offset = 0
) -> Response:
    """`{columns, rows, total}`. Results of up to 16 MiB (JSON, CSV) or 128 MiB (Parquet, Arrow)."""
    return json_response(await _use(request, state, ref, lambda found: found.page(view, limit, offset)))


@router.post("/api/results/{ref}/query", summary="Query a stored table with SQL")
async def query(state: App, _: Viewer, request: Request, ref: str, body: QueryBody) -> Response:
    """One SELECT over the table `result`, which reads nothing else, for at most 15 seconds."""
    view = View("", body.sort, body.order, body.sql)
    return json_response(await _use(request, state, ref, lambda found: found.page(view, body.limit, body.offset)))


@router.get("/api/results/{ref}/profile", summary="Profile of the columns of a stored table")
async def profile(state: App, _: Viewer, request: Request, ref: str, view: Viewed) -> Response:
    """Type, missing and distinct values, range, mean, and the distribution of the values of each column."""
    return json_response({"columns": await _use(request, state, ref, lambda found: found.profile(view))})


@router.get(
    "/api/results/{ref}/export",
    summary="A stored table as a file",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}, "application/vnd.apache.parquet": {}}}},
)
async def export(
    state: App, _: Viewer, request: Request, ref: str, view: Viewed, format: Literal["csv", "parquet"] = "csv"
) -> Response:
    """Sorted and filtered like the table, or the rows of a query."""
    data = await _use(request, state, ref, lambda found: found.export(view, format))
    headers = {"Content-Disposition": f'attachment; filename="result.{format}"', "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type=MEDIA[format], headers=headers)


async def _use(request: Request, state: AppState, ref: str, work: Callable[[ResultTable], Any]) -> Any:
    reference = decode(ref)
    format = format_of(given=None, content_type=reference.meta.content_type)
    most = check_size(reference, format)

    async def load() -> Any:
        data = bytearray()
        async for chunk in state.orchestrator.results.open(reference):
            data += chunk
            if len(data) > most:
                raise RequestRefused(f"the result is larger than {most} bytes")
        try:
            return await asyncio.to_thread(arrow_table, bytes(data), format)
        except (ValueError, TypeError) as wrong:
            raise RequestRefused(f"the result cannot be read as a table: {wrong}") from None

    tables: ResultTables = request.app.state.result_tables
    return await tables.use(ref, load, work)
