"""Queries over the results of an execution."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response
from noetl.server.http.routes.executions import ExecutionId
from noetl.server.read_models.result_queries import (
    MAX_ROWS,
    Condition,
    Operator,
    Order,
    ResultQuery,
    exported,
    known_results,
    listed_tables,
    query_rows,
)

router = APIRouter(tags=["results"])

MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
Column = Annotated[str, Field(min_length=1, max_length=500)]


class ConditionBody(Body):
    """A filter of one column."""

    column: Column
    op: Operator
    value: Any = None


class OrderBody(Body):
    """One column that rows are ordered by."""

    column: Column
    descending: bool = False


class QueryBody(Body):
    """`sql`, or `table` (`step.fetch`, `task.fetch.parse`) with filters, order and a page."""

    sql: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    table: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    where: Annotated[list[ConditionBody], Field(max_length=50)] = []
    sort: Annotated[list[OrderBody], Field(max_length=20)] = []
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 100
    offset: Annotated[int, Field(ge=0, le=2**53)] = 0
    count: bool = False
    format: Literal["rows", "csv", "json", "parquet"] = "rows"


@router.get("/api/executions/{execution_id}/tables", summary="List the results that can be queried")
async def tables(state: App, _: Viewer, execution_id: ExecutionId) -> Response:
    """Each with its name, its name in SQL, and the number of rows and bytes where they are known."""
    return json_response({"items": listed_tables(await known_results(state.orchestrator, execution_id))})


@router.post(
    "/api/executions/{execution_id}/query", summary="Query results with SQL, or filter, sort and page a result"
)
async def query(state: App, _: Viewer, execution_id: ExecutionId, body: QueryBody) -> Response:
    """By SQL, or a table with filters, order and a page. Rows as `{columns: [{name, type}], rows, truncated, total?}`,
    or all rows as a file (`format`). The SQL is one SELECT of DuckDB; it can read these results and nothing else."""
    orchestrator = state.orchestrator
    asked = ResultQuery(
        body.sql,
        body.table,
        tuple(Condition(each.column, each.op, each.value) for each in body.where),
        tuple(Order(each.column, each.descending) for each in body.sort),
        body.limit,
        body.offset,
        body.count,
    )
    known = await known_results(orchestrator, execution_id)
    if body.format == "rows":
        return json_response(await query_rows(known, orchestrator.results, asked))
    export = exported(known, orchestrator.results, asked, body.format)
    path = await export.__aenter__()
    name = f"{execution_id}.{body.format}"

    async def close() -> None:
        await export.__aexit__(None, None, None)

    return FileResponse(path, media_type=MEDIA_TYPES[body.format], filename=name, background=BackgroundTask(close))
