"""Dynamic synthesis: workflow nodes as data are validated, recorded, routed into, and replayed."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from engine_harness import SPECS, Harness, playbook

from noetl.core.engine.effects import Synthesized
from noetl.core.engine.handlers import synthesis as synthesis_module
from noetl.core.engine.snapshot import encode_state
from noetl.core.language.compile import compile_steps
from noetl.core.model.events import StepFailed, WorkflowSynthesized
from noetl.core.model.outcome import ok
from noetl.core.model.playbook import Step

TEXT = """
workflow:
  - step: plan
    spec: {policy: {synthesize: {from: "{{ output.data.plan }}", limits: {steps: 3, kinds: [noop, http]}}}}
    tool: {kind: noop}
    next: {arcs: [{step: summary}, {step: rescue, when: "{{ event.name == 'step.failed' }}"}]}
  - {step: summary, tool: {kind: noop}}
  - {step: rescue, tool: {kind: noop}}
"""
BLOCKS = """
workbook:
  safe: {tool: [{name: a, kind: noop}, {name: b, kind: workbook, input: {block: safe}}]}
  outer: {tool: [{name: c, kind: http}, {name: d, kind: workbook, input: {block: inner}}]}
  inner: {tool: {kind: shell}}
"""
NODES = [
    {"step": "one", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "two"}]}},
    {"step": "two", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "summary"}]}},
]


def validator(book):
    def validate(need):
        steps, diagnostics = compile_steps(need.nodes, book, SPECS)
        problems = tuple(each.message for each in diagnostics if each.severity == "error")
        return Synthesized(steps, steps[0].name if steps else None, problems)

    return validate


def synthesis(nodes, text: str = TEXT) -> Harness:
    book = playbook(text)
    return Harness(book, {"plan": ok({"plan": nodes})}, validate=validator(book)).run()


def test_synthesized_steps_are_recorded_and_routed_into():
    harness = synthesis(NODES)
    assert harness.scheduled == ["plan", "one", "two", "summary"]  # summary waits for the new branch
    assert harness.status == "success"
    (made,) = harness.of(WorkflowSynthesized)
    assert [step.name for step in made.steps] == ["one", "two"]


def test_the_worker_receives_the_definition_of_a_synthesized_step():
    harness = synthesis(NODES)
    orders = {order.context.step: order for order in harness.orders}
    assert orders["one"].context.definition.name == "one"
    assert orders["summary"].context.definition is None


def test_replay_rebuilds_the_same_net_without_the_validator():
    harness = synthesis(NODES)
    state = harness.refold()
    assert list(state.net.steps) == ["plan", "summary", "rescue", "one", "two"]
    assert encode_state(state) == encode_state(harness.state)


def test_nodes_that_the_validator_rejects_fail_the_step():
    harness = synthesis([{"step": "one", "tool": {"kind": "nonsense_kind"}, "next": {"arcs": [{"step": "nowhere"}]}}])
    assert harness.scheduled == ["plan", "rescue"]
    assert harness.of(WorkflowSynthesized)[0].error is not None
    assert harness.of(StepFailed)[0].output.error.kind == "schema"


def test_too_many_synthesized_steps_are_rejected():
    nodes = [{"step": f"s{n}", "tool": {"kind": "noop"}} for n in range(4)]
    harness = synthesis(nodes)
    assert harness.scheduled == ["plan", "rescue"]
    assert "the limit is 3" in harness.of(StepFailed)[0].output.error.message


def test_a_tool_kind_that_is_not_allowed_is_rejected():
    harness = synthesis([{"step": "one", "tool": {"kind": "shell", "cmd": "ls"}}])
    assert harness.scheduled == ["plan", "rescue"]
    assert "shell" in harness.of(StepFailed)[0].output.error.message


@pytest.mark.parametrize(("block", "then"), [("safe", "one"), ("inner", "rescue"), ("outer", "rescue")])
def test_the_kinds_of_called_blocks_count(block, then):
    nodes = [{"step": "one", "tool": {"kind": "workbook", "input": {"block": block}}}]
    text = TEXT.replace("kinds: [noop", "kinds: [workbook, noop") + BLOCKS
    assert synthesis(nodes, text).scheduled[:2] == ["plan", then]


TWICE = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: first}, {step: side}]}}
  - {step: side, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - step: first
    spec: {policy: {synthesize: {from: "{{ output.data }}"}}}
    tool: {kind: noop}
    next: {arcs: [{step: second}]}
  - step: second
    spec: {policy: {synthesize: {from: "{{ output.data }}"}}}
    tool: {kind: noop}
    next: {arcs: [{step: join}]}
  - {step: join, tool: {kind: noop}}
"""


@pytest.mark.parametrize("most", [1, 2])
def test_the_synthesized_steps_of_an_execution_are_limited_and_a_join_waits_for_them(most):
    book = playbook(TWICE)
    nodes = {
        name: [{"step": name + "_new", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "join"}]}}]
        for name in ("first", "second")
    }
    harness = Harness(book, {name: ok(each) for name, each in nodes.items()}, validate=validator(book)).start()
    harness.complete(harness.claim("77:side:1"))  # its token waits before the join while steps are added
    with patch.object(synthesis_module, "MAX_SYNTHESIZED", most):
        harness.work()
    made = ["first_new", "second", *(["second_new"] if most == 2 else [])]
    assert [name for name in harness.scheduled if name in made] == made
    assert harness.status == ("success" if most == 2 else "failed")
    assert harness.scheduled.count("join") == (most == 2)


def test_an_existing_step_name_is_rejected():
    harness = synthesis([{"step": "summary", "tool": {"kind": "noop"}}])
    assert harness.scheduled == ["plan", "rescue"]


def test_an_empty_synthesis_is_valid():
    harness = synthesis([])
    assert harness.scheduled == ["plan", "summary"]


@pytest.mark.parametrize(
    ("names", "entry", "problem"),
    [
        (["one", "one"], "one", "it has two steps with the same name"),
        (["one", "two", "three", "four"], "one", "it has 4 steps, the limit is 3"),
        (["one"], "none", 'its entry step "none" does not exist'),
        (["plan"], "plan", 'step "plan" already exists'),
    ],
)
def test_the_engine_checks_steps_that_the_validator_passed(names, entry, problem):
    steps = tuple(Step(name=name) for name in names)
    harness = Harness(TEXT, {"plan": ok({"plan": NODES})}, validate=lambda _: Synthesized(steps, entry)).run()
    (failed,) = harness.of(StepFailed)
    assert problem in failed.output.error.message
    assert harness.scheduled == ["plan", "rescue"]
