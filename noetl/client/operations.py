"""The operations of the HTTP API, each written once for the blocking and the asynchronous client.

An operation is a generator: it yields requests, receives their responses and returns a typed result. A client runs it
over its own connection. Lists are `Pages`, which a client iterates.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from noetl.core.model.bundle import Bundle
from noetl.core.model.events import seconds
from noetl.core.model.playbook import Limits
from noetl.errors import Conflict, NotFound, PayloadUnavailable
from noetl.server.read_models.documents import result_of, summary_of
from noetl.server.read_models.summaries import RunResult
from noetl.storage.ports.events import ExecutionSummary
from noetl.storage.ports.playbooks import Origin, StoredPlaybook
from noetl.transport.api_connection import Request, diagnostics

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic

PAGE_SIZE = 1_000
FINAL = ("success", "failed", "cancelled")
QUERY_SECONDS = 90.0  # to wait for the first rows; the server stops a query after 60 s
STOP_SECONDS = 30.0  # that a cancelled execution has to end

T = TypeVar("T")
Document: TypeAlias = dict[str, Any]


class StreamEnd(NamedTuple):
    """Wait until an execution's event stream has ended; TimeoutError after `until`, an instant of time.monotonic()."""

    path: str
    after: int
    until: float | None


Operation: TypeAlias = Generator[Request | StreamEnd, Any, T]


class Pages(NamedTuple, Generic[T]):
    """A list that is read page by page."""

    path: str
    decode: Callable[[Document], T]
    query: Mapping[str, Any] = {}
    cursor: Literal["before", "after"] = "after"  # the parameter that takes `next` of the page before
    limit: int | None = None  # the greatest number of items

    def page(self, at: Any, left: int | None) -> Request:
        """The request of one page."""
        size = PAGE_SIZE if left is None else min(PAGE_SIZE, left)
        start: Document = {} if at is None else {self.cursor: at}
        return Request("GET", self.path, query={**self.query, **start, "limit": size})


class ListOptions(TypedDict, total=False):
    """Further filters of a list of executions."""

    trigger: str | None
    labels: Sequence[str]


class SubmitOptions(TypedDict, total=False):
    """Options of `submit` and `run`."""

    content: str | None  # the text of a playbook, instead of a registered path
    file: str  # of `content`, in a bundle
    version: int | str | None
    entry_step: str | None
    return_step: str | None
    strict: bool
    legacy: bool
    labels: Mapping[str, str]


class ScheduleOptions(TypedDict, total=False):
    """Options of `add_schedule`."""

    name: str | None
    tz: str | None
    version: int | None
    payload: Mapping[str, Any] | None
    catch_up: Literal["none", "last", "all"] | None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None
    concurrency: int | None
    jitter: float | str | None
    deadline: float | str | None
    labels: Mapping[str, str] | None
    paused: bool | None


class WebhookOptions(TypedDict, total=False):
    """Options of `add_webhook`."""

    name: str | None
    credential: str | None
    version: int | None
    payload: Mapping[str, Any] | None
    window: float | None
    preset: Literal["noetl", "github", "stripe", "slack", "meta", "websub", "hmac", "none"] | None
    signature: Mapping[str, Any] | None
    allow_unsigned: bool | None
    topic: str | None
    headers: Sequence[str] | None
    raw_body: bool | None
    respond: Literal["accepted", "result"] | None
    wait: float | None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None
    concurrency: int | None
    labels: Mapping[str, str] | None


class BackfillOptions(TypedDict, total=False):
    """Options of `add_backfill`."""

    timezone: str | None  # of days, weeks and months, and of times without an offset
    variable: str | None  # key of the workload that has the slot; default `slot`
    concurrency: int | None
    name: str | None
    version: int | str | None
    payload: Mapping[str, Any] | None


class ForkOptions(TypedDict, total=False):
    """Options of `fork`."""

    version: int | str | None
    payload: Mapping[str, Any] | None  # instead of that of the execution
    changes: Mapping[str, Any] | None  # replaces some keys of the payload
    merge: Mapping[str, Any] | None  # is merged into the payload


class RerunOptions(ForkOptions, total=False):
    """Options of `rerun`."""

    failed: bool


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


