"""Objects of S3, Google Cloud Storage, Azure and folders: put, get, list, delete, head."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.fields import OBJECT_ACTIONS, OBJECT_NULLS

SPEC = ToolSpec(
    kind="object",
    aliases=("s3", "gcs", "azure", "object_store"),
    doc="Puts, gets, lists and deletes objects of S3 (and stores that speak its API), Google Cloud Storage, Azure and "
    "folders. Content is encoded and decoded by its format: JSON, JSON lines, CSV, Parquet, Arrow, text or bytes. "
    "Tables are lists of mappings on the way in and `{rows, row_count, columns}` on the way out; what is too large "
    "to hold is streamed to `output.ref`.",
    fields={
        "action": Field("string", "`put` (default when there is something to put), `get` (default otherwise), `list`, "
                        "`delete`, `head` or `exists`.", choices=OBJECT_ACTIONS, aliases=("operation", "op")),
        "uri": Field("string", "The address: `s3://bucket/key`, `gs://...`, `az://container/key`, or a path.",
                     aliases=("url", "path", "address")),
        "provider": Field("string", "`s3`, `gcs`, `azure` or `file`, when the address does not say."),
        "bucket": Field("string", "The bucket or container, when the address does not say.", aliases=("container",)),
        "key": Field("string", "The key, with `bucket`.", aliases=("name",)),
        "keys": Field("list", "Several keys to delete."),
        "prefix": Field("string", "What listed keys begin with."),
        "data": Field("any", "What is put.", aliases=("body", "content", "value", "rows")),
        "file": Field("string", "A local file to put, or to get into."),
        "ref": Field("any", "A stored result to put."),
        "format": Field("string", "`json`, `jsonl`, `csv`, `parquet`, `arrow`, `text` or `bytes`; by the key's ending "
                        "when left out. `bytes` are base64 text in playbooks."),
        "content_type": Field("string", "The content type to note."),
        "create": Field("boolean", "`true`: put only if there is no such object yet.", aliases=("create_only",)),
        "select": Field("any", "Of what is got: a dotted path, or a list of columns.", aliases=("columns",)),
        "limit": Field("any", "Of what is got: at most so many rows; of a list: so many keys (1000)."),
        "offset": Field("any", "Of what is got: after so many rows."),
        "auth": Field("any", "The credential: access keys, a service account, an account key, `endpoint`, `region`.",
                      aliases=("credential",)),
    },
    spec_keys={
        "timeout": "`connect` and `total` seconds.",
        "inline_bytes": "Size up to which an object is `output.data` (16 MiB); more is streamed to `output.ref`.",
        "max_bytes": "Largest part that `select` and `limit` may give (64 MiB).",
    },
    helpers={"object": OBJECT_NULLS},
    example="- name: archive\n  kind: object\n  action: put\n  auth: archive_bucket\n"
    '  uri: "s3://archive/{{ execution_id }}/orders.parquet"\n  data: "{{ fetch.orders }}"\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Do one thing with one object (or a list of them)."""
    from noetl.tools.object.task import perform

    return await perform(replace(call, input=named_input(SPEC, call.input)))
