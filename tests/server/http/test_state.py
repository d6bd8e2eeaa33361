"""State of playbooks over HTTP: listed, read, changed with versions, removed, and shared by executions of two servers."""

from __future__ import annotations

from tests.server.http.serving import Cluster

COUNT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: count, path: tests/state/count}
workflow:
  - {step: start, tool: {kind: noop, set: {state.n: "{{ state.n | default(0) + 1 }}"}}}
"""
PATH = "/api/state/tests/state/count"


def entries(cluster: Cluster) -> dict:
    status, document = cluster.ask("GET", PATH)
    assert status == 200
    return {each["key"]: each for each in document["entries"]}


def test_state_is_committed_listed_changed_and_removed(cluster: Cluster):
    assert cluster.ask("GET", PATH) == (200, {"path": "tests/state/count", "bytes": 0, "entries": []})
    for _ in range(2):
        _, document = cluster.ask("POST", "/api/execute", {"content": COUNT})
        assert cluster.finished(document["execution_id"])["status"] == "success"
    found = entries(cluster)["n"]
    assert (found["value"], found["execution_id"]) == (2, document["execution_id"])
    _, listed = cluster.ask("GET", "/api/state?limit=1")
    assert [each["path"] for each in listed["items"]] == ["tests/state/count"] and listed["next"] is None

    status, changed = cluster.ask("PATCH", PATH, {"values": {"a.b": 1, "n": 7}, "versions": {"n": found["version"]}})
    assert status == 200 and [each["value"] for each in changed["entries"]] == [{"b": 1}, 7]
    status, problem = cluster.ask("PATCH", PATH, {"values": {"n": 8}, "versions": {"n": found["version"]}})
    assert status == 409 and "state.n of tests/state/count was changed by a user" in problem["detail"]
    assert cluster.ask("PATCH", PATH, {"values": {"n": 8}, "versions": {"n": None}})[0] == 409
    assert cluster.ask("PATCH", PATH, {"values": {".": 8}})[0] in (400, 422)

    assert cluster.ask("DELETE", f"{PATH}?key=a")[0] == 204
    assert list(entries(cluster)) == ["n"]
    assert cluster.ask("DELETE", f"{PATH}?key=a")[0] == 404
    assert cluster.ask("DELETE", PATH)[0] == 204
    assert entries(cluster) == {}
    assert cluster.ask("DELETE", PATH)[0] == 404
