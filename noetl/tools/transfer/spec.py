"""Kind `transfer`: copy rows from one source to one or more targets, in chunks and with bounded memory."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, count, named_input
from noetl.tools import connectors
from noetl.tools.transfer import side_fields
from noetl.tools.transfer.side_fields import (
    BAD_ROWS_FIELDS,
    CHUNK,
    IMPLIED_KINDS,
    IN_SOURCE,
    IN_TARGET,
    MODES,
    SOURCES,
    TARGETS,
)

SPEC = ToolSpec(
    kind="transfer",
    doc="Copies rows between PostgreSQL, DuckDB, SQLite, HTTP APIs, object stores and files: in chunks, with bounded "
    "memory, to several targets at once. `output.data` is a summary: `rows` (= `count`), `chunks`, `targets` "
    "(one entry per target). Rows in a database target are committed when the whole transfer has succeeded. A missing "
    "table is created from the source's columns.",
    fields={
        "source": Field(
            "any",
            "`{kind: postgres|duckdb|sqlite, query|table, params}`, `{kind: http, url, pages}`, "
            "`{kind: object|file|s3, path, format}`, or a reference; each with its own `auth`.",
            late=("page", "cursor"),
            files=True,
            variants=SOURCES,
            implied_kinds=IMPLIED_KINDS,
        ),
        "data": Field("any", "Rows, instead of a source: a list of mappings, or a reference."),
        "targets": Field(
            "any",
            "A list of `{kind, table|path|url, mode, key, mapping, format, on_error, create, auth}`. `mode`: `append` "
            "(= `insert`), `replace`, `upsert` (with `key`). `mapping`: target column -> source column, or a template "
            "over `row`. `data`: written once to this target instead of the source's rows (a row or rows; for `http` "
            "and objects any content). Templates can read `chunk`: `index size total first last data`.",
            required=True,
            aliases=("target",),
            late=("chunk", "row"),
            files=True,
            variants=TARGETS,
            implied_kinds=IMPLIED_KINDS,
        ),
        **BAD_ROWS_FIELDS,
        "mode": Field("string", "The mode of targets that set none (older place).", choices=MODES, also=("insert",)),
        "chunk_size": count("`chunk.size` (older name)."),
        "chunk": Field("any", "`{size, path}`: rows per chunk (default 1000 to 40960, depending on the kinds), and "
                       "the path of the rows in a JSON document.", members=CHUNK),
    },
    spec_keys={"timeout": "`connect` and `total` seconds."},
    requires=(("source", "data", "targets[].data"),),
    alternatives=(("data", "source"),),
    elsewhere={**IN_SOURCE, **IN_TARGET},
    example="- name: replicate\n  kind: transfer\n  source: {kind: postgres, auth: shop_db, table: orders}\n"
    "  targets:\n"
    "    - {kind: duckdb, file: shop.duckdb, table: orders, mode: replace}\n"
    '    - {kind: s3, auth: archive, path: "s3://archive/orders/{{ chunk.index }}.parquet", on_error: continue}\n'
    "  chunk: {size: 100000}\n",
)  # fmt: skip


def extended() -> ToolSpec:
    """The spec with the sources and targets of plug-ins."""
    sources, targets, broken = connectors.sources(), connectors.targets(), connectors.problems()
    if not (sources or targets or broken):
        return SPEC
    both = {
        "source": connectors.variants(SOURCES, sources, broken, side_fields.plugin_source),
        "targets": connectors.variants(TARGETS, targets, broken, side_fields.plugin_target),
    }
    fields = {name: replace(SPEC.fields[name], variants=variants) for name, variants in both.items()}
    return replace(SPEC, fields={**SPEC.fields, **fields})


async def run(call: ToolCall) -> Outcome:
    """Copy the rows."""
    from noetl.tools.transfer import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
