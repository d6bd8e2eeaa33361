"""Kind `sftp`, and files of SFTP servers as source and target of transfers."""

from __future__ import annotations

from noetl.tool import Field, SourceSpec, TargetSpec, ToolSpec, auth_field, count, lazy

ACTIONS = ("get", "put", "list", "stat", "exists", "delete", "move", "mkdir")
FORMATS = ("parquet", "arrow", "csv", "json", "jsonl")
AUTH = auth_field(
    "The server: a credential with `host`, `port`, `user`, `password` or `private_key` (and `passphrase`), `host_key`; "
    "a URL `sftp://...`; or a mapping."
)

SPEC = ToolSpec(
    kind="sftp",
    doc="Gets, puts, lists, moves and deletes files of an SFTP server. A file is written under a temporary name and "
    "renamed when it is complete. Content is decoded by the ending of its name (JSON, text); large content is streamed "
    "to `output.ref`.",
    fields={
        "action": Field("string", "What to do.", choices=ACTIONS, required=True),
        "auth": AUTH,
        "path": Field("string", "The path on the server; `list` and `delete` accept `*`, `?`, `[...]`.", required=True),
        "to": Field("string", "The new path of `move`."),
        "data": Field("any", "The content to put: text, or a value that is written as JSON."),
        "file": Field("string", "A local file to put, or to get to.", files=True),
        "ref": Field("any", "The reference of a stored result to put."),
    },
    required_by={"action": {"move": ("to",), "put": ("data|file|ref",)}},
    spec_keys={
        "timeout": "`connect` and `total` seconds.",
        "inline_bytes": "Largest file returned in `output.data` (1 MiB); a larger one is streamed to `output.ref`.",
    },
    spec_fields={"inline_bytes": count()},
    helpers={"sftp": {"path": None, "size": None, "modified": None}},
    example="kind: sftp\nauth: partner\naction: list\npath: /outgoing/*.csv\n",
)  # fmt: skip


run = lazy("noetl_sftp.task:run")
explain = lazy("noetl_sftp.connection:explain")

_FILE = {
    "auth": AUTH,
    "format": Field("string", "The format; default: by the ending of the name.", choices=FORMATS),
}
SOURCE = SourceSpec(
    kind="sftp",
    doc="Files of an SFTP server: Parquet, Arrow, CSV, JSON or JSON lines; `*` matches several files of one format.",
    read=lazy("noetl_sftp.files:read"),
    explain=explain,
    fields={
        **_FILE,
        "path": Field("string", "The path on the server.", required=True),
        "rows_path": Field("string", "The path of the rows in a JSON file."),
    },
    example="source: {kind: sftp, auth: partner, path: /outgoing/orders-*.csv}",
)
TARGET = TargetSpec(
    kind="sftp",
    doc="A file of an SFTP server, renamed to its name when the transfer has succeeded.",
    open=lazy("noetl_sftp.files:FileTarget"),
    explain=explain,
    fields={**_FILE, "path": Field("string", "The path on the server.")},
    place="path",
    modes=("replace",),
    transactional=False,
    example="targets:\n  - {kind: sftp, auth: partner, path: /incoming/orders.csv}",
)
