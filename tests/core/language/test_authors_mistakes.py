"""Positions inside long values, hints that lead somewhere, and versions of the runtime."""

from __future__ import annotations

import pytest

from noetl.core.language.checks.runtime_version import satisfies
from noetl.core.language.compile import compile_playbook
from noetl.core.language.diagnostics import Diagnostic
from noetl.tools.registry import specs

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
TASK = "workflow:\n  - step: start\n    tool:\n"  # its parameters start on line 7


def found(text: str, **options: bool) -> tuple[Diagnostic, ...]:
    return compile_playbook(HEAD + text, file="dir/p.yaml", specs=specs(), **options).diagnostics


def task(*lines: str) -> str:
    return TASK + "".join(f"      {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "line", "column"),
    [
        (["code: |", "  x = 1", "  if x", "    y = 2"], 10, 13),
        (["code: |-", "", "  x = 1", "", "  def f(:", "    pass"], 12, 15),
        (["code: >", "  x = (1 +", "", "  y = 2"], 9, 13),
        (['code: "x = 1\\nif x\\n  y = 2"'], 8, 25),
        (["code: 'x = 1", "", "  y = = 2'"], 10, 13),
        (["code: |", '  x = "äöü"; y = = 1'], 9, 24),
    ],
)
def test_an_error_in_code_is_reported_at_its_line_and_column(lines, line, column):
    (problem,) = found(task("kind: python", *lines))
    assert (problem.code, problem.line, problem.column) == ("code-syntax", line, column)


@pytest.mark.parametrize(
    "code", ["return 5", "await x()", "x = [await x()]\nreturn x", "print('\\d')", "", "# nothing\n"]
)
def test_code_that_runs_is_not_reported(code):
    text = task("kind: python", "code: |", *(f"  {line}" for line in ("x = 1\n" + code).split("\n")))
    assert found(text) == ()


@pytest.mark.parametrize(
    ("lines", "code", "hint"),
    [
        (["kind: noop", 'returns: "{{ token(1) }}"'], "unknown-name", "kind: oauth2"),
        (["kind: noop", 'returns: "{{ google_id_token(1) }}"'], "unknown-function", "keychain"),
        (["kind: noop", 'returns: "{{ env.API }}"'], "env-read", "{name: api, kind: env, var: API}"),
        (["kind: noop", "input: {day: 1}", 'returns: "{{ day }}"'], "unknown-name", "write `input.day`"),
        (["kind: rhai", "code: x"], "unknown-kind", "kind: python"),
        (["kind: result_fetch", "ref: x"], "unknown-kind", "kind: resolve"),
    ],
)
def test_a_hint_names_the_equivalent(lines, code, hint):
    (problem,) = found(task(*lines))
    assert problem.code == code and hint in problem.hint


def test_a_default_for_the_environment_is_accepted():
    assert found(task("kind: noop", "returns: \"{{ env.API | default('x') }}\"")) == ()


def test_a_cursor_of_a_loop_shows_the_rewrite():
    text = "workflow:\n  - step: start\n    loop: {in: [1], iterator: x, cursor: y}\n    tool: {kind: noop}\n"
    (problem,) = found(text)
    assert problem.code == "unknown-key" and "as two steps" in problem.hint and "row_count > 0" in problem.hint


def test_a_bare_name_is_reported_once_with_its_count():
    text = "workload: {base: x}\n" + task("kind: noop", 'returns: ["{{ base }}", "{{ base }}/a", "{{ base }}/b"]')
    (problem,) = found(text)
    assert problem.code == "bare-name" and "(3 times)" in problem.message and problem.hint == "write `workload.base`"


def test_a_value_that_a_template_of_the_task_reads_is_not_an_unknown_parameter():
    read = ["kind: postgres", "auth: db", "input: {day: 1}"]
    assert found(task(*read, 'command: "SELECT {{ input.day }}"')) == ()
    assert [one.code for one in found(task(*read, "command: SELECT 1"))] == ["unknown-parameter"]


@pytest.mark.parametrize("path", ["p", "p.yaml", "./p.yaml"])
def test_a_playbook_that_always_calls_itself_is_reported(path):
    assert [one.code for one in found(task("kind: playbook", f"path: {path}"))] == ["endless-cycle"]
    rules = 'rules: [{when: "{{ workload.n is defined }}", then: {do: skip}}]'
    guarded = task("kind: playbook", f"path: {path}", f"spec: {{policy: {{on_unmatched: fail, {rules}}}}}")
    assert found(guarded) == ()


def test_2025_11_sinks_and_loops_are_checked():
    text = (
        "workflow:\n  - step: start\n"
        '    loop: {collection: "{{ [1, 2] }}", element: x, mode: parallel, until: "{{ x > 1 }}"}\n'
        "    tool:\n      kind: http\n      url: http://example.org\n"
        "      sink:\n        - {kind: postgres, table: t, mode: upser}\n        - {kind: duckdb, table: t, mode: upsert}\n"
    )
    assert [(one.code, one.line) for one in found(text, legacy=True)] == [
        ("unused-field", 6),
        ("parameter-type", 11),
        ("missing-parameter", 12),
    ]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("noetl/1", True), ("noetl/2", False), ("noetl-runtime/2", True), ("0.2", True), ("0.2.0", True), ("0.3", False),
        (">=0.2,<1", True), (">=0.2, <0.2.1", True), (">0.2", False), ("<0.2", False), ("!=0.2.*", False), ("~=0.2", True),
        ("^0.2", True), ("^1.0", False), ("==0.2.*", True), ("latest", None), (">=", None), ("noetl/", None), ("", None),
    ],
)  # fmt: skip
def test_versions_of_the_runtime(wanted, expected):
    assert satisfies(wanted, "0.2.0") is expected


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (["source: {kind: file, path: a.csv, nested: tables}", "targets: [{kind: file, path: b.csv}]"], "a target"),
        (["source: {kind: file, path: a.csv, mode: replace}", "targets: [{kind: file, path: b.csv}]"], "a target"),
        (["source: {kind: file, path: a.csv}", "targets: [{kind: file, path: b.csv, only_new: true}]"], "the source"),
        (["source: {kind: file, path: a.csv}", "targets: [{kind: file, path: b.csv, types: {a: text}}]"], "the source"),
        *(
            (["source: {kind: file, path: a.csv}", "targets: [{kind: file, path: b.csv}]", line], hint)
            for line, hint in (
                ("incremental: {cursor: id}", "the source"),
                ("types: {id: text}", "the source"),
                ("only_new: true", "the source"),
                ("schema: evolve", "a target"),
                ("nested: tables", "a target"),
                ("key: id", "a target"),
            )
        ),
    ],
)
def test_a_field_of_a_transfer_at_the_wrong_level(lines, hint):
    (problem,) = found(task("kind: transfer", *lines))
    assert (problem.code, problem.severity) == ("misplaced-key", "error")
    assert f"belongs to {hint}" in problem.hint
