"""Stored results as tables: queries with SQL or filters, pages, profiles and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from noetl.data.result_tables import Export
from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response
from noetl.server.http.routes.executions import ExecutionId
from noetl.server.http.routes.results import decode
from noetl.server.read_models.result_queries import (
    MAX_ROWS,
    STORED,
    Condition,
    Operator,
    Order,
    ResultQuery,
    Results,
    execution_results,
    listed_tables,
    stored_result,
)

router = APIRouter(tags=["results"])

MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
MAX_SQL = 20_000  # characters of SQL in a URL
Column = Annotated[str, Field(min_length=1, max_length=500)]
FilterText = Annotated[str, Field(max_length=500)]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS)]
Offset = Annotated[int, Query(ge=0, le=2**53)]


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
    """`sql`, or `table` (`step.fetch`, `task.fetch.parse`), with filters, order and a page."""

    sql: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    table: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    where: Annotated[list[ConditionBody], Field(max_length=50)] = []
    filter: FilterText = ""
    sort: Annotated[list[OrderBody], Field(max_length=20)] = []
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 100
    offset: Annotated[int, Field(ge=0, le=2**53)] = 0
    count: bool = False
    format: Literal["rows", "csv", "json", "parquet"] = "rows"

    def query(self, table: str | None = None) -> ResultQuery:
        """The query; over `table` if it has neither SQL nor a table."""
        return ResultQuery(
            self.sql,
            self.table or (table if self.sql is None else None),
            tuple(Condition(each.column, each.op, each.value) for each in self.where),
            tuple(Order(each.column, each.descending) for each in self.sort),
            self.filter,
            self.limit,
            self.offset,
            self.count,
        )


async def _stored_query(
    sort: Annotated[str | None, Query(max_length=500, description="name of a column")] = None,
    order: Literal["asc", "desc"] = "asc",
    filter: Annotated[str, Query(max_length=500, description="text in any column, without regard to case")] = "",
    sql: Annotated[str, Query(max_length=MAX_SQL, description="a SELECT over the table `result`")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> ResultQuery:
    ordered = () if sort is None else (Order(sort, order == "desc"),)
    return ResultQuery(sql or None, None if sql else STORED, (), ordered, filter, limit, offset, True)


StoredQuery = Annotated[ResultQuery, Depends(_stored_query)]


@router.get("/api/executions/{execution_id}/tables", summary="List the results that can be queried")
async def tables(state: App, _: Viewer, execution_id: ExecutionId) -> Response:
    """Each with its name, its name in SQL, and the number of rows and bytes where they are known."""
    return json_response({"items": listed_tables(await execution_results(state.orchestrator, execution_id))})


@router.post(
    "/api/executions/{execution_id}/query", summary="Query results with SQL, or filter, sort and page a result"
)
async def query(state: App, _: Viewer, execution_id: ExecutionId, body: QueryBody) -> Response:
    """By SQL, or a table with filters, order and a page. Rows as `{columns: [{name, type}], rows, truncated, total?}`,
    or all rows as a file (`format`). The SQL is one SELECT of DuckDB; it can read these results and nothing else."""
    results = await execution_results(state.orchestrator, execution_id)
    return await _answer(state, results, body.query(), body.format, execution_id)


@router.post("/api/results/{ref}/query", summary="Query a stored table with SQL, or filter, sort and page it")
async def stored_query(state: App, _: Viewer, ref: str, body: QueryBody) -> Response:
    """As the query of an execution, over the one table `result`, which is used where neither SQL nor a table is given.
    Results of up to 16 MiB (JSON, CSV) or 128 MiB (Parquet, Arrow)."""
    return await _answer(state, stored_result(decode(ref), ref), body.query(STORED), body.format, "result")


@router.get("/api/results/{ref}/table", summary="Rows of a stored table, sorted and filtered")
async def table(state: App, _: Viewer, ref: str, query: StoredQuery) -> Response:
    """`{columns, rows, truncated, total}`."""
    return await _answer(state, stored_result(decode(ref), ref), query, "rows", "result")


@router.get("/api/results/{ref}/profile", summary="Profile of the columns of a stored table")
async def profile(state: App, _: Viewer, ref: str, query: StoredQuery) -> Response:
    """Type, missing and distinct values, range, mean, and the distribution of the values of each column."""
    return json_response({"columns": await state.queries.profile(stored_result(decode(ref), ref), query)})


@router.get(
    "/api/results/{ref}/export",
    summary="A stored table as a file",
    response_class=Response,
    responses={200: {"content": {media: {} for media in MEDIA_TYPES.values()}}},
)
async def export(state: App, _: Viewer, ref: str, query: StoredQuery, format: Export = "csv") -> Response:
    """All rows, sorted and filtered like the table, or those of a query."""
    return await _answer(state, stored_result(decode(ref), ref), query, format, "result")


async def _answer(
    state: App, results: Results, query: ResultQuery, format: Literal["rows", "csv", "json", "parquet"], name: str
) -> Response:
    if format == "rows":
        return json_response(await state.queries.rows(results, query))
    path: Path = await state.queries.export(results, query, format)
    return FileResponse(
        path,
        media_type=MEDIA_TYPES[format],
        filename=f"{name}.{format}",
        headers={"X-Content-Type-Options": "nosniff"},
        background=BackgroundTask(path.unlink),
    )
