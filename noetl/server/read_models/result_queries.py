"""Queries over the results of an execution: SQL, or a table with filters, order and a page, as rows or as a file.

The tables are `step.<step>` (the output of a step) and `task."<step>.<task>"` (of a task of a step with several tasks).
Only the results that a query names are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from noetl.core.model.events import TaskDone
from noetl.core.model.outcome import Outcome
from noetl.data.duckdb_files import literal
from noetl.data.formats import format_of
from noetl.data.result_tables import QueryFailed, QueryRows, ResultTables, named_tables
from noetl.data.row_stream import NotRows, rows_of
from noetl.data.sql import quote_column
from noetl.errors import NotFound, RequestRefused
from noetl.storage.ports.results import ResultStore

if TYPE_CHECKING:
    from noetl.server.orchestrator.service import Orchestrator

MAX_ROWS = 10_000  # of one answer; exports have all rows
MAX_DOCUMENT = 32 * 1024 * 1024  # bytes of a stored document that is one row
MAX_EVENTS = 100_000  # of the log in which results of tasks are looked up
PAGE = 5_000
CONCURRENT = 2  # queries of one process

Operator = Literal["eq", "ne", "lt", "le", "gt", "ge", "contains", "is_null", "not_null"]
_COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Condition(Struct, frozen=True):
    """A filter of one column."""

    column: str
    op: Operator
    value: Any = None


class Order(Struct, frozen=True):
    """One column that rows are ordered by."""

    column: str
    descending: bool = False


class ResultQuery(Struct, frozen=True):
    """A query: `sql`, or `table` with filters, order and a page."""

    sql: str | None = None
    table: str | None = None
    where: tuple[Condition, ...] = ()
    sort: tuple[Order, ...] = ()
    limit: int = 100
    offset: int = 0
    count: bool = False  # also the number of all rows

    def statement(self, known: Mapping[str, Outcome]) -> str:
        """The SELECT without its page."""
        if (self.sql is None) == (self.table is None):
            raise RequestRefused("a query has either `sql` or `table`")
        if self.sql is not None:
            return self.sql.strip().rstrip(";")
        name = str(self.table) if self.table in known else f"step.{self.table}"
        if name not in known:
            raise NotFound(f"there is no result {self.table!r}; {_listed(known)}")
        text = f"SELECT * FROM {_quoted(name)}"
        if self.where:
            text += f" WHERE {' AND '.join(map(_condition, self.where))}"
        if self.sort:
            ordered = (f"{quote_column(each.column)}{' DESC' if each.descending else ''}" for each in self.sort)
            text += f" ORDER BY {', '.join(ordered)}"
        return text


async def known_results(orchestrator: Orchestrator, execution_id: str) -> dict[str, Outcome]:
    """The results of an execution by the name of their table; NotFound when there is no such execution."""
    state = await orchestrator.state(execution_id)
    found = {f"step.{step}": each.outcome for step, each in state.steps.items() if each.outcome is not None}
    several = {name for name, step in state.net.steps.items() if len(step.tasks) > 1}
    for seq in range(0, min(state.seq, MAX_EVENTS) if several else 0, PAGE):
        for recorded in await orchestrator.events(execution_id, seq, PAGE):
            body = recorded.body
            if isinstance(body, TaskDone) and body.step in several and not body.path and not body.skipped:
                found[f"task.{body.step}.{body.task}"] = body.outcome
    return found


def listed_tables(known: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """The tables of an execution, with the number of rows and bytes where they are known."""
    return [
        {
            "table": name,
            "sql": _quoted(name),
            "rows": outcome.ref.meta.rows if outcome.ref is not None else None,
            "bytes": outcome.ref.meta.bytes if outcome.ref is not None else None,
        }
        for name, outcome in known.items()
    ]


async def query_rows(known: Mapping[str, Outcome], results: ResultStore, query: ResultQuery) -> dict[str, Any]:
    """The rows of a query as a document: `columns`, `rows`, `truncated`, and `total` if it is asked for."""
    text = query.statement(known)
    limit = min(query.limit, MAX_ROWS)
    async with _opened(text, known, results) as tables:
        # The position of the page is outside of the text, which may have its own LIMIT.
        page = f"SELECT * FROM ({text}\n) LIMIT {limit + 1} OFFSET {query.offset}" if query.offset else text
        found: QueryRows = await asyncio.to_thread(tables.rows, page, limit)
        total = None
        if query.count:
            counted = await asyncio.to_thread(tables.rows, f"SELECT count(*) AS n FROM ({text}\n)", 1)
            total = counted.rows[0]["n"]
    document: dict[str, Any] = {"columns": found.columns, "rows": found.rows, "truncated": found.truncated}
    return document if total is None else {**document, "total": total}


@asynccontextmanager
async def exported(
    known: Mapping[str, Outcome], results: ResultStore, query: ResultQuery, format: Literal["csv", "parquet", "json"]
) -> AsyncIterator[str]:
    """All rows of a query in a file, which is removed afterwards; gives its path."""
    text = query.statement(known)
    async with _opened(text, known, results) as tables:
        yield str(await asyncio.to_thread(tables.export, text, format))


@asynccontextmanager
async def _opened(text: str, known: Mapping[str, Outcome], results: ResultStore) -> AsyncIterator[ResultTables]:
    """A database with the results that a statement names."""
    async with _slots():
        tables = await asyncio.to_thread(ResultTables)
        try:
            for name in named_tables(text, list(known)):
                schema, _, table = name.partition(".")
                await _add(tables, (schema, table), known[name], results)
            await asyncio.to_thread(tables.lock)
            yield tables
        except QueryFailed as problem:
            if "does not exist" in str(problem):
                raise QueryFailed(f"{problem}\n{_listed(known)}") from None
            raise
        finally:
            await asyncio.to_thread(tables.close)


async def _add(tables: ResultTables, table: tuple[str, str], outcome: Outcome, results: ResultStore) -> None:
    reference = outcome.ref
    if reference is None or outcome.data is not None:
        await asyncio.to_thread(tables.add_value, table, outcome.data)
        return
    format = format_of(content_type=reference.meta.content_type.partition(";")[0].strip(), default="text")
    if format != "json":
        await tables.add_payload(table, format, results.open(reference))
        return
    try:
        await tables.add_rows(table, rows_of(reference, results.open))
    except NotRows:
        if reference.meta.bytes > MAX_DOCUMENT:
            raise QueryFailed(
                f"{'.'.join(table)} is one document of {reference.meta.bytes:,} bytes, not a list"
            ) from None
        from noetl.server.orchestrator.request_resolver import decoded

        data = b"".join([chunk async for chunk in results.open(reference)])
        await asyncio.to_thread(tables.add_value, table, decoded(data, reference.meta.content_type))


class _Slots(Struct, eq=False):
    loop: Any = None
    semaphore: asyncio.Semaphore | None = field(default=None)


_SLOTS = _Slots()


def _slots() -> asyncio.Semaphore:
    """The semaphore of this event loop."""
    loop = asyncio.get_running_loop()
    if _SLOTS.semaphore is None or _SLOTS.loop is not loop:
        _SLOTS.loop, _SLOTS.semaphore = loop, asyncio.Semaphore(CONCURRENT)
    return _SLOTS.semaphore


def _condition(condition: Condition) -> str:
    column = quote_column(condition.column)
    if condition.op == "is_null":
        return f"{column} IS NULL"
    if condition.op == "not_null":
        return f"{column} IS NOT NULL"
    if condition.value is None or isinstance(condition.value, dict | list):
        raise RequestRefused(f"the filter of {condition.column!r} needs a text, a number or true/false")
    text = str(condition.value).lower() if isinstance(condition.value, bool) else str(condition.value)
    if condition.op == "contains":
        return f"contains(lower(CAST({column} AS VARCHAR)), lower({literal(text)}))"
    return f"{column} {_COMPARISONS[condition.op]} {literal(text)}"


def _quoted(name: str) -> str:
    """The name of a table in SQL."""
    schema, _, table = name.partition(".")
    return f"{schema}.{table if table.isidentifier() and table.isascii() else quote_column(table)}"


def _listed(known: Mapping[str, Outcome]) -> str:
    names = ", ".join(map(_quoted, list(known)[:20]))
    return f"the results are: {names}" if names else "the execution has no results yet"
