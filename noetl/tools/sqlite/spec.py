"""Run SQL on a SQLite file: bound parameters, one transaction, results of any size."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.fields import COMMAND, PARAMS, SCRIPT, SPEC_KEYS, SQLITE_BUSY, SQLITE_NULLS

SPEC = ToolSpec(
    kind="sqlite",
    doc="Runs SQL on a SQLite file (or in memory, then private to the task). All statements of one task are one "
    "transaction. The output has the shape of `postgres`; values are as SQLite keeps them, bytes as base64 text.",
    fields={
        "command": COMMAND,
        "script": SCRIPT,
        "params": PARAMS,
        "file": Field(
            "string",
            "The database file, relative to the playbook's folder; left out (or `:memory:`): a private one in memory.",
            aliases=("database", "db_path", "db_file"),
        ),
        "attach": Field("mapping", "Other files: a map name -> file."),
    },
    spec_keys={
        "timeout": f"`connect`: seconds to wait for a lock ({SQLITE_BUSY:g}); `total`: the statement is interrupted.",
        **SPEC_KEYS,
        "result_format": "How a streamed result is stored: `jsonl` (default; columns have no fixed type) or `csv`.",
    },
    helpers={"sqlite": SQLITE_NULLS},
    example="- name: open_orders\n  kind: sqlite\n  file: shop.db\n"
    "  command: SELECT id FROM orders WHERE status = :status\n"
    "  params: {status: open}\n",
)


async def run(call: ToolCall) -> Outcome:
    """Run the statements and give their results."""
    from noetl.tools.sqlite.task import perform

    return await perform(replace(call, input=named_input(SPEC, call.input)))
