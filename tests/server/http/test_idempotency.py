"""`Idempotency-Key`: a repeated command has its effect once, at the API and on the command line."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from noetl.cli import app as program
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
