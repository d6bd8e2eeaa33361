"""`POST /api/execute`: start an execution. A raw route, because every execution begins with it."""

from __future__ import annotations

import codecs
from typing import Annotated, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.types import Receive, Scope

from noetl.errors import RequestRefused
from noetl.observability.tracing import is_traceparent
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import AppState, require_role
from noetl.server.http.middleware.fast_path import JSON, RawResponse, RawRoute
from noetl.server.http.request_models import one_of, whole_numbers
from noetl.server.orchestrator.submissions import Submission, caller_key

MAX_KEY = 200
_HEADERS = frozenset({b"content-type", b"idempotency-key", b"traceparent"})


class ExecuteBody(msgspec.Struct, forbid_unknown_fields=True):
    """Run a playbook of the catalog (`path`) or the text of one (`content`)."""

    path: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    content: str | None = None
    file: str = ""
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | str | None = None
    payload: dict[str, Any] = {}
    labels: dict[str, str] = {}
    entry_step: str | None = None
    return_step: str | None = None
    strict: bool = False
    legacy: bool = False


_decode = msgspec.json.Decoder(ExecuteBody).decode


async def _execute(scope: Scope, data: bytes, _: Receive) -> RawResponse:
    headers: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _HEADERS:
            headers.setdefault(name, value.decode("latin-1"))
    body = _read(data, headers.get(b"content-type", ""))
    key, trace = headers.get(b"idempotency-key"), headers.get(b"traceparent")
    if key is not None and not 1 <= len(key) <= MAX_KEY:
        raise _invalid("header.Idempotency-Key", f"must have 1 to {MAX_KEY} characters")
    if (body.path is None) == (body.content is None):
        raise RequestRefused("send either `path` (a playbook of the catalog) or `content` (its text)")
    if body.content is not None:
        require_role(scope, "author")  # an operator runs registered playbooks only
    state: AppState = scope["app"].state.app_state
    if body.file:
        if body.content is None:
            raise RequestRefused("`file` (bundle:DIGEST/PATH) belongs to `content`")
        await state.orchestrator.catalog.bundles.check(body.file, body.content)
    caller: Caller = scope["state"]["caller"]
    execution_id = await state.orchestrator.submit(
        Submission(
            path=body.path,
            text=body.content,
            file=body.file,
            version=body.version,
            payload=body.payload,
            key=caller_key(caller.name, key),
            entry_step=body.entry_step,
            return_step=body.return_step,
            requested_by=caller.name,
            strict=body.strict,
            legacy=body.legacy,
            labels=body.labels,
            bounded=True,
            trace=trace if trace and is_traceparent(trace) else None,
        )
    )
    document = msgspec.json.encode({"execution_id": execution_id, "status": "running"})
    return RawResponse(document, 202, (JSON, (b"location", f"/api/executions/{execution_id}".encode())))


def _read(data: bytes, content_type: str) -> ExecuteBody:
    """The body, or a RequestValidationError that names the field."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise _invalid("body", "the Content-Type must be application/json")
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        try:
            return _decode(data)
        except msgspec.ValidationError:
            return msgspec.convert(whole_numbers(msgspec.json.decode(data)), ExecuteBody)
    except RecursionError:
        raise _invalid("body", "nested too deeply") from None
    except UnicodeDecodeError:
        raise _invalid("body", "not UTF-8") from None
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        raise _invalid("body" + place.rstrip("`"), message) from None


def _invalid(location: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": (location,), "msg": message}])


_BODY, _SCHEMAS = msgspec.json.schema_components([ExecuteBody], ref_template="#/components/schemas/{name}")
_SCHEMAS["ExecuteBody"] |= one_of("path", "content")

ROUTE = RawRoute(
    "/api/execute",
    _execute,
    role="operator",
    schemas=_SCHEMAS,
    operation={
        "tags": ["executions"],
        "summary": "Start an execution",
        "description": "The response is sent when the request is stored durably.",
        "operationId": "execute_api_execute_post",
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
            },
            {
                "name": "traceparent",
                "in": "header",
                "required": False,
                "description": "W3C trace context",
                "schema": {"type": "string"},
            },
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _BODY[0]}}},
        "responses": {
            "202": {
                "description": "The execution was started; Location is its address",
                "content": {"application/json": {"schema": {}}},
            }
        },
    },
)
