"""Visibility: the table of the language (section 4), cell by cell, and the diagnostics about names."""

from __future__ import annotations

import pytest
from dsl_kinds import SPECS
from dsl_snippets import whole

from noetl.core.language.compile import compile_playbook
from noetl.core.language.flow.visibility import VISIBILITIES

# The rows of the table: a playbook with the expression at that place (X).
PLACES = {
    "admit": "- step: s\n  spec: { policy: { admit: { rules: [{ when: X, then: { allow: true } }] } } }\n  tool: { kind: noop }\n",
    "loop.in": "- step: s\n  loop: { in: X, iterator: item }\n  tool: { kind: noop }\n",
    "inner loop.in": "- step: s\n  loop: { in: [1], iterator: item, loop: { in: X, iterator: inner } }\n  tool: { kind: noop }\n",
    "step input": "- step: s\n  input: { v: X }\n  tool: { kind: noop }\n",
    "loop input": "- step: s\n  input: { v: X }\n  loop: { in: [1], iterator: item }\n  tool: { kind: noop }\n",
    "task": "- step: s\n  loop: { in: [1], iterator: item }\n  tool: { kind: noop, input: { v: X } }\n",
    "rule": "- step: s\n  loop: { in: [1], iterator: item }\n  tool: { kind: noop, spec: { policy: { rules: [{ when: X, then: { do: break } }] } } }\n",
    "task set": "- step: s\n  loop: { in: [1], iterator: item }\n  tool: { kind: noop, set: { iter.v: X } }\n",
    "rule set": "- step: s\n  loop: { in: [1], iterator: item }\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { then: { do: break, set: { iter.v: X } } } }] } } }\n",
    "step set": "- step: s\n  tool: { kind: noop }\n  set: { ctx.v: X }\n",
    "arc when": "- step: s\n  tool: { kind: noop }\n  next: { arcs: [{ step: s, when: X }] }\n",
    "arc set": "- step: s\n  tool: { kind: noop }\n  next: { arcs: [{ step: s, set: { ctx.v: X } }] }\n",
    "choose": "- step: s\n  tool: [{ choose: [{ when: X, then: [{ kind: noop }] }] }]\n",
    "time limit": "- step: s\n  spec: { policy: { lifecycle: { timeout_s: X } } }\n  tool: { kind: noop }\n",
}  # fmt: skip
HEAD = "keychain: [{ name: k, kind: env, var: K }]\nworkload: { w: 1 }\nworkflow:\n"
SCOPES = {
    "workload": "workload.w", "execution_id": "execution_id", "ctx": "ctx.v | default(1)", "args": "args.x | default(1)",
    "input": "input.x | default(1)", "iter": "iter.index", "step": "step.x | default(1)", "output": "output.status",
    "event": "event.name", "_prev": "_prev", "_task": "_task", "_attempt": "_attempt", "_visit": "_visit",
    "keychain": "keychain.k", "steps": "steps.s.status", "done": "done('s')",
}  # fmt: skip
EVERYWHERE = {"workload", "execution_id", "ctx", "args", "input", "steps"}
LOCALS = {"_prev", "_task", "_attempt", "_visit"}
VISIBLE = {
    "admit": EVERYWHERE | {"event", "done"},
    "loop.in": EVERYWHERE | {"done"},
    "inner loop.in": EVERYWHERE | {"iter", "done"},
    "step input": EVERYWHERE | {"done"},
    "loop input": EVERYWHERE | {"iter", "keychain"},
    "task": EVERYWHERE | {"iter", "step", "output", "keychain"} | LOCALS,
    "rule": EVERYWHERE | {"iter", "step", "output", "keychain"} | LOCALS,
    "task set": EVERYWHERE | {"iter", "step", "output"} | LOCALS,
    "rule set": EVERYWHERE | {"iter", "step", "output"} | LOCALS,
    "step set": EVERYWHERE | {"step", "output"},
    "arc when": EVERYWHERE | {"output", "event", "done"},
    "arc set": EVERYWHERE | {"output", "event", "done"},
    "choose": EVERYWHERE | {"iter", "step", "output", "keychain"} | LOCALS,
    "time limit": EVERYWHERE | {"done"},
}
REFUSALS = {"name-not-visible", "keychain-on-server", "keychain-in-set"}


