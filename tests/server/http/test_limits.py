"""Concurrency limits with real servers and workers: set, shown, kept by two servers, released by killed ones."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetl.cli import app as program
from noetl.client import Client
from noetl.errors import NotFound, RequestRefused
from tests.server.http.serving import Cluster

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: tests/{name}}}\nworkflow:\n"
LONG = HEAD.format(name="long") + "  - {step: start, tool: {kind: shell, command: sleep 60}}\n"
SLOW = HEAD.format(name="slow") + (
    "  - step: start\n"
    "    loop: {in: '{{ range(4) | list }}', iterator: n, spec: {mode: parallel}}\n"
    "    tool: {kind: shell, command: sleep 0.1, input: {auth: shop}}\n"
)


def submit(cluster: Cluster, text: str) -> str:
    status, document = cluster.ask("POST", "/api/execute", {"content": text})
    assert status == 202, document
    return document["execution_id"]


def waits(cluster: Cluster, execution_id: str) -> list[str]:
    """What holds it back, once something does."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = cluster.ask("GET", f"/api/executions/{execution_id}")[1]["waits_for"]
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"execution {execution_id} waits for no limit")


def metrics(cluster: Cluster) -> str:
    headers = {"Authorization": f"Bearer {cluster.token}"}
    with urllib.request.urlopen(urllib.request.Request(cluster.url + "/metrics", headers=headers)) as answer:
        return answer.read().decode()


def test_a_waiting_execution_shows_its_limit_and_the_holders(cluster: Cluster, capsys):
    where = ["--server", cluster.url, "--token", cluster.token]
    assert program.run(["limit", "set", "playbook", "tests/long", "1", *where]) == 0
    assert "playbook tests/long: at most 1 execution at once" in capsys.readouterr().out
    first = submit(cluster, LONG)
    while not cluster.ask("GET", "/api/limits/playbook/tests/long")[1]["held"]:
        time.sleep(0.02)
    second = submit(cluster, LONG)
    (reason,) = waits(cluster, second)
    expected = f"the limit of playbook tests/long: 1 of 1 slots in use, by execution {first} (tests/long)"
    assert expected in reason
    for verb in ("why", "status"):
        assert program.run([verb, second, *where]) == 0
        assert expected in capsys.readouterr().out
    assert program.run(["limit", "list", "--json", *where]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["most"], shown["held"], shown["waiting"], shown["changed_by"]) == (1, 1, 1, "admin")
    assert [each["execution_id"] for each in shown["holders"]] == [first]
    reported = metrics(cluster)
    assert 'noetl_waiting_runs{limit="playbook tests/long"} 1' in reported
    assert 'noetl_limit_held{limit="playbook tests/long"} 1' in reported
    assert program.run(["limit", "show", "playbook", "tests/long", *where]) == 0
    assert f"execution {first} (tests/long): 1" in capsys.readouterr().out
    cluster.ask("POST", f"/api/executions/{first}/cancel", {})
    assert cluster.finished(first)["status"] == "cancelled"
    while cluster.ask("GET", "/api/limits/playbook/tests/long")[1]["holders"] in ([], shown["holders"]):
        time.sleep(0.02)
    assert cluster.ask("GET", f"/api/executions/{second}")[1]["waits_for"] == []
    cluster.ask("POST", f"/api/executions/{second}/cancel", {})
    assert cluster.finished(second)["status"] == "cancelled"
    assert program.run(["limit", "remove", "playbook", "tests/long", *where]) == 0
    assert program.run(["limit", "remove", "playbook", "tests/long", *where]) == 2
    assert "there is no limit 'playbook tests/long'" in capsys.readouterr().err


