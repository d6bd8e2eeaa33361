"""`Idempotency-Key`: a repeated command has its effect once, at the API and on the command line."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import click
import pytest

from noetl.cli import app as program
from noetl.errors import StoreUnavailable
from noetl.secrets.master_key import KeyRing
from noetl.server.http.access import Caller, Tokens
from noetl.server.http.middleware.idempotency import KEPT_SECONDS, PROCESSING_SECONDS, IdempotencyMiddleware
from noetl.storage.triggers.memory import MemoryTriggerStore
from tests.server.http.serving import Cluster

GATED = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gated, path: tests/gated}
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: slow}, {step: gated}]}
  - {step: slow, tool: {kind: shell, command: sleep 60}}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.go is defined }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""


def ask(cluster: Cluster, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any, bool]:
    """Status, document, and whether the response is a repetition."""
    headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"}
    headers |= {"Idempotency-Key": key} if key is not None else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(cluster.url + path, data, headers, method=method)
    try:
        answer = urllib.request.urlopen(request)
    except urllib.error.HTTPError as problem:
        answer = problem
    with answer:
        text = answer.read()
        return answer.status, json.loads(text) if text else None, answer.headers.get("Idempotency-Replayed") == "true"


@pytest.fixture
def execution(cluster: Cluster):
    _, document, _ = ask(cluster, "POST", "/api/execute", {"content": GATED})
    yield f"/api/executions/{document['execution_id']}"
    ask(cluster, "POST", f"/api/executions/{document['execution_id']}/cancel")


def names(cluster: Cluster, execution: str) -> list[str]:
    return [event["name"] for event in ask(cluster, "GET", f"{execution}/events?limit=1000")[1]["items"]]


def test_a_repeated_command_to_an_execution_has_its_effect_once(cluster: Cluster, execution: str):
    for _ in range(2):
        assert ask(cluster, "POST", f"{execution}/pause", key="pause-1")[0] == 202
    assert ask(cluster, "POST", f"{execution}/resume", key="resume-1")[0] == 202
    assert ask(cluster, "POST", f"{execution}/pause", key="pause-1")[1]["status"] != "paused"  # arrives again, late
    for _ in range(3):
        assert ask(cluster, "POST", f"{execution}/signal", {"payload": {"go": 1}}, key="signal-1")[0] == 202
    for _ in range(2):
        assert ask(cluster, "POST", f"{execution}/cancel", key="cancel-1")[0] == 202  # also after the end
    log = names(cluster, execution)
    counted = [log.count(f"{each}") for each in ("execution.paused", "execution.resumed", "signal.received")]
    assert counted == [1, 1, 1] and log.count("execution.cancelled") == 1


def test_a_repeated_change_gets_the_first_response(cluster: Cluster):
    ask(cluster, "POST", "/api/catalog/register", {"content": GATED})
    schedule = {"path": "tests/gated", "cron": "0 0 1 1 *", "name": "yearly"}
    first = ask(cluster, "POST", "/api/schedules", schedule, key="add-yearly")
    again = ask(cluster, "POST", "/api/schedules", schedule, key="add-yearly")
    assert first[0] == again[0] == 201 and first[1] == again[1] and (first[2], again[2]) == (False, True)
    assert ask(cluster, "POST", "/api/schedules", schedule)[0] == 409  # without the key it is another request
    assert ask(cluster, "POST", "/api/schedules", {**schedule, "cron": "@daily"}, key="add-yearly")[0] == 422
    assert ask(cluster, "DELETE", "/api/schedules/yearly", key="remove-yearly")[0] == 204
    assert ask(cluster, "DELETE", "/api/schedules/yearly", key="remove-yearly")[0] == 204
    assert ask(cluster, "DELETE", "/api/schedules/yearly")[0] == 404


def test_secrets_of_requests_and_responses_are_not_in_the_database(cluster: Cluster):
    token = ask(cluster, "POST", "/api/tokens", {"name": "keyed", "role": "viewer"}, key="token")[1]["token"]
    status, again, repeated = ask(cluster, "POST", "/api/tokens", {"name": "keyed", "role": "viewer"}, key="token")
    assert (status, again["token"], repeated) == (201, token, True)
    with sqlite3.connect(cluster.home / "noetl.db") as database:
        rows = [row[0] for row in database.execute("SELECT data FROM triggers WHERE kind = 'idempotency-key'")]
    assert rows
    for row in rows:
        assert isinstance(json.loads(row), str)  # the store takes documents: it ignores white space at the end
        assert b"digest" not in row and token.encode() not in row
        assert base64.b64encode(token.encode())[4:-4] not in row


def test_a_part_of_a_body_is_not_a_request():
    """A client that disconnects in the middle of a body has sent no request."""
    sent: list[Any] = []

    async def never(*_: Any) -> None:
        raise AssertionError("handled")

    async def scenario() -> None:
        messages = [
            {"type": "http.request", "body": b"[1", "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", b"part")]
        scope = {"type": "http", "method": "PUT", "path": "/api/files/1", "headers": headers, "query_string": b""}
        scope["state"] = {"caller": Caller("a", "admin")}
        await IdempotencyMiddleware(never, never)(scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert sent == []


@pytest.mark.parametrize("caller", [None, Caller("v", "viewer"), Caller("w", "worker")])
@pytest.mark.parametrize("path", ["/api/webhooks/orders", "/api/schedules/preview", "/api/plan", "/api/limits/pool/a"])
def test_nothing_is_stored_for_callers_that_change_nothing(caller, path):
    """A delivery of a webhook has no token: another one with the same key would get its response unverified."""
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    def no_state() -> Any:
        raise AssertionError("the store is used")

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"idempotency-key", b"k")]}
    scope["state"] = {"caller": caller}
    asyncio.run(IdempotencyMiddleware(app, no_state)(scope, None, None))  # type: ignore[arg-type]
    assert passed == [path]


def test_an_unreachable_store_is_not_an_internal_error():
    sent: list[Any] = []

    async def unreachable(*_: Any) -> None:
        raise StoreUnavailable("Postgres: connection refused")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    store = SimpleNamespace(due=unreachable)
    state = SimpleNamespace(triggers=SimpleNamespace(store=store), now=time.time)
    headers = [(b"idempotency-key", b"down")]
    scope = {"type": "http", "method": "POST", "path": "/api/catalog/register", "headers": headers}
    scope["state"] = {"caller": Caller("a", "admin")}
    asyncio.run(IdempotencyMiddleware(unreachable, lambda: state)(scope, receive, send))  # type: ignore[arg-type, return-value]
    assert sent[0]["status"] == 503


def test_a_response_is_stored_before_it_is_sent(cluster: Cluster):
    name = hashlib.sha256(b"admin\0stored first").hexdigest()
    for number in range(20):
        assert ask(cluster, "PUT", "/api/limits/pool/first", {"most": number + 1}, key="stored first")[0] in (200, 422)
        with sqlite3.connect(cluster.home / "noetl.db") as database:
            query = "SELECT wake FROM triggers WHERE kind = 'idempotency-key' AND name = ?"
            assert database.execute(query, (name,)).fetchone()[0] > time.time() + KEPT_SECONDS / 2


def test_concurrent_requests_with_one_key_get_the_response_to_the_first(cluster: Cluster):
    ask(cluster, "POST", "/api/catalog/register", {"content": GATED})
    schedule = {"path": "tests/gated", "cron": "0 0 1 1 *", "name": "concurrent"}
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda _: ask(cluster, "POST", "/api/schedules", schedule, key="at-once"), range(20)))
    assert [status for status, _, _ in found] == [201] * 20
    assert [repeated for _, _, repeated in found].count(False) == 1


def test_a_failed_request_may_be_repeated_with_its_key(cluster: Cluster):
    wrong = {"path": "tests/unknown", "cron": "@daily", "name": "later"}
    assert ask(cluster, "POST", "/api/schedules", wrong, key="later")[0] == 404
    assert ask(cluster, "POST", "/api/schedules", wrong, key="later")[0] == 404


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_an_invalid_key_is_refused(cluster: Cluster, key: str):
    assert ask(cluster, "PUT", "/api/limits/pool/a", {"max": 1}, key=key)[0] == 422


def test_the_commands_take_a_key(cluster: Cluster, execution: str, capsys):
    where = ["--server", cluster.url, "--token", cluster.token]
    number = execution.rpartition("/")[2]
    for _ in range(2):
        assert program.run(["signal", number, "--set", "go=1", "--key", "from-the-shell", *where]) == 0
        assert program.run(["limit", "set", "pool", "slow", "3", "--key", "limit-slow", *where]) == 0
    assert program.run(["signal", number, "--set", "go=2", *where]) == 0
    capsys.readouterr()
    assert names(cluster, execution).count("signal.received") == 2


def test_a_key_of_a_command_to_an_execution_is_refused_for_another_command(cluster: Cluster, execution: str):
    assert ask(cluster, "POST", f"{execution}/signal", {"payload": {"go": 1}}, key="once")[0] == 202
    status, problem, _ = ask(cluster, "POST", f"{execution}/signal", {"payload": {"go": 2}}, key="once")
    assert status == 409 and "another command" in problem["detail"]
    assert ask(cluster, "POST", f"{execution}/pause", key="once")[0] == 409
    assert names(cluster, execution).count("signal.received") == 1


@pytest.mark.parametrize("rerun", [False, True])
def test_callers_do_not_share_the_keys_of_executions(cluster: Cluster, execution: str, rerun: bool):
    """A caller with the key of another one neither gets the other's execution nor is refused because of it."""
    ask(cluster, "POST", "/api/catalog/register", {"content": GATED})
    tokens = Tokens(cluster.home)
    ann, bob = (tokens.add(f"{name}-{rerun}", "operator") for name in ("ann", "bob"))

    def start(token: str, **payload: Any) -> tuple[int, str]:
        path, body = ("/api/execute", {"path": "tests/gated"}) if not rerun else (f"{execution}/rerun", {})
        status, document = cluster.ask(
            "POST", path, {**body, "payload": payload}, token=token, headers={"Idempotency-Key": "same"}
        )
        return status, document.get("execution_id", "")

    started = [start(ann, a=1), start(bob, a=1)]
    assert [status for status, _ in started] == [202, 202] and started[0] != started[1]
    assert [start(ann, a=1), start(bob, a=1)] == started
    assert start(bob, a=2)[0] == 409
    for _, execution_id in started:
        cluster.ask("POST", f"/api/executions/{execution_id}/cancel")


