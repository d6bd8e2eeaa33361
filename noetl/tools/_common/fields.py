"""What a kind's spec and its task both need to know; light, since knowing every kind must be cheap."""

from __future__ import annotations

from typing import Any

from noetl.core.model.tool import Field

INLINE_ROWS = 50_000
INLINE_BYTES = 16 * 1024 * 1024
MOST_BYTES = 64 * 1024 * 1024  # of a part that `select` and `limit` give
EXACTLY_ONCE = "noetl_exactly_once"
SQLITE_BUSY = 5.0
REQUEST_TIMEOUT = 10.0

PG_NULLS: dict[str, Any] = {
    "code": None,
    "sqlstate": None,
    "severity": None,
    "message": None,
    "detail": None,
    "hint": None,
    "schema": None,
    "table": None,
    "column": None,
    "constraint": None,
    "position": None,
    "notices": [],
    "repeated": False,
}
DUCKDB_NULLS: dict[str, Any] = {"exception_type": None}
SQLITE_NULLS: dict[str, Any] = {"code": None}
OBJECT_NULLS: dict[str, Any] = {"uri": None, "size": None, "etag": None, "last_modified": None, "content_type": None}
NATS_NULLS: dict[str, Any] = {"stream": None, "seq": None, "revision": None, "duplicate": None}

OBJECT_ACTIONS = ("put", "get", "list", "delete", "head", "exists")
NATS_ACTIONS = (
    "publish", "request", "js_publish", "js_get", "js_fetch", "js_info",
    "kv_get", "kv_put", "kv_delete", "kv_purge", "kv_list",
    "object_get", "object_put", "object_delete", "object_list", "object_info",
)  # fmt: skip

COMMAND = Field(
    "any",
    "The statements: one text (statements end with `;`), or a list of texts and of `{sql, params}`.",
    aliases=("commands", "query", "queries", "sql", "statement", "statements"),
)
PARAMS = Field(
    "any",
    "Values bound by the database: a mapping for `%(name)s` or `:name`, a list for `%s` or `$1`. "
    "A list of mappings (or of lists) runs one statement once for each.",
    aliases=("parameters",),
)
SCRIPT = Field("mapping", "The statements from elsewhere: `{uri, source?}` (beside the playbook, http, object store).")
SPEC_KEYS = {
    "transaction": "`false`: every statement commits by itself; otherwise all of them are one transaction.",
    "inline_rows": f"Rows up to which a result is `output.data` ({INLINE_ROWS}); more is streamed to `output.ref`.",
    "inline_bytes": f"The same as a size, estimated ({INLINE_BYTES}).",
    "result_format": "How a streamed result is stored: `parquet` (default), `arrow`, `jsonl` or `csv`.",
}  # fmt: skip
