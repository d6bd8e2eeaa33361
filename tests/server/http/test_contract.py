"""The contract of the HTTP API: every documented route exists and returns what is documented."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.http.serving import Cluster

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: promised, path: tests/promised}
workload: {n: 1}
workflow:
  - step: start
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = 'x' * 100_000 + str(n)"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""
GATED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gated}
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: gated}, {step: waits}]}
  - step: waits
    spec: {pool: nobody}
    tool: {kind: noop}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.open is defined }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""


@pytest.fixture(scope="module")
def done(cluster: Cluster) -> str:
    """An ended execution."""
    status, document = cluster.ask("POST", "/api/execute", {"content": PLAYBOOK, "payload": {"n": 7}})
    assert status == 202
    assert document.keys() == {"execution_id", "status"}
    assert cluster.finished(document["execution_id"])["status"] == "success"
    return document["execution_id"]


@pytest.fixture
def waiting(cluster: Cluster) -> Iterator[str]:
    """An execution that waits at a gate."""
    _, document = cluster.ask("POST", "/api/execute", {"content": GATED})
    yield document["execution_id"]
    cluster.ask("POST", f"/api/executions/{document['execution_id']}/cancel", {})


def passed(cluster: Cluster, execution_id: str, step: str) -> None:
    """Wait until a step has run."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        _, document = cluster.ask("GET", f"/api/executions/{execution_id}")
        if any((row["step"], row["status"]) == (step, "success") for row in document["steps"]):
            return
        time.sleep(0.02)
    raise AssertionError(document)


# Method, path and required keys of the response. `{id}` is an ended execution.
READ_ROUTES: list[tuple[str, str, set[str]]] = [
    ("GET", "/api/executions", {"items", "next"}),
    ("GET", "/api/executions/{id}", {"execution_id", "path", "status", "steps", "ctx", "output", "error", "seq"}),
    ("GET", "/api/executions/{id}/events", {"items", "next"}),
    ("GET", "/api/executions/{id}/state", set()),
    ("GET", "/api/executions/{id}/state?at=2", set()),
    ("GET", "/api/executions/{id}/graph", set()),
    ("GET", "/api/executions/{id}/why", {"findings"}),
    ("GET", "/api/executions/{id}/playbook", {"path", "content"}),
    ("GET", "/api/catalog", {"items", "next"}),
    ("GET", "/api/credentials", {"items", "next"}),
    ("GET", "/api/workers", {"items", "next"}),
    ("GET", "/api/tools", {"items", "next"}),
    ("GET", "/api/schedules", {"items", "next"}),
    ("GET", "/api/webhooks", {"items", "next"}),
    ("GET", "/api/operations", {"executions", "pools", "samples"}),
    ("GET", "/api/session", {"name", "role"}),
    ("GET", "/schema/playbook.json", {"$schema"}),
    ("GET", "/openapi.json", {"openapi", "paths"}),
    ("GET", "/healthz", {"status"}),
    ("GET", "/readyz", {"ready", "problems", "warnings"}),
]


@pytest.mark.parametrize(("method", "path", "keys"), READ_ROUTES)
def test_every_read_route_returns_its_documented_fields(
    cluster: Cluster, done: str, method: str, path: str, keys: set[str]
):
    status, document = cluster.ask(method, path.replace("{id}", done))
    assert status == 200, document
    assert keys <= document.keys()


@pytest.mark.parametrize(("method", "path", "keys"), [row for row in READ_ROUTES if "{id}" in row[1]])
def test_a_missing_resource_is_a_problem_document(cluster: Cluster, method: str, path: str, keys: set[str]):
    status, document = cluster.ask(method, path.replace("{id}", "4711"))
    assert status == 404
    assert {"type", "title", "status", "detail"} <= document.keys()