def test_callers_do_not_share_the_keys_of_commands(cluster: Cluster, execution: str):
    """A pause of one caller is not taken for the repetition of another's, also if both chose the same key."""
    tokens = Tokens(cluster.home)
    ann, bob = (tokens.add(f"{name}-commands", "operator") for name in ("ann", "bob"))
    ask(cluster, "POST", "/api/catalog/register", {"content": GATED})
    ask(cluster, "POST", "/api/schedules", {"path": "tests/gated", "cron": "0 0 1 1 *", "name": "shared"})

    def send(token: str, path: str) -> Any:
        return cluster.ask("POST", path, {}, token=token, headers={"Idempotency-Key": "same"})[1]

    assert send(ann, f"{execution}/pause")["status"] == "paused"
    assert cluster.ask("POST", f"{execution}/resume", {})[1]["status"] != "paused"
    assert send(ann, f"{execution}/pause")["status"] != "paused"
    assert send(bob, f"{execution}/pause")["status"] == "paused"
    started = [send(token, "/api/schedules/shared/run")["execution_id"] for token in (ann, bob, ann)]
    assert started[0] == started[2] != started[1]
    for each in {*started}:
        cluster.ask("POST", f"/api/executions/{each}/cancel")


class Killed(BaseException):
    """Stands for the end of the process between the effect of a request and the record of its response."""