class Operations:
    """The operations; `Client` and `AsyncClient` have methods of the same names and parameters."""

    # ── run ─────────────────────────────────────────────────────────────────────────────

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
        return _execution_id((yield Request("POST", "/api/execute", body, headers=_idempotency(key))))

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
        return _bytes((yield Request("GET", f"/api/results/{name}", raw=True)))

    # ── control ─────────────────────────────────────────────────────────────────────────

    def cancel(self, execution_id: str, reason: str = "", compensate: bool = False) -> Operation[ExecutionSummary]:
        """Cancel an execution; Conflict when it has already ended. `compensate` undoes its completed steps."""
        return (yield from _control(execution_id, "cancel", {"reason": reason, "compensate": compensate}))

    def pause(self, execution_id: str, reason: str = "") -> Operation[ExecutionSummary]:
        """Start no new run in an execution."""
        return (yield from _control(execution_id, "pause", {"reason": reason}))

    def resume(self, execution_id: str, reason: str = "") -> Operation[ExecutionSummary]:
        """Continue a paused execution."""
        return (yield from _control(execution_id, "resume", {"reason": reason}))

    def signal(
        self, execution_id: str, payload: Mapping[str, Any], name: str = "", *, wait: str = "", key: str | None = None
    ) -> Operation[ExecutionSummary]:
        """Answer the wait for the signal `name` (or with the key `wait`); without one, merge `payload` into ctx.

        A signal that arrives before its wait is kept. Signals with the same `key` have one effect."""
        body = {"name": name, "payload": dict(payload), "wait": wait}
        path = f"{_execution(execution_id)}/signal"
        return summary_of((yield Request("POST", path, body, headers=_idempotency(key))))

    def inbox(self) -> Pages[Document]:
        """The waits that a signal answers, newest executions first."""
        return Pages("/api/inbox", _document, cursor="before")

    def answer_link(
        self, execution_id: str, name: str = "", *, wait: str = "", recipient: str = "", expires_s: float | None = None
    ) -> Operation[Document]:
        """Create a signed link with which its recipient answers a wait once: `url`, `expires_at`."""
        options = {"name": name, "wait": wait, "recipient": recipient, "expires_s": expires_s}
        body = {"execution_id": execution_id, **_given(options)}
        return _document((yield Request("POST", "/api/inbox/links", body)))

    def rerun(
        self,
        execution_id: str,
        from_step: str | None = None,
        *,
        key: str | None = None,
        **options: Unpack[RerunOptions],
    ) -> Operation[str]:
        """Run the playbook of an execution again, from a step, or what `failed`; return the id of the new execution."""
        body = {"from": from_step, **_given(options)}
        path = f"{_execution(execution_id)}/rerun"
        return _execution_id((yield Request("POST", path, body, headers=_idempotency(key))))

    def plan_rerun(
        self, execution_id: str, from_step: str | None = None, **options: Unpack[RerunOptions]
    ) -> Operation[Document]:
        """What a rerun would do: where it `starts`, the results that are `kept`, `changed` and `dropped`."""
        body = {"from": from_step, "dry_run": True, **_given(options)}
        return _document((yield Request("POST", f"{_execution(execution_id)}/rerun", body)))

    def fork(
        self, execution_id: str, at: int, *, key: str | None = None, **options: Unpack[ForkOptions]
    ) -> Operation[str]:
        """Start an execution with the results and the ctx after event `at` of another one; return its id."""
        path = f"{_execution(execution_id)}/fork"
        return _execution_id((yield Request("POST", path, {"at": at, **_given(options)}, headers=_idempotency(key))))

    def plan_fork(self, execution_id: str, at: int, **options: Unpack[ForkOptions]) -> Operation[Document]:
        """What a fork would do."""
        body = {"at": at, "dry_run": True, **_given(options)}
        return _document((yield Request("POST", f"{_execution(execution_id)}/fork", body)))

    def compare(self, execution_id: str, other: str) -> Operation[Document]:
        """What differs between two executions: version, inputs, steps, outputs, first_divergence."""
        path = f"{_execution(execution_id)}/compare/{_execution(other).rpartition('/')[2]}"
        return _document((yield Request("GET", path)))

    # ── inspect ─────────────────────────────────────────────────────────────────────────

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
        return _document((yield Request("GET", _execution(execution_id))))

    def events(self, execution_id: str, after: int = 0) -> Pages[Document]:
        """The events recorded so far with seq > after, in order."""
        return Pages(f"{_execution(execution_id)}/events", _document, {"after": after})

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
        return Pages(f"{_execution(execution_id)}/logs", _document, {**where, "after": after})

    def state(self, execution_id: str, at: int | None = None) -> Operation[Document]:
        """The state of an execution, now or after event `at`."""
        return _document((yield Request("GET", f"{_execution(execution_id)}/state", query={"at": at})))

    def why(self, execution_id: str) -> Operation[Document]:
        """An explanation of an execution's status: summary, because, way, findings."""
        return _document((yield Request("GET", f"{_execution(execution_id)}/why")))

    def graph(self, execution_id: str) -> Operation[Document]:
        """The steps and arcs of an execution's playbook."""
        return _document((yield Request("GET", f"{_execution(execution_id)}/graph")))

    def workers(self) -> Operation[list[Document]]:
        """The workers that have recently requested work from this server."""
        found: list[Document] = (yield Request("GET", "/api/workers"))["items"]
        return found

    def session(self) -> Operation[Document]:
        """The name and role of the token in use."""
        return _document((yield Request("GET", "/api/session")))

    # ── catalog ─────────────────────────────────────────────────────────────────────────

    def register(
        self,
        content: str,
        *,
        strict: bool = False,
        legacy: bool = False,
        file: str = "",
        origin: Origin | None = None,
    ) -> Operation[StoredPlaybook]:
        """Register a new version under the playbook's own path; the same text again is the same version.

        `file` is `bundle:DIGEST/PATH` if files travel with the playbook (`add_bundle`)."""
        body: Document = {"content": content, "strict": strict, "legacy": legacy}
        if file:
            body["file"] = file
        if origin is not None and origin != Origin():
            body["origin"] = msgspec.to_builtins(origin)
        return _stored({**(yield Request("POST", "/api/catalog/register", body)), "content": content})

    def add_bundle(self, bundle: Bundle, contents: Mapping[str, bytes]) -> Operation[str]:
        """Send a bundle and those of its files that the server does not have; return its digest."""
        body = {"files": bundle.files, "profile": msgspec.to_builtins(bundle.profile)}
        added = yield Request("POST", "/api/bundles", body)
        for digest in added["missing"]:
            yield Request("PUT", f"/api/files/{digest}", contents[digest], raw=True)
        return str(added["digest"])

    def bundle(self, digest: str) -> Operation[Bundle]:
        """The files and the profile of a bundle."""
        found = yield Request("GET", f"/api/bundles/{digest}")
        return msgspec.convert({"files": found["files"], "profile": found["profile"]}, Bundle)

    def playbooks(self, search: str | None = None) -> Pages[StoredPlaybook]:
        """The newest version of every path, without the texts."""
        return Pages("/api/catalog", _stored, {"search": search})

    def playbook(self, path: str, version: int | None = None) -> Operation[StoredPlaybook]:
        """A version of a path, or the newest one; NotFound when it does not exist."""
        return _stored((yield Request("GET", f"/api/catalog/{quote(path)}", query={"version": version})))

    def validate(self, content: str, *, strict: bool = False, legacy: bool = False) -> Operation[list[Diagnostic]]:
        """All problems of a playbook's text, found with the server's tool kinds."""
        body = {"content": content, "strict": strict, "legacy": legacy}
        return diagnostics((yield Request("POST", "/api/validate", body))["diagnostics"])

    # ── credentials ─────────────────────────────────────────────────────────────────────

    def credentials(self) -> Operation[list[tuple[str, str]]]:
        """Names and types; values cannot be read."""
        return [(row["name"], row["type"]) for row in (yield Request("GET", "/api/credentials"))["items"]]

    def set_credential(self, name: str, type: str, data: Mapping[str, Any]) -> Operation[None]:
        """Store a credential, encrypted."""
        yield Request("PUT", _item("credentials", name), {"type": type, "data": dict(data)})

    def delete_credential(self, name: str) -> Operation[None]:
        """Delete a credential; NotFound when it does not exist."""
        yield Request("DELETE", _item("credentials", name))

    # ── schedules ───────────────────────────────────────────────────────────────────────

    def add_schedule(self, path: str, cron: str, **options: Unpack[ScheduleOptions]) -> Operation[Document]:
        """Start a playbook at the times of a cron expression."""
        return _document((yield Request("POST", "/api/schedules", {"path": path, "cron": cron, **_given(options)})))

    def schedules(self) -> Pages[Document]:
        """All schedules, by name."""
        return Pages("/api/schedules", _document)

    def schedule(self, name: str, count: int = 3) -> Operation[Document]:
        """A schedule with its next `count` ticks."""
        return _document((yield Request("GET", _item("schedules", name), query={"count": count})))

    def edit_schedule(self, name: str, fields: Mapping[str, Any]) -> Operation[Document]:
        """Change fields of a schedule; `version` and `deadline` may be None."""
        return _document((yield Request("PATCH", _item("schedules", name), dict(fields))))

    def run_schedule(self, name: str, *, key: str | None = None) -> Operation[Document]:
        """Start the playbook of a schedule now; a repeated `key` returns the same execution."""
        headers = {"Idempotency-Key": key} if key else {}
        return _document((yield Request("POST", _item("schedules", name) + "/run", headers=headers)))

    def remove_schedule(self, name: str) -> Operation[None]:
        """Delete a schedule."""
        yield Request("DELETE", _item("schedules", name))

    def pause_schedule(self, name: str) -> Operation[Document]:
        """Stop a schedule; ticks that pass meanwhile are dropped."""
        return _document((yield Request("POST", _item("schedules", name) + "/pause")))

    def resume_schedule(self, name: str) -> Operation[Document]:
        """Continue a paused schedule with its next tick."""
        return _document((yield Request("POST", _item("schedules", name) + "/resume")))

    # ── limits ──────────────────────────────────────────────────────────────────────────

    def set_limit(
        self, subject: str, name: str, most: int | None = None, *, weight: int | None = None
    ) -> Operation[Document]:
        """Limit how many run at once: runs of a `pool`, runs with a `credential`, executions of a `playbook`.

        `weight` of a playbook is its share of the workers' slots relative to other playbooks while runs wait."""
        return _document((yield Request("PUT", _limit(subject, name), _given({"most": most, "weight": weight}))))

    def limits(self) -> Pages[Document]:
        """All limits, with what uses their slots and how many wait."""
        return Pages("/api/limits", _document)

    def limit(self, subject: str, name: str) -> Operation[Document]:
        """One limit."""
        return _document((yield Request("GET", _limit(subject, name))))

    def remove_limit(self, subject: str, name: str) -> Operation[None]:
        """Remove a limit."""
        yield Request("DELETE", _limit(subject, name))

    # ── queries over results ────────────────────────────────────────────────────────────

    def tables(self, execution_id: str) -> Operation[list[Document]]:
        """The results of an execution that can be queried."""
        found = yield Request("GET", f"/api/executions/{execution_id}/tables")
        return [*found["items"]]

    def query(self, execution_id: str, sql: str, limit: int = 1_000) -> Operation[Document]:
        """The first rows of a SELECT over the results of an execution: `columns`, `rows`, `truncated`."""
        body = {"sql": sql, "limit": limit}
        asked = Request("POST", f"/api/executions/{execution_id}/query", body, seconds=QUERY_SECONDS)
        return _document((yield asked))

    def export_query(
        self, execution_id: str, sql: str, format: Literal["csv", "json", "parquet"], file: BinaryIO
    ) -> Operation[None]:
        """Write all rows of a SELECT over the results of an execution to a file."""
        path, body = f"/api/executions/{execution_id}/query", {"sql": sql, "format": format}
        yield Request("POST", path, body, into=file, seconds=QUERY_SECONDS)

    # ── state ───────────────────────────────────────────────────────────────────────────

    def states(self) -> Pages[Document]:
        """The playbooks that have state, by path."""
        return Pages("/api/state", _document)

    def state_of(self, path: str) -> Operation[Document]:
        """The state that executions of a playbook share."""
        return _document((yield Request("GET", f"/api/state/{quote(path)}")))

    def set_state(self, path: str, values: Document, versions: Document | None = None) -> Operation[Document]:
        """Set values by key or dotted path; with `versions`, only if the keys have these versions."""
        body = {"values": values, "versions": versions}
        return _document((yield Request("PATCH", f"/api/state/{quote(path)}", body)))

    def reset_state(self, path: str, keys: Sequence[str] = ()) -> Operation[None]:
        """Remove these keys of the state of a playbook, or all of them."""
        yield Request("DELETE", f"/api/state/{quote(path)}", query={"key": tuple(keys)})

    # ── schemas ─────────────────────────────────────────────────────────────────────────

    def register_schema(self, name: str, schema: Document, compatible: str = "backward") -> Operation[Document]:
        """Register a version of a JSON Schema; Conflict if it is not compatible with the newest version."""
        body = {"json_schema": schema, "compatible": compatible}
        return _document((yield Request("PUT", f"/api/schemas/{quote(name)}", body)))

    def schemas(self) -> Pages[Document]:
        """The newest version of each schema, by name."""
        return Pages("/api/schemas", _document)

    def schema(self, name: str) -> Operation[Document]:
        """A version of a schema (`orders/v2`), or the newest one (`orders`)."""
        return _document((yield Request("GET", f"/api/schemas/{quote(name)}")))

    # ── triggers ────────────────────────────────────────────────────────────────────────

    def triggers(self, kind: str | None = None) -> Pages[Document]:
        """All triggers, by kind and name."""
        return Pages("/api/triggers", _document, {"kind": kind} if kind else {})

    def trigger(self, kind: str, name: str) -> Operation[Document]:
        """A trigger with its newest delivery."""
        return _document((yield Request("GET", _trigger(kind, name))))

    def put_trigger(self, kind: str, name: str, definition: Mapping[str, Any]) -> Operation[Document]:
        """Create a trigger, or replace its definition."""
        return _document((yield Request("PUT", _trigger(kind, name), dict(definition))))

    def pause_trigger(self, kind: str, name: str) -> Operation[Document]:
        """Pause a trigger."""
        return _document((yield Request("POST", _trigger(kind, name) + "/pause")))

    def resume_trigger(self, kind: str, name: str) -> Operation[Document]:
        """Resume a trigger."""
        return _document((yield Request("POST", _trigger(kind, name) + "/resume")))

    def remove_trigger(self, kind: str, name: str) -> Operation[None]:
        """Delete a trigger."""
        yield Request("DELETE", _trigger(kind, name))

    def deliveries(
        self,
        kind: str | None = None,
        name: str | None = None,
        status: str | None = None,
        *,
        limit: int | None = None,
    ) -> Pages[Document]:
        """Deliveries of triggers, newest first."""
        query = {"kind": kind, "name": name, "status": status}
        given = {each: value for each, value in query.items() if value}
        return Pages("/api/deliveries", _document, given, "before", limit)

    def delivery(self, id: str) -> Operation[Document]:
        """A delivery with its payload."""
        return _document((yield Request("GET", _item("deliveries", id))))

    def replay_delivery(self, id: str) -> Operation[Document]:
        """Start another execution with the payload of a delivery."""
        return _document((yield Request("POST", _item("deliveries", id) + "/replay")))

    # ── notifications ───────────────────────────────────────────────────────────────────

    def notifications(self) -> Pages[Document]:
        """All notification rules, by name."""
        return Pages("/api/notifications", _document)

    def notification(self, name: str) -> Operation[Document]:
        """A notification rule."""
        return _document((yield Request("GET", _item("notifications", name))))

    def put_notification(self, name: str, definition: Mapping[str, Any]) -> Operation[Document]:
        """Create a notification rule, or replace it."""
        return _document((yield Request("PUT", _item("notifications", name), dict(definition))))

    def test_notification(self, name: str) -> Operation[Document]:
        """Send a test message to the channel of a rule."""
        return _document((yield Request("POST", _item("notifications", name) + "/test")))

    def remove_notification(self, name: str) -> Operation[None]:
        """Delete a notification rule."""
        yield Request("DELETE", _item("notifications", name))

    def notification_deliveries(self, name: str, *, limit: int | None = None) -> Pages[Document]:
        """The messages of a notification rule, newest first."""
        return Pages(_item("notifications", name) + "/deliveries", _document, {}, "before", limit)

    # ── backfills ───────────────────────────────────────────────────────────────────────

    def add_backfill(
        self, path: str, start: str, end: str, every: str, **options: Unpack[BackfillOptions]
    ) -> Operation[Document]:
        """Start one execution for each slot of a range; `every` is the duration of a slot (`1d`)."""
        given = _given(options)
        if "variable" in given:
            given["as"] = given.pop("variable")
        body = {"path": path, "from": start, "to": end, "every": every, **given}
        return _document((yield Request("POST", "/api/backfills", body)))

    def backfills(self) -> Pages[Document]:
        """All backfills with their progress, by name."""
        return Pages("/api/backfills", _document)

    def backfill(self, name: str) -> Operation[Document]:
        """A backfill with its progress."""
        return _document((yield Request("GET", _item("backfills", name))))

    def control_backfill(
        self, name: str, command: Literal["pause", "resume", "cancel", "retry"]
    ) -> Operation[Document]:
        """Pause, resume or cancel a backfill, or repeat its failed slots."""
        return _document((yield Request("POST", f"{_item('backfills', name)}/{command}")))

    # ── webhooks ────────────────────────────────────────────────────────────────────────

    def add_webhook(self, path: str, **options: Unpack[WebhookOptions]) -> Operation[Document]:
        """Let signed requests start a playbook; without a credential the document has the generated `secret`."""
        return _document((yield Request("POST", "/api/webhooks", {"path": path, **_given(options)})))

    def webhooks(self) -> Pages[Document]:
        """All webhooks, by name."""
        return Pages("/api/webhooks", _document)

    def remove_webhook(self, name: str) -> Operation[None]:
        """Delete a webhook."""
        yield Request("DELETE", _item("webhooks", name))

    def deliver(self, name: str, body: bytes, secret: str) -> Operation[str]:
        """Sign a body and send it to a webhook; return the id of the execution that it starts."""
        from noetl.server.scheduling.webhooks import SIGNATURE, TIMESTAMP, sign

        at = str(int(time.time()))
        headers = {TIMESTAMP: at, SIGNATURE: f"sha256={sign(secret, at, body)}"}
        return _execution_id((yield Request("POST", _item("webhooks", name), body, headers=headers)))