def test_the_client_manages_limits_and_invalid_ones_are_rejected(cluster: Cluster):
    with Client(cluster.url, token=cluster.token) as client:
        assert client.set_limit("pool", "far away/é", 7)["most"] == 7
        assert client.set_limit("pool", "far away/é", 8)["most"] == 8
        assert client.limit("pool", "far away/é")["held"] == 0
        assert [each["name"] for each in client.limits()] == ["far away/é"]
        client.remove_limit("pool", "far away/é")
        with pytest.raises(NotFound):
            client.limit("pool", "far away/é")
        with pytest.raises(RequestRefused):
            client.set_limit("worker", "w", 1)
        with pytest.raises(RequestRefused):
            client.set_limit("pool", "gpu", -1)


@pytest.mark.timeout(180)
def test_two_servers_keep_a_limit_while_a_worker_and_a_server_are_killed(tmp_path: Path, database: str):
    common = {"NOETL_STORE": database, "NOETL_SERVER_LEASE_SECONDS": "2", "NOETL_SLOTS": "6"}
    here, there = Cluster(tmp_path / "here", **common), Cluster(tmp_path / "there", **common)
    try:
        here.start_server()
        shutil.copytree(here.home, there.home, ignore=shutil.ignore_patterns("*.pid", "*.sock", "run"))
        there.start_server()
        urls = f"{here.url},{there.url}"
        here.environ["NOETL_SERVER_URL"] = urls
        there.environ["NOETL_SERVER_URL"] = f"{there.url},{here.url}"
        assert here.ask("PUT", "/api/limits/credential/shop", {"most": 3})[0] == 200
        while 'noetl_limit{limit="credential shop"} 3' not in metrics(there):
            time.sleep(0.01)  # applied by the other server, at the latest after its next poll
        ids = [submit(each, SLOW) for each in (here, there) * 6]
        seen: list[int] = []

        def look_until(enough: Callable[[dict[str, Any]], bool]) -> None:
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline:
                document = there.ask("GET", "/api/limits/credential/shop")[1]
                seen.append(document["held"])
                if enough(document):
                    return
                time.sleep(0.01)
            raise AssertionError(f"it did not come to that: {document}")

        only = here.start_worker()
        look_until(lambda shown: shown["held"] == 3)
        only.kill()  # it holds all slots, and never says that it let go
        there.start_worker()
        here.start_worker()
        look_until(lambda _: len(there.ask("GET", "/api/executions?status=success")[1]["items"]) >= 2)
        assert here.server is not None
        here.server.kill()
        look_until(lambda _: len(there.ask("GET", "/api/executions?status=success")[1]["items"]) == len(ids))
        assert max(seen) == 3
    finally:
        here.stop()
        there.stop()


def test_requests_of_a_tenant_are_refused_with_429_at_its_bound(cluster: Cluster, capsys):
    where = ["--server", cluster.url, "--token", cluster.token]
    assert (
        program.run(["limit", "set", "label", "tenant=acme", "0", "--max-waiting", "2", "--weight", "3", *where]) == 0
    )
    assert "queued     0 runs (requests are refused at 2)" in capsys.readouterr().out
    text = LONG.replace("start, tool", "start, spec: {pool: nowhere}, tool")
    body = {"content": text, "labels": {"tenant": "acme"}}
    ids = [cluster.ask("POST", "/api/execute", body)[1]["execution_id"] for _ in range(2)]
    while cluster.ask("GET", "/api/limits/label/tenant=acme")[1]["queued"] < 2:
        time.sleep(0.02)
    request = urllib.request.Request(
        cluster.url + "/api/execute",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "5")
    assert "2 runs of tenant acme wait (at most 2" in json.loads(refused.value.read())["detail"]
    assert cluster.ask("POST", "/api/execute", {**body, "labels": {"tenant": "other"}})[0] == 202
    assert "label tenant=acme: 0 of 0 slots in use" in waits(cluster, ids[0])[0]
    shown = cluster.ask("GET", "/api/limits/label/tenant=acme")[1]
    assert (shown["weight"], shown["max_waiting"], shown["queued"]) == (3, 2, 2)
    for each in cluster.ask("GET", "/api/executions?status=running")[1]["items"]:
        cluster.ask("POST", f"/api/executions/{each['execution_id']}/cancel", {})
    assert program.run(["limit", "remove", "label", "tenant=acme", *where]) == 0
