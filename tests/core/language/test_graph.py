"""Drawings and plans of playbooks contain every step and arc."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from dsl_kinds import SPECS

from noetl.core.language.compile import compile_playbook
from noetl.core.language.editor.graph import as_dot, as_mermaid
from noetl.core.language.editor.graph_svg import as_svg, layout
from noetl.core.language.editor.net_document import net_document
from noetl.core.language.editor.plan import as_text, plan_document
from noetl.tools import registry as tools

ROOT = Path(__file__).parents[3]
TEXTS = sorted([*(ROOT / "examples").glob("*.yaml"), *(ROOT / "tests/acceptance").glob("*/*.yaml")])
TEXTS += sorted((Path(__file__).parent / "ok").glob("*.yaml"))

TWISTED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: 'quotes " and <angles>'}
workflow:
  - step: start
    tool: {kind: noop}
    next:
      arcs:
        - {step: end, when: '{{ workload.a == "<b>" and workload.c | length > 1 }}'}
        - {step: again}
  - step: again
    spec: {policy: {admit: {rules: [{when: "{{ done('start') }}", then: {allow: true}}]}}}
    loop: {in: "{{ workload.rows }}", iterator: row, spec: {mode: parallel}}
    tool: [{name: work, kind: noop}]
    next: {arcs: [{step: start, when: "{{ ctx.more }}"}, {step: end}]}
  - step: end
    tool: {kind: noop}
"""


def net_of(text: str):
    playbook = compile_playbook(text, file="f", specs=SPECS).playbook
    assert playbook is not None
    return net_document(playbook)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_every_step_and_arc_is_drawn_and_no_boxes_overlap(path):
    compiled = compile_playbook(path.read_bytes(), file=path.name, specs=tools.specs(), legacy=True)
    assert compiled.playbook is not None, compiled.diagnostics
    net = net_document(compiled.playbook)
    drawing = ElementTree.fromstring(as_svg(net))  # well-formed
    assert len(drawing.findall(".//*[@marker-end]")) == len(net["arcs"])
    names = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    boxes = list(layout(net).values())
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            apart = one.x + one.width <= other.x or other.x + other.width <= one.x
            assert apart or one.y + one.height <= other.y or other.y + other.height <= one.y
    for step in compiled.playbook.steps:
        assert step.name in names
        assert f'"{step.name}"' in as_dot(net)
        assert step.name in as_mermaid(net)
    plan = plan_document(compiled.playbook, SPECS)
    assert {step["step"] for step in plan["steps"]} | set(plan["unreached"]) == set(compiled.playbook.steps_by_name)
    assert as_text(plan).startswith(compiled.playbook.path)


def test_texts_are_escaped_and_mermaid_keywords_are_not_ids():
    net = net_of(TWISTED)
    mermaid = as_mermaid(net)
    assert "workload.a == #quot;#lt;b#gt;#quot; and" in mermaid
    assert "\n  end" not in mermaid
    assert 'digraph "quotes \\" and <angles>" {' in as_dot(net)
    assert "&lt;b&gt;" in as_svg(net)


def test_gates_and_loops_are_marked():
    net = net_of(TWISTED)
    again = next(line for line in as_mermaid(net).splitlines() if "again" in line)
    assert "{{" in again
    assert "↻ row in workload.rows ∥" in again
    assert 'class="box gate"' in as_svg(net)


def test_a_step_is_drawn_below_its_predecessors_and_back_arcs_are_ignored():
    boxes = layout(net_of(TWISTED))
    assert boxes["start"].y < boxes["again"].y < boxes["end"].y


def test_a_plan_has_requirements_and_effective_specs():
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
keychain: [{name: key, kind: env, var: KEY}]
executor: {spec: {timeout: 7}}
workload: {known: 1, asked: null}
workflow:
  - step: begin
    tool:
      - {name: get, kind: http, url: "{{ workload.base }}/{{ workload.known }}", headers: {x: "{{ keychain.key }}"}}
    next: {arcs: [{step: finish}]}
  - step: finish
    tool: {kind: noop}
  - step: lost
    tool: {kind: noop}
"""
    playbook = compile_playbook(text, file="f", specs=SPECS).playbook
    assert playbook is not None
    plan = plan_document(playbook, SPECS)
    assert [step["step"] for step in plan["steps"]] == ["begin", "finish"]
    assert plan["unreached"] == ["lost"]
    assert plan["needs"]["workload"] == ["asked", "base"]
    assert plan["needs"]["keychain"] == {"key": "env"}
    assert (
        plan["steps"][0]["tasks"][0]["spec"]["timeout"] == {"total": 7}
        or plan["steps"][0]["tasks"][0]["spec"]["timeout"] == 7
    )
    assert "never reached: lost" in as_text(plan)


def test_the_graph_shows_keys_of_arcs_compensation_and_placement():
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: qos}
workflow:
  - step: start
    spec:
      pool: batch
      placement: {labels: {gpu: "true"}}
      policy: {compensation: {tool: {name: undo, kind: noop}}, synthesize: {from: "{{ output.data }}"}}
    tool: {kind: noop}
    next:
      spec: {policy: {partition: "{{ output.data.customer }}"}}
      arcs: [{step: apply, when: "{{ output.data }}", spec: {dedupe: "{{ output.data.id }}", priority: 5}}]
  - step: apply
    tool: {kind: noop}
"""
    playbook = compile_playbook(text, file="qos.yaml", specs=tools.specs()).playbook
    assert playbook is not None
    net = net_document(playbook)
    drawn = as_mermaid(net)
    assert "merged by output.data.id<br/>in order by output.data.customer<br/>priority 5" in drawn
    assert "undo: undo" in drawn
    assert "on pool batch, gpu=true" in drawn
    assert "may add up to 100 steps" in drawn
    assert "in order by output.data.customer" in as_dot(net)
    assert "merged by output.data.id" in as_svg(net)