def log_stream_path(execution_id: str) -> str:
    """The path of the stream of task logs."""
    return f"{_execution(execution_id)}/logs/stream"


def stream_path(execution_id: str) -> str:
    """The path of an execution's event stream."""
    return f"{_execution(execution_id)}/events/stream"


def _control(execution_id: str, command: str, body: Document) -> Operation[ExecutionSummary]:
    path = f"{_execution(execution_id)}/{command}"
    return summary_of((yield Request("POST", path, body, headers=_idempotency(None))))


def _execution(execution_id: str) -> str:
    """The path of an execution; a text that cannot be an id needs no request."""
    if not execution_id.isdecimal() or len(execution_id) > 19:
        raise NotFound(f"there is no execution {execution_id}")
    return f"/api/executions/{execution_id}"


def _item(collection: str, name: str) -> str:
    return f"/api/{collection}/{quote(name, safe='')}"


def _limit(subject: str, name: str) -> str:
    return f"/api/limits/{quote(subject, safe='')}/{quote(name)}"


def _idempotency(key: str | None) -> dict[str, str]:
    """Every request that starts work has a key, so that it can be sent again when its response is lost."""
    return {"Idempotency-Key": key or f"client-{secrets.token_hex(16)}"}


def _trigger(kind: str, name: str) -> str:
    return f"{_item('triggers', kind)}/{quote(name, safe='')}"


def _given(options: Mapping[str, Any]) -> Document:
    return {name: value for name, value in options.items() if value is not None}


def _document(value: Document) -> Document:
    return value


def _bytes(value: bytes) -> bytes:
    return value


def _execution_id(document: Document) -> str:
    return str(document["execution_id"])


def _stored(document: Document) -> StoredPlaybook:
    return StoredPlaybook(
        path=document["path"],
        version=document["version"],
        digest=document["digest"],
        text=document.get("content", ""),
        registered_at=seconds(document["registered_at"]),
        file=document.get("file", ""),
        origin=msgspec.convert(document.get("origin", {}), Origin),
    )
