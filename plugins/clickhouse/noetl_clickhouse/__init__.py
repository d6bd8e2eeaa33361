"""Kind `clickhouse`, and tables of ClickHouse as source and target of transfers."""

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

AUTH = Field(
    "any",
    "The server: a credential with `host`, `port` (8123), `user`, `password`, `database`, `tls`; a URL; or a mapping.",
    required=True,
    aliases=("credential",),
)
PARAMS = Field("mapping", "Values of `{name:Type}` in the statement.", aliases=("parameters",))

SPEC = ToolSpec(
    kind="clickhouse",
    doc="Runs statements on ClickHouse. `output.data` has `rows`, `row_count` and `columns`; a large result is "
    "streamed to `output.ref` as Arrow.",
    fields={
        "auth": AUTH,
        "command": Field("string", "The statement.", required=True, aliases=("query", "sql", "statement")),
        "params": PARAMS,
        "settings": Field("mapping", "Settings of ClickHouse for the statement."),
    },
    spec_keys={
        "timeout": "`connect` and `total` seconds.",
        "inline_bytes": "Largest result returned in `output.data`, in bytes of Arrow (16 MiB).",
    },
    example="kind: clickhouse\nauth: events\ncommand: SELECT count() AS n FROM hits WHERE day = {day:Date}\n"
    'params: {day: "{{ workload.day }}"}\n',
)


async def run(call: ToolCall) -> Outcome:
    """Run the statement."""
    from noetl_clickhouse import task

    return await task.run(call)


def _read(call: SourceCall) -> AsyncIterator[Any]:
    from noetl_clickhouse import tables

    return tables.read(call)


def _open(call: TargetCall) -> RowTarget:
    from noetl_clickhouse.tables import TableTarget

    return TableTarget(call)


def _explain(failure: Exception) -> ErrorInfo | None:
    from noetl_clickhouse.connection import explain

    return explain(failure)


SOURCE = SourceSpec(
    kind="clickhouse",
    doc="A query or table of ClickHouse, as Arrow.",
    read=_read,
    explain=_explain,
    fields={
        "auth": AUTH,
        "query": Field("string", "The query.", aliases=("sql", "command", "statement")),
        "table": Field("string", "The table, instead of a query."),
        "params": PARAMS,
        "settings": Field("mapping", "Settings of ClickHouse for the query."),
    },
    requires=(("query", "table"),),
)
TARGET = TargetSpec(
    kind="clickhouse",
    doc="A table of ClickHouse. Rows are loaded into a staging table, which is moved at the end.",
    open=_open,
    explain=_explain,
    fields={
        "auth": AUTH,
        "table": Field("string", "The table."),
        "engine": Field("string", "The engine of a table that is created (`MergeTree ORDER BY tuple()`)."),
    },
    modes=("append", "replace", "upsert"),
)
