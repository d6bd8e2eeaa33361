"""Executions: list, inspect, follow and control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Scope

from noetl.core.model.events import Recorded, shown_envelope
from noetl.errors import NotFound, RequestRefused
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import App, AppState, Operator, Viewer
from noetl.server.http.middleware.fast_path import ItemRoute
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page, page_of, started_response
from noetl.server.http.routes.execute import MAX_KEY
from noetl.server.http.streams import STREAM_ROUTE, After, LastEventId, stream_events
from noetl.server.orchestrator.submissions import RerunRequest, caller_key
from noetl.server.read_models.documents import execution_document, row_of, summary_document
from noetl.server.read_models.statistics import statistics_document
from noetl.server.read_models.stored_values import state_with_stored_values, with_stored_values
from noetl.storage.ports.events import ExecutionFilter, Sort

router = APIRouter(tags=["executions"])

Status = Literal["pending", "running", "waiting", "paused", "success", "failed", "cancelled"]

ExecutionId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="decimal id of an execution")]
OtherId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="decimal id of another execution")]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=MAX_KEY)]


class CancelBody(Body):
    """Why an execution is cancelled, and whether its completed steps are undone."""

    reason: str = ""
    compensate: bool = False


class ReasonBody(Body):
    """The reason of a request."""

    reason: str = Field("", max_length=2000)


class SignalBody(Body):
    """Data for a `wait` task, by the name of its signal or the key of the wait; or a patch of `ctx`."""

    name: str = Field("", max_length=200)
    payload: dict[str, Any] = {}
    wait: str = Field("", max_length=500)


class RerunBody(Body):
    """Options of a rerun."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    from_step: str | None = Field(default=None, alias="from")
    failed: bool = False
    version: int | str | None = Field(default=None, description="a version in the catalog, or `latest`")
    payload: dict[str, Any] | None = Field(default=None, description="replaces the payload of the execution")
    changes: dict[str, Any] = Field(default={}, description="replaces some keys of the payload")
    merge: dict[str, Any] = Field(default={}, description="is merged into the payload")
    dry_run: bool = Field(default=False, description="answer with the plan, and start nothing")


class ForkBody(Body):
    """Options of a fork."""

    at: int = Field(ge=1, le=2**53)
    version: int | str | None = Field(default=None, description="a version in the catalog, or `latest`")
    payload: dict[str, Any] | None = Field(default=None, description="replaces the payload of the execution")
    changes: dict[str, Any] = Field(default={}, description="replaces some keys of the payload")
    merge: dict[str, Any] = Field(default={}, description="is merged into the payload")
    dry_run: bool = Field(default=False, description="answer with the plan, and start nothing")


async def _columns(
    status: Annotated[list[Status] | None, Query(description="one or more statuses")] = None,
    path: str | None = None,
    parent: str | None = None,
    search: Annotated[str | None, Query(max_length=200)] = None,
    since: Annotated[float | None, Query(ge=0, le=1e11, description="started at or after; seconds since 1970")] = None,
    until: Annotated[float | None, Query(ge=0, le=1e11, description="started before; seconds since 1970")] = None,
) -> ExecutionFilter:
    return ExecutionFilter(
        status=tuple(status or ()), path=path, parent=parent, search=search, since=since, until=until
    )


async def _facts(
    request: Request,
    columns: Annotated[ExecutionFilter, Depends(_columns)],
    error: Annotated[str | None, Query(max_length=300, description="text in the error, or a cause")] = None,
    version: Annotated[str | None, Query(max_length=40)] = None,
    trigger: Annotated[
        str | None, Query(max_length=300, description="`schedule`, `schedule NAME`, `webhook`, `user`, `playbook`, ...")
    ] = None,
    label: Annotated[list[str] | None, Query(description="`key=value`, or `key` with any value")] = None,
    least_ms: Annotated[float | None, Query(ge=0, le=1e13, description="took at least")] = None,
    most_ms: Annotated[float | None, Query(ge=0, le=1e13, description="took at most")] = None,
) -> ExecutionFilter:
    for name in ("error", "version", "trigger", "least_ms", "most_ms"):
        if len(request.query_params.getlist(name)) > 1:
            raise RequestValidationError([{"loc": ("query", name), "msg": "must not be repeated"}])
    return msgspec.structs.replace(
        columns,
        error=error or None,
        version=version,
        trigger=trigger,
        labels=tuple((label or ())[:MAX_LABELS]),
        least_ms=least_ms,
        most_ms=most_ms,
    )


Columns = Annotated[ExecutionFilter, Depends(_facts)]
MAX_LABELS = 20  # of a filter


