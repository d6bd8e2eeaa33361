"""Metrics, readiness, load samples and request ids of a server."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from noetl.observability import metrics
from tests.server.http.serving import Cluster

ONE_STEP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: one_step}
workflow:
  - step: start
    tool: {kind: noop}
"""

NOBODY = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: nobody}
workflow:
  - step: start
    spec: {pool: gpu}
    tool: {kind: noop}
"""


def scrape(cluster: Cluster) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    request = urllib.request.Request(cluster.url + "/metrics", headers={"Authorization": f"Bearer {cluster.token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def unready(cluster: Cluster) -> tuple[int, Any]:
    """What /readyz says once it says no, or after ten seconds."""
    deadline = time.monotonic() + 10
    while (answer := cluster.ask("GET", "/readyz", token=""))[0] == 200 and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


@pytest.fixture
def staffed(cluster: Cluster) -> Cluster:
    """The cluster once its worker has requested work."""
    deadline = time.monotonic() + 30
    while not cluster.ask("GET", "/api/operations")[1]["pools"]:
        assert time.monotonic() < deadline, "no worker has come"
        time.sleep(0.02)
    return cluster


def test_metrics_count_what_was_executed(cluster: Cluster):
    before = scrape(cluster)
    for _ in range(3):
        status, document = cluster.ask("POST", "/api/execute", {"content": ONE_STEP})
        assert status == 202
        cluster.finished(document["execution_id"])

    after = scrape(cluster)

    def grew(name: str, *labels: tuple[str, str]) -> float:
        return after[name][labels] - before.get(name, {}).get(labels, 0.0)

    assert grew("noetl_executions_started_total") == 3
    assert grew("noetl_executions_ended_total", ("status", "success")) == 3
    assert grew("noetl_events_appended_total") >= 15
    assert grew("noetl_flush_seconds_count") >= 1
    assert grew("noetl_flush_writes_sum") >= 3
    assert grew("noetl_decision_seconds_count") >= 6
    assert grew("noetl_reports_total", ("verdict", "accepted")) >= 3
    assert grew("noetl_runs_claimed_total") == 3
    assert grew("noetl_http_requests_total", ("method", "POST"), ("route", "/api/execute"), ("status", "202")) == 3
    assert after["noetl_last_progress_timestamp_seconds"][()] > before["noetl_last_progress_timestamp_seconds"][()]
    assert after["noetl_ready"][()] == 1
    assert after["noetl_workers"][(("pool", "default"),)] == 1
    assert after["noetl_worker_slots"][(("pool", "default"),)] >= 1
    assert 10_000_000 < after["process_resident_memory_bytes"][()] < 120_000_000


def test_every_exposed_metric_is_documented_and_follows_the_naming_rules(cluster: Cluster):
    suffix = re.compile(r"_(bucket|sum|count)$")
    for name in scrape(cluster):
        assert name in metrics.TABLE or suffix.sub("", name) in metrics.TABLE
    for metric in metrics.TABLE.values():
        assert re.fullmatch(r"(noetl|process)_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not set(metric.labels) & {"execution_id", "execution", "playbook", "worker"}


def test_labels_do_not_contain_request_paths(cluster: Cluster):
    for number in range(5):
        cluster.ask("GET", f"/api/executions/{1000 + number}")
        cluster.ask("GET", f"/nowhere/{number}")
    routes = {dict(labels)["route"] for labels in scrape(cluster)["noetl_http_requests_total"]}
    assert "/api/executions/{execution_id}" in routes and "none" in routes
    assert not any("1000" in route or "nowhere" in route for route in routes)


def test_operations_has_pools_counts_and_samples(staffed: Cluster):
    cluster = staffed
    status, document = cluster.ask("GET", "/api/operations")
    assert status == 200
    assert document["executions"].get("success", 0) >= 0
    assert [pool["pool"] for pool in document["pools"]] == ["default"]
    assert document["pools"][0]["workers"] == 1
    assert document["samples"], "the sample of this very moment is always there"
    assert {"at", "queue_depth", "oldest_wait_s", "events_per_s", "ended_per_s"} <= document["samples"][-1].keys()
    assert cluster.ask("GET", "/api/operations", token="")[0] == 401
    assert cluster.ask("GET", "/metrics", token="")[0] == 401


def test_a_pool_without_workers_shows_in_the_queue(staffed: Cluster):
    cluster = staffed
    _, document = cluster.ask("POST", "/api/execute", {"content": NOBODY})
    found = scrape(cluster)
    assert found["noetl_queue_runs"][(("pool", "gpu"),)] == 1
    assert 0 <= found["noetl_queue_oldest_seconds"][(("pool", "gpu"),)] < 60
    _, operations = cluster.ask("GET", "/api/operations")
    assert [(pool["pool"], pool["waiting"], pool["workers"]) for pool in operations["pools"]] == [
        ("default", 0, 1),
        ("gpu", 1, 0),
    ]
    cluster.ask("POST", f"/api/executions/{document['execution_id']}/cancel", {})


def test_the_request_id_is_returned_and_logged(cluster: Cluster):
    def answered(sent: str | None) -> str:
        headers = {"X-Request-ID": sent} if sent else {}
        with urllib.request.urlopen(urllib.request.Request(cluster.url + "/healthz", headers=headers)) as answer:
            return answer.headers["X-Request-ID"]

    assert answered("order-17") == "order-17"
    assert re.fullmatch("[0-9a-f]{16}", answered(None))
    assert answered("x" * 500) != "x" * 500


def test_a_server_is_not_ready_on_the_tables_of_a_newer_version(tmp_path: Path):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_server()
        with closing(sqlite3.connect(tmp_path / "noetl.db")) as other, other:
            other.execute("UPDATE noetl_schema SET version = version + 1 WHERE name = 'events'")
        status, document = unready(cluster)
        assert status == 503
        assert not document["ready"] and "the events tables were migrated to schema version" in document["problems"][0]
        assert cluster.ask("GET", "/healthz", token="") == (200, {"status": "ok"})
    finally:
        cluster.stop()


def test_a_draining_server_is_not_ready_but_still_serves_requests(tmp_path: Path):
    cluster = Cluster(tmp_path, NOETL_SERVER_DRAIN_SECONDS="30")
    try:
        cluster.start_server()
        assert cluster.server is not None
        cluster.server.terminate()
        status, document = unready(cluster)
        assert (status, document["problems"]) == (503, ["the server is stopping"])
        assert cluster.ask("GET", "/api/executions")[0] == 200
        cluster.server.terminate()  # the second signal does not wait
        assert cluster.server.wait(10) in (0, -15)
    finally:
        cluster.stop()


def test_the_log_is_json_with_ids_and_without_secrets(tmp_path: Path):
    cluster = Cluster(tmp_path)
    code = (
        "from noetl.observability import logging as logs; from noetl.server.process import serve; from noetl.settings import load; "
        "logs.configure('json'); serve(load().settings)"
    )
    with (tmp_path / "log").open("wb") as log:
        try:
            cluster.start_server(code, log)
            status, document = cluster.ask(
                "POST", "/api/execute", {"content": ONE_STEP}, headers={"X-Request-ID": "r-1"}
            )
            assert status == 202
            cluster.ask("POST", f"/api/executions/{document['execution_id']}/cancel", {})
        finally:
            cluster.stop()
    text = (tmp_path / "log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    (record,) = [line for line in lines if line.get("request_id") == "r-1"]
    assert (record["method"], record["path"], record["status"], record["caller"]) == (
        "POST",
        "/api/execute",
        202,
        "admin",
    )
    assert record["execution_id"] == document["execution_id"]
    assert cluster.token not in text


def test_readiness_does_not_wait_for_a_frozen_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from noetl.server import process as module
    from noetl.settings import load

    class Frozen:
        async def check(self) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(60)  # a driver that takes its question back in peace

    monkeypatch.setattr(module, "STORE_SECONDS", 0.05)
    server = module.Server(load({"home": str(tmp_path)}).settings)
    parts: Any = SimpleNamespace(orchestrator=SimpleNamespace(store=Frozen()))

    async def ask() -> list[str]:
        async with asyncio.timeout(10):
            return await server._probe(parts)

    assert asyncio.run(ask()) == ["the event store did not respond within 0.05 s"]


def _subscribers_become(cluster: Cluster, expected: float) -> bool:
    deadline = time.monotonic() + 10
    while (found := scrape(cluster)["noetl_stream_subscribers"][()]) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return found == expected


def test_open_event_streams_are_counted(cluster: Cluster):
    _, started = cluster.ask("POST", "/api/execute", {"content": NOBODY})  # no worker of that pool: it waits
    before = scrape(cluster)["noetl_stream_subscribers"][()]
    streams = []
    for path in ("events/stream", "outline/stream"):
        url = f"{cluster.url}/api/executions/{started['execution_id']}/{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {cluster.token}"})
        streams.append(urllib.request.urlopen(request, timeout=10))
    try:
        assert _subscribers_become(cluster, before + 2)
    finally:
        cluster.ask("POST", f"/api/executions/{started['execution_id']}/cancel", {})
        for each in streams:
            each.read()
            each.close()
    assert _subscribers_become(cluster, before)
