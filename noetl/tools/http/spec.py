"""Kind `http`: send an HTTP request.

`output.data` is the body, decoded by content type; `output.http` describes the response. A status other than 2xx is an
error outcome that includes the body. A large body is streamed to the result store.
"""

from __future__ import annotations

from typing import Any

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, count, named_input
from noetl.tools._common.http_fields import ONE_BODY, REQUEST_FIELDS

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
    doc="Sends an HTTP request. `output.data` is the response body, decoded by content type (JSON, text, forms; binary "
    "as a base64 string). `output.http` has status, headers, url, elapsed_ms, request_id and retry_after. A status "
    "other than 2xx is an error; its body is in `output.data`.",
    fields=REQUEST_FIELDS,
    defaults={"timeout": {"connect": 10, "read": 60}},
    spec_keys={
        "timeout": "Seconds: `total`, or `{connect, read, total}`; `read` limits the time between two reads.",
        "stream": "`true`: stream the body to the result store; `output.ref` is its reference, `output.data` is null.",
        "stream_above": "Size in bytes above which a body is streamed to the result store (32 MiB).",
        "max_response_bytes": "Maximum size of a body (16 GiB).",
        "redirects": "Maximum number of redirects (10); `0` or `false`: none.",
        "ok_status": "Additional status codes that count as success, e.g. [304, 404].",
        "parse": "`auto` (by content type), `json`, `text`, `bytes` (base64) or `none`.",
        "idempotency_key": "`false`: send no Idempotency-Key header with POST, PUT, PATCH, DELETE.",
    },
    spec_fields={
        "parse": Field("string", choices=("auto", "json", "text", "bytes", "none")),
        "stream": Field("boolean", "`true`: stream the body to the result store."),
        "stream_above": count(),
        "max_response_bytes": count(),
        "redirects": Field("any", accepts=("integer", "boolean"), least=0),
        "ok_status": Field("any", accepts=("integer", "list"), least=100, most=999, each=count(least=100, most=999)),
        "idempotency_key": Field("boolean", "`false`: send no Idempotency-Key header."),
    },
    helpers={"http": NULLS},
    exclusive=ONE_BODY,
    example="- name: create\n  kind: http\n  method: POST\n"
    '  url: "{{ workload.api }}/orders"\n  auth: shop_api\n  json:\n    id: "{{ iter.order.id }}"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Send the request and return the response."""
    from noetl.tools.http import task

    return await task.run(call, named_input(SPEC, call.input))
