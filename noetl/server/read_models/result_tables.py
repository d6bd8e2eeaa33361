"""Stored results as tables: sorted, filtered and paged by the server; column profiles; SQL over one result.

A result is loaded into a private DuckDB database in memory and kept for a few minutes, so that pages of one table load
it once. Invariant: a query reads only that result. The database has no access to files, the network, extensions and
the variables of this process, and its configuration is locked before a query of a user runs.
"""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from msgspec import Struct

from noetl.core.model.reference import Reference
from noetl.data.sql import quote_column
from noetl.errors import RequestRefused

MAX_TEXT_BYTES = 16 * 2**20  # of JSON and CSV
MAX_COLUMNAR_BYTES = 128 * 2**20  # of Parquet and Arrow
MAX_TABLES = 4
KEEP_SECONDS = 180.0
QUERY_SECONDS = 15.0
MAX_ROWS = 1_000  # of one page
BARS = 20  # of the histogram of a column
TOP = 10  # most frequent values of a column

Order = Literal["asc", "desc"]
Rows = list[dict[str, Any]]


class View(Struct, frozen=True):
    """What is read of a table: all rows, those that contain a text, or the result of a query; sorted by a column."""

    filter: str = ""
    sort: str | None = None
    order: Order = "asc"
    sql: str = ""


class ResultTable:
    """One result in a database of its own; used by one request at a time."""

    def __init__(self, arrow: Any) -> None:
        import duckdb

        self.lock = asyncio.Lock()
        self.used = time.monotonic()
        self._connection = duckdb.connect(":memory:", config={"threads": "1", "memory_limit": "512MB"})
        self._connection.register("given", arrow)
        self._connection.execute("CREATE TABLE result AS SELECT * FROM given")
        self._connection.unregister("given")
        for setting in ("python_enable_replacements = false", "enable_external_access = false", "TimeZone = 'UTC'"):
            self._connection.execute(f"SET {setting}")
        self._connection.execute("SET lock_configuration = true")

    def page(self, view: View, limit: int, offset: int) -> dict[str, Any]:
        """Columns, one page of rows, and the number of all rows."""
        source, params = self._source(view)
        columns = self._columns(source, params)
        ordered = f"{source}{self._ordering(view, [name for name, _ in columns])}"
        ((total,),) = self._run(f"SELECT count(*) FROM ({source})", params)
        rows = self._rows(f"{ordered} LIMIT {limit:d} OFFSET {offset:d}", params)
        return {"columns": [{"name": name, "type": kind} for name, kind in columns], "rows": rows, "total": total}

    def profile(self, view: View) -> Rows:
        """For each column: type, missing and distinct values, range, mean, and how the values are distributed."""
        source, params = self._source(view)
        return [self._profile(source, params, name, kind) for name, kind in self._columns(source, params)]

    def export(self, view: View, format: str) -> bytes:
        """The rows as CSV or Parquet."""
        source, params = self._source(view)
        names = [name for name, _ in self._columns(source, params)]
        target = io.BytesIO()
        if format == "parquet":
            import pyarrow.parquet as pq

            pq.write_table(self._table(f"{source}{self._ordering(view, names)}", params), target)
        else:
            import pyarrow.csv as pc

            texts = ", ".join(f"CAST({each} AS VARCHAR) AS {each}" for each in map(quote_column, names))
            ordered = f"SELECT {texts} FROM ({source}{self._ordering(view, names)})"
            pc.write_csv(self._table(ordered, params), target)
        return target.getvalue()

    def close(self) -> None:
        """Release the memory."""
        self._connection.close()

    def _source(self, view: View) -> tuple[str, list[Any]]:
        if view.sql:
            return f"SELECT * FROM ({self._checked(view.sql)})", []
        if not view.filter:
            return "SELECT * FROM result", []
        names = [name for name, _ in self._columns("SELECT * FROM result", [])]
        joined = ", ".join(f"CAST({quote_column(name)} AS VARCHAR)" for name in names)
        return f"SELECT * FROM result WHERE contains(lower(concat_ws(chr(31), {joined})), lower($1))", [view.filter]

    def _checked(self, sql: str) -> str:
        """A single SELECT, without its semicolon."""
        import duckdb

        try:
            statements = self._connection.extract_statements(sql)
        except duckdb.Error as problem:
            raise RequestRefused(f"the query: {problem}") from None
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise RequestRefused("the query must be one SELECT over the table `result`")
        return str(statements[0].query).strip().rstrip(";")

    def _ordering(self, view: View, names: Sequence[str]) -> str:
        if view.sort is None:
            return ""
        if view.sort not in names:
            raise RequestRefused(f"there is no column {view.sort!r}")
        return f" ORDER BY {quote_column(view.sort)} {view.order.upper()} NULLS LAST"

    def _columns(self, source: str, params: list[Any]) -> list[tuple[str, str]]:
        return [(row[0], row[1]) for row in self._run(f"DESCRIBE {source}", params)]

    def _rows(self, sql: str, params: list[Any]) -> Rows:
        from noetl.data.arrow_tables import rows_of

        return [row for batch in self._table(sql, params).to_batches() for row in rows_of(batch)]

    def _table(self, sql: str, params: list[Any]) -> Any:
        with self._limited():
            relation = self._connection.sql(sql, params=params or None)
            # DuckDB 1 has another name for it.
            return relation.to_arrow_table() if hasattr(relation, "to_arrow_table") else relation.arrow()

    def _profile(self, source: str, params: list[Any], name: str, kind: str) -> dict[str, Any]:
        column = quote_column(name)
        number = kind.split("(")[0] in _NUMBERS
        mean = f"avg(CAST({column} AS DOUBLE))" if number else "NULL"
        (row,) = self._run(
            f"SELECT count(*) - count({column}), count(DISTINCT {column}), CAST(min({column}) AS VARCHAR), "
            f"CAST(max({column}) AS VARCHAR), {mean} FROM ({source})",
            params,
        )
        found: dict[str, Any] = dict(zip(("missing", "distinct", "least", "most", "mean"), row, strict=True))
        if number and found["least"] is not None and found["distinct"] > TOP:
            found["histogram"] = self._histogram(source, params, column)
        else:
            found["top"] = [
                {"value": value, "count": count}
                for value, count in self._run(
                    f"SELECT CAST({column} AS VARCHAR) AS value, count(*) FROM ({source}) WHERE {column} IS NOT NULL "
                    f"GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {TOP}",
                    params,
                )
            ]
        return {"name": name, "type": kind, **found}

    def _histogram(self, source: str, params: list[Any], column: str) -> dict[str, Any]:
        value = f"CAST({column} AS DOUBLE)"
        rows = self._run(
            f"WITH v AS (SELECT {value} AS x FROM ({source}) WHERE isfinite({value})), "
            "e AS (SELECT min(x) AS a, max(x) AS b FROM v) "
            f"SELECT least({BARS - 1}, CAST(floor((x - a) / greatest(b - a, 1e-300) * {BARS}) AS INTEGER)), count(*), "
            "min(a), min(b) FROM v, e GROUP BY 1 ORDER BY 1",
            params,
        )
        counts = [0] * BARS
        for bar, count, _, _ in rows:
            counts[bar] = count
        return {"from": rows[0][2], "to": rows[0][3], "counts": counts} if rows else {"counts": counts}

    def _run(self, sql: str, params: list[Any]) -> list[tuple[Any, ...]]:
        with self._limited():
            found = self._connection.execute(sql, params) if params else self._connection.execute(sql)
            rows: list[tuple[Any, ...]] = found.fetchall()
            return rows

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Stop a query that takes too long; RequestRefused with its error."""
        import duckdb

        timer = threading.Timer(QUERY_SECONDS, self._connection.interrupt)
        timer.start()
        try:
            yield
        except duckdb.InterruptException:
            raise RequestRefused(f"the query took longer than {QUERY_SECONDS:g} s and was stopped") from None
        except duckdb.Error as problem:
            raise RequestRefused(f"the query: {str(problem).splitlines()[0]}") from None
        finally:
            timer.cancel()


_NUMBERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT",
     "DOUBLE", "DECIMAL"}
)  # fmt: skip


class ResultTables:
    """The tables that were used last."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, ResultTable] = OrderedDict()
        self._loading = asyncio.Lock()

    async def use(self, key: str, load: Callable[[], Awaitable[Any]], work: Callable[[ResultTable], Any]) -> Any:
        """The result of `work` with the table of a key, in a thread; `load` gives its Arrow table."""
        async with self._loading:
            self._drop_old()
            table = self._tables.get(key)
            if table is None:
                arrow = await load()
                table = self._tables[key] = await asyncio.to_thread(ResultTable, arrow)
            self._tables.move_to_end(key)
            table.used = time.monotonic()
        async with table.lock:
            return await asyncio.to_thread(work, table)

    def _drop_old(self) -> None:
        for key, table in list(self._tables.items()):
            full = len(self._tables) > MAX_TABLES - 1 and next(iter(self._tables)) == key
            if not table.lock.locked() and (full or time.monotonic() - table.used > KEEP_SECONDS):
                del self._tables[key]
                table.close()


