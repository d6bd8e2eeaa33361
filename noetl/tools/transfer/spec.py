"""Move rows from one place to others, in chunks and in bounded memory."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input

SPEC = ToolSpec(
    kind="transfer",
    doc="Moves rows between Postgres, DuckDB, SQLite, HTTP APIs, object stores and files: chunk by chunk, in bounded "
    "memory, to several targets at once. `output.data` is a summary: `rows` (= `count`), `chunks`, `targets` (what "
    "became of each). Rows of a database target are there when the whole transfer has succeeded. A missing table is "
    "made from the source's columns.",
    fields={
        "source": Field(
            "any",
            "`{kind: postgres|duckdb|sqlite, query|table, params}`, `{kind: http, url, pages}`, "
            "`{kind: object|file|s3, path, format}`, or a reference; each with its own `auth`.",
            late=("page",),
        ),
        "data": Field("any", "Rows instead of a source: a list of mappings, or a reference."),
        "targets": Field(
            "any",
            "A list of `{kind, table|path|url, mode, key, mapping, format, on_error, create, auth}`. `mode`: `append` "
            "(= `insert`), `replace`, `upsert` (with `key`). `mapping`: target column -> source column, or a template "
            "over `row`. `data`: what this target gets instead of the source's rows, once (a row or rows; for `http` "
            "and objects any content). Templates may read `chunk`: `index size total first last data`.",
            required=True,
            aliases=("target", "sink", "sinks"),
            late=("chunk", "row"),
        ),
        "chunk": Field("any", "`{size, path}`: rows of a chunk (1000 to 40960 by default, as suits the kinds), and "
                       "where in a JSON document the rows are."),
    },
    spec_keys={"timeout": "`connect` and `total` seconds."},
    example="- name: replicate\n  kind: transfer\n  source: {kind: postgres, auth: shop_db, table: orders}\n"
    "  targets:\n"
    "    - {kind: duckdb, file: shop.duckdb, table: orders, mode: replace}\n"
    '    - {kind: s3, auth: archive, path: "s3://archive/orders/{{ chunk.index }}.parquet", on_error: warn}\n'
    "  chunk: {size: 100000}\n",
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Move the rows."""
    from noetl.tools.transfer.task import perform

    return await perform(replace(call, input=named_input(SPEC, call.input)))