def test_a_paused_execution_is_resumed_signalled_and_cancelled(cluster: Cluster, waiting: str):
    for verb, body in (("pause", {"reason": "lunch"}), ("resume", None), ("signal", {"payload": {"other": 1}})):
        status, document = cluster.ask("POST", f"/api/executions/{waiting}/{verb}", body)
        assert (status, document["execution_id"]) == (202, waiting), document
    assert cluster.ask("POST", f"/api/executions/{waiting}/cancel", {"reason": "enough"})[0] == 202
    assert cluster.finished(waiting)["status"] == "cancelled"
    assert cluster.ask("POST", f"/api/executions/{waiting}/cancel", {})[0] == 409


def test_a_signal_opens_the_gate(cluster: Cluster, waiting: str):
    assert cluster.ask("POST", f"/api/executions/{waiting}/signal", {"payload": {"open": True}})[0] == 202
    passed(cluster, waiting, "gated")


def test_an_ended_execution_is_run_again(cluster: Cluster, done: str):
    status, document = cluster.ask("POST", f"/api/executions/{done}/rerun", {"from": "end"})
    assert status == 202
    assert document["execution_id"] != done
    assert cluster.finished(document["execution_id"])["status"] == "success"


def test_a_registered_version_can_be_read(cluster: Cluster):
    status, document = cluster.ask("POST", "/api/catalog/register", {"content": PLAYBOOK})
    assert (status, document["path"]) == (201, "tests/promised")
    version = document["version"]
    assert cluster.ask("GET", f"/api/catalog/tests/promised?version={version}")[1]["content"] == PLAYBOOK
    assert cluster.ask("GET", "/api/catalog/tests/promised?version=999")[0] == 404


def test_credential_values_are_never_returned(cluster: Cluster):
    assert cluster.ask("PUT", "/api/credentials/pg", {"type": "postgres", "data": {"password": "hunter22"}})[0] == 200
    for path in ("/api/credentials", "/api/credentials/pg"):
        status, document = cluster.ask("GET", path)
        assert status == 200 and "hunter22" not in json.dumps(document)
    assert cluster.ask("DELETE", "/api/credentials/pg")[0] == 204
    assert cluster.ask("DELETE", "/api/credentials/pg")[0] == 404


def test_ranges_of_a_stored_result_are_served(cluster: Cluster, done: str):
    _, document = cluster.ask("GET", f"/api/executions/{done}/events?limit=1000")
    reference = next(found for found in map(_reference, document["items"]) if found is not None)
    ref = base64.urlsafe_b64encode(json.dumps(reference).encode()).decode().rstrip("=")

    def part(span: str | None) -> tuple[int, bytes, str | None]:
        headers = {"Authorization": f"Bearer {cluster.token}"} | ({"Range": span} if span else {})
        request = urllib.request.Request(f"{cluster.url}/api/results/{ref}", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read(), answer.headers["Content-Range"]

    status, whole, _ = part(None)
    assert status == 200 and len(whole) == reference["meta"]["bytes"] > 100_000
    assert part("bytes=1-4") == (206, whole[1:5], f"bytes 1-4/{len(whole)}")
    assert part("bytes=-3")[1] == whole[-3:]


def _reference(value: Any) -> Any:
    if isinstance(value, dict):
        if {"type", "locator", "meta"} <= value.keys():
            return value
        value = list(value.values())
    if isinstance(value, list):
        return next((found for found in map(_reference, value) if found is not None), None)
    return None


def test_pages_of_a_list_have_no_gaps(cluster: Cluster, done: str):
    _, whole = cluster.ask("GET", f"/api/executions/{done}/events")
    seqs, after = [], 0
    while True:
        _, page = cluster.ask("GET", f"/api/executions/{done}/events?limit=3&after={after}")
        seqs += [each["seq"] for each in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seqs == [each["seq"] for each in whole["items"]] == list(range(1, len(seqs) + 1))


# ── checks before every route ──────────────────────────────────────────────────────


def raw(cluster: Cluster, head: str, chunks: list[bytes]) -> tuple[int, dict[str, Any]]:
    """Status and document of the response to a raw request."""
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=20) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode())
        try:
            for chunk in chunks:
                sock.sendall(chunk)
        except OSError:
            pass  # the server may respond and disconnect before it has read everything
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        return answer.status, json.loads(answer.read())


