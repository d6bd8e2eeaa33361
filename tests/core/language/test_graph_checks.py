"""Checks of the whole graph report certain problems only, and nothing for correct graphs."""

from __future__ import annotations

import pytest
from dsl_kinds import SPECS

from noetl.core.language.compile import compile_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {x: 1}\n"
REST = "  - {step: a, tool: {kind: noop}}\n  - {step: b, tool: {kind: noop}}\n"


def reported(arcs: str, *, start: str = "", mode: str = "exclusive", rest: str = REST) -> list[tuple[str, int]]:
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
def test_arcs_that_can_fire_are_not_reported(arcs):
    assert reported(arcs) == []


def test_both_arcs_of_an_inclusive_router_fire():
    assert reported("{step: a}; {step: b}", mode="inclusive") == []


def test_a_loop_has_its_own_event():
    assert reported(f"{{step: a, {LOOP}}}; {{step: b}}", start=EACH) == []
    assert reported(f"{{step: a, {LOOP}}}; {{step: b}}") == [("dead-arc", 11)]


@pytest.mark.parametrize("second", ["{step: b}", f"{{step: b, {DONE}}}"])
def test_after_an_arc_for_every_success_no_arc_for_success_fires(second):
    assert reported(f"{{step: a}}; {second}") == [("dead-arc", 12)]


def test_an_event_that_does_not_end_a_step_is_reported():
    assert reported("{step: a, when: \"{{ event.name == 'task.done' }}\"}; {step: b}") == [("dead-arc", 11)]


def test_a_step_is_reachable_through_other_steps_and_cycles():
    rest = "  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}\n"
    rest += '  - {step: b, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ workload.x }}"}]}}\n'
    assert reported("{step: a}", rest=rest) == []
    rest += "  - {step: c, tool: {kind: noop}, next: {arcs: [{step: a}]}}\n"
    assert reported("{step: a}", rest=rest) == [("unreachable-step", 14)]


def guard(text: str) -> str:
    return f'when: "{{{{ {text} }}}}"'


@pytest.mark.parametrize(
    "arcs",
    [
        "{step: a, " + guard("workload.x > 1") + "}; {step: b, " + guard("workload.x > 2") + "}",
        "{step: a, " + guard("random() > 0.5") + "}; {step: b, " + guard("random() > 0.5") + "}",
        "{step: a, " + guard("event.name in ['step.done', 'step.failed']") + "}",
        "{step: a, " + guard("event.name == 'call.error'") + "}; {step: b}",
        "{step: a, " + guard("event.name != 'task.done'") + "}",
        "{step: a, " + guard("event.name == 'x' or workload.x") + "}; {step: b}",
    ],
)  # fmt: skip
def test_guards_that_can_be_true_are_not_reported(arcs):
    assert [code for code, _ in reported(arcs) if code == "dead-arc"] == []


@pytest.mark.parametrize(
    "arcs",
    [
        "{step: b}; {step: a, " + guard("event.name == 'task.done' and workload.x") + "}",
        "{step: b}; {step: a, " + guard("event.name == 'step.failed' and event.name == 'step.done'") + "}",
        "{step: b}; {step: a, " + guard("event.name in ['loop.done', 'task.done']") + "}",
        "{step: b}; {step: a, " + guard("false") + "}",
        "{step: b}; {step: a, when: false}",
        "{step: b, when: true}; {step: a, " + guard("workload.x") + "}",  # also after a failure
        "{step: b, " + guard("workload.x > 1") + "}; {step: a, " + guard("workload.x > 1") + "}",
        "{step: b, " + guard("event.name == 'step.done'") + "}; {step: a}",
        "{step: b, " + guard("event.name == 'step.failed'") + "}; {step: a, " + guard("event.name == 'call.error'") + "}",
    ],
)  # fmt: skip
def test_arcs_that_cannot_fire_are_reported(arcs):
    assert ("dead-arc", 12) in reported(arcs)


def test_an_arc_for_one_of_a_loops_two_events_leaves_the_other():
    assert reported(f"{{step: a, {DONE}}}; {{step: b}}", start=EACH) == []
    assert reported(f"{{step: a, {FAILED}}}; {{step: b, {FAILED}}}", start=EACH) == [("dead-arc", 13)]


# --- what is declared and never used ------------------------------------------------------------


