"""Synthesized steps: validated like written ones, bounded, shown on the graph, and replayed from the log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from noetl.core.language.editor.graph import as_dot, as_mermaid
from noetl.core.language.editor.net_document import net_document

PLAN = """
    workload: {plan: []}
    workflow:
      - step: start
        spec: {policy: {synthesize: {from: "{{ output.data }}", limits: {steps: 3, kinds: [noop, python]}}}}
        tool: {kind: python, input: {plan: "{{ workload.plan }}"}, code: "result = plan"}
    workbook:
      hidden: {tool: {kind: shell, cmd: "true"}}
"""


def step(name: str, kind: str = "noop", **more: Any) -> dict[str, Any]:
    return {"step": name, "tool": {"kind": kind}, **more}


def arcs(*targets: str) -> dict[str, Any]:
    return {"next": {"arcs": [{"step": target} for target in targets]}}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("no list", "expected a list of steps, got str"),
        ([step(f"s{n}") for n in range(4)], "4 steps are more than the limit of 3"),
        ([step("a", "shell", **arcs("start"))], "shell"),
        ([step("a", **arcs("nowhere"))], "[unknown-step]"),
        ([step("start")], "start"),
        ([step("a"), step("a")], "duplicate step"),
        ([{"step": "a", "tool": {"kind": "python"}}], "code"),
        ([{"step": "a", "tol": {"kind": "noop"}}], "[unknown-key]"),
        ([{"step": "a", "tool": {"kind": "noop", "set": {"ctx.x": "{{ 1 + }}"}}}], "[template-syntax]"),
        ([step("a", spec={"policy": {"compensation": {"tool": {"kind": "shell", "cmd": "true"}}}})], "shell"),
        ([{"step": "a", "tool": {"kind": "workbook", "block": "hidden"}}], "workbook"),
        ({"workflow": [step("a")], "entry": "b"}, "entry"),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value)[:60],
)
def test_a_plan_that_is_not_valid_fails_its_step_with_the_diagnostics(play, plan, message):
    ran = play(PLAN, {"plan": plan})
    assert (ran.status, ran.error["kind"]) == ("failed", "schema")
    assert "the synthesized workflow is invalid" in ran.error["message"]
    assert message in ran.error["message"]
    assert ran.of("workflow.synthesized")[0].steps == ()


def test_what_a_synthesized_step_synthesizes_has_the_same_kinds(play):
    deeper = {
        "step": "deeper",
        "spec": {
            "policy": {"synthesize": {"from": "{{ [{'step': 'evil', 'tool': {'kind': 'shell', 'cmd': 'true'}}] }}"}}
        },
        "tool": {"kind": "noop"},
    }
    ran = play(PLAN, {"plan": [deeper]})
    assert ran.status == "failed"
    assert 'step "evil" uses the kind "shell"; allowed are noop, python' in ran.error["message"]


def test_the_graph_of_the_execution_shows_what_was_added(play, stage):
    ran = play(PLAN, {"plan": [step("made", **arcs("second")), step("second")]})
    assert ran.status == "success"
    state = stage.do(stage.orchestrator.state(ran.result.execution_id))
    net = net_document(state.playbook, state.synthesized.values())
    assert [(node["step"], node["synthesized"]) for node in net["nodes"]] == [
        ("start", False), ("made", True), ("second", True),
    ]  # fmt: skip
    assert [(arc["source"], arc["target"], arc.get("synthesized", False)) for arc in net["arcs"]] == [
        ("made", "second", False), ("start", "made", True),
    ]  # fmt: skip
    assert '-.->|"adds at run time"|' in as_mermaid(net)
    assert '"start" -> "made" [label="adds at run time", style=dashed]' in as_dot(net)
    assert "may add up to 3 steps" in as_mermaid(net)


def test_replay_rebuilds_the_same_steps_from_the_log_alone(play, stage):
    ran = play(PLAN, {"plan": [step("made", **arcs("second")), step("second")]})
    live = stage.do(stage.orchestrator.state(ran.result.execution_id))
    seq = next(each.seq for each in ran.events if each.body.NAME == "workflow.synthesized")
    before, at = (stage.do(stage.orchestrator.state(ran.result.execution_id, number)) for number in (seq - 1, seq))
    assert before.synthesized == {}
    assert at.synthesized == live.synthesized
    assert list(live.synthesized) == ["made", "second"]
