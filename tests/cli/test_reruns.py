"""`noetl rerun --failed`, `fork` and `compare` on the command line, for local executions and a server's."""

from __future__ import annotations

import pytest

from tests.server.http.serving import Cluster

TEXT = """
workload: {bad: [1], n: 3}
workflow:
  - step: start
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = list(range(n))"}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ start }}", iterator: i}
    spec: {policy: {failure: {mode: best_effort, max_failed: 0}}}
    tool:
      kind: python
      input: {i: "{{ iter.i }}", bad: "{{ workload.bad }}"}
      code: |
        if i in bad:
            raise ValueError("no")
        result = i * 10
"""


def test_only_what_failed_runs_again(noetl, playbook):
    first = noetl("run", playbook(TEXT, "work"), "--json").json
    assert first["status"] == "failed"
    plan = noetl("rerun", "last", "--failed", "--dry-run", "--json").json
    assert (plan["starts"], plan["kept"], plan["iterations"]) == (["each"], ["start"], {"each": 1})
    shown = noetl("rerun", "last", "--failed", "--dry-run")
    assert shown.out == "starts at each; keeps the results of start; keeps 1 iterations of each\n"
    again = noetl("rerun", first["execution_id"], "--failed", "--set", "bad=[]", "--json")
    assert again.json["output"]["data"] == [0, 10, 20], again.err
    assert f"rerun of {first['execution_id']}: starts at each" in again.err
    assert noetl("executions", "--json").json[0]["rerun_of"] == first["execution_id"]
    assert f"rerun of   {first['execution_id']}" in noetl("status", "last").out
    compared = noetl("compare", first["execution_id"], "last", "--json").json
    assert compared["inputs"] == [{"path": "bad.0", "a": 1}]
    assert noetl("compare", first["execution_id"], "last").out.count("first divergence at") == 1
    nothing = noetl("rerun", "last", "--failed")
    assert nothing.code == 2 and "nothing failed" in nothing.err
    both = noetl("rerun", "last", "--failed", "--from", "each")
    assert both.code == 2 and "not both" in both.err


def test_the_file_as_it_is_now_is_the_latest_version(noetl, playbook, folder):
    file = playbook(TEXT, "work")
    noetl("run", file, "--json")
    (folder / file).write_text((folder / file).read_text().replace("result = i * 10", "result = i * 100"))
    again = noetl("rerun", "last", "--failed", "--version", "latest", "--set", "bad=[]", "--json")
    assert again.json["output"]["data"] == [0, 100, 200]


def test_a_fork_continues_from_an_event(noetl, playbook):
    noetl("run", playbook(TEXT, "work"), "--json", "--set", "bad=[]")
    events = noetl("events", "last", "--json").lines
    at = next(each["seq"] for each in events if each["name"] == "step.done")
    forked = noetl("fork", "last", "--at", str(at), "--set", "bad=[2]", "--json")
    assert forked.code == 1 and forked.json["status"] == "failed"
    document = noetl("executions", "--json").json[0]
    assert document["forked_from"] == events[0]["execution_id"] and document["rerun_of"] is None
    wrong = noetl("fork", "last", "--at", "9999")
    assert wrong.code == 2 and "has the events 1 to" in wrong.err


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("home"))
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


def test_the_same_commands_work_on_a_server(noetl, playbook, cluster, monkeypatch):
    monkeypatch.setenv("NOETL_TOKEN", cluster.token)
    server = ("--server", cluster.url)
    first = noetl("execute", playbook(TEXT, "work"), *server, "--json").json
    again = noetl("rerun", first["execution_id"], "--failed", "--set", "bad=[]", *server, "--json")
    assert again.json["output"]["data"] == [0, 10, 20], again.err
    compared = noetl("compare", first["execution_id"], again.json["execution_id"], *server, "--json").json
    assert compared["b"]["rerun_of"] == first["execution_id"]
    forked = noetl("fork", again.json["execution_id"], "--at", "3", *server, "--json")
    assert forked.json["output"]["data"] == [0, 10, 20]
