"""Class "repeated commands": one key has one effect, also when several servers receive it at the same time."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devcluster import services
from tests.server.http.serving import Cluster

pytestmark = pytest.mark.integration

WAITS = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: waits}
workflow:
  - {step: start, tool: {kind: wait, signal: go, timeout: 300s}}
"""
COMMANDS = {
    "pause": ({"reason": "x"}, "execution.paused"),
    "signal": ({"name": "other", "payload": {"a": 1}}, "signal.received"),
    "resume": ({}, "execution.resumed"),
    "cancel": ({"reason": "z"}, "execution.cancelled"),
}
SENDERS = 6
ATTEMPTS = {"test_a_key_that_two_servers_receive_at_once_has_one_effect": SENDERS * (len(COMMANDS) + 2)}


@pytest.fixture
def servers(postgres, tmp_path: Path) -> Iterator[list[Cluster]]:
    with services.fresh_database(postgres) as store:
        found = [Cluster(tmp_path / "home", NOETL_STORE=store, NOETL_SERVER_NAME=name) for name in "ab"]
        try:
            for each in found:
                each.start_server()
            yield found
        finally:
            for each in found:
                each.stop()


def test_a_key_that_two_servers_receive_at_once_has_one_effect(servers):
    def send(number: int, path: str, body: dict, key: str) -> tuple[int, dict]:
        server = servers[number % 2]
        headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            server.url + path, json.dumps(body).encode(), headers | {"Idempotency-Key": key}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as problem:
            return problem.code, json.load(problem)

    with ThreadPoolExecutor(SENDERS) as senders:

        def at_once(path: str, body: dict, key: str) -> list[dict]:
            answers = list(senders.map(lambda number: send(number, path, body, key), range(SENDERS)))
            assert all(status < 300 or status == 409 for status, _ in answers), answers
            accepted = [document for status, document in answers if status < 300]
            assert accepted, answers
            return accepted

        started = {each["execution_id"] for each in at_once("/api/execute", {"content": WAITS}, "start")}
        assert len(started) == 1
        (execution_id,) = started
        reruns = at_once(f"/api/executions/{execution_id}/rerun", {}, "rerun")
        assert len({each["execution_id"] for each in reruns}) == 1
        for command, (body, _) in COMMANDS.items():
            at_once(f"/api/executions/{execution_id}/{command}", body, command)
    _, log = servers[0].ask("GET", f"/api/executions/{execution_id}/events")
    text = json.dumps(log)
    assert {name: text.count(f'"{name}"') for _, name in COMMANDS.values()} == {
        name: 1 for _, name in COMMANDS.values()
    }