def said(body: str, **options: bool) -> dict[str, str]:
    """Code -> hint of what is said about a body."""
    text = body if body.startswith("apiVersion") else whole(body)
    return {one.code: one.hint for one in compile_playbook(text, file="f", specs=SPECS, **options).diagnostics}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("place", PLACES)
def test_a_scope_can_be_read_exactly_where_the_table_says(place, scope):
    steps = PLACES[place].replace("X", '"{{ ' + SCOPES[scope].replace("'", "'") + ' }}"')
    reported = said(HEAD + "".join(f"  {line}\n" for line in steps.splitlines()))
    refused = bool(REFUSALS & set(reported))
    assert refused == (scope not in VISIBLE[place]), reported


def test_every_visibility_has_a_unique_title():
    assert len({visibility.title for visibility in VISIBILITIES}) == len(VISIBILITIES)
    assert all("keychain" not in visibility.scopes for visibility in VISIBILITIES if visibility.server)


PLAYBOOK = """\
workload: { url: u, nested: { a: 1 }, free: {} }
workbook:
  block: { tool: { kind: noop, input: { v: "{{ iter.x }}{{ input.y }}{{ item }}" } } }
workflow:
  - step: first
    tool: [{ kind: noop, set: { ctx.known: 1 } }, { name: call, kind: workbook, block: block }]
    next: { arcs: [{ step: second }] }
  - step: second
    input: { page: 1 }
    loop: { in: [1], iterator: item, loop: { in: [2], iterator: inner } }
    tool:
      - { name: one, kind: noop, set: { iter.kept: 1, step.held: 2 } }
      - { name: two, kind: noop, input: { v: "X" } }
"""


@pytest.mark.parametrize(
    ("expression", "code", "hint"),
    [
        ("url", "bare-name", "write `workload.url`"),
        ("nested.a", "bare-name", "write `workload.nested.a`"),
        ("known", "bare-name", "write `ctx.known`"),
        ("inner", "bare-name", "write `iter.inner`"),
        ("item", "bare-name", "write `iter.parent.item`"),
        ("nowhere", "unknown-name", "for a request parameter write `workload.nowhere`, with a default under `workload`"),
        ("frist.x", "unknown-name", 'did you mean "first"?'),
        ("ctx.knwon", "never-set", 'did you mean "known"?'),
        ("step.helt", "never-set", 'did you mean "held"?'),
        ("iter.innr", "never-set", 'did you mean "inner"?'),
        ("iter.item", "never-set", "set it before it is read, or write `iter.item | default(...)`"),
        ("iter.parent.inner", "never-set", "set it before it is read, or write `iter.parent.inner | default(...)`"),
        ("iter.parent.parent", "never-set", "set it before it is read, or write `iter.parent.parent | default(...)`"),
        ("input.pgae", "never-set", 'did you mean "page"?'),
        ("workload.x", "workload-without-default", "add `x:` under `workload`, or write `workload.x | default(...)`"),
        ("workload.nested.b", "workload-without-default", "add `b:` under `workload`, or write `workload.nested.b | default(...)`"),
        ("workload.ulr", "workload-without-default", 'did you mean "url"?'),
        ("env.HOME", "env-read", "declare it: `keychain: [{name: home, kind: env, var: HOME}]`, "
         "and read `keychain.home` in the task that needs it"),
        ("keychain.k", "unknown-keychain", "declare it under `keychain`"),
        ("steps.frist.x", "unknown-step", 'did you mean "first"?'),
        ("steps['a-b'].x", "unknown-step", "valid here: first, one, second, two"),
        ("first()", "unknown-function", "remove the parentheses"),
        ("len(url)", "unknown-function", "`length` is a filter: write `value | length`"),
        ("compute(url)", "unknown-function", "functions: dict, now, random, range, uuid"),
        ("upper(workload.url)", "unknown-function", "`upper` is a filter: write `value | upper`"),
        ("rnage(3)", "unknown-function", 'did you mean "range"?'),
    ],
)  # fmt: skip
def test_an_unknown_name_is_reported_with_a_fix(expression, code, hint):
    reported = said(PLAYBOOK.replace("X", "{{ " + expression + " }}"))
    assert reported.get(code) == hint


