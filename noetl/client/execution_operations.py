"""Operations on executions: start, control, inspect, and query their results."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Literal, Unpack

import msgspec

from noetl.client.options import (
    ForkOptions,
    ListOptions,
    RerunOptions,
    SubmitOptions,
)
from noetl.client.requests import (
    FINAL,
    Document,
    Operation,
    Pages,
    StreamEnd,
    bytes_of,
    control,
    document_of,
    execution_id_of,
    execution_path,
    idempotency,
    stream_path,
    without_none,
)
from noetl.core.model.playbook import Limits
from noetl.errors import Conflict, PayloadUnavailable
from noetl.server.read_models.documents import result_of, summary_of
from noetl.server.read_models.summaries import RunResult
from noetl.storage.ports.events import ExecutionSummary
from noetl.transport.api_connection import Request

QUERY_SECONDS = 90.0  # to wait for the first rows; the server stops a query after 60 s
STOP_SECONDS = 30.0  # that a cancelled execution has to end


class _Submission(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of `POST /api/execute`; fields that are not given are left out, for servers that do not know them."""

    path: str | None
    payload: dict[str, Any]
    content: str | None = None
    file: str = ""
    version: int | str | None = None
    entry_step: str | None = None
    return_step: str | None = None
    strict: bool = False
    legacy: bool = False
    labels: Mapping[str, str] = {}


