"""The history routes and the list of executions over HTTP, on SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster

JOB = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: history/api, labels: {team: data, level: 3}}
workload: {n: 0}
workflow:
- step: start
  tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "assert n < 3, f'{n} is too many'"}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    settings = {}
    if request.param == "postgres":
        settings["NOETL_STORE"] = request.getfixturevalue("database")
    cluster = Cluster(tmp_path, **settings)
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


def test_history_labels_triggers_and_sorting_survive_a_restart(cluster: Cluster):
    assert cluster.ask("POST", "/api/catalog/register", {"content": JOB})[0] == 201
    ids = []
    for n in range(5):
        body = {"path": "history/api", "payload": {"n": n}, "labels": {"n": str(n)}}
        ids.append(cluster.ask("POST", "/api/execute", body)[1]["execution_id"])
    schedule = {"path": "history/api", "cron": "0 6 * * *", "name": "morning"}
    assert cluster.ask("POST", "/api/schedules", schedule)[0] == 201
    ids.append(cluster.ask("POST", "/api/schedules/morning/run", {})[1]["execution_id"])
    for each in ids:
        cluster.finished(each)
    assert cluster.server is not None
    cluster.server.kill()
    cluster.server.wait()
    cluster.start_server()

    def listed(query: str) -> list[str]:
        return [each["execution_id"] for each in cluster.ask("GET", f"/api/executions?{query}")[1]["items"]]

    assert listed("label=team%3Ddata") == ids[::-1]
    assert listed("label=n%3D2&label=level%3D3") == [ids[2]]
    assert listed("trigger=schedule") == [ids[5]]
    assert listed("trigger=user&status=failed") == [ids[4], ids[3]]
    durations = {}
    for item in cluster.ask("GET", "/api/executions")[1]["items"]:
        durations[item["execution_id"]] = item["duration_ms"]
    assert [durations[each] for each in listed("sort=duration")] == sorted(durations.values(), reverse=True)
    first = cluster.ask("GET", "/api/executions?sort=duration&order=asc&limit=4")[1]
    second = cluster.ask("GET", f"/api/executions?sort=duration&order=asc&limit=4&before={first['next']}")[1]
    assert second["next"] is None
    found = [each["execution_id"] for page in (first, second) for each in page["items"]]
    assert sorted(found) == sorted(ids)

    home = cluster.ask("GET", "/api/history?days=7")[1]
    assert (home["total"], home["statuses"]) == (6, {"success": 4, "failed": 2})
    assert home["causes"][0] == {**home["causes"][0], "cause": "AssertionError: … is too many", "count": 2}
    assert len(home["playbooks"][0]["newest"]) == 6
    (coming,) = home["upcoming"]
    assert (coming["schedule"], coming["last_status"]) == ("morning", "success")
    assert coming["last_late_s"] is not None
    playbook = cluster.ask("GET", "/api/history/playbook?path=history/api&days=3")[1]
    assert (playbook["total"], playbook["deleted"], len(playbook["days"])) == (6, 0, 3)
    (step,) = playbook["steps"]
    assert (step["step"], len(step["durations_ms"])) == ("start", 6)
    assert cluster.ask("GET", "/api/history/load?days=1")[1] == {"samples": []}
