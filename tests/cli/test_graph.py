"""`noetl graph` and `noetl plan`: they show a playbook without running it."""

from __future__ import annotations

GOOD = "workflow:\n  - step: start\n    tool: {kind: noop}\n    next: {arcs: [{step: last}]}\n  - step: last\n    tool: {kind: noop}\n"
BAD = "workflow:\n  - step: start\n    tool: {kind: noop}\n    next: {arcs: [{step: nowhere}]}\n"


def test_each_format_is_written_to_stdout(noetl, playbook):
    file = playbook(GOOD)
    assert noetl("graph", file).out.startswith("flowchart TD")
    assert noetl("graph", file, "--format", "dot").out.startswith("digraph")
    assert noetl("graph", file, "--format", "svg").out.startswith("<svg ")
    assert [arc["target"] for arc in noetl("graph", file, "--format", "json").json["arcs"]] == ["last"]


def test_last_is_the_newest_execution(noetl, playbook):
    assert noetl("graph", "last").code == 2
    noetl("run", playbook(GOOD))
    assert [arc["target"] for arc in noetl("graph", "last", "--format", "json").json["arcs"]] == ["last"]


def test_a_playbook_with_errors_has_no_graph(noetl, playbook):
    for command in ("graph", "plan"):
        answer = noetl(command, playbook(BAD))
        assert (answer.code, answer.out) == (3, "")
        assert "[unknown-step]" in answer.err


def test_a_missing_file_is_a_usage_error(noetl):
    assert noetl("plan", "nowhere.yaml").code == 2


def test_a_plan_is_text_or_one_document_with_findings(noetl, playbook):
    file = playbook(GOOD)
    assert "1. start" in noetl("plan", file).out
    document = noetl("plan", file, "--json").json
    assert document["entry"] == "start"
    assert document["findings"] == []


def test_a_plan_lists_tasks_without_a_timeout(noetl, playbook):
    steps = "workflow:\n  - step: start\n    tool:\n      - {name: a, kind: shell, command: make}\n"
    steps += "      - {name: b, kind: shell, command: make, spec: {timeout: 5}}\n      - {name: c, kind: http, url: http://u/}\n"
    file = playbook(steps)
    (found,) = noetl("plan", file, "--json").json["findings"]
    assert (found["code"], found["line"]) == ("missing-timeout", 7)
    assert '"a" (shell) may wait indefinitely' in noetl("plan", file).out
    assert noetl("validate", file, "--format", "json").json == []
    bounded = steps.replace("    tool:", "    spec: {policy: {lifecycle: {timeout_s: 60}}}\n    tool:")
    assert noetl("plan", playbook(bounded), "--json").json["findings"] == []
