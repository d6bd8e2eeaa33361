"""Kind `resolve`: fetch the payload of a reference, or a part of it.

`kind: artifact` is the older name: `action: get` reads a reference (or an address in an object store),
`action: put` stores data and returns its reference.
"""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, count, named_input
from noetl.data.files.formats import FORMATS, OTHER_NAMES

MAX_BYTES = 64 * 1024 * 1024

SPEC = ToolSpec(
    kind="resolve",
    aliases=("artifact",),
    doc="Fetches the payload of a reference (`output.ref`). The payload is streamed and its checksum is verified. "
    "`select`, `limit` and `offset` read a part without loading the whole payload: JSON, JSON lines, CSV, Parquet and "
    "Arrow. A table is returned as `{rows, row_count, columns}`.",
    fields={
        "ref": Field("any", "The reference: `output.ref` of a task.",
                     accepts=("string", "mapping"), aliases=("reference", "result_ref", "artifact")),
        "select": Field("any", "A dotted path (`data.items`), or a list of columns.",
                        accepts=("string", "list"), aliases=("columns",)),
        "limit": Field("any", "Maximum number of rows, list elements, lines or bytes.", accepts=("integer",), least=0),
        "offset": Field("any", "Number of rows, list elements, lines or bytes to skip.", accepts=("integer",), least=0),
        "format": Field("string", "Format of the payload, if its content type does not imply it.", choices=FORMATS,
                        also=OTHER_NAMES),
        "verify": Field("boolean", "`false`: do not read a large payload to its end to verify its checksum.",
                        default=True),
        "action": Field("string", "`get` (default), or `put`: store `data` and return its reference.",
                        choices=("get", "put"), aliases=("operation",)),
        "data": Field("any", "The data that `put` stores.", aliases=("value", "content", "payload")),
        "uri": Field("string", "An address in an object store, instead of a reference.", aliases=("path", "url"),
                     files=True),
        "auth": Field("any", "The credential for `uri`.", aliases=("credential",), accepts=("string", "mapping")),
        "content_type": Field("string", "Content type of the data that `put` stores."),
    },
    spec_keys={
        "max_bytes": f"Maximum size of the part that is fetched ({MAX_BYTES}).",
        "timeout": "`total` seconds.",
    },
    spec_fields={"max_bytes": count()},
    requires=(("ref", "uri", "data"),),
    required_by={"action": {"put": ("data",)}},
    example='- name: records\n  kind: resolve\n  ref: "{{ ctx.records_ref }}"\n  select: [id, email]\n  limit: 100\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Fetch or store one payload."""
    from noetl.tools.resolve import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
