"""Dynamic synthesis: workflow nodes as data, checked, recorded, routed into, and replayed."""

from __future__ import annotations

from engine_play import SPECS, Play, playbook

from noetl.core.engine.effects import Synthesized
from noetl.core.engine.snapshot import encode_state
from noetl.core.language.compile import compile_steps
from noetl.core.model.events import StepFailed, WorkflowSynthesized
from noetl.core.model.outcome import ok

TEXT = """
workflow:
  - step: plan
    spec: {policy: {synthesize: {from: "{{ output.data.plan }}", limits: {steps: 3, kinds: [noop, http]}}}}
    tool: {kind: noop}
    next: {arcs: [{step: summary}, {step: rescue, when: "{{ event.name == 'step.failed' }}"}]}
  - {step: summary, tool: {kind: noop}}
  - {step: rescue, tool: {kind: noop}}
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


def synthesis(nodes) -> Play:
    book = playbook(TEXT)
    return Play(book, {"plan": ok({"plan": nodes})}, validate=validator(book)).run()


def test_synthesized_steps_are_recorded_and_routed_into():
    play = synthesis(NODES)
    assert play.scheduled == ["plan", "one", "two", "summary"]  # summary waits for the new branch
    assert play.status == "success"
    (made,) = play.of(WorkflowSynthesized)
    assert [step.name for step in made.steps] == ["one", "two"]


def test_the_worker_is_given_the_definition_of_a_synthesized_step():
    play = synthesis(NODES)
    orders = {order.context.step: order for order in play.orders}
    assert orders["one"].context.definition.name == "one"
    assert orders["summary"].context.definition is None


def test_replay_rebuilds_the_same_net_without_the_validator():
    play = synthesis(NODES)
    state = play.refold()
    assert list(state.net.steps) == ["plan", "summary", "rescue", "one", "two"]
    assert encode_state(state) == encode_state(play.state)


def test_what_the_validator_refuses_fails_the_step():
    play = synthesis([{"step": "one", "tool": {"kind": "nonsense_kind"}, "next": {"arcs": [{"step": "nowhere"}]}}])
    assert play.scheduled == ["plan", "rescue"]
    assert play.of(WorkflowSynthesized)[0].error is not None
    assert play.of(StepFailed)[0].output.error.kind == "schema"


def test_too_many_steps_are_refused():
    nodes = [{"step": f"s{n}", "tool": {"kind": "noop"}} for n in range(4)]
    play = synthesis(nodes)
    assert play.scheduled == ["plan", "rescue"]
    assert "the limit is 3" in play.of(StepFailed)[0].output.error.message


def test_a_kind_that_is_not_allowed_is_refused():
    play = synthesis([{"step": "one", "tool": {"kind": "shell", "cmd": "ls"}}])
    assert play.scheduled == ["plan", "rescue"]
    assert "shell" in play.of(StepFailed)[0].output.error.message


def test_a_name_that_exists_is_refused():
    play = synthesis([{"step": "summary", "tool": {"kind": "noop"}}])
    assert play.scheduled == ["plan", "rescue"]


def test_nothing_to_synthesize_is_nothing_wrong():
    play = synthesis([])
    assert play.scheduled == ["plan", "summary"]
