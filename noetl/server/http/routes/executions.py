"""Start, look at and steer executions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope

from noetl.core.model.events import Recorded, envelope
from noetl.errors import NotFound, RequestRefused
from noetl.observability.tracing import is_traceparent
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import AppState, app_state, requires_role
from noetl.server.http.middleware.fast_path import JSON, FallThrough, RawEndpoint, RawResponse
from noetl.server.http.middleware.security import caller_of
from noetl.server.http.response_models import answer, page
from noetl.server.http.streams import STREAM, After, LastEventId, streamed
from noetl.server.orchestrator.submissions import Submission
from noetl.server.read_models.documents import execution_document, row_of, summary_document
from noetl.storage.ports.events import ExecutionFilter

router = APIRouter(tags=["executions"])

Status = Literal["pending", "running", "paused", "success", "failed", "cancelled"]

ExecutionId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="decimal id of an execution")]
MAX_KEY = 200
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=MAX_KEY)]


class Body(BaseModel):
    """Base of request bodies: what is not declared is refused, and so is what only looks like the right type."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _can_be_kept(cls, data: Any) -> Any:
        """Python reads more than JSON is: numbers that are none, and halves of surrogate pairs, which are no text."""
        try:
            json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as problem:
            half = f"\\u{ord(problem.object[problem.start]):04x}"
            raise ValueError(f"{half} is half of a surrogate pair, and no character") from None
        except ValueError:
            raise ValueError("NaN and Infinity are no numbers of JSON, and neither is one as large as 1e309") from None
        return data

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, data: Any) -> Any:
        """JSON does not tell 3.0 from 3."""
        if not isinstance(data, dict):
            return data
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in data.items()
        }


def one_of(*names: str) -> dict[str, Any]:
    """For the schema of a body: exactly one of these is there."""
    return {
        "oneOf": [
            {"required": [name], "properties": {each: {"type": "string" if each == name else "null"} for each in names}}
            for name in names
        ]
    }


class ExecuteBody(Body):
    """Run a playbook of the catalog (`path`) or one that comes along (`content`)."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=one_of("path", "content"))

    path: str | None = Field(None, max_length=1000)
    content: str | None = None
    version: int | str | None = None
    payload: dict[str, Any] = {}
    entry_step: str | None = None
    return_step: str | None = None
    strict: bool = False
    legacy: bool = False


class ReasonBody(Body):
    """Why."""

    reason: str = Field("", max_length=2000)


class SignalBody(Body):
    """A patch of `ctx` from outside."""

    name: str = Field("", max_length=200)
    payload: dict[str, Any] = {}


class RerunBody(Body):
    """Run it again, whole or from a step on."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    from_step: str | None = Field(default=None, alias="from")
    payload: dict[str, Any] | None = None


@router.post("/api/execute", status_code=202, summary="Start an execution")
async def execute(
    request: Request,
    body: ExecuteBody,
    key: Key = None,
    trace: Annotated[str | None, Header(alias="traceparent", description="W3C trace context")] = None,
    caller: Caller = requires_role("operator"),
) -> Response:
    """Answered when the request is on disk."""
    if (body.path is None) == (body.content is None):
        raise RequestRefused("name a playbook by `path` or bring its text as `content`: one of the two")
    document, headers = await _start(app_state(request), body, key, trace, caller)
    return answer(document, 202, headers)


async def _start(
    parts: AppState, body: Any, key: str | None, trace: str | None, caller: Caller
) -> tuple[dict[str, Any], dict[str, str]]:
    """Begin what a body with the fields of `ExecuteBody` asks for; the document and headers that tell of it."""
    submission = Submission(
        path=body.path,
        text=body.content,
        version=body.version,
        payload=body.payload,
        key=f"http:{key}" if key else None,
        entry_step=body.entry_step,
        return_step=body.return_step,
        requested_by=caller.name,
        strict=body.strict,
        legacy=body.legacy,
        trace=trace if trace and is_traceparent(trace) else None,
    )
    execution_id = await parts.orchestrator.submit(submission)
    return {"execution_id": execution_id, "status": "running"}, {"Location": f"/api/executions/{execution_id}"}


