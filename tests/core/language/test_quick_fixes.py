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
