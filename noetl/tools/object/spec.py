"""Kind `object`: objects in S3, Google Cloud Storage, Azure Blob Storage and directories."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, count, named_input
from noetl.data.files.formats import FORMATS, OTHER_NAMES

ACTIONS = ("put", "get", "list", "delete", "head", "exists", "copy", "move")
ACTION_ALIASES = {
    "read": "get",
    "write": "put",
    "upload": "put",
    "download": "get",
    "info": "head",
    "stat": "head",
    "rename": "move",
    "keys": "list",
}
SCHEMES = r"(?!.*://).*|(?:s3a?|gs|gcs|az|azure|abfss?|adl|memory|file|https?)://\S.*"
OTHER_PROVIDERS = ("s3a", "gs", "az", "abfs", "abfss", "adl", "memory")
MAX_BYTES = 64 * 1024 * 1024
NULLS: dict[str, Any] = {"uri": None, "size": None, "etag": None, "last_modified": None, "content_type": None}

SPEC = ToolSpec(
    kind="object",
    aliases=("s3", "gcs", "azure", "object_store"),
    doc="Puts, gets, lists, copies, moves and deletes objects in S3 (and S3-compatible stores), Google Cloud Storage, "
    "Azure Blob Storage and directories. Content is encoded and decoded by format: JSON, JSON lines, CSV, Parquet, "
    "Arrow, text or bytes, also compressed (`.gz`, `.zst`, `.bz2`, `.xz`). A table is written from a list of mappings "
    "and read as `{rows, row_count, columns}`. Large content is streamed to `output.ref`.",
    fields={
        "action": Field("string", "`put` (default if there is content to put), `get` (default otherwise), `list`, "
                        "`delete`, `stat` (= `head`), `exists`, `copy` or `move`.", choices=ACTIONS,
                        also=(*ACTION_ALIASES, *(f"object_{action}" for action in ACTIONS)),
                        aliases=("operation", "op")),
        "uri": Field("string", "The address: `s3://bucket/key`, `gs://...`, `az://container/key`, or a path.",
                     aliases=("url", "path", "address"), files=True, pattern=SCHEMES),
        "provider": Field("string", "`s3`, `gcs`, `azure` or `file`, if the address does not contain it.",
                          choices=("s3", "gcs", "azure", "file"), also=OTHER_PROVIDERS),
        "bucket": Field("string", "The bucket or container, if the address does not contain it.",
                        aliases=("container",)),
        "key": Field("string", "The key, with `bucket`.", aliases=("name",)),
        "keys": Field("list", "Several keys to delete."),
        "to": Field("string", "Where `copy` and `move` put the object: an address, or a key in the same bucket. A path "
                    "that ends with `/` keeps the name.", files=True, aliases=("target", "destination")),
        "compression": Field("string", "`gzip`, `zstd`, `bz2` or `xz`: put compresses and get decompresses. Default: "
                             "by the extension of the key; `none` leaves the bytes.",
                             choices=("gzip", "zstd", "bz2", "xz", "none"), also=("gz", "zst", "bzip2", "auto")),
        "prefix": Field("string", "Prefix of the keys to list."),
        "data": Field("any", "The content to put.", aliases=("body", "content", "value", "rows")),
        "file": Field("string", "A local file to upload, or to download to.", files=True),
        "ref": Field("any", "The reference of a stored result to put.", accepts=("string", "mapping")),
        "format": Field("string", "The format of the content. Default: by the extension of the key. `bytes` are base64 "
                        "strings in playbooks.", choices=FORMATS, also=OTHER_NAMES),
        "content_type": Field("string", "Content type of the object."),
        "create": Field("boolean", "`true`: put only if the object does not exist.", aliases=("create_only",)),
        "select": Field("any", "Part of the content to get: a dotted path, or a list of columns.",
                        accepts=("string", "list"),
                        aliases=("columns",)),
        "limit": Field("any", "Maximum number of rows to get, or of keys to list (1000).",
                       accepts=("integer",), least=0),
        "offset": Field("any", "Number of rows to skip.", accepts=("integer",), least=0),
        "auth": Field("any", "The credential: access keys, a service account, an account key, `endpoint`, `region`.",
                      aliases=("credential",), accepts=("string", "mapping")),
    },
    spec_keys={
        "timeout": "`connect` and `total` seconds.",
        "inline_bytes": "Largest object returned in `output.data` (16 MiB); a larger one is streamed to `output.ref`.",
        "max_bytes": "Maximum size of the part that `select` and `limit` return (64 MiB).",
    },
    spec_fields={"inline_bytes": count(), "max_bytes": count()},
    helpers={"object": NULLS},
    required_by={
        "action": {
            **dict.fromkeys(("", "get", "head", "exists"), ("uri|key",)),
            **dict.fromkeys(("put", "write", "upload"), ("uri|key", "data|file|ref")),
            "list": ("uri|key|prefix|bucket|auth",),
            "delete": ("uri|key|keys",),
            **dict.fromkeys(("stat", "info"), ("uri|key",)),
            **dict.fromkeys(("copy", "move", "rename"), ("uri|key", "to")),
        }
    },
    example="- name: archive\n  kind: object\n  action: put\n  auth: archive_bucket\n"
    '  uri: "s3://archive/{{ execution_id }}/orders.parquet"\n  data: "{{ fetch.orders }}"\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Perform one action on one object or a list of objects."""
    from noetl.tools.object import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
