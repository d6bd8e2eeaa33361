"""The HTTP API over a real socket."""

from __future__ import annotations

import json
import os
import stat
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.server.http.serving import Cluster

TWO_STEPS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: two_steps, path: tests/two_steps}
workload: {n: 2}
workflow:
  - step: start
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = n * 21"}
    set: {ctx.answer: "{{ output.data }}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: python, input: {a: "{{ ctx.answer }}"}, code: "result = {'answer': a}"}
"""

GATED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gated}
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: gated}, {step: slow}]}
  - step: slow
    tool: {kind: python, code: "import time; time.sleep(60)"}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.open is defined }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""


def execute(cluster: Cluster, **body: object) -> str:
    status, document = cluster.ask("POST", "/api/execute", body)
    assert status == 202, document
    return document["execution_id"]


def test_an_execution_runs_on_a_worker_process(cluster: Cluster):
    execution_id = execute(cluster, content=TWO_STEPS, payload={"n": 3})

    document = cluster.finished(execution_id)

    assert document["status"] == "success"
    assert document["output"]["data"] == {"answer": 63}
    assert document["ctx"] == {"answer": 63}
    assert [(row["step"], row["status"]) for row in document["steps"]] == [("start", "success"), ("end", "success")]


def test_the_admin_token_is_for_its_owner_only(cluster: Cluster):
    assert stat.S_IMODE(os.stat(cluster.home / "admin.token").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(cluster.home / "tokens.json").st_mode) == 0o600


@pytest.mark.parametrize("path", ["/api/executions", "/api/catalog", "/api/credentials", "/api/workers", "/api/tools"])
def test_routes_require_a_token(cluster: Cluster, path: str):
    assert cluster.ask("GET", path, token="")[0] == 401
    assert cluster.ask("GET", path, token="wrong")[0] == 401


def test_errors_are_problem_documents(cluster: Cluster):
    status, document = cluster.ask("GET", "/api/executions/42")
    assert (status, document["status"], document["title"]) == (404, 404, "Not found")
    assert "42" in document["detail"]
    status, document = cluster.ask("POST", "/api/execute", {"content": "apiVersion: noetl.io/v2\nkind: Playbook\n"})
    assert status == 422
    assert document["diagnostics"][0]["line"] >= 1
    assert cluster.ask("POST", "/api/execute", {"content": "x", "path": "y"})[0] == 400
    assert cluster.ask("POST", "/api/execute", {"contents": "x"})[0] == 422
    assert cluster.ask("GET", "/nowhere")[0] == 404


def test_unknown_hosts_and_origins_are_rejected(cluster: Cluster):
    assert cluster.ask("GET", "/healthz", headers={"Host": "evil.example"})[0] == 421
    status, refused = cluster.ask("GET", "/healthz", headers={"Origin": "https://evil.example"})
    assert (status, refused["title"]) == (403, "Origin not allowed")
    assert cluster.ask("GET", "/healthz", headers={"Origin": cluster.url})[0] == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_support_head_requests(cluster: Cluster, path: str):
    assert cluster.ask("HEAD", path, token="") == (200, None)


def test_the_same_idempotency_key_starts_one_execution(cluster: Cluster):
    headers = {"Idempotency-Key": "order-7"}
    first = cluster.ask("POST", "/api/execute", {"content": TWO_STEPS}, headers=headers)
    again = cluster.ask("POST", "/api/execute", {"content": TWO_STEPS}, headers=headers)
    other = cluster.ask("POST", "/api/execute", {"content": TWO_STEPS, "payload": {"n": 9}}, headers=headers)
    assert first == again
    assert other[0] == 409


def test_an_idempotency_key_belongs_to_one_request(cluster: Cluster):
    for name in ("one", "two"):
        text = TWO_STEPS.replace("two_steps", f"keyed_{name}")
        assert cluster.ask("POST", "/api/catalog/register", {"content": text})[0] == 201
    headers = {"Idempotency-Key": "keyed"}
    one = {"path": "tests/keyed_one"}
    first = cluster.ask("POST", "/api/execute", one, headers=headers)
    newer = TWO_STEPS.replace("two_steps", "keyed_one").replace("n * 21", "n * 22")
    assert cluster.ask("POST", "/api/catalog/register", {"content": newer})[1]["version"] == 2
    for same in (one, {**one, "version": 1}, {**one, "version": "1"}, {**one, "payload": {}}):
        assert cluster.ask("POST", "/api/execute", same, headers=headers) == first, same
    for other in (
        {"path": "tests/keyed_two"},
        {"path": "tests/nowhere"},
        {**one, "version": 2},
        {**one, "entry_step": "end"},
        {**one, "payload": {"n": 3}},
        {"content": newer},
    ):
        status, document = cluster.ask("POST", "/api/execute", other, headers=headers)
        assert (status, "the key 'keyed' was used" in document["detail"]) == (409, True), (other, document)
    again = f"/api/executions/{first[1]['execution_id']}/rerun"
    headers = {"Idempotency-Key": "keyed again"}
    rerun = cluster.ask("POST", again, {"from": "end"}, headers=headers)
    assert cluster.ask("POST", again, {"from": "end"}, headers=headers) == rerun
    assert cluster.ask("POST", again, {}, headers=headers)[0] == 409


@pytest.mark.parametrize("value", ['"\\ud800"', "NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [("/api/execute", {"content": TWO_STEPS}), ("/api/schedules", {"path": "tests/two_steps", "cron": "0 0 1 1 *"})],
)
def test_values_that_are_not_json_are_rejected(cluster: Cluster, path: str, fields: dict[str, str], value: str):
    body = json.dumps({**fields, "payload": {"n": "here"}}).replace('"here"', value)
    assert rejected(cluster, path, body, "application/json")["status"] == 422


def test_a_body_of_another_content_type_is_rejected(cluster: Cluster):
    assert rejected(cluster, "/api/validate", json.dumps({"content": TWO_STEPS}), "text/plain")["status"] == 422


def rejected(cluster: Cluster, path: str, body: str, content_type: str) -> dict[str, Any]:
    """The problem document of a rejected body."""
    request = urllib.request.Request(
        cluster.url + path,
        data=body.encode(),
        headers={"Authorization": f"Bearer {cluster.token}", "Content-Type": content_type},
    )
    with pytest.raises(urllib.error.HTTPError) as failure:
        urllib.request.urlopen(request, timeout=10)
    with failure.value as response:
        document: dict[str, Any] = json.load(response)
    assert document["status"] == response.code
    return document


def test_events_are_paged_and_streamed(cluster: Cluster):
    execution_id = execute(cluster, content=TWO_STEPS)
    cluster.finished(execution_id)
    _, page = cluster.ask("GET", f"/api/executions/{execution_id}/events?limit=3")
    assert [each["seq"] for each in page["items"]] == [1, 2, 3]
    _, following = cluster.ask("GET", f"/api/executions/{execution_id}/events?after={page['next']}")
    assert following["items"][0]["seq"] == 4
    assert following["next"] is None

    request = urllib.request.Request(
        f"{cluster.url}/api/executions/{execution_id}/events/stream",
        headers={"Authorization": f"Bearer {cluster.token}", "Last-Event-ID": "4"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    ids = [int(line[4:]) for line in lines if line.startswith("id: ")]
    assert ids == [each["seq"] for each in following["items"][1:]]
    assert "event: end" in lines
    assert json.loads(next(line for line in lines if line.startswith("data: "))[6:])["seq"] == 5


def test_state_graph_and_why_of_a_waiting_execution(cluster: Cluster):
    execution_id = execute(cluster, content=GATED)
    while cluster.ask("GET", f"/api/executions/{execution_id}")[1]["steps_running"] != 1:
        pass
    _, why = cluster.ask("GET", f"/api/executions/{execution_id}/why")
    assert any("gated" in json.dumps(finding) for finding in why["findings"])
    _, graph = cluster.ask("GET", f"/api/executions/{execution_id}/graph")
    assert [node["step"] for node in graph["nodes"]] == ["start", "slow", "gated"]
    status, state = cluster.ask("GET", f"/api/executions/{execution_id}/state?at=3")
    assert (status, state["seq"]) == (200, 3)
    assert cluster.ask("POST", f"/api/executions/{execution_id}/signal", {"payload": {"open": 1}})[0] == 202
    while not any(
        row["step"] == "gated" and row["status"] == "success"
        for row in cluster.ask("GET", f"/api/executions/{execution_id}")[1]["steps"]
    ):
        pass
    assert cluster.ask("POST", f"/api/executions/{execution_id}/cancel")[0] == 202
    assert cluster.finished(execution_id)["status"] == "cancelled"
    assert cluster.ask("POST", f"/api/executions/{execution_id}/cancel")[0] == 409


def test_the_catalog_stores_versions(cluster: Cluster):
    first = cluster.ask("POST", "/api/catalog/register", {"content": TWO_STEPS})
    same = cluster.ask("POST", "/api/catalog/register", {"content": TWO_STEPS})
    second = cluster.ask("POST", "/api/catalog/register", {"content": TWO_STEPS.replace("n: 2", "n: 4")})
    assert (first[0], first[1]["version"], same[1]["version"], second[1]["version"]) == (201, 1, 1, 2)
    assert cluster.ask("GET", "/api/catalog/tests/two_steps?version=1")[1]["content"] == TWO_STEPS
    assert cluster.ask("GET", "/api/catalog")[1]["items"][0]["version"] == 2
    document = cluster.finished(execute(cluster, path="tests/two_steps"))
    assert document["output"]["data"] == {"answer": 84}


def test_validate_returns_the_diagnostics_of_the_command_line(cluster: Cluster):
    _, fine = cluster.ask("POST", "/api/validate", {"content": TWO_STEPS})
    assert (fine["valid"], fine["diagnostics"]) == (True, [])
    _, broken = cluster.ask("POST", "/api/validate", {"content": TWO_STEPS.replace("step: end}", "step: ned}")})
    assert broken["valid"] is False
    assert broken["diagnostics"][0]["code"] == "unknown-step"


def test_the_schema_contains_every_kind(cluster: Cluster):
    status, schema = cluster.ask("GET", "/schema/playbook.json")
    assert status == 200
    assert "json-schema.org" in schema["$schema"]
    assert '"postgres"' in json.dumps(schema)


def test_workers_are_listed(cluster: Cluster):
    _, page = cluster.ask("GET", "/api/workers")
    assert len(page["items"]) == 1
    assert page["items"][0]["slots"] > 0


def test_a_browser_signs_in_with_a_cookie(cluster: Cluster):
    assert cluster.ask("POST", "/api/session", {"token": "wrong"}, token="")[0] == 401
    request = urllib.request.Request(
        cluster.url + "/api/session",
        data=json.dumps({"token": cluster.token}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    status, who = cluster.ask("GET", "/api/session", token="", headers={"Cookie": cookie.partition(";")[0]})
    assert (status, who) == (200, {"name": "admin", "role": "admin"})


def test_documents_have_the_large_values_of_ctx(cluster: Cluster):
    """They are stored, and the documents of an execution show them like small ones."""
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large_ctx}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'t': 'x' * 100_000}"}
    set: {ctx.big: "{{ output.data }}", ctx.small: 1}
    next: {arcs: [{step: end, set: {ctx.big.more: 2}}]}
  - {step: end, tool: {kind: noop, returns: "{{ ctx.big.t | length + ctx.big.more }}"}}
"""
    execution_id = execute(cluster, content=text)

    document = cluster.finished(execution_id)

    expected = {"big": {"t": "x" * 100_000, "more": 2}, "small": 1}
    assert (document["status"], document["output"]["data"]) == ("success", 100_002), document["error"]
    assert document["ctx"] == expected
    assert cluster.ask("GET", f"/api/executions/{execution_id}/state")[1]["ctx"] == expected
