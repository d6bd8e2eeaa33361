"""Run SQL on Postgres: bound parameters, one transaction, COPY, results of any size.

Templates in the SQL are rendered before the text comes here and are just text to the database.
Data belongs into `params`, which the database binds: no quoting, no injection.
"""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.fields import COMMAND, EXACTLY_ONCE, PARAMS, PG_NULLS, SCRIPT, SPEC_KEYS

SPEC = ToolSpec(
    kind="postgres",
    doc="Runs SQL on Postgres. All statements of one task are one transaction. `output.data` has `rows` "
    "(mappings), `row_count` and `columns` of the last statement and `command_0`, `command_1`, ... of each; a result "
    "too large to hold is streamed to `output.ref`. Put data into `params`: the database binds it.",
    fields={
        "command": COMMAND,
        "script": SCRIPT,
        "params": PARAMS,
        "auth": Field(
            "any",
            "The connection: a keychain or credential name, a DSN, or a map (`{credential: name}`, or its fields).",
            aliases=("credential",),
        ),
        "dsn": Field("string", "The connection as a DSN or URL.", aliases=("url", "connection_string")),
        "host": Field("string", "Server, when `auth` does not say.", aliases=("db_host",)),
        "port": Field("any", "Port (5432).", aliases=("db_port",)),
        "user": Field("string", "Role to connect as.", aliases=("db_user", "username")),
        "password": Field("string", "Its password.", aliases=("db_password",)),
        "database": Field("string", "Database to connect to.", aliases=("db_name", "dbname")),
        "sslmode": Field("string", "As libpq's: `disable`, `require`, `verify-full`, ...", aliases=("db_sslmode",)),
        "stdin": Field("any", "What `COPY ... FROM STDIN` reads: text, a list of rows, `{file}` or `{ref}`."),
        "stdout": Field(
            "mapping", "Where `COPY ... TO STDOUT` goes: `{file}`; else `output.data.text` or `output.ref`."
        ),
    },
    spec_keys={
        "timeout": "`connect` and `total` seconds; a statement that runs longer is cancelled on the server.",
        "isolation": "`read committed`, `repeatable read` or `serializable`, for the task's transaction.",
        "exactly_once": f"`true`: the task's idempotency key is recorded in the table `{EXACTLY_ONCE}` in the same "
        "transaction; a repeated attempt changes nothing and returns the first answer.",
        "pool_size": "Connections this worker may hold to the server (10).",
        **SPEC_KEYS,
    },
    helpers={"pg": PG_NULLS},
    extra="postgres",
    example="- name: overdue\n  kind: postgres\n  auth: billing_db\n  command: |\n"
    "    SELECT id, amount FROM invoices WHERE due < %(day)s\n"
    '  params:\n    day: "{{ workload.day }}"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Run the statements and give their results."""
    try:
        from noetl.tools.postgres.task import perform
    except ModuleNotFoundError:
        return error("unknown", "kind postgres needs the driver psycopg: pip install 'noetl[postgres]'")
    return await perform(replace(call, input=named_input(SPEC, call.input)))
