"""Run SQL on DuckDB: a file or a private database in memory, files and data as tables.

`tables` hands rows, stored results and objects over as tables, through Arrow; results too large to
hold are streamed out the same way.
"""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.fields import COMMAND, DUCKDB_NULLS, PARAMS, SCRIPT, SPEC_KEYS

SPEC = ToolSpec(
    kind="duckdb",
    doc="Runs SQL on DuckDB, in a file or in memory (then private to the task). Statements read and write Parquet, CSV "
    "and JSON files; `tables` makes rows, stored results and objects of an object store into tables. All statements of "
    "one task are one transaction. The output has the shape of `postgres`.",
    fields={
        "command": COMMAND,
        "script": SCRIPT,
        "params": PARAMS,
        "file": Field(
            "string",
            "The database file, relative to the playbook's folder; left out (or `:memory:`): a private one in memory.",
            aliases=("database", "db_path", "db_file"),
        ),
        "read_only": Field("boolean", "`true`: open the file for reading; several processes then can.", default=False),
        "attach": Field("any", "Other databases: a map name -> file, or name -> `{file, type, read_only}`."),
        "tables": Field(
            "mapping",
            "Data as tables: a map name -> list of rows, reference, or address (`s3://...`, a file).",
        ),
        "auth": Field(
            "any", "The credential for addresses in `tables`, and for `s3://` in SQL.", aliases=("credential",)
        ),
    },
    spec_keys={
        "timeout": "`connect`: seconds to wait for a file another process holds; `total`: the query is interrupted.",
        **SPEC_KEYS,
    },
    helpers={"duckdb": DUCKDB_NULLS},
    example="- name: totals\n  kind: duckdb\n  file: shop.duckdb\n"
    '  tables:\n    orders: "{{ fetch.orders }}"\n'
    "  command: |\n    CREATE OR REPLACE TABLE totals AS SELECT city, sum(amount) AS sum FROM orders GROUP BY city;\n"
    "    SELECT * FROM totals ORDER BY city\n",
)


async def run(call: ToolCall) -> Outcome:
    """Run the statements and give their results."""
    from noetl.tools.duckdb.task import perform

    return await perform(replace(call, input=named_input(SPEC, call.input)))
