"""Placement: a worker gets only steps whose labels it has, and `why` and health say what cannot start."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.http.serving import Cluster
from tests.waiting import until

TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: placed, path: placed}
executor: {spec: {policy: {placement: {labels: {zone: eu}}}}}
workflow:
  - step: start
    spec: {placement: {labels: {gpu: "true"}}}
    tool: {kind: python, code: "result = 'placed'"}
"""


def _until(condition):
    return asyncio.run(until(condition))


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_server()
        yield cluster
    finally:
        cluster.stop()


def test_a_step_waits_for_a_worker_with_its_labels(cluster: Cluster):
    cluster.start_worker()
    _until(lambda: cluster.ask("GET", "/api/workers")[1]["items"])
    started = cluster.ask("POST", "/api/execute", {"content": TEXT})[1]["execution_id"]

    def explained() -> bool:
        _, document = cluster.ask("GET", f"/api/executions/{started}/why")
        return any("gpu=true, zone=eu" in reason and "cannot start" in reason for reason in document["because"])

    _until(explained)
    _until(lambda: any("gpu=true" in each for each in cluster.ask("GET", "/readyz")[1]["warnings"]))
    cluster.environ["NOETL_WORKER_LABELS"] = "gpu=true,zone=eu,ssd=1"
    cluster.start_worker()
    assert cluster.finished(started)["output"]["data"] == "placed"