class Server:
    """The middleware on its own: an application that counts its requests, a store in memory, and a clock."""

    def __init__(self) -> None:
        self.now, self.processed, self.answers = 1e9, 0, [200]
        ring = KeyRing([b"k" * 32])

        async def in_thread(function: Any) -> Any:
            return function()

        state = SimpleNamespace(
            triggers=SimpleNamespace(store=MemoryTriggerStore()),
            now=lambda: self.now,
            key_ring=lambda: ring,
            run_in_thread=in_thread,
        )
        self.middleware = IdempotencyMiddleware(self._app, lambda: state)  # type: ignore[arg-type, return-value]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.processed += 1
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % self.processed})

    def ask(self, method: str, path: str, *, killed: bool = False) -> tuple[int, bytes]:
        """Status and body of a request with a key."""
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: Any) -> None:
            sent.append(message)

        async def kill(*_: Any) -> None:
            raise Killed

        scope = {"type": "http", "method": method, "path": path, "headers": [(b"idempotency-key", b"k")]}
        scope["state"] = {"caller": Caller("a", "admin")}
        with pytest.MonkeyPatch.context() as patch:
            if killed:
                patch.setattr(self.middleware, "_save", kill)
            with suppress(Killed):
                asyncio.run(self.middleware(scope, receive, send))
        return (sent[0]["status"], sent[1]["body"]) if sent else (0, b"")


SAME_TWICE = [
    ("PUT", "/api/limits/pool/a"),
    ("DELETE", "/api/schedules/a"),
    ("POST", "/api/catalog/register"),
    ("POST", "/api/triggers/webhook/a/pause"),
    ("POST", "/api/backfills/a/cancel"),
    ("POST", "/api/schedules/a/run"),
]
ONCE = [
    ("POST", "/api/backfills"),
    ("POST", "/api/schedules"),
    ("POST", "/api/webhooks"),
    ("POST", "/api/tokens"),
    ("POST", "/api/deliveries/1234567890/replay"),
    ("POST", "/api/backfills/a/retry"),
    ("POST", "/api/notifications/a/test"),
    ("PATCH", "/api/state/a"),
]


