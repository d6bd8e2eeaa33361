"""Placement on a server with workers: pools, labels, costs, and the spread of a parallel loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.http.serving import Cluster
from tests.waiting import wait_until

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: placed}\n"

SPREAD = """
workflow:
  - step: spread
    loop: {in: "{{ range(40) | list }}", iterator: n, spec: {mode: parallel}}
    tool: {kind: shell, cmd: "sleep 0.05"}
"""

LABELLED = """
executor: {spec: {placement: {labels: {zone: eu}}}}
workflow:
  - step: train
    spec: {placement: {labels: {gpu: "true"}}}
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {kind: noop}
"""

POOL = """
executor: {spec: {pool: batch}}
workflow:
  - step: start
    tool: {kind: noop, spec: {validation: {output: orders/v3}}}
"""

COSTS = """
workflow:
  - step: heavy
    spec: {cost: 2}
    loop: {in: [1, 2, 3, 4, 5, 6], iterator: n, spec: {mode: parallel}}
    tool: {kind: shell, cmd: "sleep 0.1"}
    next: {arcs: [{step: huge}]}
  - step: huge
    spec: {cost: 100}
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {kind: shell, cmd: "sleep 0.05"}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with two workers of four slots each; the second one has labels."""
    cluster = Cluster(tmp_path_factory.mktemp("home"), NOETL_SLOTS="4")
    try:
        cluster.start_server()
        cluster.start_worker()
        cluster.environ["NOETL_WORKER_LABELS"] = "gpu=true,zone=eu"
        cluster.start_worker()
        wait_until(lambda: len(cluster.ask("GET", "/api/workers")[1]["items"]) == 2)
        yield cluster
    finally:
        cluster.stop()


def run(cluster: Cluster, text: str) -> list[dict[str, Any]]:
    """The events of an execution that has succeeded."""
    status, document = cluster.ask("POST", "/api/execute", {"content": HEAD + text})
    assert status == 202, document
    ended = cluster.finished(document["execution_id"])
    assert ended["status"] == "success", ended
    _, page = cluster.ask("GET", f"/api/executions/{document['execution_id']}/events?limit=1000")
    events: list[dict[str, Any]] = page["items"]
    return events


def most_at_once(events: list[dict[str, Any]], step: str) -> dict[str, int]:
    """The largest number of iterations of a step that each worker executed at the same time."""
    open_runs: dict[tuple[Any, ...], str] = {}
    most: dict[str, int] = {}
    for event in events:
        if event.get("step") != step or "iteration_index" not in event:
            continue
        key = (event["step"], event["iteration_index"])
        if event["name"] == "loop.iteration.started":
            worker = open_runs[key] = event["payload"]["worker"]
            most[worker] = max(most.get(worker, 0), Counter(open_runs.values())[worker])
        elif event["name"] == "loop.iteration.done":
            del open_runs[key]
    return most


def test_forty_iterations_are_spread_over_two_workers(cluster: Cluster):
    events = run(cluster, SPREAD)
    shares = Counter(each["payload"]["worker"] for each in events if each["name"] == "loop.iteration.started")
    assert len(shares) == 2
    assert sum(shares.values()) == 40
    assert min(shares.values()) >= 12, shares


def test_runs_with_labels_go_to_the_worker_that_has_them(cluster: Cluster):
    labelled = {
        each["worker"] for each in cluster.ask("GET", "/api/workers")[1]["items"] if "gpu=true" in each["labels"]
    }
    events = run(cluster, LABELLED)
    assert {each["payload"]["worker"] for each in events if each["name"] == "loop.iteration.started"} == labelled


def test_costs_bound_what_a_worker_executes_at_once(cluster: Cluster):
    events = run(cluster, COSTS)
    assert max(most_at_once(events, "heavy").values()) == 2  # four slots, two for each
    assert set(most_at_once(events, "huge").values()) == {1}  # it costs more than a worker has: alone


def test_what_no_worker_can_take_is_explained(cluster: Cluster, tmp_path: Path):
    text = HEAD + POOL
    status, document = cluster.ask("POST", "/api/execute", {"content": text})
    assert status == 202
    execution = document["execution_id"]
    try:
        why = 'runs of step "start" cannot start: the pool batch has no live worker; `noetl worker start --pool batch` '
        shown = wait_until(lambda: cluster.ask("GET", f"/api/executions/{execution}")[1]["waits_for"])
        assert shown == [why + "starts one"]
        assert why in noetl(cluster, "why", execution).stdout
        assert why in noetl(cluster, "status", execution).stdout
        findings = cluster.ask("GET", f"/api/executions/{execution}/why")[1]["findings"]
        assert [each["text"] for each in findings if each["subject"] == "placement"] == [why + "starts one"]
    finally:
        cluster.ask("POST", f"/api/executions/{execution}/cancel", {})


def test_validation_and_registration_name_what_the_server_does_not_have(cluster: Cluster, tmp_path: Path):
    file = tmp_path / "pool.yaml"
    file.write_text(HEAD + POOL)
    checked = noetl(cluster, "validate", str(file), "--server", cluster.url, "--format", "json")
    assert checked.returncode == 0
    found = {each["code"]: each for each in json.loads(checked.stdout)}
    assert found["no-worker"]["message"] == 'the step "start" cannot run now: the pool batch has no live worker'
    assert found["no-worker"]["hint"] == "`noetl worker start --pool batch` starts one"
    assert "there is no schema 'orders'" in found["unknown-schema"]["message"]
    assert (found["unknown-schema"]["line"], found["no-worker"]["line"]) == (8, 7)
    registered = noetl(cluster, "register", str(file))
    assert registered.returncode == 0
    assert "no-worker" in registered.stderr and "unknown-schema" in registered.stderr
    status, document = cluster.ask("POST", "/api/catalog/register", {"content": HEAD + POOL})
    assert status == 201
    assert sorted(each["code"] for each in document["warnings"]) == ["no-worker", "unknown-schema"]


def noetl(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "noetl.clictl", *words],
        env={**os.environ, **cluster.environ, "NOETL_TOKEN": cluster.token},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
