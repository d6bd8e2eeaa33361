"""Kinds, sources and targets for databases with an ADBC driver: `snowflake`, `bigquery`, and `adbc` for any driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

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

_AUTH = {
    "snowflake": "A credential with `account`, `user`, `password` or `private_key`, `warehouse`, `database`, `schema`, "
    "`role`; or a mapping.",
    "bigquery": "A credential with `project`, `dataset`, and `credentials` (the JSON of a service account; default: "
    "the credentials of the machine); or a mapping.",
    "adbc": "A credential with `uri`, `username`, `password` and other options of the driver; or a mapping.",
}
_NAMES = {"snowflake": "Snowflake", "bigquery": "BigQuery", "adbc": "a database with an ADBC driver"}


class Kind(NamedTuple):
    """A kind of the group `noetl.tools`."""

    SPEC: ToolSpec

    async def run(self, call: ToolCall) -> Outcome:
        """Run the statements."""
        from noetl_adbc import session

        return await session.run(call)


def _connection(kind: str) -> dict[str, Field]:
    fields = {"auth": Field("any", _AUTH[kind], aliases=("credential",))}
    if kind == "adbc":
        text = "The driver: `sqlite`, `duckdb`, `flightsql`, ... (the package adbc_driver_...)."
        fields["driver"] = Field("string", text, required=True)
    fields["options"] = Field("mapping", "Further options of the driver, by their ADBC names.")
    return fields


def _kind(kind: str) -> Kind:
    return Kind(
        ToolSpec(
            kind=kind,
            doc=f"Runs SQL on {_NAMES[kind]}. `output.data` has `rows`, `row_count` and `columns` of the last "
            "statement, and `command_0`, ... with the same for each statement. A large result is in `output.ref`.",
            fields={
                "command": Field("any", "The SQL: one string (statements are separated by `;`), or a list of strings "
                                 "and of `{sql, params}`.",
                                 aliases=("commands", "query", "queries", "sql", "statement", "statements")),
                "script": Field("mapping", "SQL from a file: `{uri, source?}`."),
                "params": Field("any", "Parameters: a mapping for `%(name)s` or `:name`, a list for `?`, `%s` or `$1`.",
                                aliases=("parameters",)),
                **_connection(kind),
            },
            requires=(("command", "script"),),
            spec_keys={
                "timeout": "`total` seconds; the statement is cancelled.",
                "transaction": "`false`: every statement commits separately.",
                "inline_rows": "Largest result returned in `output.data`, in rows.",
                "inline_bytes": "The same limit in bytes.",
                "result_format": "Format of a streamed result: `parquet` (default), `arrow`, `jsonl` or `csv`.",
            },
            example=f"kind: {kind}\nauth: warehouse\n" + ("driver: sqlite\n" if kind == "adbc" else "")
            + "command: SELECT id, total FROM orders WHERE day = :day\nparams: {day: \"{{ workload.day }}\"}\n",
        )
    )  # fmt: skip


def _read(call: SourceCall) -> AsyncIterator[Any]:
    from noetl_adbc import tables

    return tables.read(call)


def _open(call: TargetCall) -> RowTarget:
    from noetl_adbc.tables import TableTarget

    return TableTarget(call)


def _explain(failure: Exception) -> ErrorInfo | None:
    from noetl_adbc.connection import explain

    return explain(failure)


def _source(kind: str) -> SourceSpec:
    return SourceSpec(
        kind=kind,
        doc=f"A query or table of {_NAMES[kind]}, as Arrow batches.",
        read=_read,
        explain=_explain,
        fields={
            **_connection(kind),
            "query": Field("string", "The query.", aliases=("sql", "command", "statement")),
            "table": Field("string", "The table, instead of a query."),
            "params": Field("any", "Parameters of the query.", aliases=("parameters",)),
        },
        requires=(("query", "table"),),
        quote="`" if kind == "bigquery" else '"',
    )


def _target(kind: str) -> TargetSpec:
    return TargetSpec(
        kind=kind,
        doc=f"A table of {_NAMES[kind]}: rows are loaded into a table of their own, which is merged at the end.",
        open=_open,
        explain=_explain,
        fields={**_connection(kind), "table": Field("string", "The table.")},
    )


ADBC, SNOWFLAKE, BIGQUERY = _kind("adbc"), _kind("snowflake"), _kind("bigquery")
ADBC_SOURCE, SNOWFLAKE_SOURCE, BIGQUERY_SOURCE = _source("adbc"), _source("snowflake"), _source("bigquery")
ADBC_TARGET, SNOWFLAKE_TARGET, BIGQUERY_TARGET = _target("adbc"), _target("snowflake"), _target("bigquery")