@pytest.mark.parametrize(("method", "path"), SAME_TWICE)
def test_a_request_of_a_killed_server_is_processed_again_where_that_changes_nothing(method, path):
    server = Server()
    server.answers = [200, 404 if method == "DELETE" else 201, 500]
    assert server.ask(method, path, killed=True)[0] == 0
    server.now += PROCESSING_SECONDS + 1
    again = (204, b"") if method == "DELETE" else (201, b"2")  # what is deleted twice is deleted
    assert [server.ask(method, path) for _ in range(2)] == [again, again]
    assert server.processed == 2


@pytest.mark.parametrize(("method", "path"), ONCE)
@pytest.mark.parametrize("failure", ["killed", "error"])
def test_a_request_without_a_response_has_its_effect_once(method, path, failure):
    """It is not known whether it had its effect: a second one could create another backfill, or undo a later change."""
    server = Server()
    server.answers = [503 if failure == "error" else 201, 201]
    server.ask(method, path, killed=failure == "killed")
    server.now += PROCESSING_SECONDS + 1
    for _ in range(2):
        status, body = server.ask(method, path)
        assert status == 409 and b"not known whether the request had its effect" in body
        server.now += KEPT_SECONDS / 4
    assert server.processed == 1


def test_a_refused_request_can_be_sent_again():
    server = Server()
    server.answers = [404, 201]
    assert [server.ask("POST", "/api/backfills") for _ in range(3)] == [(404, b"1"), (201, b"2"), (201, b"2")]


# Commands that change nothing on a server; all others take --key.
READING = {
    "validate", "graph", "schema list", "schema show", "lsp", "mcp", "executions", "status", "events", "logs", "replay", "why",
    "query", "inbox", "compare", "backfill list", "backfill show", "diff", "catalog list", "catalog show",
    "schedule list", "schedule next", "schedule show", "webhook list", "trigger deliveries", "trigger list",
    "trigger show", "notify list", "notify log", "notify show", "limit list", "limit show", "state show",
    "credential list", "doctor",
}  # fmt: skip
# `webhook call` sends a delivery, whose identity is in its own header; the others start processes.
OTHERS = {"webhook call", "worker scale", "worker start"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        elif found is not None:
            yield " ".join((*path, name)), found


def test_every_command_that_changes_something_on_a_server_takes_a_key():
    options = {name: {each for one in found.params for each in one.opts} for name, found in commands(program.noetl)}
    changing = {name for name, given in options.items() if "--server" in given} - READING - OTHERS
    assert changing and {name for name in changing if "--key" not in options[name]} == set()


@pytest.mark.parametrize("files", [("a", "b"), ("a",)])
def test_a_command_with_several_changes_can_be_repeated(cluster: Cluster, tmp_path, capsys, files):
    where = ["--server", cluster.url, "--token", cluster.token]
    for name in files:
        (tmp_path / f"{name}.yaml").write_text(GATED.replace("tests/gated", f"tests/{name}{len(files)}"))
    given = ["register", *(str(tmp_path / f"{name}.yaml") for name in files), "--key", f"both-{len(files)}", *where]
    assert program.run(given) == 0
    changed = GATED.replace("tests/gated", f"tests/a{len(files)}").replace("sleep 60", "sleep 61")
    ask(cluster, "POST", "/api/catalog/register", {"content": changed})
    assert program.run(given) == 0  # late: the newer version stays the newest
    capsys.readouterr()
    assert ask(cluster, "GET", f"/api/catalog/tests/a{len(files)}")[1]["version"] == 2


# Requests that change nothing that is stored, or that have their identity elsewhere: signing in, calculations for the
# editor and the page, and workers, whose requests name a lease and the numbers of events.
UNKEYED = re.compile(
    r"/api/(session|validate|graph|format|migrate|complete|hover|values|form|work/|schedules/preview|results/|"
    r"executions/{execution_id}/query)"
)


def test_every_route_that_changes_something_takes_a_key(cluster: Cluster):
    """A key that is too long is refused by its name before anything else happens."""
    _, document, _ = ask(cluster, "GET", "/openapi.json")
    changing = [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if method in ("post", "put", "patch", "delete") and not UNKEYED.match(path)
    ]
    assert len(changing) > 30
    without = []
    for method, path in changing:
        target = re.sub(r"{[^}]*}", "1", path)
        status, problem, _ = ask(cluster, method, target, {} if method != "DELETE" else None, key="k" * 201)
        if status != 422 or "idempotency-key" not in json.dumps(problem).lower():
            without.append((method, path, status))
    assert without == []