def unused(task: str, *, entry: str = "{name: token, kind: env, var: T}", rest: str = "") -> list[str]:
    text = f"{HEAD}keychain: [{entry}]\n{rest}workflow: [{{step: start, tool: {task}}}]\n"
    result = compile_playbook(text, file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return [one.code for one in result.diagnostics if one.code.startswith("unused")]


@pytest.mark.parametrize(
    "task",
    [
        "{kind: http, url: u, auth: token}",
        "{kind: http, url: u, auth: {type: bearer, credential: token}}",
        '{kind: http, url: u, headers: {a: "Bearer {{ keychain.token }}"}}',
        '{kind: http, url: u, auth: "{{ workload.x }}"}',  # may be any of them
        '{kind: noop, input: {all: "{{ keychain }}"}}',
        "{kind: python, code: \"result = context['keychain']['token']\"}",
    ],
)  # fmt: skip
def test_a_secret_that_may_be_read_is_not_reported(task):
    assert unused(task) == []


def test_a_secret_that_the_workload_names_may_be_used():
    text = f"{HEAD.replace('x: 1', 'x: token')}keychain: [{{name: token, kind: env, var: T}}]\n"
    result = compile_playbook(text + "workflow: [{step: start, tool: {kind: noop}}]\n", file="f", specs=SPECS)
    assert result.diagnostics == ()


def test_a_secret_that_another_entry_reads_is_used():
    entries = "{name: token, kind: env, var: T}, {name: api, kind: bearer, token: token}"
    assert unused("{kind: http, url: u, auth: api}", entry=entries) == []


def test_a_secret_that_is_never_read_is_reported():
    assert unused("{kind: http, url: token/path}") == ["unused-keychain"]
    assert unused('{kind: http, url: "{{ workload.token }}"}') == ["unused-keychain"]


def test_blocks_that_only_call_each_other_are_unused():
    book = "workbook:\n  a: {tool: [{kind: noop}, {kind: workbook, block: b}]}\n  b: {tool: [{kind: noop}, {kind: workbook, block: a}]}\n"
    task = "{kind: http, url: u, auth: token}"
    assert unused(task, rest=book) == ["unused-block", "unused-block"]
    assert unused("[{kind: workbook, block: a}, " + task[:-1] + "}]", rest=book) == []


# --- timeouts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "codes"),
    [
        ("{kind: shell, command: c, spec: {policy: RULES}}", ["missing-timeout"]),
        ("{kind: shell, command: c, spec: {timeout: 5, policy: RULES}}", []),
        ("{kind: http, url: u, spec: {policy: RULES}}", []),  # the world has timeouts of its own
    ],
)
def test_a_rule_for_a_timeout_requires_a_timeout(task, codes):
    rules = "{rules: [{when: \"{{ output.error.kind == 'timeout' }}\", then: {do: retry}}, {else: {then: {do: fail}}}]}"
    text = f"{HEAD}workflow: [{{step: start, tool: {task.replace('RULES', rules)}}}]\n"
    result = compile_playbook(text, file="f", specs=SPECS)
    assert [one.code for one in result.diagnostics] == codes
    layered = f"{HEAD}executor: {{spec: {{timeout: 5}}}}\n" + text[len(HEAD) :]
    assert compile_playbook(layered, file="f", specs=SPECS).diagnostics == ()


# --- errors that go on in silence ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("guards", "silent"),
    [
        (["output.http.status == 503"], True),
        (["output.status == 'ok'"], True),
        (["output.error.retryable"], True),
        (["workload.x"], True),
        (["output.status == 'error'"], False),
        (['outcome.status == "error"'], False),
        (["output.status == 'error' or output.data.bad"], False),
        (["output.error.retryable", "output.status != 'ok'"], False),
        (["output.error.retryable", "not output.error.retryable"], False),
        (["output.error.retryable", "output.status == 'error' and not output.error.retryable"], False),
        (["output.status == 'error' and output.error.kind == 'timeout'"], True),
        (["true"], False),
    ],
)
def test_an_error_that_no_rule_matches_is_reported(guards, silent):
    rules = ", ".join(f'{{when: "{{{{ {each.replace(chr(34), chr(39))} }}}}", then: {{do: fail}}}}' for each in guards)
    text = f"{HEAD}workflow: [{{step: start, tool: {{kind: http, url: u, spec: {{policy: {{rules: [{rules}]}}}}}}}}]\n"
    result = compile_playbook(text, file="f", specs=SPECS)
    assert ("missing-else" in [one.code for one in result.diagnostics]) is silent


def test_skip_rules_alone_do_not_handle_errors():
    rules = '[{when: "{{ workload.x }}", then: {do: skip}}]'
    text = f"{HEAD}workflow: [{{step: start, tool: {{kind: http, url: u, spec: {{policy: {{rules: {rules}}}}}}}}}]\n"
    assert [one.code for one in compile_playbook(text, file="f", specs=SPECS).diagnostics] == ["missing-else"]