def check_size(reference: Reference, format: str) -> int:
    """The largest size of a table of this format; RequestRefused if a result is larger, or no table."""
    if format not in ("json", "jsonl", "csv", "parquet", "arrow"):
        raise RequestRefused(f"a result of format {format} is not a table; download it instead")
    most = MAX_COLUMNAR_BYTES if format in ("parquet", "arrow") else MAX_TEXT_BYTES
    if reference.meta.bytes > most:
        raise RequestRefused(
            f"the result has {reference.meta.bytes} bytes, and tables of {format} are sorted and queried up to {most}; "
            "download it, or query it with `kind: duckdb`"
        )
    return most


def arrow_table(data: bytes, format: str) -> Any:
    """The Arrow table of a payload; RequestRefused if it has no rows of mappings. Called in a thread."""
    import pyarrow as pa

    if format == "parquet":
        import pyarrow.parquet as pq

        return pq.read_table(io.BytesIO(data))
    if format == "arrow":
        from noetl.data.table_files import arrow_reader

        return pa.Table.from_batches(list(arrow_reader(io.BytesIO(data))))
    return _table_of(_rows_in(data, format))


def _rows_in(data: bytes, format: str) -> Any:
    from noetl.data.table_files import decode

    value = decode(data, format)
    if isinstance(value, dict):
        value = next(
            (value[key] for key in ("rows", "data", "items", "results") if isinstance(value.get(key), list)), value
        )
    return value


def _table_of(rows: Any) -> Any:
    import pyarrow as pa

    from noetl.data.arrow_tables import batch_of_mappings, inferred_schema

    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise RequestRefused("the result is not a list of rows; only tables are sorted and queried")
    schema = inferred_schema(rows)
    return pa.Table.from_batches([batch_of_mappings(rows, schema, plain=True)])
