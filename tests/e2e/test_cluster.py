"""A local cluster (servers, workers, Postgres, NATS): every component is killed while executions run.

`make chaos` runs a larger version (`chaos/kills.py`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from chaos.cluster import Cluster, running_cluster
from chaos.kills import create_effects_table, kill_while_running
from devcluster import local_cluster
from tests.server.http.serving import Cluster as Solo


@pytest.mark.timeout(420)
def test_killing_every_component_once_loses_and_duplicates_nothing():
    with running_cluster(NOETL_SERVER_LEASE_SECONDS="3", NOETL_SLOTS="8") as cluster:
        create_effects_table(cluster.dsn)
        done = kill_while_running(cluster, executions=20, kills=8, within=240)
        assert done.report.violations == []
        assert dict(done.kills) == {"worker": 4, "server": 2, "nats": 1, "postgres": 1}
        assert done.report.outcomes == {"success": 20}


@pytest.mark.timeout(300)
def test_the_command_starts_shows_and_stops_a_cluster(tmp_path: Path):
    cluster = Cluster(tmp_path, servers=1, workers=1)

    def devcluster(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "devcluster", *words]
        return subprocess.run(command, env=cluster.environ, capture_output=True, text=True, timeout=200, check=False)

    try:
        started = devcluster("start", "--background", "--servers", "1", "--workers", "1", "--port", str(cluster.port))
        assert started.returncode == 0, started.stderr
        assert str(cluster.port) in started.stderr
        status = devcluster("status", "--json")
        assert status.returncode == 0
        shown = json.loads(status.stdout)
        assert (shown["running"], shown["ready"]) == (True, True)
        assert [part["name"] for part in shown["parts"]] == ["postgres", "nats", "server-1", "worker-1"]
        assert "1 servers, 1 workers" in started.stderr
        again = devcluster("start", "--port", str(cluster.port))
        assert again.returncode == 2
        assert "a cluster is already running" in again.stderr
        with closing(cluster.client()) as client:
            assert len(client.workers()) == 1  # it is not ready before
            execution = client.submit(
                content="apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\n"
                "workflow: [{step: a, tool: {kind: noop}}]"
            )
            assert client.wait(execution, 60).status == "success"
    finally:
        stopped = devcluster("stop", "--forget")
    assert stopped.returncode == 0, stopped.stderr
    assert local_cluster.members(cluster.processes) == []
    assert not (tmp_path / "cluster").exists()
    assert devcluster("status").returncode == 4
    assert "no cluster is running" in devcluster("stop").stderr


def test_a_worker_serves_several_pools_with_separate_slots(tmp_path: Path):
    here = Solo(tmp_path, NOETL_WORKER_POOL="default=3,far away=1", NOETL_SLOTS="4")
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\n"
    first = "{step: a, spec: {pool: far away}, tool: {kind: noop}, next: {arcs: [{step: b}]}}"
    steps = f"workflow: [{first}, {{step: b, tool: {{kind: noop}}}}]"
    try:
        here.start_server()
        here.start_worker()
        _, document = here.ask("POST", "/api/execute", {"content": head + steps})
        assert here.finished(document["execution_id"], 60)["status"] == "success"
        _, workers = here.ask("GET", "/api/workers")
        assert {each["pool"]: each["slots"] for each in workers["items"]} == {"default": 3, "far away": 1}
    finally:
        here.stop()


QUOTA = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: quota}
workflow:
  - step: call
    loop: {in: "{{ range(15) | list }}", iterator: n, spec: {mode: parallel}}
    spec: {policy: {quotas: {rate: 10/s, key: cluster}}}
    tool: {name: t, kind: noop, input: {at: "{{ now() }}"}}
"""


@pytest.mark.timeout(300)
def test_servers_of_a_cluster_share_quotas_also_when_a_worker_and_a_server_are_killed():
    with running_cluster(NOETL_SERVER_LEASE_SECONDS="3", NOETL_SLOTS="8") as cluster:
        clients = [cluster.client(at) for at in (0, 1)]
        with closing(clients[0]), closing(clients[1]):
            ids = [(client, client.submit(content=QUOTA)) for client in clients for _ in range(2)]
            pids = cluster.pids()
            os.kill(pids["worker-1"], signal.SIGKILL)
            os.kill(pids["server-2"], signal.SIGKILL)
            cluster.wait_until_ready(120)
            outcomes = [clients[0].wait(execution, 120) for _, execution in ids]
        assert [each.status for each in outcomes] == ["success"] * 4
        starts = sorted(
            datetime.fromisoformat(one["at"]).timestamp() for each in outcomes for one in each.output["data"]
        )
        assert len(starts) == 60
        assert starts[-1] - starts[0] >= 59 / 10 - 1.2
        for first, last in zip(starts, starts[30:], strict=False):  # a start may be a second late
            assert last - first >= 30 / 10 - 1.2
