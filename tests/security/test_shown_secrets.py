"""Class "shown secrets": no route and no command shows a value with a secret name, or a value of the keychain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.test_command_output import wait_for_status
from tests.server.http.serving import Cluster

pytestmark = pytest.mark.integration

NAMES = [
    "api_token",
    "password",
    "client_secret",
    "API_KEY",
    "private_key",
    "aws_credential",
    "authorization",
    "tokens",
]
CANARIES = {name: f"canary-{number:03d}-{name}" for number, name in enumerate(NAMES)}
KEYCHAIN = {f"CANARY_{number}": f"kanarie-{number:03d}-{number * 7919:06x}" for number in range(192)}
NESTED = {
    "api_token": "canary-nested-1",
    "list": [{"password": "canary-nested-2"}],
    "deep": {"x": {"secret": "canary-nested-3"}},
}
TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shown, path: shown}
keychain:
KEYCHAIN
workload: {api_token: none, other: 1}
workflow:
  - step: start
    input: {password: "{{ workload.password | default('') }}"}
    tool:
      - name: all
        kind: python
        input: {values: [EVERY], client_secret: "{{ workload.client_secret | default('') }}"}
        code: |
          for each in values:
              print(each)
          result = {"values": values, "rows": [{"a": each} for each in values]}
        set: {ctx.api_token: "{{ workload.api_token }}", ctx.nested: "{{ workload.nested | default({}) }}"}
      - name: fails
        kind: python
        input: {values: [EVERY]}
        code: raise ValueError(" ".join(values))
        spec: {policy: {rules: [{else: {then: {do: continue}}}]}}
    next: {arcs: [{step: ask, set: {ctx.password: "{{ workload.password | default('') }}"}}]}
  - step: ask
    tool: {kind: wait, signal: answer, message: "Go on?"}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")), **KEYCHAIN)
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def executions(cluster: Cluster) -> list[str]:
    """Two executions whose requests and signals have secrets by name, and whose tasks print those of the keychain."""
    keychain = "\n".join(f"  - {{name: c{number}, kind: env, var: CANARY_{number}}}" for number in range(192))
    every = ", ".join(f'"{{{{ keychain.c{number} }}}}"' for number in range(192))
    text = TEXT.replace("KEYCHAIN", keychain).replace("EVERY", every)
    status, answer = cluster.ask("POST", "/api/catalog/register", {"content": text})
    assert status in (200, 201), answer
    assert cluster.ask("PUT", "/api/webhooks/shown", {"path": "shown", "verify": {"kind": "none"}})[0] < 500
    found = []
    for number in range(2):
        payload = {**CANARIES, "tokens": [CANARIES["tokens"]], "nested": NESTED, "other": number}
        payload["password"] += str(number)
        status, answer = cluster.ask("POST", "/api/execute", {"path": "shown", "payload": payload})
        assert status == 202, answer
        execution = answer["execution_id"]
        wait_for_status(cluster, execution, "waiting")
        path = f"/api/executions/{execution}/signal"
        signalled = cluster.ask("POST", path, {"name": "answer", "payload": {"password": "canary-signal"}})
        assert signalled[0] < 300, signalled
        assert cluster.finished(execution)["status"] == "success"
        found.append(execution)
    return found


def assert_hidden(place: str, content: str) -> None:
    secrets = [*CANARIES.values(), *KEYCHAIN.values(), "canary-nested"]
    assert [secret for secret in secrets if secret in content] == [], place


def test_no_route_shows_a_secret(cluster, executions):
    """Every GET route of the API, with the ids of these executions."""
    document = cluster.ask("GET", "/openapi.json")[1]
    catalog = cluster.ask("GET", "/api/catalog")[1]
    deliveries = cluster.ask("GET", "/api/deliveries")[1]
    assert catalog and deliveries is not None
    fill = {"execution_id": executions[0], "path": "shown", "path:path": "shown", "name": "shown", "id": "1"}
    fill |= {"kind": "webhook", "digest": "0" * 64, "step": "start", "other": executions[1], "other_id": executions[1]}
    seen = 0
    for path, methods in document["paths"].items():
        if "get" not in methods or path.endswith("/stream"):
            continue
        for name, value in fill.items():
            path = path.replace("{" + name + "}", value)
        queries = [
            "",
            f"?with={executions[1]}&other={executions[1]}&a={executions[0]}&b={executions[1]}&q=canary&limit=1000",
        ]
        for query in queries:
            status, text = raw(cluster, path + query)
            seen += status == 200 and len(text) > 2
            assert_hidden(f"GET {path}{query}", text)
    assert seen > 20
    for path in (f"/api/executions/{executions[0]}/events/stream", f"/api/executions/{executions[0]}/logs/stream"):
        assert_hidden(path, raw(cluster, path)[1])
    events = json.loads(raw(cluster, f"/api/executions/{executions[0]}/events")[1])["items"]
    assert json.dumps(events).count("***") > 10  # they are there, masked
    scheduled = [event["payload"]["tokens"] for event in events if event["name"] == "step.scheduled"]
    assert scheduled and "***" not in json.dumps(scheduled)  # tokens of the net


def raw(cluster: Cluster, path: str) -> tuple[int, str]:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(cluster.url + path, headers={"Authorization": f"Bearer {cluster.token}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode(errors="replace")


COMMANDS = [
    ["events", "A"], ["events", "A", "--json"], ["status", "A"], ["status", "A", "--json"], ["why", "A"], ["why", "A", "--json"],
    ["replay", "A"], ["replay", "A", "--json"], ["logs", "A"], ["logs", "A", "--json"], ["compare", "A", "B"],
    ["compare", "A", "B", "--json"], ["executions", "--json"], ["executions"], ["inbox", "--json"], ["trigger", "list", "--json"],
    ["webhook", "list"], ["notify", "list"], ["catalog", "list"], ["credential", "list"], ["config", "show", "--origin"], ["doctor"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_shows_a_secret(cluster, executions, command):
    words = [executions[0] if word == "A" else executions[1] if word == "B" else word for word in command]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CANARY")}
    environ |= {"NOETL_HOME": str(cluster.home), "NOETL_SERVER_URL": cluster.url, "NOETL_TOKEN": cluster.token}
    done = subprocess.run(
        [sys.executable, "-m", "noetl", *words], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout or done.stderr
    assert "Traceback" not in done.stderr
    assert_hidden(" ".join(command), done.stdout + done.stderr)


def test_no_secret_of_the_keychain_is_written(cluster, executions):
    for file in cluster.home.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert [each for each in KEYCHAIN.values() if each.encode() in content] == [], file
