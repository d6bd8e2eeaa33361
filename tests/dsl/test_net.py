"""What is said about the net as a whole: certain things only, and nothing about nets that are fine."""

from __future__ import annotations

import pytest
from dsl_kinds import SPECS

from noetl.dsl.compile import compile_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {x: 1}\n"
REST = "  - {step: a, tool: {kind: noop}}\n  - {step: b, tool: {kind: noop}}\n"


def told(arcs: str, *, start: str = "", mode: str = "exclusive", rest: str = REST) -> list[tuple[str, int]]:
    text = f"{HEAD}workflow:\n  - step: start\n    tool: {{kind: noop}}\n{start}    next:\n      spec: {{mode: {mode}}}\n      arcs:\n"
    text += "".join(f"        - {arc}\n" for arc in arcs.split("; ")) + rest
    result = compile_playbook(text, file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return [(one.code, one.line) for one in result.diagnostics]


DONE, FAILED, LOOP = (
    f"when: \"{{{{ event.name == '{name}' }}}}\"" for name in ("step.done", "step.failed", "loop.done")
)
EACH = "    loop: {in: [1], iterator: i}\n"


@pytest.mark.parametrize(
    "arcs",
    [
        f"{{step: a}}; {{step: b, {FAILED}}}",  # an arc without a guard is not taken after a failure
        "{step: a}; {step: b, when: \"{{ workload.x }}\"}",  # may be taken after a failure
        "{step: a, when: \"{{ workload.x }}\"}; {step: b}",
        f"{{step: a, {DONE}}}; {{step: b, {FAILED}}}",
    ],
)  # fmt: skip
def test_arcs_that_can_fire_are_left_in_peace(arcs):
    assert told(arcs) == []


def test_both_arcs_of_an_inclusive_router_fire():
    assert told("{step: a}; {step: b}", mode="inclusive") == []


def test_a_loop_has_its_own_event():
    assert told(f"{{step: a, {LOOP}}}; {{step: b}}", start=EACH) == []
    assert told(f"{{step: a, {LOOP}}}; {{step: b}}") == [("dead-arc", 11)]


@pytest.mark.parametrize("second", ["{step: b}", f"{{step: b, {DONE}}}"])
def test_behind_an_arc_for_every_success_no_arc_for_success_fires(second):
    assert told(f"{{step: a}}; {second}") == [("dead-arc", 12)]


def test_an_event_that_ends_no_step_is_told():
    assert told("{step: a, when: \"{{ event.name == 'task.done' }}\"}; {step: b}") == [("dead-arc", 11)]


def test_a_step_is_reached_through_others_and_round_circles():
    rest = "  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}\n"
    rest += '  - {step: b, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ workload.x }}"}]}}\n'
    assert told("{step: a}", rest=rest) == []
    rest += "  - {step: c, tool: {kind: noop}, next: {arcs: [{step: a}]}}\n"
    assert told("{step: a}", rest=rest) == [("unreachable-step", 14)]
