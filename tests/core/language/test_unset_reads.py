"""Reads of values that are not set on every path are reported; reads that handle a missing value are not."""

from __future__ import annotations

import pytest
from dsl_kinds import SPECS

from noetl.core.language.compile import compile_playbook

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {x: 1, list: [1, 2]}
"""


def reported(steps: str, rest: str = "") -> list[str]:
    """The messages about unset values."""
    result = compile_playbook(f"{HEAD}{rest}workflow:\n{steps}", file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return [one.message for one in result.diagnostics if one.code == "unset-on-path"]


def step(name: str, *, sets: str = "", reads: str = "", arcs: str = "", more: str = "", mode: str = "") -> str:
    """One step: what it sets at its end, what its task reads, where it leads (`a; b when GUARD`)."""
    lines = [f"- step: {name}"]
    if more:
        lines += [f"  {line}" for line in more.splitlines()]
    if "tool:" not in more:
        lines.append(f'  tool: {{kind: noop, input: {{v: "{reads}"}}}}' if reads else "  tool: {kind: noop}")
    if sets:
        lines.append(f"  set: {{{sets}}}")
    if arcs:
        spec = f"spec: {{mode: {mode}}}, " if mode else ""
        made = []
        for arc in arcs.split("; "):
            target, _, when = arc.partition(" when ")
            target, _, assigned = target.partition(" sets ")
            made.append(
                f"{{step: {target}"
                + (f', when: "{{{{ {when} }}}}"' if when else "")
                + (f", set: {{{assigned}}}" if assigned else "")
                + "}"
            )
        lines.append(f"  next: {{{spec}arcs: [{', '.join(made)}]}}")
    return "\n".join(lines) + "\n"


READ = "{{ ctx.n }}"
PAST = [step("start", arcs="load when workload.x > 1; end"), step("load", sets="ctx.n: 1", arcs="end")]


def test_a_path_that_bypasses_the_setting_step_is_reported_with_its_steps():
    (message,) = reported("".join(PAST) + step("end", reads=READ))
    assert message == "`ctx.n` may not be set here: nothing sets it on the path start → end"


def test_a_branch_that_does_not_set_it_is_reported():
    branches = step("start", arcs="a when workload.x == 1; b")
    branches += step("a", sets="ctx.n: 1", arcs="end") + step("b", arcs="end")
    assert reported(branches + step("end", reads=READ)) == [
        "`ctx.n` may not be set here: nothing sets it on the path start → b → end"
    ]
    assert reported(branches + step("end", reads="{{ ctx.n | default(0) }}")) == []


def test_every_branch_sets_it():
    steps = step("start", arcs="a when workload.x == 1; b")
    steps += step("a", sets="ctx.n: 1", arcs="end") + step("b", arcs="end sets ctx.n: 2")
    assert reported(steps + step("end", reads=READ)) == []


def test_a_read_before_the_only_assignment_is_reported():
    steps = step("start", reads=READ, arcs="end") + step("end", sets="ctx.n: 1")
    assert reported(steps) == ["`ctx.n` is read before it is set"]


def test_an_assignment_from_itself_before_it_is_set_is_reported():
    assert reported(step("start", sets='ctx.n: "{{ ctx.n + 1 }}"')) == ["`ctx.n` is read before it is set"]
    assert reported(step("start", sets='ctx.n: 0, ctx.m: "{{ ctx.n + 1 }}"')) == []
    assert reported(step("start", sets='ctx.n: "{{ ctx.n | default(0) + 1 }}"')) == []


def test_in_a_cycle_the_first_visit_counts():
    circle = step("start", sets="ctx.{}: 0", arcs="page") + step(
        "page", reads=READ, sets='ctx.n: "{{ output.data }}"', arcs="page when output.data < 3"
    )
    assert reported(circle.replace("ctx.{}", "ctx.m")) == [
        "`ctx.n` may not be set here: nothing sets it on the path start → page"
    ]
    assert reported(circle.replace("ctx.{}", "ctx.n")) == []


@pytest.mark.parametrize(
    "reads",
    [
        "{{ ctx.n | default(0) }}",
        "{{ ctx.n if ctx.n is defined else 0 }}",
        "{{ ctx.n is defined }}",
        "{{ ctx.n if workload.x > 1 else 0 }}",  # guarded by the same condition as the path
        "{{ workload.x > 1 and ctx.n }}",
        "{% if workload.x > 1 %}{{ ctx.n }}{% endif %}",
    ],
)
def test_a_template_that_handles_its_absence_is_not_reported(reads):
    assert reported("".join(PAST) + step("end", reads=reads)) == []


@pytest.mark.parametrize(
    "guard", ["ctx.n is defined", "ctx.n | default(0) > 1", "done('load')", "load.status == 'ok'", "workload.x > 1"]
)
def test_a_guard_that_implies_it_is_not_reported(guard):
    assert (
        reported("".join(PAST) + step("end", arcs=f"use when {guard}; rest") + step("use", reads=READ) + step("rest"))
        == []
    )


def test_the_alternative_of_a_negated_guard_is_not_reported():
    steps = step("start", arcs="load when not ctx.n | default(false); use") + step("load", sets="ctx.n: 1", arcs="use")
    assert reported(steps + step("use", reads=READ)) == []


@pytest.mark.parametrize("guard", ["ctx.n is defined", "done('load')", "workload.x > 1"])
def test_a_gate_that_implies_it_is_not_reported(guard):
    gate = f'spec: {{policy: {{admit: {{rules: [{{when: "{{{{ {guard} }}}}", then: {{allow: true}}}}]}}}}}}'
    assert reported("".join(PAST) + step("end", reads=READ, more=gate)) == []


def test_parallel_branches_set_values_for_each_other():
    steps = (
        step("start", arcs="a; b", mode="inclusive") + step("a", sets="ctx.n: 1", arcs="end") + step("b", arcs="end")
    )
    assert reported(steps + step("end", reads=READ)) == []


def test_a_failure_path_that_bypasses_it_is_reported():
    steps = step("start", arcs="bad when event.name == 'step.failed'; good")
    steps += step("good", sets="ctx.n: 1", arcs="end") + step("bad", arcs="end") + step("end", reads=READ)
    assert reported(steps) == ["`ctx.n` may not be set here: nothing sets it on the path start → bad → end"]


def test_values_of_a_failed_step_count_as_set():
    rules = "tool:\n  - {name: t, kind: noop, set: {ctx.n: 1}}"
    steps = step("start", more=rules, arcs="bad when event.name == 'step.failed'; good")
    assert reported(steps + step("bad", reads=READ) + step("good", reads=READ)) == []


def test_a_called_block_sets_values_for_its_caller():
    book = "workbook:\n  b: {tool: {kind: noop}, set: {ctx.n: 1}}\n"
    call = step("start", more="tool: {kind: workbook, block: b}", arcs="end")
    assert reported(call + step("end", reads=READ), rest=book) == []


def test_guards_of_arcs_and_gates_are_checked_too():
    assert reported(step("start", arcs="a when ctx.n > 1; b") + step("a", sets="ctx.n: 1") + step("b")) == [
        "`ctx.n` is read before it is set"
    ]
    gate = 'spec: {policy: {admit: {rules: [{when: "{{ ctx.n }}", then: {allow: true}}]}}}'
    assert reported(step("start", arcs="a") + step("a", more=gate, sets="ctx.n: 1")) == [
        "`ctx.n` is read before it is set"
    ]


def test_a_loop_over_a_possibly_empty_collection_is_not_reported():
    loop = 'loop: {in: "{{ workload.list }}", iterator: i}'
    assert reported("".join(PAST) + step("end", reads=READ, more=loop)) == []


# --- inside a step ------------------------------------------------------------------------------


def tasks(*lines: str, more: str = "") -> str:
    return step("start", more=more + "tool:\n" + "\n".join(f"- {line}" for line in lines))


def rule(when: str, then: str) -> str:
    return f'{{when: "{{{{ {when} }}}}", then: {{{then}}}}}'


ELSE = "{else: {then: {do: continue}}}"


def test_a_task_that_reads_before_another_sets_is_reported():
    first, second = '{name: a, kind: noop, input: {v: "{{ step.n }}"}}', "{name: b, kind: noop, set: {step.n: 1}}"
    assert reported(tasks(first, second)) == ["`step.n` is read before it is set"]
    assert reported(tasks(second, first)) == []


def test_a_rule_that_sets_it_only_sometimes_is_reported():
    sometimes = f"{{name: a, kind: noop, spec: {{policy: {{rules: [{rule('output.data', 'do: continue, set: {step.n: 1}')}, {ELSE}]}}}}}}"
    reader = '{name: b, kind: noop, input: {v: "{{ step.n }}"}}'
    assert reported(tasks(sometimes, reader)) == ["`step.n` may not be set here: not every path to this place sets it"]
    both = sometimes.replace("{do: continue}", "{do: continue, set: {step.n: 2}}")
    assert reported(tasks(both, reader)) == []
    assert reported(tasks(sometimes, reader.replace("step.n", "step.n | default(0)"))) == []


def test_a_rule_that_sets_and_the_others_fail():
    sure = f"{{name: a, kind: noop, spec: {{policy: {{rules: [{rule('output.data', 'do: continue, set: {step.n: 1}')}, {{else: {{then: {{do: fail}}}}}}]}}}}}}"
    assert reported(tasks(sure, '{name: b, kind: noop, input: {v: "{{ step.n }}"}}')) == []


def test_a_jump_that_bypasses_the_setting_task_is_reported():
    jump = f"{{name: a, kind: noop, spec: {{policy: {{rules: [{rule('output.data', 'do: jump, to: c')}, {ELSE}]}}}}}}"
    rest = ("{name: b, kind: noop, set: {iter.n: 1}}", '{name: c, kind: noop, input: {v: "{{ iter.n }}"}}')
    loop = "loop: {in: [1], iterator: i}\n"
    assert reported(tasks(jump, *rest, more=loop)) == [
        "`iter.n` may not be set here: not every path to this place sets it"
    ]
    assert reported(tasks("{name: a, kind: noop}", *rest, more=loop)) == []


def test_a_page_counter_with_an_initial_value_is_not_reported():
    page = f'{{name: a, kind: noop, input: {{v: "{{{{ iter.page }}}}"}}, spec: {{policy: {{rules: [{rule("output.data.more", "do: jump, to: a, set: {iter.page: 2}")}, {{else: {{then: {{do: break}}}}}}]}}}}}}'
    first = "{name: begin, kind: noop, set: {iter.page: 1}}"
    loop = "loop: {in: [1], iterator: i}\n"
    assert reported(tasks(first, page, more=loop)) == []
    assert len(reported(tasks(page, more=loop))) == 1


def test_a_task_that_may_be_skipped_is_not_reported():
    skip = f"{{name: a, kind: noop, set: {{step.n: 1}}, spec: {{policy: {{rules: [{rule('workload.x > 1', 'do: skip')}, {ELSE}]}}}}}}"
    reader = skip.replace("name: a", "name: b").replace("set: {step.n: 1}", 'input: {v: "{{ step.n }}"}')
    assert reported(tasks(skip, reader)) == []
    assert len(reported(tasks(skip, '{name: b, kind: noop, input: {v: "{{ step.n }}"}}'))) == 1


def test_a_while_is_expected_to_run_and_a_choose_without_else_is_not():
    inner = "{name: t, kind: noop, set: {step.n: 1}}"
    reader = '{name: b, kind: noop, input: {v: "{{ step.n }}"}}'
    assert reported(tasks(f'{{while: {{when: "{{{{ workload.x }}}}", tool: [{inner}]}}}}', reader)) == []
    choose = f'{{choose: [{{when: "{{{{ workload.x }}}}", then: [{inner}]}}]}}'
    assert len(reported(tasks(choose, reader))) == 1
    other = inner.replace("name: t", "name: u")
    assert reported(tasks(choose[:-2] + f", {{else: {{then: [{other}]}}}}]}}", reader)) == []


def test_a_block_is_checked_for_its_own_scopes_only():
    book = 'workbook:\n  b:\n    tool:\n    - {name: t, kind: noop, input: {v: "{{ step.n }}", w: "{{ ctx.n }}"}}\n    - {name: u, kind: noop, set: {step.n: 1}}\n'
    steps = step("start", sets="ctx.n: 1", arcs="end") + step("end", more="tool: {kind: workbook, block: b}")
    assert reported(steps, rest=book) == ["`step.n` is read before it is set"]


# --- steps by name ------------------------------------------------------------------------------


def not_run(steps: str) -> list[str]:
    result = compile_playbook(f"{HEAD}workflow:\n{steps}", file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return [one.code for one in result.diagnostics if one.code == "not-run-yet"]


def test_a_read_of_a_later_step_or_of_another_branch_is_reported():
    assert not_run(step("start", reads="{{ end.x }}", arcs="end") + step("end")) == ["not-run-yet"]
    branches = step("start", arcs="a when workload.x; b") + step("a") + step("b", reads="{{ a.x }}")
    assert not_run(branches) == ["not-run-yet"]


@pytest.mark.parametrize(
    "steps",
    [
        step("start", arcs="end") + step("end", reads="{{ start.x }}"),
        step("start", arcs="a; b", mode="inclusive") + step("a") + step("b", reads="{{ a.x }}"),  # it may have
        step("start", reads="{{ end.x }}", arcs="end") + step("end", arcs="start when workload.x"),  # the second time
        step("start", reads="{{ end.x | default(0) }}", arcs="end") + step("end"),
        step("start", reads="{{ end.x if end is defined else 0 }}", arcs="end") + step("end"),
        step("start", reads="{{ not end.x }}", arcs="end") + step("end"),
        step("start", arcs="end when not end.x") + step("end"),  # a guard: it is not true
        step("start", more="tool:\n- {name: end, kind: noop}\n- {name: t, kind: noop, input: {v: '{{ end.x }}'}}", arcs="end") + step("end"),
        step("start", sets='ctx.a: "{{ start.x }}"'),
    ],
)  # fmt: skip
def test_a_step_that_may_have_run_is_not_reported(steps):
    assert not_run(steps) == []
