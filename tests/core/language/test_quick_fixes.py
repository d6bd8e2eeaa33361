"""Quick fixes and renaming, on every wrong playbook of `err/`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.language.editor.quick_fixes import quick_fixes
from noetl.core.language.editor.symbols import (
    CannotRename,
    Symbol,
    apply_edits,
    occurrence_at,
    occurrences,
    rename,
)
from noetl.core.language.rewrite.verification import has_same_data
from noetl.core.language.source.yaml_source import LINE_BREAK
from noetl.tools import registry as tools

SPECS = tools.specs()
HERE = Path(__file__).parent
WRONG = sorted((HERE / "err").glob("*.yaml"))
# Checks of the whole graph run only when there are no other errors, so a fix may reveal their warnings.
REVEALED = {"endless-cycle", "step-without-body", "unused-field"}


def codes(text: str) -> Counter[str]:
    return Counter(each.code for each in compile_playbook(text, file="", specs=SPECS).diagnostics)


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_fix_removes_its_diagnostic(path):
    text = path.read_bytes().decode("utf-8", "replace")
    lines = LINE_BREAK.split(text)
    before = codes(text)
    for diagnostic in compile_playbook(text, file="", specs=SPECS).diagnostics:
        for fix in quick_fixes(diagnostic, lines):
            fixed = apply_edits(text, [fix.edit])
            after = codes(fixed)
            assert after[diagnostic.code] < before[diagnostic.code], (fix.title, fixed)
            if fix.preferred:
                assert set(after) - set(before) <= REVEALED, (fix.title, fixed)
            else:
                assert has_same_data(text, fixed)


def test_there_are_fixes():
    """Unknown keys, steps, kinds, filters, functions and names have one."""
    for code in ("unknown-key", "unknown-kind", "unknown-step", "unknown-filter", "bare-name"):
        text = (HERE / "err" / f"{code}.yaml").read_text("utf-8")
        found = [each for each in compile_playbook(text, file="", specs=SPECS).diagnostics if each.code == code]
        assert any(fix.preferred for each in found for fix in quick_fixes(each, LINE_BREAK.split(text))), code


HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a}\n"
FLOW = (
    HEAD
    + """\
executor: {spec: {entry_step: load, return_step: "check"}}
workflow:
  - step: load
    loop: {in: "{{ [1] }}", iterator: check}
    tool:
      - {name: get, kind: python, input: {x: "{{ iter.check }}{{ load_more }}"}, code: "result = 1  # check"}
    set: {ctx.load_more: "{{ load.results }}"}
    next: {arcs: [{step: check, when: "{{ done('load') and event.step != 'check' }}"}, {step: 'last'}]}
  - step: check
    tool: {kind: python, input: {a: "{{ steps['load'].data }}", b: "{{ load.data }} {{ steps.load.status }} load"}, code: result = 1}
  - step: last
    tool: {kind: noop}
workload: {load_more: load}
"""
)


def renamed(text: str, old: str, new: str) -> str:
    compiled = compile_playbook(text, file="", specs=SPECS)
    return apply_edits(text, rename(compiled, text, Symbol("step", old), new, SPECS, legacy=False))


def test_rename_changes_names_and_nothing_else():
    expected = FLOW
    for old, new in (
        ("entry_step: load", "entry_step: fetch"),
        ("- step: load", "- step: fetch"),
        ("{{ load.results", "{{ fetch.results"),
        ("done('load')", "done('fetch')"),
        ("steps['load']", "steps['fetch']"),
        ("{{ load.data }} {{ steps.load.status }}", "{{ fetch.data }} {{ steps.fetch.status }}"),
    ):
        assert old in expected
        expected = expected.replace(old, new)
    assert renamed(FLOW, "load", "fetch") == expected
    assert renamed(expected, "fetch", "load") == FLOW


def test_rename_does_not_confuse_a_step_with_an_iterator():
    changed = renamed(FLOW, "check", "verify")
    assert 'return_step: "verify"' in changed
    assert "iterator: check" in changed
    assert "iter.check" in changed
    assert "# check" in changed
    assert "event.step != 'verify'" in changed


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("load", "check", "already"),
        ("load", "a b", "letters"),
        ("load", "1x", "letters"),
        ("last", "x y", "problem"),
        ("last", "workload", "problem"),
        ("load", "", "letters"),
    ],
)
def test_a_bad_name_is_refused(old, new, reason):
    with pytest.raises(CannotRename, match=reason):
        renamed(FLOW, old, new)


PIPELINE = (
    HEAD
    + """\
