"""Endless cycles and gates that cannot open are reported; cycles that can end and gates that can open are not."""

from __future__ import annotations

import pytest
from dsl_kinds import SPECS

from noetl.core.language.compile import compile_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {x: 1}\n"
NOOP = "tool: {kind: noop}"


def diagnostics(steps: str, rest: str = ""):
    return compile_playbook(f"{HEAD}{rest}workflow:\n{steps}", file="f", specs=SPECS).diagnostics


def reported(steps: str, rest: str = "") -> list[tuple[str, int]]:
    result = compile_playbook(f"{HEAD}{rest}workflow:\n{steps}", file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return [(one.code, one.line) for one in result.diagnostics if one.code in ("endless-cycle", "closed-gate")]


def step(name: str, arcs: str = "", more: str = NOOP, mode: str = "exclusive") -> str:
    """A step on one line; arcs are written `a; b when GUARD`."""
    made = []
    for arc in arcs.split("; ") if arcs else ():
        target, _, when = arc.partition(" when ")
        made.append(f"{{step: {target}" + (f', when: "{{{{ {when} }}}}"' if when else "") + "}")
    routes = f", next: {{spec: {{mode: {mode}}}, arcs: [{', '.join(made)}]}}" if made else ""
    return f"  - {{step: {name}, {more}{routes}}}\n"


ENDLESS = [("endless-cycle", 7)]

# --- arcs ---------------------------------------------------------------------------------------


def test_a_cycle_of_unconditional_arcs_is_reported_at_its_back_arc():
    assert reported(step("start", "a") + step("a", "start")) == ENDLESS
    assert reported(step("start", "start")) == [("endless-cycle", 6)]
    assert reported(step("start", "a") + step("a", "b") + step("b", "a")) == [("endless-cycle", 8)]


@pytest.mark.parametrize(
    "last",
    [
        step("a", "start when workload.x > 1"),  # the guard may not hold, and the token rests
        step("a", "end when output.data.done; start") + step("end"),
        step("a", "start; end when event.name == 'step.failed'") + step("end"),
        step("a", "end; start", mode="exclusive") + step("end"),
        step("a", "start", more=f"{NOOP}, spec: {{policy: {{admit: {{once: true}}}}}}"),
        step("a", "start", more=NOOP + ', spec: {policy: {admit: {rules: [{when: "{{ workload.x }}", then: {allow: true}}]}}}'),
        step("a", "start", more=f"{NOOP}, spec: {{policy: {{lifecycle: {{deadline_s: 60}}}}}}"),
        step("a", "start", more='tool: {kind: python, code: "raise StopIteration"}'),
        step("a", "start", more='tool: {kind: noop, spec: {policy: {rules: [{when: "{{ ctx.n > 9 }}", then: {do: fail}}, {else: {then: {do: continue}}}]}}}, set: {ctx.n: 1}'),
    ],
)  # fmt: skip
def test_a_cycle_that_can_end_is_not_reported(last):
    assert reported(step("start", "a") + last) == []


def test_a_branch_that_leaves_does_not_end_a_parallel_cycle():
    assert reported(step("start", "a; end", mode="inclusive") + step("a", "start") + step("end")) == ENDLESS


def test_an_arc_after_one_that_is_always_taken_does_not_end_a_cycle():
    assert reported(step("start", "a") + step("a", "start when true; end when workload.x") + step("end")) == ENDLESS


def test_an_unreachable_cycle_is_not_reported():
    assert reported(step("start") + step("a", "b") + step("b", "a")) == []


# --- tasks --------------------------------------------------------------------------------------


def when(guard: str, then: str) -> str:
    return f'{{when: "{{{{ {guard} }}}}", then: {{{then}}}}}'


def task(name: str, *each: str) -> str:
    return f"{{name: {name}, kind: noop, {rules(*each)}}}"


def rules(*each: str) -> str:
    return f"spec: {{policy: {{rules: [{', '.join(each)}]}}}}"


JUMP = "{else: {then: {do: jump, to: a}}}"


def pipeline(*tasks: str, arcs: str = "") -> str:
    return step("start", arcs, more=f"tool: [{', '.join(tasks)}]") + (step("end") if arcs else "")


def test_a_jump_that_is_always_taken_is_reported():
    assert reported(pipeline(task("a", JUMP))) == [("endless-cycle", 6)]
    assert reported(pipeline("{name: a, kind: noop}", task("b", JUMP))) == [("endless-cycle", 6)]


@pytest.mark.parametrize(
    "last",
    [
        task("b", when("output.data", "do: break"), JUMP),
        task("b", when("output.data", "do: fail"), JUMP),
        task("b", when("output.data", "do: jump, to: a")),
        task("b", when("workload.x", "do: skip"), JUMP),
    ],
)
def test_a_jump_that_can_end_is_not_reported(last):
    assert reported(pipeline("{name: a, kind: noop}", last)) == []


def test_an_error_ends_a_cycle_if_it_is_handled():
    tasks = ("{name: a, kind: noop}", task("b", JUMP))
    assert reported(pipeline(*tasks, arcs="end when event.name == 'step.failed'")) == []
    assert reported(pipeline(*tasks, arcs="end")) == [("endless-cycle", 6)]


def test_a_while_with_a_constant_guard_is_reported_unless_a_rule_breaks_out():
    inner = "{name: t, kind: noop}"
    assert reported(pipeline(f"{{while: {{when: true, tool: [{inner}]}}}}")) == [("endless-cycle", 6)]
    assert reported(pipeline(f"{{until: {{when: false, tool: [{inner}]}}}}")) == [("endless-cycle", 6)]
    assert reported(pipeline(f'{{while: {{when: "{{{{ workload.x }}}}", tool: [{inner}]}}}}')) == []
    broken = task("t", when("output.data", "do: break"), "{else: {then: {do: continue}}}")
    assert reported(pipeline(f"{{while: {{when: true, tool: [{broken}]}}}}")) == []


def test_unconditional_recursion_of_blocks_is_reported():
    book = "workbook:\n  a: {tool: {kind: workbook, block: b}}\n  b: {tool: {kind: workbook, block: a}}\n"
    assert reported(step("start", more="tool: {kind: workbook, block: a}"), rest=book) == [("endless-cycle", 6)]
    book = 'workbook:\n  a: {tool: [{choose: [{when: "{{ workload.x }}", then: [{name: t, kind: workbook, block: a}]}]}]}\n'
    assert reported(step("start", more="tool: {kind: workbook, block: a}"), rest=book) == []


# --- gates --------------------------------------------------------------------------------------


def gate(when: str, more: str = "") -> str:
    return (
        f'{NOOP}, spec: {{policy: {{admit: {{rules: [{{when: "{{{{ {when} }}}}", then: {{allow: true}}}}]}}}}}}{more}'
    )


def test_a_gate_that_waits_for_itself_or_for_a_later_step_is_reported():
    assert reported(step("start", "a") + step("a", more=gate("done('a')"))) == [("closed-gate", 7)]
    assert reported(step("start", "a") + step("a", "b", more=gate("ok('b')")) + step("b")) == [("closed-gate", 7)]
    assert reported(step("start", "a") + step("a", "b", more=gate("done('start')")) + step("b")) == []


def test_a_gate_that_waits_for_a_value_set_only_after_it_is_reported():
    behind = step("b", more=f"{NOOP}, set: {{ctx.go: true}}")
    requested = step("start", "a") + step("a", "b", more=gate("ctx.go | default(false)"))
    assert reported(requested + behind) == [("closed-gate", 7)]
    assert reported(requested.replace("{{ ctx.go | default(false) }}", "{{ ctx.go is defined }}") + behind) == [
        ("closed-gate", 7)
    ]


@pytest.mark.parametrize("guard", ["ctx.go | default(false)", "ctx.go is defined", "ctx.go == 'yes'", "ctx.go"])
def test_a_gate_that_only_a_signal_could_open_is_reported(guard):
    asked = step("start", "a") + step("a", "b", more=gate(guard))
    found = [one for one in diagnostics(asked + step("b")) if one.code == "closed-gate"]
    assert [one.line for one in found] == [7]
    assert "only a signal could open it" in found[0].message
    assert "parked tokens do not keep an execution alive" in found[0].hint
    # A value that a step only takes back opens nothing either; one that a step sets does.
    setter = step("start", "a") + step("a", "b", more=gate("ctx.go | default(false)"))
    assert reported(setter + step("b", more=f"{NOOP}, set: {{ctx.go: false}}")) == [("closed-gate", 7)]


def test_a_gate_with_another_way_to_open_is_not_reported():
    asked = step("start", "a") + step("a", "b", more=gate("ctx.go | default(false) or done('start')"))
    assert reported(asked + step("b")) == []


def test_a_value_that_another_branch_sets_opens_the_gate():
    steps = step("start", "a; b", mode="inclusive") + step("a", more=gate("ctx.go | default(false)"))
    assert reported(steps + step("b", more=f"{NOOP}, set: {{ctx.go: true}}")) == []


def test_gates_that_wait_for_each_other_are_reported():
    steps = (
        step("start", "a; b", mode="inclusive") + step("a", more=gate("done('b')")) + step("b", more=gate("done('a')"))
    )
    assert reported(steps) == [("closed-gate", 7), ("closed-gate", 8)]
    assert reported(steps.replace("done('a')", "done('start')")) == []


JOIN = step("a", "end") + step("b", "end")


@pytest.mark.parametrize("requested", ["done('a') and done('b')", "all_done(['a', 'b'])"])
def test_a_join_of_exclusive_branches_is_reported(requested):
    end = step("end", more=gate(requested))
    assert reported(step("start", "a when workload.x; b") + JOIN + end) == [("closed-gate", 9)]
    assert reported(step("start", "a; b", mode="inclusive") + JOIN + end) == []


@pytest.mark.parametrize("requested", ["done('a') or done('b')", "any_done(['a', 'b'])", "not done('a')", "workload.x"])
def test_a_gate_that_one_branch_can_open_is_not_reported(requested):
    assert reported(step("start", "a when workload.x; b") + JOIN + step("end", more=gate(requested))) == []


def test_a_gate_without_an_allowing_rule_is_reported():
    closed = f"{NOOP}, spec: {{policy: {{admit: {{rules: [{{else: {{then: {{allow: false}}}}}}]}}}}}}"
    assert reported(step("start", "a") + step("a", more=closed)) == [("closed-gate", 7)]
