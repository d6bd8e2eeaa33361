"""Kinds, sources and targets for databases with an ADBC driver: `snowflake`, `bigquery`, and `adbc` for any driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from noetl.tool import (
    SQL_FIELDS,
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

_AUTH = {
    "snowflake": "A credential with `account`, `user`, `password`, `private_key` or `token` (OAuth; `auth_type: pat` "
    "for a programmatic access token), `warehouse`, `database`, `schema`, `role`; or a mapping.",
    "bigquery": "A credential with `project`, `dataset`, and `credentials` (the JSON of a service account; default: "
    "the credentials of the machine); or a mapping.",
    "adbc": "A credential with `uri`, `username`, `password` and other options of the driver; or a mapping.",
}
_NAMES = {"snowflake": "Snowflake", "bigquery": "BigQuery", "adbc": "a database with an ADBC driver"}


class Kind(NamedTuple):
    """A kind of the group `noetl.tools`."""

    SPEC: ToolSpec
    run: Callable[..., Any] = lazy("noetl_adbc.session:run")


def _connection(kind: str) -> dict[str, Field]:
    fields = {"auth": auth_field(_AUTH[kind], required=False)}
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
            fields={**SQL_FIELDS, **_connection(kind)},
            requires=(("command", "script"),),
            spec_keys=SQL_OPTIONS,
            spec_fields=SQL_OPTION_FIELDS,
            example=f"kind: {kind}\nauth: warehouse\n" + ("driver: sqlite\n" if kind == "adbc" else "")
            + "command: SELECT id, total FROM orders WHERE day = :day\nparams: {day: \"{{ workload.day }}\"}\n",
        )
    )  # fmt: skip


explain = lazy("noetl_adbc.connection:explain")


def _source(kind: str) -> SourceSpec:
    return SourceSpec(
        kind=kind,
        doc=f"A query or table of {_NAMES[kind]}, as Arrow batches.",
        read=lazy("noetl_adbc.tables:read"),
        explain=explain,
        fields={**_connection(kind), **SQL_SOURCE_FIELDS},
        requires=(("query", "table"),),
        quote="`" if kind == "bigquery" else '"',
    )


def _target(kind: str) -> TargetSpec:
    return TargetSpec(
        kind=kind,
        doc=f"A table of {_NAMES[kind]}: rows are loaded into a table of their own, which is merged at the end.",
        open=lazy("noetl_adbc.tables:TableTarget"),
        explain=explain,
        fields={**_connection(kind), "table": Field("string", "The table.")},
    )


ADBC, SNOWFLAKE, BIGQUERY = _kind("adbc"), _kind("snowflake"), _kind("bigquery")
ADBC_SOURCE, SNOWFLAKE_SOURCE, BIGQUERY_SOURCE = _source("adbc"), _source("snowflake"), _source("bigquery")
ADBC_TARGET, SNOWFLAKE_TARGET, BIGQUERY_TARGET = _target("adbc"), _target("snowflake"), _target("bigquery")
