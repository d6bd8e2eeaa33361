"""Kind `mysql`, and MySQL and MariaDB as source and target of transfers."""

from __future__ import annotations

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
    port_field,
)

CONNECTION = {
    "auth": auth_field(
        "The connection: a credential's name, a URL `mysql://...`, or a mapping of its fields.", required=False
    ),
    "host": Field("string", "Host name, if `auth` does not contain it."),
    "port": port_field(3306),
    "user": Field("string", "User.", aliases=("username",)),
    "password": Field("string", "Password."),
    "database": Field("string", "Database.", aliases=("db",)),
}  # fmt: skip

SPEC = ToolSpec(
    kind="mysql",
    doc="Runs SQL on MySQL or MariaDB. All statements of one task run in one transaction. `output.data` has `rows`, "
    "`row_count` and `columns` of the last statement, and `command_0`, `command_1`, ... with the same for each "
    "statement. A large result is streamed to `output.ref`. Pass values in `params`: they are quoted by the driver.",
    fields={**SQL_FIELDS, **CONNECTION},
    requires=(("command", "script"),),
    spec_keys=SQL_OPTIONS,
    spec_fields=SQL_OPTION_FIELDS,
    aliases=("mariadb",),
    example="kind: mysql\nauth: shop\ncommand: SELECT id, total FROM orders WHERE day = %(day)s\n"
    'params: {day: "{{ workload.day }}"}\n',
)  # fmt: skip


run = lazy("noetl_mysql.session:run")
explain = lazy("noetl_mysql.connection:explain")

SOURCE = SourceSpec(
    kind="mysql",
    doc="A query or table of MySQL or MariaDB, read in batches with bounded memory.",
    read=lazy("noetl_mysql.source:read"),
    count=lazy("noetl_mysql.source:count"),
    explain=explain,
    aliases=("mariadb",),
    fields={**CONNECTION, **SQL_SOURCE_FIELDS},
    requires=(("query", "table"),),
    quote="`",
    example="source: {kind: mysql, auth: shop, table: orders}",
)
TARGET = TargetSpec(
    kind="mysql",
    doc="A table of MySQL or MariaDB, written in one transaction. `schema` adds columns and widens types; such changes "
    "stay if the transfer fails afterwards, because MySQL cannot roll them back. `nested: tables` writes child tables "
    "in the same transaction.",
    open=lazy("noetl_mysql.target:MysqlTarget"),
    explain=explain,
    aliases=("mariadb",),
    fields={**CONNECTION, "table": Field("string", "The table; `database.table` is possible.")},
    evolves=True,
    nests=True,
    quote="`",
    example="targets:\n  - {kind: mysql, auth: shop, table: orders, mode: upsert, key: id}",
)
