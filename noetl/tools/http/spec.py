"""Call an HTTP API: every method and body, credentials from the keychain, answers as data.

`output.data` is the body, read by its content type; `output.http` says the rest. An answer other than
2xx is an error outcome that keeps its body. A body too large to hold is streamed to the result store.
"""

from __future__ import annotations

from typing import Any

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input

NULLS: dict[str, Any] = {
    "status": None,
    "headers": None,
    "url": None,
    "elapsed_ms": None,
    "request_id": None,
    "retry_after": None,
}

SPEC = ToolSpec(
    kind="http",
    doc="Sends an HTTP request. `output.data` is the body, read by its content type (JSON, text, forms; binary as "
    "base64 text); `output.http` has status, headers, url, elapsed_ms, request_id, retry_after. An answer other "
    "than 2xx is an error that keeps its body in `output.data`.",
    fields={
        "url": Field("string", "Where to; http or https.", required=True, aliases=("endpoint", "uri")),
        "method": Field("string", "Any HTTP method. Default: GET, or POST when there is a body."),
        "params": Field("any", "Query parameters: a mapping (lists are repeated, nulls left out).", aliases=("query",)),
        "headers": Field("mapping", "Request headers."),
        "json": Field("any", "Body, sent as JSON."),
        "form": Field("any", "Body, sent as an URL-encoded form."),
        "multipart": Field(
            "mapping",
            "Body, sent as multipart/form-data; a field that is a mapping is a file: "
            "`{filename, content|base64|path, content_type}`.",
            aliases=("files",),
        ),
        "body": Field("any", "Body: text as it is, a mapping or list as JSON (or as the Content-Type header says)."),
        "data": Field("any", "`{query, body}`, or the body itself."),
        "payload": Field("any", "The body (older spelling)."),
        "body_base64": Field("string", "Body: the bytes that this base64 text stands for."),
        "body_file": Field("string", "Body: a file, streamed."),
        "body_ref": Field("any", "Body: a stored payload (`output.ref` of another task), streamed."),
        "auth": Field(
            "any",
            "A keychain entry or credential by name, or `{type: basic|bearer|api_key|oauth2|headers, ...}`.",
            aliases=("credential",),
        ),
        "follow_redirects": Field("boolean", "`false`: do not follow redirects.", aliases=("allow_redirects",)),
        "proxy": Field("string", "URL of an HTTP proxy."),
        "verify": Field("boolean", "`false`: accept any TLS certificate.", aliases=("verify_ssl",), default=True),
        "ca": Field("string", "Certificates to trust instead of the system's: a file or PEM text."),
        "cert": Field("string", "Client certificate: a file or PEM text (may hold the key too)."),
        "key": Field("string", "Key of the client certificate: a file or PEM text."),
        "key_password": Field("string", "Password of the key."),
    },
    defaults={"timeout": {"connect": 10, "read": 60}},
    spec_keys={
        "timeout": "Seconds: `total`, or `{connect, read, total}`; `read` is the longest silence.",
        "stream": "`true`: the body goes to the result store; `output.ref` leads to it, `output.data` is null.",
        "stream_above": "Bytes of a body above which it is streamed to the result store (32 MiB).",
        "max_response_bytes": "Longest body accepted (16 GiB).",
        "redirects": "How many redirects are followed (10); `0` or `false`: none.",
        "ok_status": "More statuses that count as success, e.g. [304, 404].",
        "parse": "`auto` (by content type), `json`, `text`, `bytes` (base64) or `none`.",
        "idempotency_key": "`false`: send no Idempotency-Key header with POST, PUT, PATCH, DELETE.",
    },
    helpers={"http": NULLS},
    example="- name: create\n  kind: http\n  method: POST\n"
    '  url: "{{ workload.api }}/orders"\n  auth: shop_api\n  json:\n    id: "{{ iter.order.id }}"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Send the request and read the answer."""
    from noetl.tools.http.task import perform

    return await perform(call, named_input(SPEC, call.input), NULLS)
