"""Kind `sqlite`: run SQL on a SQLite file."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.sql_fields import ALTERNATIVES, FILE_FIELDS, REQUIRES, SPEC_FIELDS, SPEC_KEYS

BUSY_TIMEOUT = 5.0
NULLS: dict[str, Any] = {"code": None}

SPEC = ToolSpec(
    kind="sqlite",
    doc="Runs SQL on a SQLite file, or in memory (private to the task). All statements of one task run in one "
    "transaction. The output has the same structure as that of `postgres`; values have SQLite's storage classes, "
    "BLOBs are base64 strings.",
    fields={
        **FILE_FIELDS,
        "attach": Field("mapping", "Other database files: a mapping name -> file.", files="names"),
    },
    spec_keys={
        "timeout": f"`connect`: seconds to wait for a lock ({BUSY_TIMEOUT:g}); "
        "`total`: seconds after which the statement is interrupted.",
        **SPEC_KEYS,
        "result_format": "Format of a streamed result: `jsonl` (default; columns have no fixed type) or `csv`.",
    },
    spec_fields={**SPEC_FIELDS, "result_format": Field("string", choices=("jsonl", "csv"), also=("ndjson",))},
    helpers={"sqlite": NULLS},
    requires=REQUIRES,
    alternatives=ALTERNATIVES,
    example="- name: open_orders\n  kind: sqlite\n  file: shop.db\n"
    "  command: SELECT id FROM orders WHERE status = :status\n"
    "  params: {status: open}\n",
)


async def run(call: ToolCall) -> Outcome:
    """Execute the statements and return their results."""
    from noetl.tools.sqlite import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