def test_a_request_without_a_token_is_rejected_before_its_body_is_read(cluster: Cluster):
    head = f"POST /api/execute HTTP/1.1\nHost: 127.0.0.1:{cluster.port}\nContent-Length: 1000000\n\n"
    status, document = raw(cluster, head, [])
    assert status == 401, "without waiting for a byte of the body"
    assert document["title"] == "Authentication required"
    head = f"POST /api/execute HTTP/1.1\nHost: 127.0.0.1:{cluster.port}\nContent-Length: 9\n\n"
    assert raw(cluster, head, [b"not json!"])[0] == 401


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_limit_is_rejected(cluster: Cluster, chunked: bool):
    size = 17 * 2**20
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    head = (
        f"POST /api/validate HTTP/1.1\nHost: 127.0.0.1:{cluster.port}\nAuthorization: Bearer {cluster.token}\n"
        f"Content-Type: application/json\n{length}\n\n"
    )
    chunk = b"x" * 2**20
    chunks = [b"%x\r\n%b\r\n" % (len(chunk), chunk)] * 17 + [b"0\r\n\r\n"] if chunked else []
    status, document = raw(cluster, head, chunks)
    assert (status, document["status"]) == (413, 413)


def test_every_error_is_a_problem_document(cluster: Cluster):
    for method, path, body, expected in (
        ("GET", "/api/nowhere", None, 404),
        ("DELETE", "/api/executions", None, 405),
        ("GET", "/api/executions/abc", None, 404),
        ("POST", "/api/executions/abc/cancel", {"bogus": 1}, 404),
        ("GET", "/api/executions?limit=0", None, 422),
        ("POST", "/api/execute", {}, 400),
        ("POST", "/api/work/claim", {"nothing": 1}, 422),
        ("GET", "/api/results/abc", None, 404),
    ):
        status, document = cluster.ask(method, path, body)
        assert (status, document["status"]) == (expected, expected), (method, path, document)
        assert {"type", "title", "detail"} <= document.keys()


# ── streams ─────────────────────────────────────────────────────────────────────────────


def stream(cluster: Cluster, execution_id: str, last: int | None, until: int | None = None) -> list[int]:
    """Sequence numbers that a client receives, up to `until` or the end."""
    headers = {"Authorization": f"Bearer {cluster.token}"} | ({"Last-Event-ID": str(last)} if last else {})
    request = urllib.request.Request(f"{cluster.url}/api/executions/{execution_id}/events/stream", headers=headers)
    seqs: list[int] = []
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for line in answer:
            if line.startswith(b"id: "):
                seqs.append(int(line[4:]))
                if seqs[-1] == until:
                    return seqs
            if line.startswith(b"event: end"):
                return seqs
    return seqs


def test_a_stream_continues_after_the_last_event_id_across_a_restart(tmp_path: Path):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_server()
        _, document = cluster.ask("POST", "/api/execute", {"content": GATED})
        execution_id = document["execution_id"]
        _, events = cluster.ask("GET", f"/api/executions/{execution_id}/events")
        known = len(events["items"])
        assert stream(cluster, execution_id, None, until=known) == list(range(1, known + 1))

        assert cluster.server is not None
        cluster.server.kill()
        cluster.server.wait()
        cluster.start_server()
        cluster.start_worker()
        assert cluster.ask("POST", f"/api/executions/{execution_id}/signal", {"payload": {"open": 1}})[0] == 202
        passed(cluster, execution_id, "gated")
        assert cluster.ask("POST", f"/api/executions/{execution_id}/cancel", {})[0] == 202
        seqs = stream(cluster, execution_id, known)
        assert seqs == list(range(known + 1, known + 1 + len(seqs))) and len(seqs) > 3
        began = time.monotonic()
        assert stream(cluster, execution_id, seqs[-1]) == []
        assert time.monotonic() - began < 10, "a client that has seen all events gets the end at once"
    finally:
        cluster.stop()
