"""A server from Python: submit, wait, look, steer; blocking calls, typed answers.

    from noetl import Client

    with Client("http://127.0.0.1:8642", token="noetl_...") as client:
        result = client.run("reports/daily", {"day": "2026-01-31"})
        print(result.status, result.data)

What is refused is raised as the exceptions of `noetl.errors`: NotFound, Conflict, AccessRefused, InvalidPlaybook,
RequestRefused; a server that is away is StoreUnavailable.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from noetl.core.model.events import seconds
from noetl.core.model.playbook import Limits
from noetl.errors import Conflict, NotFound, PayloadUnavailable
from noetl.server.read_models.documents import result_of, summary_of
from noetl.server.read_models.summaries import RunResult
from noetl.storage.ports.events import ExecutionSummary
from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.transport.api_connection import ApiConnection, Stop, diagnostics

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic

PAGE = 1_000
FINAL = ("success", "failed", "cancelled")


class Client:
    """One server, or several addresses of one cluster separated by commas.

    What is not given comes from the settings: NOETL_SERVER_URL, NOETL_TOKEN, and on the machine of a server the
    token in its home."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0) -> None:
        if url is None or token is None:
            url, token = found_server(url, token)
        self.line = ApiConnection(url, token, timeout=timeout)

    @property
    def url(self) -> str:
        """The address that is spoken to."""
        return self.line.url

    # ── running ─────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        path: str | None = None,
        payload: Mapping[str, Any] | None = None,
        *,
        content: str | None = None,
        version: int | str | None = None,
        key: str | None = None,
        entry_step: str | None = None,
        return_step: str | None = None,
        strict: bool = False,
        legacy: bool = False,
    ) -> str:
        """Start an execution of a registered path, or of a text (`content`); its id, once it is on disk.

        The same `key` starts once, however often it is sent."""
        body = {
            "path": path,
            "content": content,
            "version": version,
            "payload": dict(payload or {}),
            "entry_step": entry_step,
            "return_step": return_step,
            "strict": strict,
            "legacy": legacy,
        }
        answer = self.line.ask("POST", "/api/execute", body, headers=_key(key))
        return str(answer["execution_id"])

    def wait(self, execution_id: str, timeout: float | None = None) -> RunResult:
        """The result once it has ended; TimeoutError when that takes longer (the execution goes on)."""
        until = None if timeout is None else time.monotonic() + timeout
        summary = self.summary(execution_id)
        if summary.status not in FINAL:
            path = f"{_of(execution_id)}/events/stream"
            try:
                for _ in self.line.stream(path, summary.seq, until=until):
                    pass
            except TimeoutError:
                raise TimeoutError(f"execution {execution_id} has not ended after {timeout:g} s") from None
        return self.result(execution_id)

    def run(
        self,
        path: str | None = None,
        payload: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> RunResult:
        """Submit and wait; when it takes longer than `timeout` seconds it is cancelled. Options as of `submit`."""
        execution_id = self.submit(path, payload, **options)
        try:
            return self.wait(execution_id, timeout)
        except TimeoutError:
            try:
                self.cancel(execution_id, f"it took longer than {timeout:g} s")
            except Conflict:
                pass  # it ended first, and its end is what counts
        result = self.wait(execution_id, 30.0)
        return msgspec.structs.replace(result, timed_out=result.status == "cancelled")

    def result(self, execution_id: str) -> RunResult:
        """How an execution came out, as far as it is; a large output is fetched, unless it is too large to hold."""
        result = result_of(self.execution(execution_id))
        reference = result.output.get("ref")
        if result.output.get("data") is not None or reference is None:
            return result
        if reference["meta"]["bytes"] > Limits().max_hydrate_bytes:
            return result
        from noetl.server.orchestrator.request_resolver import decoded

        try:
            data = decoded(self.payload(reference), reference["meta"]["content_type"])
        except PayloadUnavailable:
            return result  # the reference is what there is: gone, or no text
        return msgspec.structs.replace(result, output={**result.output, "data": data})

    def payload(self, reference: Mapping[str, Any]) -> bytes:
        """The bytes of a stored payload."""
        name = base64.urlsafe_b64encode(msgspec.json.encode(reference)).decode().rstrip("=")
        return self.line.fetch(f"/api/results/{name}")

    # ── steering ────────────────────────────────────────────────────────────────────────

    def cancel(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Stop it; Conflict when it has ended already."""
        return self._steer(execution_id, "cancel", {"reason": reason})

    def pause(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Start no new run."""
        return self._steer(execution_id, "pause", {"reason": reason})

    def resume(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Go on after a pause."""
        return self._steer(execution_id, "resume", {"reason": reason})

    def signal(self, execution_id: str, payload: Mapping[str, Any], name: str = "") -> ExecutionSummary:
        """Lay `payload` over its ctx, which may open a closed gate."""
        return self._steer(execution_id, "signal", {"name": name, "payload": dict(payload)})

    def rerun(
        self,
        execution_id: str,
        from_step: str | None = None,
        *,
        payload: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> str:
        """Run its playbook again, whole or from a step on; the id of the new execution."""
        body = {"from": from_step, "payload": None if payload is None else dict(payload)}
        answer = self.line.ask("POST", f"{_of(execution_id)}/rerun", body, headers=_key(key))
        return str(answer["execution_id"])

    # ── looking ─────────────────────────────────────────────────────────────────────────

    def executions(
        self,
        *,
        status: Sequence[str] = (),
        path: str | None = None,
        parent: str | None = None,
        search: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[ExecutionSummary]:
        """Executions, newest first, page by page; at most `limit`."""
        left = limit
        while left is None or left > 0:
            query = {"status": tuple(status), "path": path, "parent": parent, "search": search, "before": before}
            size = PAGE if left is None else min(PAGE, left)
            page = self.line.ask("GET", "/api/executions", query={**query, "limit": size})
            yield from map(summary_of, page["items"])
            before = page["next"]
            if before is None:
                return
            left = None if left is None else left - len(page["items"])

    def summary(self, execution_id: str) -> ExecutionSummary:
        """One row of the list; NotFound when there is none."""
        return summary_of(self.execution(execution_id))

    def execution(self, execution_id: str) -> dict[str, Any]:
        """The whole document: steps, ctx, output, error."""
        return self._look(execution_id)

    def events(self, execution_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """The log as it is now: envelopes with seq > after, in order."""
        while True:
            page = self._look(execution_id, "/events", {"after": after, "limit": PAGE})
            yield from page["items"]
            if page["next"] is None:
                return
            after = int(page["next"])

    def follow(self, execution_id: str, after: int = 0, *, stop: Stop | None = None) -> Iterator[dict[str, Any]]:
        """The log as it grows, until the execution has ended; a broken connection is taken up again where it broke."""
        path = f"{_of(execution_id)}/events/stream"
        for data in self.line.stream(path, after, stop=stop):
            yield msgspec.json.decode(data)

    def state(self, execution_id: str, at: int | None = None) -> dict[str, Any]:
        """The folded state, as it is or as it was after event `at`."""
        return self._look(execution_id, "/state", {"at": at})

    def why(self, execution_id: str) -> dict[str, Any]:
        """Why it is where it is, in words: summary, because, way, findings."""
        return self._look(execution_id, "/why")

    def graph(self, execution_id: str) -> dict[str, Any]:
        """The net of its playbook."""
        return self._look(execution_id, "/graph")

    def workers(self) -> list[dict[str, Any]]:
        """Workers that asked this server for work lately."""
        found: list[dict[str, Any]] = self.line.ask("GET", "/api/workers")["items"]
        return found

    # ── the catalog ───────────────────────────────────────────────────────────────────

    def register(self, content: str, *, strict: bool = False, legacy: bool = False) -> StoredPlaybook:
        """A new version under the playbook's own path; the same text again is the same version."""
        body = {"content": content, "strict": strict, "legacy": legacy}
        return _stored({**self.line.ask("POST", "/api/catalog/register", body), "content": content})

    def playbooks(self, search: str | None = None) -> Iterator[StoredPlaybook]:
        """The newest version of every path, without the texts."""
        after: str | None = None
        while True:
            page = self.line.ask("GET", "/api/catalog", query={"search": search, "after": after, "limit": PAGE})
            yield from map(_stored, page["items"])
            after = page["next"]
            if after is None:
                return

    def playbook(self, path: str, version: int | None = None) -> StoredPlaybook:
        """A version of a path, or the newest; NotFound when there is none."""
        return _stored(self.line.ask("GET", f"/api/catalog/{quote(path)}", query={"version": version}))

    def validate(self, content: str, *, strict: bool = False, legacy: bool = False) -> list[Diagnostic]:
        """All problems of a text, by the server's tools."""
        body = {"content": content, "strict": strict, "legacy": legacy}
        return diagnostics(self.line.ask("POST", "/api/validate", body)["diagnostics"])

    # ── credentials ─────────────────────────────────────────────────────────────────────

    def credentials(self) -> list[tuple[str, str]]:
        """Names and types; values are never shown."""
        return [(row["name"], row["type"]) for row in self.line.ask("GET", "/api/credentials")["items"]]

    def set_credential(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Keep a credential, encrypted."""
        self.line.ask("PUT", f"/api/credentials/{quote(name, safe='')}", {"type": type, "data": dict(data)})

    def delete_credential(self, name: str) -> None:
        """Forget one; NotFound when there is none."""
        self.line.ask("DELETE", f"/api/credentials/{quote(name, safe='')}")

    # ── schedules ───────────────────────────────────────────────────────────────────────

    def add_schedule(self, path: str, cron: str, **fields: Any) -> dict[str, Any]:
        """Start a playbook by the clock; fields: name, tz, version, payload, catch_up, overlap, paused."""
        given = {name: value for name, value in fields.items() if value is not None}
        return self._document("POST", "/api/schedules", {"path": path, "cron": cron, **given})

    def schedules(self) -> Iterator[dict[str, Any]]:
        """All of them, by name."""
        return self._pages("/api/schedules")

    def schedule(self, name: str, count: int = 3) -> dict[str, Any]:
        """One of them, with its next ticks."""
        return self._document("GET", f"/api/schedules/{quote(name, safe='')}?count={count}")

    def remove_schedule(self, name: str) -> None:
        """Forget it."""
        self.line.ask("DELETE", f"/api/schedules/{quote(name, safe='')}")

    def pause_schedule(self, name: str) -> dict[str, Any]:
        """Tick no more."""
        return self._document("POST", f"/api/schedules/{quote(name, safe='')}/pause")

    def resume_schedule(self, name: str) -> dict[str, Any]:
        """Tick again, from now on."""
        return self._document("POST", f"/api/schedules/{quote(name, safe='')}/resume")

    # ── limits ──────────────────────────────────────────────────────────────────────────

    def set_limit(
        self, subject: str, name: str, most: int | None = None, *, weight: int | None = None
    ) -> dict[str, Any]:
        """At most so many at once: runs of a `pool`, with a `credential`, or executions of a `playbook`.

        `weight` of a playbook: the turns its executions get where others get one, while runs wait for workers."""
        given = {name: value for name, value in (("most", most), ("weight", weight)) if value is not None}
        return self._document("PUT", _limit(subject, name), given)

    def limits(self) -> Iterator[dict[str, Any]]:
        """All of them, with who holds what they limit and how many wait."""
        return self._pages("/api/limits")

    def limit(self, subject: str, name: str) -> dict[str, Any]:
        """One of them."""
        return self._document("GET", _limit(subject, name))

    def remove_limit(self, subject: str, name: str) -> None:
        """Limit it no more."""
        self.line.ask("DELETE", _limit(subject, name))

    # ── webhooks ────────────────────────────────────────────────────────────────────────

    def add_webhook(self, path: str, **fields: Any) -> dict[str, Any]:
        """Let signed requests start a playbook; fields: name, credential, version, payload, window.

        Without a credential the answer has the `secret` that was made."""
        given = {name: value for name, value in fields.items() if value is not None}
        return self._document("POST", "/api/webhooks", {"path": path, **given})

    def webhooks(self) -> Iterator[dict[str, Any]]:
        """All of them, by name."""
        return self._pages("/api/webhooks")

    def remove_webhook(self, name: str) -> None:
        """Forget it."""
        self.line.ask("DELETE", f"/api/webhooks/{quote(name, safe='')}")

    def deliver(self, name: str, body: bytes, secret: str) -> str:
        """Sign a body and send it, as a sender would; the execution it starts."""
        from noetl.server.scheduling.webhooks import SIGNATURE, TIMESTAMP, sign

        at = str(int(time.time()))
        headers = {TIMESTAMP: at, SIGNATURE: f"sha256={sign(secret, at, body)}"}
        answer = self.line.ask("POST", f"/api/webhooks/{quote(name, safe='')}", body, headers=headers)
        return str(answer["execution_id"])

    # ── life ────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Let go of the connection."""
        self.line.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _document(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = self.line.ask(method, path, body)
        return found

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = self.line.ask("GET", path, query={"after": after, "limit": PAGE})
            yield from page["items"]
            after = page["next"]
            if after is None:
                return

    def _steer(self, execution_id: str, verb: str, body: Mapping[str, Any]) -> ExecutionSummary:
        return summary_of(self.line.ask("POST", f"{_of(execution_id)}/{verb}", body))

    def _look(self, execution_id: str, what: str = "", query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self.line.ask("GET", f"{_of(execution_id)}{what}", query=query)
        return found


def found_server(url: str | None, token: str | None) -> tuple[str, str | None]:
    """The address and token by the settings, where they are not given."""
    from urllib.parse import urlsplit

    from noetl.server.http.access import admin_token
    from noetl.settings import load

    settings = load().settings
    url = url or settings.server_url or f"http://127.0.0.1:{settings.server_port}{settings.server_prefix}"
    token = token or settings.token
    if token is None:
        # The admin's token of this machine goes to this machine only.
        hosts = {urlsplit(each.strip()).hostname for each in url.split(",")}
        if hosts <= {"127.0.0.1", "::1", "localhost", settings.server_host}:
            token = admin_token(settings.home)
    return url, token


def _of(execution_id: str) -> str:
    """Where an execution is; what is no id at all need not be asked for."""
    if not execution_id.isdecimal() or len(execution_id) > 19:
        raise NotFound(f"there is no execution {execution_id}")
    return f"/api/executions/{execution_id}"


def _key(key: str | None) -> dict[str, str]:
    """Every request that starts work has a key, so that it can be sent again when an answer gets lost."""
    return {"Idempotency-Key": key or f"client-{secrets.token_hex(16)}"}


def _stored(document: Mapping[str, Any]) -> StoredPlaybook:
    return StoredPlaybook(
        path=document["path"],
        version=document["version"],
        digest=document["digest"],
        text=document.get("content", ""),
        registered_at=seconds(document["registered_at"]),
    )


def _limit(subject: str, name: str) -> str:
    return f"/api/limits/{quote(subject, safe='')}/{quote(name)}"
