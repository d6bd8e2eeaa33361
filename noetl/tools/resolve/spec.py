"""Fetch what a reference leads to: verified, streamed, and only the part that is wanted.

`kind: artifact` is the older name: `action: get` reads a reference (or an address of an object store),
`action: put` stores data and answers with its reference.
"""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.fields import MOST_BYTES

SPEC = ToolSpec(
    kind="resolve",
    aliases=("artifact",),
    doc="Fetches the payload that a reference (`output.ref`) leads to. Its checksum is verified, it is streamed, and "
    "`select`, `limit` and `offset` take a part of it without loading the whole: JSON, JSON lines, CSV, Parquet and "
    "Arrow. A table is given as `{rows, row_count, columns}`.",
    fields={
        "ref": Field("any", "The reference, as `output.ref` gave it.", aliases=("reference", "result_ref", "artifact")),
        "select": Field("any", "A dotted path (`data.items`), or a list of columns.", aliases=("columns",)),
        "limit": Field("any", "At most so many rows, list elements, lines or bytes."),
        "offset": Field("any", "After so many of them."),
        "format": Field("string", "What the payload is, when its content type does not say: `json`, `jsonl`, `csv`, "
                        "`parquet`, `arrow`, `text`, `bytes`."),
        "verify": Field("boolean", "`false`: do not read a large payload to its end for its checksum.", default=True),
        "action": Field("string", "`get` (default), or `put`: store `data` and answer with its reference.",
                        choices=("get", "put"), aliases=("operation",)),
        "data": Field("any", "What `put` stores.", aliases=("value", "content", "payload")),
        "uri": Field("string", "An address in an object store, instead of a reference.", aliases=("path", "url")),
        "auth": Field("any", "The credential for `uri`.", aliases=("credential",)),
        "content_type": Field("string", "The content type that `put` notes."),
    },
    spec_keys={
        "max_bytes": f"Largest part that is fetched ({MOST_BYTES}).",
        "timeout": "`total` seconds.",
    },
    example='- name: records\n  kind: resolve\n  ref: "{{ ctx.records_ref }}"\n  select: [id, email]\n  limit: 100\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Fetch (or store) once."""
    from noetl.tools.resolve.task import perform

    return await perform(replace(call, input=named_input(SPEC, call.input)))