# --- references ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assigned", "code"),
    [
        ('ctx.a_ref: "{{ output.ref }}"', None),
        ('ctx.a_ref: "{{ start._ref }}"', None),
        ('ctx.a_ref: "{{ output.data.part_ref }}"', None),
        ("ctx.a_ref: null", None),
        ("ctx.a_ref: {type: blob, locator: {}}", None),
        ('ctx.a: "{{ output.ref.meta.bytes }}"', None),
        ('ctx.a: "{{ output.ref is defined }}"', None),
        ('ctx.a_ref: "{{ output.data }}"', "data-as-reference"),
        ('ctx.a_ref: "{{ output.status }}"', "data-as-reference"),
        ("ctx.a_ref: text", "data-as-reference"),
        ("ctx.a_ref: {a: 1}", "data-as-reference"),
        ('ctx.a: "{{ output.ref }}"', "reference-as-data"),
        ('ctx.a: "{{ start._ref }}"', "reference-as-data"),
        ('ctx.a: "{{ output.ref.rows }}"', "reference-field"),
        ("ctx.a: \"{{ input.some_ref['rows'] }}\"", "reference-field"),
    ],
)
def test_references_and_data_are_distinguished_by_name(assigned, code):
    text = f"{HEAD}workflow: [{{step: start, input: {{some_ref: null}}, tool: {{kind: http, url: u}}, set: {{{assigned}}}}}]\n"
    assert [one.code for one in compile_playbook(text, file="f", specs=SPECS).diagnostics] == ([code] if code else [])


@pytest.mark.parametrize(("over", "codes"), [("ctx.rows_ref", ["reference-field"]), ("start.rows", [])])
def test_a_loop_iterates_over_data_and_not_over_a_reference(over, codes):
    text = f'{HEAD}workflow:\n- step: start\n  tool: {{kind: http, url: u}}\n  set: {{ctx.rows_ref: "{{{{ output.ref }}}}"}}\n'
    text += f'  next: {{arcs: [{{step: each}}]}}\n- step: each\n  loop: {{in: "{{{{ {over} }}}}", iterator: row}}\n  tool: {{kind: noop}}\n'
    assert [one.code for one in compile_playbook(text, file="f", specs=SPECS).diagnostics] == codes


# --- writes from iterations that run side by side -------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "task", "expected"),
    [
        ("spec: {mode: parallel}", '{kind: noop, set: {ctx.n: "{{ iter.i }}"}}', True),
        ("spec: {mode: sequential}", '{kind: noop, set: {ctx.n: "{{ iter.i }}"}}', False),
        ("spec: {mode: parallel}", "{kind: noop, set: {ctx.n: 1}}", False),  # equal values are no conflict
        ("spec: {mode: parallel}", '{kind: noop, set: {ctx.n: "{{ workload.x }}"}}', False),
        ("spec: {mode: parallel}", '{kind: noop, set: {iter.n: "{{ iter.i }}"}}', False),
        ("spec: {mode: parallel}", '{kind: noop, set: {step.m: "{{ iter.i }}"}}', True),
        ("spec: {mode: parallel, policy: {reduce: {step.m: sum}}}", '{kind: noop, set: {step.m: "{{ iter.i }}"}}', False),
        ("spec: {mode: parallel, policy: {reduce: {ctx.n: sum}}}", '{kind: noop, set: {ctx.n: "{{ iter.i }}"}}', False),
        ("spec: {mode: parallel, policy: {reduce: {ctx.n: sum}}}", '{kind: noop, set: {ctx.m: "{{ iter.i }}"}}', True),
        ("spec: {mode: parallel}", "{kind: workbook, block: b}", True),
        ("spec: {mode: parallel, policy: {reduce: {ctx.n: last}}}", "{kind: workbook, block: b}", False),
        ("spec: {mode: sequential}", "{kind: workbook, block: b}", False),
    ],
)  # fmt: skip
def test_writes_of_parallel_iterations_require_a_reducer(loop, task, expected):
    book = 'workbook:\n  a: {tool: {kind: noop}, set: {ctx.n: "{{ output.data }}"}}\n  b: {tool: [{kind: noop}, {kind: workbook, block: a}]}\n'
    text = f"{HEAD}{book}workflow: [{{step: start, loop: {{in: [1, 2], iterator: i, {loop}}}, tool: {task}}}]\n"
    found = compile_playbook(text, file="f", specs=SPECS)
    assert found.playbook is not None, found.diagnostics
    assert [one.code for one in found.diagnostics if not one.code.startswith("unused-")] == [
        "parallel-ctx-write"
    ] * expected
