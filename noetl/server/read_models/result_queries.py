"""Queries over stored results: SQL, or a table with filters, order and a page, as rows, a profile or a file.

The tables of an execution are `step.<step>` (the output of a step) and `task."<step>.<task>"` (of a task of a step with
several tasks); only the results that a query names are read. One stored result is the table `result`; its database is
kept for a few minutes, so that the pages of one table read it once.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from noetl.core.model.events import TaskDone
from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference
from noetl.data.files.duckdb_files import literal
from noetl.data.files.formats import format_of
from noetl.data.query_process import QueryFailed
from noetl.data.result_tables import Export, ResultTables, named_tables
from noetl.data.row_stream import NotRows, rows_of
from noetl.data.sql import quote_column
from noetl.errors import NotFound, RequestRefused
from noetl.runtime.threads import in_thread
from noetl.server.read_models.log_pages import log_events
from noetl.storage.ports.results import ResultStore

if TYPE_CHECKING:
    from noetl.server.orchestrator.service import Orchestrator

MAX_ROWS = 10_000  # of one answer; exports have all rows
MAX_DOCUMENT = 32 * 1024 * 1024  # bytes of a stored document that is one row
MAX_TEXT_BYTES = 16 * 2**20  # of JSON and CSV, as the table `result`
MAX_COLUMNAR_BYTES = 128 * 2**20  # of Parquet and Arrow, as the table `result`
MAX_EVENTS = 100_000  # of the log in which results of tasks are looked up
CONCURRENT = 4  # queries of one process
MAX_KEPT = 4
KEEP_SECONDS = 180.0
LISTED = 20  # results in the message about one that is unknown
STORED = "main.result"  # the name of a single stored result

Operator = Literal["eq", "ne", "lt", "le", "gt", "ge", "contains", "is_null", "not_null"]
_UNKNOWN_TABLE = re.compile(r"Table with name \"?(.+?)\"? does not exist")
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
    """A query: the rows of `sql` or `table`, with filters, order and a page."""

    sql: str | None = None
    table: str | None = None
    where: tuple[Condition, ...] = ()
    sort: tuple[Order, ...] = ()
    filter: str = ""  # text in any column, without regard to case
    limit: int = 100
    offset: int = 0
    count: bool = False  # also the number of all rows

    def statement(self, tables: Mapping[str, Outcome]) -> str:
        """The SELECT without its page."""
        if (self.sql is None) == (self.table is None):
            raise RequestRefused("a query has either `sql` or `table`")
        text = self.sql.strip().rstrip(";") if self.sql is not None else f"SELECT * FROM {self._table(tables)}"
        conditions = [*map(_condition, self.where)]
        if self.filter:
            conditions.append(f"contains(lower(concat_ws(chr(31), *COLUMNS(*))), lower({literal(self.filter)}))")
        if self.sql is not None and (conditions or self.sort):
            text = f"SELECT * FROM ({text}\n)"
        if conditions:
            text += f" WHERE {' AND '.join(conditions)}"
        if self.sort:
            ordered = (f"{quote_column(each.column)}{' DESC' if each.descending else ''}" for each in self.sort)
            text += f" ORDER BY {', '.join(f'{each} NULLS LAST' for each in ordered)}"
        return text

    def _table(self, tables: Mapping[str, Outcome]) -> str:
        name = str(self.table) if self.table in tables else f"step.{self.table}"
        if name not in tables:
            raise NotFound(f"there is no result {self.table!r}; {_listed(tables)}")
        return _quoted(name)


class Results(Struct, frozen=True):
    """What a query can read: results by the name of their table."""

    tables: Mapping[str, Outcome]
    kept: str | None = None  # the key under which the database of a single stored result is kept


def stored_result(reference: Reference, key: str) -> Results:
    """One stored result as the table `result`; RequestRefused if it is no table, or too large for one."""
    format = format_of(content_type=_media_type(reference))
    if format not in ("json", "jsonl", "csv", "parquet", "arrow"):
        raise RequestRefused(f"a result of format {format} is not a table; download it instead")
    most = MAX_COLUMNAR_BYTES if format in ("parquet", "arrow") else MAX_TEXT_BYTES
    if reference.meta.bytes > most:
        raise RequestRefused(
            f"the result has {reference.meta.bytes} bytes, and tables of {format} are sorted and queried up to {most}; "
            "use `noetl query`, or download it"
        )
    return Results({STORED: Outcome("ok", ref=reference)}, key)


async def execution_results(orchestrator: Orchestrator, execution_id: str) -> Results:
    """The results of an execution; NotFound when there is no such execution."""
    state = await orchestrator.state(execution_id)
    found = {f"step.{step}": each.outcome for step, each in state.steps.items() if each.outcome is not None}
    several = {name for name, step in state.net.steps.items() if len(step.tasks) > 1}
    until = min(state.seq, MAX_EVENTS) if several else 0
    async for recorded in log_events(orchestrator.store, execution_id, until=until):
        body = recorded.body
        if isinstance(body, TaskDone) and body.step in several and not body.path and not body.skipped:
            found[f"task.{body.step}.{body.task}"] = body.outcome
    return Results(found)


def listed_tables(results: Results) -> list[dict[str, Any]]:
    """The tables of an execution, with the number of rows and bytes where they are known."""
    return [
        {
            "table": name,
            "sql": _quoted(name),
            "rows": outcome.ref.meta.rows if outcome.ref is not None else None,
            "bytes": outcome.ref.meta.bytes if outcome.ref is not None else None,
        }
        for name, outcome in results.tables.items()
    ]


class _Kept(Struct, eq=False):
    """The database of a stored result; used by one query at a time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tables: ResultTables | None = None
    used: float = 0.0