@pytest.mark.parametrize(
    "expression",
    [
        "workload.url", "workload.nested.a", "workload.free.anything", "workload", "ctx.known", "first.anything.at[0].all",
        "one.x", "steps.first.x", "steps.one.x", "steps[first.name]", "iter.inner", "iter.parent.item", "iter.parent.index",
        "iter.kept", "iter.count", "iter.first", "step.held", "input.page", "input.v", "_prev.x", "execution_id", "job.uuid",
        "now()", "range(3)", "workload.x | default(1)", "workload.x is defined", "ctx.nowhere | default(none)",
        "nowhere is defined and nowhere.x", "nowhere.x if nowhere is defined else 1", "iter.x | default('')",
        "workload.free.items() | list", "workload.url.upper()", "'env.HOME'", "workload['url']", "workload[first.key]",
        "[1, 2] | map('string') | join(',')",
    ],
)  # fmt: skip
def test_names_that_may_exist_are_not_reported(expression):
    reported = said(PLAYBOOK.replace("X", "{{ " + expression + " }}"))
    assert set(reported) <= {"old-spelling"}, reported


def test_names_bound_inside_a_template_are_local():
    text = "{% for row in workload.free %}{% set n = row.id %}{{ n }}{{ row.x }}{{ loop.index }}{% endfor %}"
    assert said(PLAYBOOK.replace("X", text)) == {}


def test_synthesized_steps_may_set_anything():
    text = PLAYBOOK.replace("X", "{{ ctx.made_later }}").replace(
        "- step: first\n", '- step: first\n    spec: { policy: { synthesize: { from: "{{ output.data }}" } } }\n'
    )
    assert said(text) == {}


def test_a_template_in_a_long_block_is_reported_at_its_own_line():
    text = whole(
        "- step: s\n  tool:\n    kind: postgres\n    command: |\n      SELECT 1;\n      SELECT {{ nowhere }};\n"
    )
    (one,) = compile_playbook(text, file="f", specs=SPECS).diagnostics
    assert (one.code, one.line, one.column, one.end_column) == ("unknown-name", 10, 19, 26)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ workload.l | map('upper') | list }}", []),
        ("{{ workload.l | map(attribute='nope') | list }}", []),
        ("{{ workload.l | map('uper') | list }}", ["unknown-filter"]),
        ('{{ workload.l | map( "default", 0) | map("nope") }}', ["unknown-filter"]),
        ("{{ workload.l | select | select('odd') | reject('>', 3) }}", []),
        ("{{ workload.l | select('od') }}", ["unknown-test"]),
        ("{{ workload.l | selectattr('od') | rejectattr('nope', 'gt', 1) }}", []),
        ("{{ workload.l | selectattr('n', 'grater', 1) }}", ["unknown-test"]),
        ("{% for x in workload.l | reject('nope') %}{{ x }}{% endfor %}", ["unknown-test"]),
        ("cat l | map('nope') {{ workload.l }}", []),  # text, and no expression
    ],
)
def test_names_of_filters_and_tests_given_as_text_are_checked(template, said):
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {l: []}\nworkflow:\n- step: a\n  tool: {kind: noop}\n"
    text += f"  set:\n    ctx.x: >-\n      {template}\n"
    assert [one.code for one in compile_playbook(text, file="f", specs=SPECS).diagnostics] == said


def test_a_task_read_outside_of_its_step_gets_the_place_of_its_result():
    text = whole(
        "- step: start\n  tool: { name: ask, kind: noop }\n"
        '  next: { arcs: [{ step: after, when: "{{ ask.ok }}" }] }\n'
        '- step: after\n  tool: { name: use, kind: noop, input: { v: "{{ ask.ok }}" } }\n'
    )
    inside, after = compile_playbook(text, file="f", specs=SPECS).diagnostics
    assert (inside.code, after.code) == ("unknown-name", "unknown-name")
    assert inside.hint.startswith('"ask" is a task of this step: here write `output.data`')
    assert after.hint.startswith('"ask" is a task of step "start": write `start.data`')