def _fields(model: type[BaseModel]) -> type[Any]:
    """The fields of a body for msgspec: the same names, types, bounds and defaults."""
    fields: list[Any] = []
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        for bound in field.metadata:  # of texts, here
            kind = Annotated[str, msgspec.Meta(max_length=bound.max_length)] | None
        fields.append((name, kind, field.default))
    return msgspec.defstruct(f"{model.__name__}Fields", fields, forbid_unknown_fields=True)


_decode_execute = msgspec.json.Decoder(_fields(ExecuteBody)).decode


async def _execute_directly(scope: Scope, data: bytes, _: Receive) -> RawResponse:
    """`execute` for requests that are as they should be; all others are left to it."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _EXECUTE_HEADERS:
            found.setdefault(name, value.decode("latin-1"))
    key = found.get(b"idempotency-key")
    caller = caller_of(scope)
    try:
        body = _decode_execute(data)
    except msgspec.MsgspecError:
        raise FallThrough(data) from None
    if (
        found.get(b"content-type") != "application/json"
        or caller is None
        or not caller.may("operator")
        or (key is not None and not 1 <= len(key) <= MAX_KEY)
        or (body.path is None) == (body.content is None)
    ):
        raise FallThrough(data)
    document, headers = await _start(scope["app"].state.parts, body, key, found.get(b"traceparent"), caller)
    return RawResponse(
        msgspec.json.encode(document),
        202,
        (JSON, *((name.lower().encode(), value.encode()) for name, value in headers.items())),
    )


_EXECUTE_HEADERS = frozenset({b"content-type", b"idempotency-key", b"traceparent"})
DIRECT = Route("/api/execute", RawEndpoint(_execute_directly), methods=["POST"], name="execute:direct")


@router.get("/api/executions", summary="List executions, newest first")
async def executions(
    request: Request,
    status: Annotated[list[Status] | None, Query(description="one or more of them")] = None,
    path: str | None = None,
    parent: str | None = None,
    search: Annotated[str | None, Query(max_length=200)] = None,
    before: Annotated[str | None, Query(pattern=r"^[0-9]{1,19}$", description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page."""
    where = ExecutionFilter(
        status=tuple(status or ()), path=path, parent=parent, search=search, before=before, limit=limit + 1
    )
    found = await app_state(request).orchestrator.executions(where)
    following = found[limit - 1].execution_id if len(found) > limit else None
    return answer(page([row_of(each) for each in found[:limit]], following))


@router.get("/api/executions/{execution_id}", summary="One execution: steps, ctx, output")
async def execution(request: Request, execution_id: ExecutionId, _: Caller = requires_role("viewer")) -> Response:
    """As far as it is."""
    orchestrator = app_state(request).orchestrator
    summary = await orchestrator.summary(execution_id)
    progress = await orchestrator.progress(execution_id)
    return answer(execution_document(summary, progress, await orchestrator.waits_for(summary)))


@router.get("/api/executions/{execution_id}/events", summary="The log")
async def events(
    request: Request,
    execution_id: ExecutionId,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    _: Caller = requires_role("viewer"),
) -> Response:
    """Events with seq > after, in order, one page."""
    found = await app_state(request).orchestrator.events(execution_id, after, limit + 1)
    following = str(found[limit - 1].seq) if len(found) > limit else None
    return answer(page([envelope(each) for each in found[:limit]], following))


@router.get(
    "/api/executions/{execution_id}/events/stream",
    summary="The log as it grows (server-sent events)",
    **STREAM,
)
async def stream(
    request: Request,
    execution_id: ExecutionId,
    after: After = 0,
    last: LastEventId = None,
    _: Caller = requires_role("viewer"),
) -> StreamingResponse:
    """Each event's id is its seq; `Last-Event-ID` goes on after it. Ends with the execution."""
    return await streamed(request, execution_id, after, last, _one_by_one)


def _one_by_one(events: Sequence[Recorded]) -> bytes:
    return b"".join(
        b"id: %d\nevent: event\ndata: %b\n\n" % (recorded.seq, msgspec.json.encode(envelope(recorded)))
        for recorded in events
    )


@router.get("/api/executions/{execution_id}/state", summary="The folded state, now or after an event")
async def state(
    request: Request,
    execution_id: ExecutionId,
    at: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    _: Caller = requires_role("viewer"),
) -> Response:
    """Tokens, runs, loops, leases, ctx."""
    from noetl.server.read_models.state_at import state_document

    return answer(state_document(await app_state(request).orchestrator.state(execution_id, at)))


