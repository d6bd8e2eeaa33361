"""Schedules over the API and the command line, with a real server."""

from __future__ import annotations

import time

from noetl.cli import app as program
from tests.server.http.serving import Cluster

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: tick, path: tests/tick}
workload: {at: never}
workflow:
  - step: start
    tool: {kind: python, input: {at: "{{ workload.at }}"}, code: "result = at"}
"""


def test_a_schedule_starts_executions_once_per_tick(cluster: Cluster):
    cluster.ask("POST", "/api/catalog/register", {"content": TEXT})
    body = {"path": "tests/tick", "cron": "* * * * * *", "name": "often", "payload": {"at": "{{ tick }}"}}
    status, added = cluster.ask("POST", "/api/schedules", body)
    assert (status, added["name"], len(added["upcoming"])) == (201, "often", 3)
    assert cluster.ask("POST", "/api/schedules", body)[0] == 409
    deadline = time.monotonic() + 20
    while cluster.ask("GET", "/api/schedules/often")[1]["fired"] < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    paused = cluster.ask("POST", "/api/schedules/often/pause")[1]
    assert (paused["paused"], paused["next_at"], paused["upcoming"]) == (True, None, [])
    found = cluster.ask("GET", "/api/executions?path=tests/tick")[1]["items"]
    assert len(found) == cluster.ask("GET", "/api/schedules/often")[1]["fired"] >= 2
    outputs = [cluster.finished(each["execution_id"])["output"]["data"] for each in found]
    assert len(outputs) == len(set(outputs))
    assert cluster.ask("POST", "/api/schedules/often/resume")[1]["paused"] is False
    assert cluster.ask("DELETE", "/api/schedules/often")[0] == 204
    assert cluster.ask("GET", "/api/schedules/often")[0] == 404


def test_invalid_schedules_are_rejected(cluster: Cluster):
    cluster.ask("POST", "/api/catalog/register", {"content": TEXT})
    for change, expected in (
        ({"cron": "61 * * * *"}, 400),
        ({"tz": "Mars/Olympus"}, 400),
        ({"path": "tests/nobody"}, 404),
        ({"overlap": "maybe"}, 422),
        ({"name": "a b"}, 422),
    ):
        status, problem = cluster.ask("POST", "/api/schedules", {"path": "tests/tick", "cron": "@daily", **change})
        assert (status, problem["status"]) == (expected, expected), change
    shown = cluster.ask("POST", "/api/schedules/preview", {"cron": "0 9 * * mon", "tz": "Europe/Berlin", "count": 2})[1]
    assert len(shown["upcoming"]) == 2
    assert "Monday" in shown["description"]


def test_the_command_line_manages_schedules_of_a_server_and_of_this_machine(
    cluster: Cluster, tmp_path, monkeypatch, capsys
):
    def noetl(*words: str) -> tuple[int, str, str]:
        code = program.run(words)
        return code, *capsys.readouterr()

    file = tmp_path / "tick.yaml"
    file.write_text(TEXT)
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    for where in ("server", "store"):
        if where == "server":
            monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
            monkeypatch.setenv("NOETL_TOKEN", cluster.token)
        else:
            monkeypatch.delenv("NOETL_SERVER_URL")
        noetl("register", str(file))
        code, out, err = noetl(
            "schedule", "add", "tests/tick", "--cron", "30 6 * * *", "--tz", "Europe/Berlin", "--set", "at=x"
        )
        assert code == 0, err
        assert "tests-tick" in out
        assert "06:30" in out
        assert noetl("schedule", "next", "tests-tick", "--count", "4")[1].count("T06:30:00") == 4
        assert "30 6 * * *" in noetl("schedule", "list")[1]
        assert noetl("schedule", "pause", "tests-tick")[0] == 0
        assert "paused" in noetl("schedule", "show", "tests-tick")[1]
        assert noetl("schedule", "resume", "tests-tick")[0] == 0
        assert noetl("schedule", "remove", "tests-tick")[0] == 0
        assert noetl("schedule", "remove", "tests-tick")[0] == 2
        code, _, err = noetl("schedule", "add", "tests/tick", "--cron", "often")
        assert (code, err.count("\n")) == (2, 1)
        assert noetl("schedule", "list")[1] == ""