@router.get("/api/executions", summary="List executions, newest first")
async def executions(
    state: App,
    _: Viewer,
    columns: Columns,
    sort: Annotated[Sort, Query(description="`started` (the default), `duration`, `path` or `status`")] = "started",
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
    before: Annotated[str | None, Query(pattern=r"^[0-9]{1,19}$", description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Response:
    """One page of executions. `next` is the value of `before` for the next page."""
    where = msgspec.structs.replace(columns, limit=limit + 1, sort=sort, ascending=order == "asc")
    store = state.orchestrator.store
    if sort == "started" and order == "desc":
        found = await store.executions(msgspec.structs.replace(where, before=before))
        return json_response(page_of(found, limit, lambda each: each.execution_id, row_of))
    offset = min(int(before or 0), 2**53)
    found = await store.executions(msgspec.structs.replace(where, offset=offset))
    return json_response(page_of(found, limit, lambda _: str(offset + limit), row_of))


@router.get("/api/executions/statistics", summary="Counts, causes of failures and durations of many executions")
async def statistics(state: App, _: Viewer, columns: Columns) -> Response:
    """From the stored summaries of all executions that match."""
    return json_response(await statistics_document(state.orchestrator.store, columns, state.now()))


@router.get("/api/executions/{execution_id}", summary="Get an execution: steps, ctx, output")
async def execution(state: App, _: Viewer, execution_id: ExecutionId) -> Response:
    """The current state of the execution."""
    orchestrator = state.orchestrator
    summary = await orchestrator.summary(execution_id)
    progress = await orchestrator.progress(execution_id)
    document = execution_document(summary, progress, await orchestrator.waits_for(summary))
    return json_response(await with_stored_values(orchestrator.results, document))


@router.get("/api/executions/{execution_id}/events", summary="Events of the log")
async def events(
    state: App,
    _: Viewer,
    execution_id: ExecutionId,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """One page of events with seq > after, in order; fewer than `limit` if they are large."""
    found = await state.orchestrator.events(execution_id, after, limit)
    return json_response(page([shown_envelope(each) for each in found], str(found[-1].seq) if found.more else None))


@router.get(
    "/api/executions/{execution_id}/events/stream",
    summary="Stream the log (server-sent events)",
    **STREAM_ROUTE,
)
async def stream(
    request: Request, _: Viewer, execution_id: ExecutionId, after: After = 0, last: LastEventId = None
) -> StreamingResponse:
    """The id of a message is the seq of its event; `Last-Event-ID` continues after it. Ends with the execution."""
    return await stream_events(request, execution_id, after, last, _encode_events)


async def _stream(scope: Scope, execution_id: str) -> ASGIApp:
    last = next((value for name, value in scope["headers"] if name == b"last-event-id"), None)
    text = None if last is None else last.decode("latin-1")
    return await stream_events(Request(scope), execution_id, 0, text, _encode_events)


STREAM = ItemRoute("/api/executions/{execution_id}/events/stream", "viewer", _stream)


def _encode_events(events: Sequence[Recorded]) -> bytes:
    return b"".join(
        b"id: %d\nevent: event\ndata: %b\n\n" % (recorded.seq, msgspec.json.encode(shown_envelope(recorded)))
        for recorded in events
    )


@router.get("/api/executions/{execution_id}/state", summary="State now or after an event")
async def state(
    state: App, _: Viewer, execution_id: ExecutionId, at: Annotated[int | None, Query(ge=1, le=2**53)] = None
) -> Response:
    """Tokens, runs, loops, leases, ctx."""
    from noetl.server.read_models.state_at import state_document

    document = state_document(await state.orchestrator.state(execution_id, at))
    return json_response(await state_with_stored_values(state.orchestrator.results, document))


@router.get("/api/executions/{execution_id}/graph", summary="Graph of the execution's playbook")
async def graph(state: App, _: Viewer, execution_id: ExecutionId) -> Response:
    """Steps and arcs, including synthesized ones."""
    from noetl.core.language.editor.net_document import net_document

    folded = await state.orchestrator.state(execution_id)
    return json_response(net_document(folded.playbook, folded.synthesized.values()))


@router.get("/api/executions/{execution_id}/why", summary="Explain what an execution waits for")
async def why(
    state: App,
    _: Viewer,
    execution_id: ExecutionId,
    at: Annotated[int | None, Query(ge=1, le=2**53, description="explain the state after this event")] = None,
    brief: Annotated[bool, Query(description="only findings, without reading the whole log")] = False,
) -> Response:
    """Findings about tokens, gates, leases, timers, guards and children; for an ended execution, why it ended."""
    orchestrator = state.orchestrator
    findings = await orchestrator.why(execution_id, at)
    if at is not None or brief:
        return json_response({"findings": findings})
    explanation = await orchestrator.explain(execution_id)
    return json_response({**msgspec.structs.asdict(explanation), "findings": findings})


@router.get("/api/executions/{execution_id}/playbook", summary="Playbook text of an execution")
async def playbook(state: App, _: Viewer, execution_id: ExecutionId) -> Response:
    """Path, version and text of the playbook."""
    orchestrator = state.orchestrator
    summary = await orchestrator.summary(execution_id)
    source = await orchestrator.catalog.source(summary.playbook)
    return json_response({"path": summary.path, "version": summary.version, "content": source.text})


@router.post("/api/executions/{execution_id}/cancel", status_code=202, summary="Cancel an execution")
async def cancel(
    state: App, caller: Operator, execution_id: ExecutionId, body: CancelBody | None = None, key: Key = None
) -> Response:
    """Ends open runs with kind `cancelled`, also those of child executions; `compensate` undoes completed steps."""
    reason = body.reason if body and body.reason else f"cancelled by {caller.name}"
    compensate = body is not None and body.compensate
    await state.orchestrator.cancel(execution_id, reason, compensate=compensate, id=_id(caller, key))
    return await _row(state, execution_id)


@router.post("/api/executions/{execution_id}/pause", status_code=202, summary="Pause an execution")
async def pause(
    state: App, caller: Operator, execution_id: ExecutionId, body: ReasonBody | None = None, key: Key = None
) -> Response:
    """Active runs continue; no new run starts."""
    await state.orchestrator.pause(execution_id, body.reason if body else "", id=_id(caller, key))
    return await _row(state, execution_id)


@router.post("/api/executions/{execution_id}/resume", status_code=202, summary="Resume a paused execution")
async def resume(
    state: App, caller: Operator, execution_id: ExecutionId, body: ReasonBody | None = None, key: Key = None
) -> Response:
    """New runs start again."""
    await state.orchestrator.resume(execution_id, body.reason if body else "", id=_id(caller, key))
    return await _row(state, execution_id)


@router.post("/api/executions/{execution_id}/signal", status_code=202, summary="Answer a wait, or patch ctx")
async def signal(state: App, caller: Viewer, execution_id: ExecutionId, body: SignalBody, key: Key = None) -> Response:
    """A signal with the name of a `wait` task answers it, or is kept until it waits; this requires a role of the wait.
    Any other signal is merged into `ctx`, which may open a gate; this requires the role operator. Data that does not
    fit the form of the wait is refused (400). Requests with the same key have one effect."""
    await state.orchestrator.signal(
        execution_id, body.name, body.payload, by=caller.name, roles=caller.roles, wait=body.wait, id=_id(caller, key)
    )
    return await _row(state, execution_id)


@router.post(
    "/api/executions/{execution_id}/rerun",
    status_code=202,
    summary="Run an execution again",
    responses={200: {"description": "The plan (`dry_run`)"}},
)
async def rerun(
    state: App, caller: Operator, execution_id: ExecutionId, body: RerunBody | None = None, key: Key = None
) -> Response:
    """Starts a new execution. `from`: at this step, with the results of earlier steps. `failed`: at what failed, with
    the finished iterations of loops. `version`: with another version of the playbook (`latest`: the newest)."""
    body = body or RerunBody()
    if body.failed and body.from_step is not None:
        raise RequestRefused("give `from` or `failed`, not both")
    fields = body.model_dump(exclude={"dry_run"})
    return await _rerun(state, RerunRequest(execution_id, **fields), caller.name, key, dry_run=body.dry_run)


@router.post(
    "/api/executions/{execution_id}/fork",
    status_code=202,
    summary="Start an execution from an event of another one",
    responses={200: {"description": "The plan (`dry_run`)"}},
)
async def fork(state: App, caller: Operator, execution_id: ExecutionId, body: ForkBody, key: Key = None) -> Response:
    """The new execution has the results and the ctx after event `at`; steps that were open then start again."""
    fields = body.model_dump(exclude={"dry_run"})
    return await _rerun(state, RerunRequest(execution_id, **fields), caller.name, key, dry_run=body.dry_run)


async def _rerun(state: AppState, request: RerunRequest, by: str, key: str | None, *, dry_run: bool) -> Response:
    if dry_run:
        return json_response(await state.orchestrator.plan_rerun(request))
    return started_response(await state.orchestrator.rerun(request, key=caller_key(by, key), by=by))


@router.get("/api/executions/{execution_id}/compare/{other}", summary="Compare two executions")
async def compare(state: App, _: Viewer, execution_id: ExecutionId, other: OtherId) -> Response:
    """Version, inputs, durations and outputs per step, and the first event at which they diverge."""
    return json_response(await state.orchestrator.compare(execution_id, other))


def _id(caller: Caller, key: str | None) -> str:
    return caller_key(caller.name, key) or ""


async def _row(state: AppState, execution_id: str) -> Response:
    summary = await state.orchestrator.store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}")
    return json_response(summary_document(summary), 202)