class ExecutionOperations:
    """Operations on executions."""

    # ── run ────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        path: str | None = None,
        payload: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Operation[str]:
        """Start an execution of a registered path or of a text (`content`); return its id once it is durable.

        Requests with the same `key` start one execution."""
        body = _Submission(path=path, payload=dict(payload or {}), **options)
        return execution_id_of((yield Request("POST", "/api/execute", body, headers=idempotency(key))))

    def wait(self, execution_id: str, timeout: float | None = None) -> Operation[RunResult]:
        """Return the result when the execution has ended; TimeoutError after `timeout` seconds, without cancelling."""
        until = None if timeout is None else time.monotonic() + timeout
        summary = yield from self.summary(execution_id)
        if summary.status not in FINAL:
            try:
                yield StreamEnd(stream_path(execution_id), summary.seq, until)
            except TimeoutError:
                raise TimeoutError(f"execution {execution_id} has not ended after {timeout:g} s") from None
        return (yield from self.result(execution_id))

    def run(
        self,
        path: str | None = None,
        payload: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Operation[RunResult]:
        """Submit and wait; after `timeout` seconds the execution is cancelled. Options as of `submit`."""
        execution_id = yield from self.submit(path, payload, key=key, **options)
        try:
            return (yield from self.wait(execution_id, timeout))
        except TimeoutError:
            try:
                yield from self.cancel(execution_id, f"it took longer than {timeout:g} s")
            except Conflict:
                pass  # it has ended meanwhile
        result = yield from self.wait(execution_id, STOP_SECONDS)
        return msgspec.structs.replace(result, timed_out=result.status == "cancelled")

    def result(self, execution_id: str) -> Operation[RunResult]:
        """The result of an execution, as far as it is known; a stored output is fetched unless it is too large."""
        result = result_of((yield from self.execution(execution_id)))
        reference = result.output.get("ref")
        if result.output.get("data") is not None or reference is None:
            return result
        if reference["meta"]["bytes"] > Limits().max_hydrate_bytes:
            return result
        from noetl.server.orchestrator.request_resolver import decoded

        try:
            data = decoded((yield from self.payload(reference)), reference["meta"]["content_type"])
        except PayloadUnavailable:
            return result  # deleted, or not readable as data: the reference remains
        return msgspec.structs.replace(result, output={**result.output, "data": data})

    def payload(self, reference: Mapping[str, Any]) -> Operation[bytes]:
        """The bytes of a stored payload."""
        name = base64.urlsafe_b64encode(msgspec.json.encode(reference)).decode().rstrip("=")
        return bytes_of((yield Request("GET", f"/api/results/{name}", raw=True)))

    # ── control ────────────────────────────────────────────────────────────────────────

    def cancel(self, execution_id: str, reason: str = "", compensate: bool = False) -> Operation[ExecutionSummary]:
        """Cancel an execution; Conflict when it has already ended. `compensate` undoes its completed steps."""
        return (yield from control(execution_id, "cancel", {"reason": reason, "compensate": compensate}))

    def pause(self, execution_id: str, reason: str = "") -> Operation[ExecutionSummary]:
        """Start no new run in an execution."""
        return (yield from control(execution_id, "pause", {"reason": reason}))

    def resume(self, execution_id: str, reason: str = "") -> Operation[ExecutionSummary]:
        """Continue a paused execution."""
        return (yield from control(execution_id, "resume", {"reason": reason}))

    def signal(
        self, execution_id: str, payload: Mapping[str, Any], name: str = "", *, wait: str = "", key: str | None = None
    ) -> Operation[ExecutionSummary]:
        """Answer the wait for the signal `name` (or with the key `wait`); without one, merge `payload` into ctx.

        A signal that arrives before its wait is kept. Signals with the same `key` have one effect."""
        body = {"name": name, "payload": dict(payload), "wait": wait}
        path = f"{execution_path(execution_id)}/signal"
        return summary_of((yield Request("POST", path, body, headers=idempotency(key))))

    def inbox(self) -> Pages[Document]:
        """The waits that a signal answers, newest executions first."""
        return Pages("/api/inbox", document_of, cursor="before")

    def answer_link(
        self, execution_id: str, name: str = "", *, wait: str = "", recipient: str = "", expires_s: float | None = None
    ) -> Operation[Document]:
        """Create a signed link with which its recipient answers a wait once: `url`, `expires_at`."""
        options = {"name": name, "wait": wait, "recipient": recipient, "expires_s": expires_s}
        body = {"execution_id": execution_id, **without_none(options)}
        return document_of((yield Request("POST", "/api/inbox/links", body)))

    def rerun(
        self,
        execution_id: str,
        from_step: str | None = None,
        *,
        key: str | None = None,
        **options: Unpack[RerunOptions],
    ) -> Operation[str]:
        """Run the playbook of an execution again, from a step, or what `failed`; return the id of the new execution."""
        body = {"from": from_step, **without_none(options)}
        path = f"{execution_path(execution_id)}/rerun"
        return execution_id_of((yield Request("POST", path, body, headers=idempotency(key))))

    def plan_rerun(
        self, execution_id: str, from_step: str | None = None, **options: Unpack[RerunOptions]
    ) -> Operation[Document]:
        """What a rerun would do: where it `starts`, the results that are `kept`, `changed` and `dropped`."""
        body = {"from": from_step, "dry_run": True, **without_none(options)}
        return document_of((yield Request("POST", f"{execution_path(execution_id)}/rerun", body)))

    def fork(
        self, execution_id: str, at: int, *, key: str | None = None, **options: Unpack[ForkOptions]
    ) -> Operation[str]:
        """Start an execution with the results and the ctx after event `at` of another one; return its id."""
        path = f"{execution_path(execution_id)}/fork"
        return execution_id_of(
            (yield Request("POST", path, {"at": at, **without_none(options)}, headers=idempotency(key)))
        )

    def plan_fork(self, execution_id: str, at: int, **options: Unpack[ForkOptions]) -> Operation[Document]:
        """What a fork would do."""
        body = {"at": at, "dry_run": True, **without_none(options)}
        return document_of((yield Request("POST", f"{execution_path(execution_id)}/fork", body)))

    def compare(self, execution_id: str, other: str) -> Operation[Document]:
        """What differs between two executions: version, inputs, steps, outputs, first_divergence."""
        path = f"{execution_path(execution_id)}/compare/{execution_path(other).rpartition('/')[2]}"
        return document_of((yield Request("GET", path)))

    # ── inspect ────────────────────────────────────────────────────────────────────────

    def executions(
        self,
        *,
        status: Sequence[str] = (),
        path: str | None = None,
        parent: str | None = None,
        search: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        **more: Unpack[ListOptions],
    ) -> Pages[ExecutionSummary]:
        """Executions, newest first; at most `limit`. `trigger` is `schedule`, `schedule NAME`, `user`, ..., and each of
        `labels` is `key=value` or `key`."""
        query = {"status": tuple(status), "path": path, "parent": parent, "search": search, "before": before}
        query |= {"trigger": more.get("trigger"), "label": tuple(more.get("labels", ()))}
        return Pages("/api/executions", summary_of, query, "before", limit)

    def summary(self, execution_id: str) -> Operation[ExecutionSummary]:
        """One row of the list of executions; NotFound when it does not exist."""
        return summary_of((yield from self.execution(execution_id)))

    def execution(self, execution_id: str) -> Operation[Document]:
        """The document of an execution: steps, ctx, output, error."""
        return document_of((yield Request("GET", execution_path(execution_id))))

    def events(self, execution_id: str, after: int = 0) -> Pages[Document]:
        """The events recorded so far with seq > after, in order."""
        return Pages(f"{execution_path(execution_id)}/events", document_of, {"after": after})

    def logs(
        self,
        execution_id: str,
        after: int = 0,
        *,
        step: str | None = None,
        iteration: str | None = None,
        attempt: int | None = None,
        stream: str | None = None,
        search: str | None = None,
    ) -> Pages[Document]:
        """The lines that tasks have printed so far, with seq > after, in order."""
        where = {"step": step, "iteration": iteration, "attempt": attempt, "stream": stream, "search": search}
        return Pages(f"{execution_path(execution_id)}/logs", document_of, {**where, "after": after})

    def state(self, execution_id: str, at: int | None = None) -> Operation[Document]:
        """The state of an execution, now or after event `at`."""
        return document_of((yield Request("GET", f"{execution_path(execution_id)}/state", query={"at": at})))

    def why(self, execution_id: str) -> Operation[Document]:
        """An explanation of an execution's status: summary, because, way, findings."""
        return document_of((yield Request("GET", f"{execution_path(execution_id)}/why")))

    def graph(self, execution_id: str) -> Operation[Document]:
        """The steps and arcs of an execution's playbook."""
        return document_of((yield Request("GET", f"{execution_path(execution_id)}/graph")))

    def workers(self) -> Operation[list[Document]]:
        """The workers that have recently requested work from this server."""
        found: list[Document] = (yield Request("GET", "/api/workers"))["items"]
        return found

    def session(self) -> Operation[Document]:
        """The name and role of the token in use."""
        return document_of((yield Request("GET", "/api/session")))

    # ── queries over results ───────────────────────────────────────────────────────────

    def tables(self, execution_id: str) -> Operation[list[Document]]:
        """The results of an execution that can be queried."""
        found = yield Request("GET", f"/api/executions/{execution_id}/tables")
        return [*found["items"]]

    def query(self, execution_id: str, sql: str, limit: int = 1_000) -> Operation[Document]:
        """The first rows of a SELECT over the results of an execution: `columns`, `rows`, `truncated`."""
        body = {"sql": sql, "limit": limit}
        asked = Request("POST", f"/api/executions/{execution_id}/query", body, seconds=QUERY_SECONDS)
        return document_of((yield asked))

    def export_query(
        self, execution_id: str, sql: str, format: Literal["csv", "json", "parquet"], file: BinaryIO
    ) -> Operation[None]:
        """Write all rows of a SELECT over the results of an execution to a file."""
        path, body = f"/api/executions/{execution_id}/query", {"sql": sql, "format": format}
        yield Request("POST", path, body, into=file, seconds=QUERY_SECONDS)
