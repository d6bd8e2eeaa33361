"""Kind `postgres`: run SQL on PostgreSQL.

Templates in the SQL are rendered before the statement is sent. Values belong in `params`, which the database binds.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.sql_fields import (
    ALTERNATIVES,
    COMMAND,
    PARAMS,
    POSTGRES_CONNECTION,
    REQUIRES,
    SCRIPT,
    SPEC_FIELDS,
    SPEC_KEYS,
)

EXACTLY_ONCE_TABLE = "noetl_exactly_once"
ISOLATION_LEVELS = ("read committed", "repeatable read", "serializable")
NULLS: dict[str, Any] = {
    "code": None,
    "sqlstate": None,
    "severity": None,
    "message": None,
    "detail": None,
    "hint": None,
    "schema": None,
    "table": None,
    "column": None,
    "constraint": None,
    "position": None,
    "notices": [],
    "repeated": False,
}

SPEC = ToolSpec(
    kind="postgres",
    doc="Runs SQL on PostgreSQL. All statements of one task run in one transaction. `output.data` has `rows` "
    "(mappings), `row_count` and `columns` of the last statement, and `command_0`, `command_1`, ... with the same for "
    "each statement. A large result is streamed to `output.ref`. Pass values in `params`: the database binds them.",
    fields={
        "command": COMMAND,
        "script": SCRIPT,
        "pool": Field("mapping", "Limits of the connection pool in the original NoETL: accepted and ignored."),
        "params": PARAMS,
        "auth": Field(
            "any",
            "The connection: a keychain or credential name, a DSN, or a mapping (`{credential: name}`, or its fields).",
            aliases=("credential",),
            accepts=("string", "mapping"),
        ),
        **POSTGRES_CONNECTION,
        "stdin": Field(
            "any", "Input of `COPY ... FROM STDIN`: a string, a list of rows, `{file}` or `{ref}`.", files=True
        ),
        "stdout": Field(
            "mapping",
            "Destination of `COPY ... TO STDOUT`: `{file}`. Default: `output.data.text`, or `output.ref` if large.",
            files=True,
        ),
    },
    spec_keys={
        "timeout": "`connect` and `total` seconds; a statement that runs longer is cancelled on the server.",
        "isolation": "Isolation level of the transaction: `read committed`, `repeatable read` or `serializable`.",
        "exactly_once": f"`true`: record the task's idempotency key in the table `{EXACTLY_ONCE_TABLE}` in the same "
        "transaction. A repeated attempt changes nothing and returns the first result.",
        "pool_size": "Maximum number of connections of this worker to the server (10).",
        **SPEC_KEYS,
    },
    spec_fields={
        **SPEC_FIELDS,
        "isolation": Field(
            "string", choices=ISOLATION_LEVELS, also=tuple(level.replace(" ", "_") for level in ISOLATION_LEVELS)
        ),
        "exactly_once": Field("boolean", "`true`: a repeated attempt changes nothing."),
        "pool_size": Field("integer", "Maximum number of connections.", least=1),
    },
    helpers={"pg": NULLS},
    requires=REQUIRES,
    alternatives=ALTERNATIVES,
    example="- name: overdue\n  kind: postgres\n  auth: billing_db\n  command: |\n"
    "    SELECT id, amount FROM invoices WHERE due < %(day)s\n"
    '  params:\n    day: "{{ workload.day }}"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Execute the statements and return their results."""
    from noetl.tools.postgres import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
