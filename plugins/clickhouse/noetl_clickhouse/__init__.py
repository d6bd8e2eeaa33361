"""Kind `clickhouse`, and tables of ClickHouse as source and target of transfers."""

from __future__ import annotations

from noetl.tool import (
    SQL_OPTION_FIELDS,
    SQL_OPTIONS,
    SQL_SOURCE_FIELDS,
    Field,
    SourceSpec,
    TargetSpec,
    ToolSpec,
    auth_field,
    lazy,
)

AUTH = auth_field(
    "The server: a credential with `host`, `port` (8123), `user`, `password`, `database`, `tls`; a URL; or a mapping."
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
    spec_keys={name: doc for name, doc in SQL_OPTIONS.items() if name != "transaction"},
    spec_fields={name: field for name, field in SQL_OPTION_FIELDS.items() if name != "transaction"},
    example="kind: clickhouse\nauth: events\ncommand: SELECT count() AS n FROM hits WHERE day = {day:Date}\n"
    'params: {day: "{{ workload.day }}"}\n',
)


run = lazy("noetl_clickhouse.task:run")
explain = lazy("noetl_clickhouse.connection:explain")

SOURCE = SourceSpec(
    kind="clickhouse",
    doc="A query or table of ClickHouse, as Arrow.",
    read=lazy("noetl_clickhouse.tables:read"),
    explain=explain,
    fields={
        "auth": AUTH,
        **SQL_SOURCE_FIELDS,
        "params": PARAMS,
        "settings": Field("mapping", "Settings of ClickHouse for the query."),
    },
    requires=(("query", "table"),),
)
TARGET = TargetSpec(
    kind="clickhouse",
    doc="A table of ClickHouse. Rows are loaded into a staging table, which is moved at the end.",
    open=lazy("noetl_clickhouse.tables:TableTarget"),
    explain=explain,
    fields={
        "auth": AUTH,
        "table": Field("string", "The table."),
        "engine": Field("string", "The engine of a table that is created (`MergeTree ORDER BY tuple()`)."),
    },
    modes=("append", "replace", "upsert"),
)