@router.get("/api/executions/{execution_id}/graph", summary="The net of this execution's playbook")
async def graph(request: Request, execution_id: ExecutionId, _: Caller = requires_role("viewer")) -> Response:
    """Steps and arcs, synthesized ones included."""
    from noetl.core.language.editor.net_document import net_document

    folded = await app_state(request).orchestrator.state(execution_id)
    return answer(net_document(folded.playbook, folded.synthesized.values()))


@router.get("/api/executions/{execution_id}/why", summary="What everything waits for, in words")
async def why(
    request: Request,
    execution_id: ExecutionId,
    at: Annotated[int | None, Query(ge=1, le=2**53, description="as it was after this event")] = None,
    brief: Annotated[bool, Query(description="only the findings, without reading the whole log")] = False,
    _: Caller = requires_role("viewer"),
) -> Response:
    """Findings: which token, gate, lease, timer, guard or child; and what ended it, if it ended."""
    orchestrator = app_state(request).orchestrator
    findings = await orchestrator.why(execution_id, at)
    if at is not None or brief:
        return answer({"findings": findings})
    explanation = await orchestrator.explain(execution_id)
    return answer({**msgspec.structs.asdict(explanation), "findings": findings})


@router.get("/api/executions/{execution_id}/playbook", summary="The text this execution runs")
async def playbook(request: Request, execution_id: ExecutionId, _: Caller = requires_role("viewer")) -> Response:
    """Its text and where it came from."""
    orchestrator = app_state(request).orchestrator
    summary = await orchestrator.summary(execution_id)
    source = await orchestrator.catalog.source(summary.playbook)
    return answer({"path": summary.path, "version": summary.version, "content": source.text})


@router.post("/api/executions/{execution_id}/cancel", status_code=202, summary="Stop it")
async def cancel(
    request: Request,
    execution_id: ExecutionId,
    body: ReasonBody | None = None,
    caller: Caller = requires_role("operator"),
) -> Response:
    """Open runs are ended with kind `cancelled`; children too."""
    reason = body.reason if body and body.reason else f"cancelled by {caller.name}"
    await app_state(request).orchestrator.cancel(execution_id, reason)
    return await _row(request, execution_id)


@router.post("/api/executions/{execution_id}/pause", status_code=202, summary="Start no new run")
async def pause(
    request: Request, execution_id: ExecutionId, body: ReasonBody | None = None, _: Caller = requires_role("operator")
) -> Response:
    """What runs goes on."""
    await app_state(request).orchestrator.pause(execution_id, body.reason if body else "")
    return await _row(request, execution_id)


@router.post("/api/executions/{execution_id}/resume", status_code=202, summary="Go on after a pause")
async def resume(
    request: Request, execution_id: ExecutionId, body: ReasonBody | None = None, _: Caller = requires_role("operator")
) -> Response:
    """Scheduling goes on."""
    await app_state(request).orchestrator.resume(execution_id, body.reason if body else "")
    return await _row(request, execution_id)


@router.post("/api/executions/{execution_id}/signal", status_code=202, summary="Patch ctx from outside")
async def signal(
    request: Request, execution_id: ExecutionId, body: SignalBody, _: Caller = requires_role("operator")
) -> Response:
    """It may open the gate a token is parked before."""
    await app_state(request).orchestrator.signal(execution_id, body.name, body.payload)
    return await _row(request, execution_id)


@router.post("/api/executions/{execution_id}/rerun", status_code=202, summary="Run it again")
async def rerun(
    request: Request,
    execution_id: ExecutionId,
    body: RerunBody | None = None,
    key: Key = None,
    _: Caller = requires_role("operator"),
) -> Response:
    """A new execution; with `from`, earlier results are kept."""
    body = body or RerunBody()
    started = await app_state(request).orchestrator.rerun(
        execution_id, body.from_step, payload=body.payload, key=f"http:{key}" if key else None
    )
    return answer({"execution_id": started, "status": "running"}, 202, {"Location": f"/api/executions/{started}"})


async def _row(request: Request, execution_id: str) -> Response:
    summary = await app_state(request).orchestrator.store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}")
    return answer(summary_document(summary), 202)
