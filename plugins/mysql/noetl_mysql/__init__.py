"""Kind `mysql`, and MySQL and MariaDB as source and target of transfers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from noetl.tool import (
    ErrorInfo,
    Field,
    Outcome,
    RowTarget,
    SourceCall,
    SourceSpec,
    TargetCall,
    TargetSpec,
    ToolCall,
    ToolSpec,
)

CONNECTION = {
    "auth": Field("any", "The connection: a credential's name, a URL `mysql://...`, or a mapping of its fields.",
                  aliases=("credential",)),
    "host": Field("string", "Host name, if `auth` does not contain it."),
    "port": Field("any", "Port (3306)."),
    "user": Field("string", "User.", aliases=("username",)),
    "password": Field("string", "Password."),
    "database": Field("string", "Database.", aliases=("db",)),
}  # fmt: skip
STATEMENT = Field(
    "any",
    "The SQL: one string (statements are separated by `;`), or a list of strings and of `{sql, params}`.",
    aliases=("commands", "query", "queries", "sql", "statement", "statements"),
)

SPEC = ToolSpec(
    kind="mysql",
    doc="Runs SQL on MySQL or MariaDB. All statements of one task run in one transaction. `output.data` has `rows`, "
    "`row_count` and `columns` of the last statement, and `command_0`, `command_1`, ... with the same for each "
    "statement. A large result is streamed to `output.ref`. Pass values in `params`: they are quoted by the driver.",
    fields={
        "command": STATEMENT,
        "script": Field("mapping", "SQL from a file: `{uri, source?}`."),
        "params": Field("any", "Parameters: a mapping for `%(name)s` or `:name`, a list for `%s` or `?`. A list of "
                        "mappings (or of lists) executes one statement once per item.", aliases=("parameters",)),
        **CONNECTION,
    },
    requires=(("command", "script"),),
    spec_keys={
        "timeout": "`connect` and `total` seconds; a statement that runs longer is killed on the server.",
        "transaction": "`false`: every statement commits separately.",
        "inline_rows": "Largest result returned in `output.data`, in rows.",
        "inline_bytes": "The same limit in bytes.",
        "result_format": "Format of a streamed result: `parquet` (default), `arrow`, `jsonl` or `csv`.",
    },
    aliases=("mariadb",),
    example="kind: mysql\nauth: shop\ncommand: SELECT id, total FROM orders WHERE day = %(day)s\n"
    'params: {day: "{{ workload.day }}"}\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Run the statements."""
    from noetl_mysql import session

    return await session.run(call)


def _read(call: SourceCall) -> AsyncIterator[Any]:
    from noetl_mysql import source

    return source.read(call)


async def _count(call: SourceCall) -> int | None:
    from noetl_mysql import source

    return await source.count(call)


def _open(call: TargetCall) -> RowTarget:
    from noetl_mysql.target import MysqlTarget

    return MysqlTarget(call)


def _explain(failure: Exception) -> ErrorInfo | None:
    from noetl_mysql.connection import explain

    return explain(failure)


SOURCE = SourceSpec(
    kind="mysql",
    doc="A query or table of MySQL or MariaDB, read row by row with bounded memory.",
    read=_read,
    count=_count,
    explain=_explain,
    aliases=("mariadb",),
    fields={
        **CONNECTION,
        "query": Field("string", "The query.", aliases=("sql", "command", "statement")),
        "table": Field("string", "The table, instead of a query."),
        "params": Field("any", "Parameters of the query.", aliases=("parameters",)),
    },
    requires=(("query", "table"),),
    example="source: {kind: mysql, auth: shop, table: orders}",
)
TARGET = TargetSpec(
    kind="mysql",
    doc="A table of MySQL or MariaDB, written in one transaction.",
    open=_open,
    explain=_explain,
    aliases=("mariadb",),
    fields={**CONNECTION, "table": Field("string", "The table; `database.table` is possible.")},
    example="targets:\n  - {kind: mysql, auth: shop, table: orders, mode: upsert, key: id}",
)