class ResultQueries:
    """Queries over the results of one result store; bounded in number."""

    def __init__(self, results: ResultStore) -> None:
        self._results = results
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def rows(self, results: Results, query: ResultQuery) -> dict[str, Any]:
        """The rows of a query as a document: `columns`, `rows`, `truncated`, and `total` if it is asked for."""
        text, limit = query.statement(results.tables), min(query.limit, MAX_ROWS)
        async with self._opened(results, text) as tables:
            # The position of the page is outside of the text, which may have its own LIMIT.
            page = f"SELECT * FROM ({text}\n) LIMIT {limit + 1} OFFSET {query.offset}" if query.offset else text
            found = await asyncio.to_thread(tables.rows, page, limit)
            document: dict[str, Any] = {"columns": found.columns, "rows": found.rows, "truncated": found.truncated}
            if query.count:
                counted = await asyncio.to_thread(tables.rows, f"SELECT count(*) AS n FROM ({text}\n)", 1)
                document["total"] = counted.rows[0]["n"]
        return document

    async def profile(self, results: Results, query: ResultQuery) -> list[dict[str, Any]]:
        """The profile of each column of a query."""
        text = query.statement(results.tables)
        async with self._opened(results, text) as tables:
            return await asyncio.to_thread(tables.profile, text)

    async def export(self, results: Results, query: ResultQuery, format: Export) -> Path:
        """All rows of a query in a temporary file, which the caller removes."""
        text = query.statement(results.tables)
        async with self._opened(results, text) as tables:
            return await asyncio.to_thread(tables.export, text, format)

    async def close(self) -> None:
        """Remove the kept databases."""
        while self._kept:
            await _close(self._kept.popitem()[1])

    @asynccontextmanager
    async def _opened(self, results: Results, text: str) -> AsyncIterator[ResultTables]:
        """A database with the results that a statement names."""
        try:
            async with self._slots:
                if results.kept is None:
                    tables = await self._load(results.tables, named_tables(text, list(results.tables)))
                    try:
                        yield tables
                    finally:
                        await in_thread(tables.close)
                    return
                kept, dropped = self._keep(results.kept)
                async with kept.lock:
                    for each in dropped:
                        await _close(each)
                    if kept.tables is None:
                        kept.tables = await self._load(results.tables, list(results.tables), only_objects=True)
                    yield kept.tables
        except QueryFailed as problem:
            unknown = _UNKNOWN_TABLE.search(str(problem))
            if unknown is not None:
                raise QueryFailed(f"the query: there is no result {unknown[1]}; {_listed(results.tables)}") from None
            raise

    def _keep(self, key: str) -> tuple[_Kept, list[_Kept]]:
        """The kept database of a key, and those that are kept no longer."""
        now = time.monotonic()
        kept = self._kept.setdefault(key, _Kept())
        kept.used = now
        self._kept.move_to_end(key)
        surplus, dropped = len(self._kept) - MAX_KEPT, []
        for number, (name, each) in enumerate(list(self._kept.items())):
            if not each.lock.locked() and (number < surplus or now - each.used > KEEP_SECONDS):
                dropped.append(self._kept.pop(name))
        return kept, dropped

    async def _load(
        self, known: Mapping[str, Outcome], names: list[str], *, only_objects: bool = False
    ) -> ResultTables:
        tables = await asyncio.to_thread(lambda: ResultTables(only_objects=only_objects))
        try:
            for name in names:
                schema, _, table = name.partition(".")
                await _add(tables, (schema, table), known[name], self._results)
            await asyncio.to_thread(tables.lock)
        except BaseException:
            await in_thread(tables.close)
            raise
        return tables


async def _close(kept: _Kept) -> None:
    if kept.tables is not None:
        await in_thread(kept.tables.close)


async def _add(tables: ResultTables, table: tuple[str, str], outcome: Outcome, results: ResultStore) -> None:
    reference = outcome.ref
    if reference is None or outcome.data is not None:
        await asyncio.to_thread(tables.add_value, table, outcome.data)
        return
    format = format_of(content_type=_media_type(reference), default="text")
    if format not in ("json", "jsonl"):
        await tables.add_payload(table, format, results.open(reference))
        return
    try:
        await tables.add_rows(table, rows_of(reference, results.open), reference.meta.columns or ())
    except NotRows:
        if reference.meta.bytes > MAX_DOCUMENT:
            raise QueryFailed(
                f"{'.'.join(table)} is one document of {reference.meta.bytes:,} bytes, not a list"
            ) from None
        from noetl.server.orchestrator.request_resolver import decoded

        data = b"".join([chunk async for chunk in results.open(reference)])
        await asyncio.to_thread(tables.add_value, table, decoded(data, reference.meta.content_type))


def _media_type(reference: Reference) -> str:
    return reference.meta.content_type.partition(";")[0].strip()


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
    return (
        "result"
        if name == STORED
        else f"{schema}.{table if table.isidentifier() and table.isascii() else quote_column(table)}"
    )


def _listed(tables: Mapping[str, Outcome]) -> str:
    names = ", ".join(map(_quoted, list(tables)[:LISTED]))
    more = f" and {len(tables) - LISTED} more" if len(tables) > LISTED else ""
    return f"the results are: {names}{more}" if names else "the execution has no results yet"
