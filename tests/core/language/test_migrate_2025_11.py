"""Migration of 2025-11: canonical syntax, every comment, notes for inexact translations."""

from __future__ import annotations

from textwrap import dedent

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.language.dialects.v2025_11.template_names import Replacement, translate_template
from noetl.core.language.rewrite.migrate.v2025_11_to_canonical import migrate
from noetl.tools import registry as tools

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def migrated(body: str) -> str:
    made = migrate(HEAD + dedent(body), tools.specs())
    assert compile_playbook(made.text, file="", specs=tools.specs()).playbook is not None, made
    return made.text.removeprefix(HEAD)


def test_comments_move_with_their_lines():
    made = migrated(
        """\
        # the flow
        workflow:
          # first of all
          - step: start  # here it begins
            # only when asked
            when: "{{ context.workload.go }}"  # a gate
            result: answer
            tool:
              kind: python
              # what it works on
              args: {n: "{{ context.workload.n }}"}
              code: |
                # not ours
                result = n
            next:
              - step: end  # and out

          # the last
          - step: end
            tool: {kind: noop}  # untouched
        """
    )
    for comment in ("# the flow", "# first of all", "# here it begins", "# only when asked", "# a gate",
                    "# what it works on", "# not ours", "# and out", "# the last", "# untouched"):  # fmt: skip
        assert made.count(comment) == 1, (comment, made)
    lines = [line.strip() for line in made.splitlines()]
    assert "- step: start  # here it begins" in lines
    assert "- step: end  # and out" in lines
    assert lines[lines.index("# what it works on") + 1].startswith("input: {n: ")


def test_steps_without_2025_11_syntax_do_not_change():
    kept = '  - {step: end,   tool: {kind: noop}, set: { ctx.x:   "{{ 1 }}" }}\n'
    assert migrated("workflow:\n  - step: start\n    next:\n      - step: end\n" + kept).endswith(kept)


def test_migrating_twice_changes_nothing_more():
    once = HEAD + migrated("workflow:\n  - step: a\n    result: x\n    tool: {kind: noop}\n")
    assert migrate(once, tools.specs()).text == once


def test_syntax_without_a_canonical_form_is_marked_and_listed_with_its_line():
    text = HEAD + dedent(
        """\
        workload: {users: []}
        workflow:
          - step: a
            loop:
              collection: "{{ workload.users }}"
              element: user
              mode: parallel
              until: "{{ user.done }}"
            tool: {kind: noop}
        """
    )
    made = migrate(text, tools.specs())
    assert [(note.line, "until" in note.message) for note in made.notes] == [(11, True)]
    assert "  # noetl migrate: `until` of a parallel loop has no effect and is removed\n  - step: a\n" in made.text


def test_canonical_text_that_defines_context_is_returned_unchanged():
    text = HEAD + 'workload: {context: {a: 1}}\nworkflow:\n  - {step: a, tool: {kind: noop, x: "{{ context.a }}"}}\n'
    assert migrate(text, tools.specs()).text == text


def test_a_result_cannot_have_the_name_of_a_scope():
    text = HEAD + "workflow:\n  - step: a\n    result: step\n    tool: {kind: noop}\n"
    found = compile_playbook(text, file="p", specs=tools.specs(), legacy=True)
    assert found.playbook is None
    assert "`step` is reserved" in found.diagnostics[0].message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{{ x }}", "{{ NEW }}"),
        ("{{ x.y.z | x(x=x) }}", "{{ NEW.y.z | x(x=NEW) }}"),
        ("{{ a.x is x and a is not x }}", "{{ a.x is x and a is not x }}"),
        ("{{ 'x' ~ x ~ \"x\" }}", "{{ 'x' ~ NEW ~ \"x\" }}"),
        ("{% for x in xs %}{{ x }}{% endfor %}", "{% for x in xs %}{{ x }}{% endfor %}"),
        ("{% for y in x %}{{ y }}{{ x[0] }}{% endfor %}", "{% for y in NEW %}{{ y }}{{ NEW[0] }}{% endfor %}"),
        ("x {{ (x) }} {# x #} x", "x {{ (NEW) }} {# x #} x"),
        ("{{ x == 1 and not x }}", "{{ NEW == 1 and not NEW }}"),
    ],
)
def test_only_free_names_are_translated(before, after):
    assert translate_template(before, lambda path: Replacement(1, "NEW") if path[0] == "x" else None) == after
