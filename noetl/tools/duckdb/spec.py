"""Kind `duckdb`: run SQL on a DuckDB file or a private in-memory database."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, Members, ToolCall, ToolSpec, named_input
from noetl.tools._common.sql_fields import ALTERNATIVES, FILE_FIELDS, REQUIRES, SPEC_FIELDS, SPEC_KEYS

NULLS: dict[str, Any] = {"exception_type": None}

SPEC = ToolSpec(
    kind="duckdb",
    doc="Runs SQL on DuckDB, in a file or in memory (private to the task). Statements can read and write Parquet, CSV "
    "and JSON files; `tables` registers rows, stored results and objects of an object store as tables. All statements "
    "of one task run in one transaction. The output has the same structure as that of `postgres`.",
    fields={
        **FILE_FIELDS,
        "read_only": Field(
            "boolean", "`true`: open the file read-only, which several processes can do at once.", default=False
        ),
        "attach": Field(
            "any",
            "Other databases: a mapping name -> file, or name -> `{file, type, read_only}`.",
            files="names",
            accepts=("mapping", "list"),
            each=Field(
                "any",
                "A file, or `{file, type, read_only}`.",
                accepts=("string", "mapping"),
                members=Members(
                    {
                        "file": Field("string", "The file.", required=True, aliases=("path", "database")),
                        "type": Field("string", "The type of the database."),
                        "read_only": Field("boolean", "`true`: open it read-only."),
                        "name": Field("string", "Its name, in a list.", aliases=("alias",)),
                    }
                ),
            ),
        ),
        "tables": Field(
            "mapping",
            "Data to register as tables: a mapping name -> list of rows, reference, or address (`s3://...`, a file).",
            files="names",
        ),
        "auth": Field(
            "any",
            "The credential for addresses in `tables`, and for `s3://` in SQL.",
            aliases=("credential",),
            accepts=("string", "mapping"),
        ),
    },
    spec_keys={
        "timeout": "`connect`: seconds to wait for a file locked by another process; "
        "`total`: seconds after which the query is interrupted.",
        **SPEC_KEYS,
    },
    spec_fields=SPEC_FIELDS,
    helpers={"duckdb": NULLS},
    requires=REQUIRES,
    alternatives=ALTERNATIVES,
    example="- name: totals\n  kind: duckdb\n  file: shop.duckdb\n"
    '  tables:\n    orders: "{{ fetch.orders }}"\n'
    "  command: |\n    CREATE OR REPLACE TABLE totals AS SELECT city, sum(amount) AS sum FROM orders GROUP BY city;\n"
    "    SELECT * FROM totals ORDER BY city\n",
)


async def run(call: ToolCall) -> Outcome:
    """Execute the statements and return their results."""
    from noetl.tools.duckdb import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
