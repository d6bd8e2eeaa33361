"""Lines of tasks over the API: live, filtered, as text, and deleted with their execution."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest

from tests.server.http.serving import Cluster

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: printing, path: tests/printing}
workload: {release: /nowhere}
workflow:
  - step: start
    loop: {in: [1, 2], iterator: n}
    tool:
      - name: one
        kind: python
        input: {n: "{{ iter.n }}"}
        code: |
          import sys
          print("row", n)
          print("ERROR: bad row", n, file=sys.stderr)
    next: {arcs: [{step: slow}]}
  - step: slow
    tool:
      - name: wait
        kind: shell
        command: 'echo waiting; while [ ! -e "{{ workload.release }}" ]; do sleep 0.05; done; echo released'
"""


@pytest.fixture(scope="module")
def done(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[list[dict]]]:
    """An execution that printed while its log was followed; what the stream had before it was released."""
    release = tmp_path_factory.mktemp("release") / "go"
    _, answer = cluster.ask("POST", "/api/execute", {"content": PLAYBOOK, "payload": {"release": str(release)}})
    execution = answer["execution_id"]
    messages: list[list[dict]] = []
    headers = {"Authorization": f"Bearer {cluster.token}"}
    request = urllib.request.Request(f"{cluster.url}/api/executions/{execution}/logs/stream", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as stream:
        for raw in stream:
            line = raw.decode().rstrip("\n")
            if line == "event: end":
                break
            if line.startswith("data: "):
                messages.append(json.loads(line[6:]))
                if any(each["text"] == "waiting" for each in messages[-1]):
                    release.touch()
    return execution, messages


def test_lines_arrive_while_the_task_runs(cluster: Cluster, done):
    _, messages = done
    lines = [line for message in messages for line in message]
    assert [line["seq"] for line in lines] == list(range(1, 7))
    assert {line["text"] for line in lines} == {
        "row 1", "row 2", "ERROR: bad row 1", "ERROR: bad row 2", "waiting", "released",
    }  # fmt: skip
    assert lines[-1]["text"] == "released" and len(messages) > 1
    assert lines[-1]["at"] == pytest.approx(time.time() * 1000, abs=120_000)


def test_lines_are_filtered_and_paged(cluster: Cluster, done):
    execution, _ = done

    def texts(query: str) -> list[str]:
        status, answer = cluster.ask("GET", f"/api/executions/{execution}/logs?{query}")
        assert status == 200, answer
        return [line["text"] for line in answer["items"]]

    assert texts("step=slow") == ["waiting", "released"]
    assert texts("step=start&iteration=1&stream=stdout") == ["row 2"]
    assert texts("search=BAD") == ["ERROR: bad row 1", "ERROR: bad row 2"]
    _, page = cluster.ask("GET", f"/api/executions/{execution}/logs?limit=4")
    assert len(page["items"]) == 4 and page["next"] == "4"
    assert {line["level"] for line in page["items"] if line["stream"] == "stderr"} == {"error"}
    assert cluster.ask("GET", f"/api/executions/{execution}/logs?stream=other")[0] == 422
    assert cluster.ask("GET", "/api/executions/1/logs")[0] == 404


def test_lines_are_downloaded_as_text(cluster: Cluster, done):
    execution, _ = done
    request = urllib.request.Request(
        f"{cluster.url}/api/executions/{execution}/logs/text?step=slow",
        headers={"Authorization": f"Bearer {cluster.token}"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["slow.wait stdout waiting", "slow.wait stdout released"]


def test_a_worker_sends_each_chunk_once(cluster: Cluster, done):
    execution, _ = done
    chunk = [execution, [["slow", "wait"]], [[0, 1.0, "stdout", "again"]]]
    for number in (1, 1, 2):
        body = {"worker": "twice", "number": number, "chunks": [chunk]}
        assert cluster.ask("POST", "/api/work/logs", body)[0] == 200
    _, page = cluster.ask("GET", f"/api/executions/{execution}/logs?search=again")
    assert len(page["items"]) == 2