workflow:
  - step: load
    loop: {in: "{{ [1] }}", iterator: row}
    tool:
      - name: get
        kind: python
        input: {x: "{{ iter.row }} {{ get_more }}"}
        code: "result = 1  # get"
        spec: {policy: {rules: [{when: "{{ _task == 'get' and output.status == 'error' }}", then: {do: jump, to: get}}]}}
      - {name: put, kind: python, input: {a: "{{ get.data }}", b: "{{ steps['get'].data }} get"}, code: result = 1}
    set: {ctx.get_more: "{{ get.data }} {{ state.load.get.cursor }} {{ state['load']['get'].cursor }}"}
    next: {arcs: [{step: other}]}
  - step: other
    tool:
      - {name: get, kind: python, code: result = 1}
      - {name: last, kind: python, input: {a: "{{ get.data }}", b: "{{ load.data }}", c: "{{ who }}"}, code: result = 1}
workload: {get: get, who: 1}
"""
)


def task_renamed(text: str, step: str, old: str, new: str) -> str:
    compiled = compile_playbook(text, file="", specs=SPECS)
    assert compiled.document is not None
    owner = next(each for each in compiled.document.steps if each.name == step)
    return apply_edits(text, rename(compiled, text, Symbol("task", old, owner.path), new, SPECS, legacy=False))


def test_rename_of_a_task_changes_its_own_pipeline():
    expected = PIPELINE
    for old, new in (
        ("      - name: get\n", "      - name: fetch\n"),
        ("_task == 'get'", "_task == 'fetch'"),
        ("to: get}", "to: fetch}"),
        ('{a: "{{ get.data }}", b: "{{ steps[\'get\']', '{a: "{{ fetch.data }}", b: "{{ steps[\'fetch\']'),
        ('ctx.get_more: "{{ get.data }}', 'ctx.get_more: "{{ fetch.data }}'),
        ("state.load.get.cursor", "state.load.fetch.cursor"),
        ("state['load']['get']", "state['load']['fetch']"),
    ):
        assert old in expected
        expected = expected.replace(old, new)
    assert task_renamed(PIPELINE, "load", "get", "fetch") == expected
    assert task_renamed(expected, "load", "fetch", "get") == PIPELINE


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("last", 'already a task named "last"'),
        ("who", '"who" on line .* would no longer refer to the same'),
        ("load", '"load" on line .* would no longer refer to the same'),
        ("a b", "letters"),
        ("workload", "problem"),
    ],
)
def test_a_task_does_not_take_the_name_of_another_value(new, reason):
    with pytest.raises(CannotRename, match=reason):
        task_renamed(PIPELINE, "other", "get", new)


def test_a_task_without_a_name_is_not_renamed():
    text = HEAD + (
        "workflow:\n  - step: a\n    tool: {kind: python, code: result = 1}\n    set: {ctx.x: '{{ a_task.data }}'}\n"
    )
    with pytest.raises(CannotRename, match="has no `name`"):
        task_renamed(text, "a", "a_task", "b")


def test_a_step_does_not_take_the_name_of_a_value_that_is_read():
    text = HEAD + (
        "workload: {who: 1}\nworkflow:\n  - step: a\n    tool: {kind: noop}\n    next: {arcs: [{step: b}]}\n"
        "  - step: b\n    tool: {kind: python, input: {x: '{{ who }}'}, code: result = 1}\n"
    )
    with pytest.raises(CannotRename, match='"who" on line'):
        renamed(text, "a", "who")


def test_rename_of_the_entry_by_name_is_refused():
    text = HEAD + "workflow:\n  - step: a\n    tool: {kind: noop}\n  - step: start\n    next: {arcs: [{step: a}]}\n"
    with pytest.raises(CannotRename, match="entry_step"):
        renamed(text, "start", "begin")


def test_a_symbol_is_found_at_its_name():
    found = occurrences(compile_playbook(FLOW, file="", specs=SPECS).document, FLOW, SPECS)
    lines = FLOW.split("\n")
    row = next(number for number, line in enumerate(lines, 1) if "done('load')" in line)
    column = lines[row - 1].index("'load'") + 2
    assert occurrence_at(found, row, column).symbol == Symbol("step", "load")
    assert occurrence_at(found, row, 1) is None
