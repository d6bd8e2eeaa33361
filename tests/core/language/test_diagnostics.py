"""Formats, order, suppression and limits of diagnostics."""

from __future__ import annotations

import json

import pytest
from dsl_kinds import SPECS
from dsl_snippets import whole

from noetl.core.language.compile import compile_playbook
from noetl.core.language.diagnostic_codes import CODES
from noetl.core.language.diagnostics import Diagnostic, as_github, as_json, as_sarif, as_text, closest

WRONG = whole('- step: start\n  tol: 1\n  tool: { kind: http, url: "{{ url }}" }\n')
assert isinstance(WRONG, str)


def found(text: str | bytes, **options: bool) -> tuple[Diagnostic, ...]:
    return compile_playbook(text, file="dir/a b.yaml", specs=SPECS, **options).diagnostics


def codes(text: str | bytes, **options: bool) -> list[str]:
    return [one.code for one in found(text, **options)]


def test_text_shows_the_line_and_underlines_the_range():
    assert as_text(found(WRONG), {"dir/a b.yaml": WRONG}) == (
        'dir/a b.yaml:6:5: error: a step has no key "tol" [unknown-key]\n'
        "    6 |     tol: 1\n"
        "            ^^^\n"
        '  help: did you mean "tool"?\n'
        'dir/a b.yaml:7:34: warning: "url" is not defined [unknown-name]\n'
        '    7 |     tool: { kind: http, url: "{{ url }}" }\n'
        "                                         ^^^\n"
        "  help: for a request parameter write `workload.url`, with a default under `workload`\n"
    )
    coloured = as_text(found(WRONG), {"dir/a b.yaml": WRONG}, color=True)
    assert "\x1b[31;1merror" in coloured and "\x1b[33;1mwarning" in coloured


def test_text_of_a_very_long_line_shows_only_the_part_around_the_range():
    text = whole(f'- step: start\n  tool: {{ kind: http, url: "{"x" * 500}{{{{ nowhere }}}}{"y" * 500}" }}\n')
    assert isinstance(text, str)
    shown = as_text(found(text), {"dir/a b.yaml": text})
    place = shown.split("\n")[2].index("^")
    assert shown.split("\n")[1][place:].startswith("nowhere")
    assert max(map(len, shown.split("\n"))) < 200


def test_json_has_the_stable_fields():
    first, second = json.loads(as_json(found(WRONG)))
    assert first == {
        "file": "dir/a b.yaml", "line": 6, "column": 5, "end_line": 6, "end_column": 8, "code": "unknown-key",
        "severity": "error", "message": 'a step has no key "tol"', "hint": 'did you mean "tool"?',
    }  # fmt: skip
    assert second["severity"] == "warning"
    assert json.loads(as_json(())) == []


def test_github_annotations_escape_what_would_break_them():
    line, _ = as_github(found(WRONG)).splitlines()
    assert line == (
        "::error file=dir/a b.yaml,line=6,endLine=6,col=5,endColumn=8,title=unknown-key::"
        'a step has no key "tol"%0Ahelp: did you mean "tool"?'
    )
    odd = Diagnostic("a,b:c.yaml", 1, 1, 1, 2, "unknown-key", "error", "50% done\nnext")
    assert as_github([odd]).startswith("::error file=a%2Cb%3Ac.yaml,") and "50%25 done%0Anext" in as_github([odd])


def test_sarif_names_every_rule_once_and_has_the_position():
    log = json.loads(as_sarif([*found(WRONG), *found(WRONG)], version="1.0"))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and run["tool"]["driver"]["version"] == "1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["unknown-key", "unknown-name"]
    first = run["results"][0]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("unknown-key", 0, "error")
    region = first["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 6, "startColumn": 5, "endLine": 6, "endColumn": 8}


def test_diagnostics_are_in_text_order_without_duplicates():
    text = whole("workload:\n  a: &a { url: '{{ nowhere }}' }\n  b: *a\n  c: *a\n")
    assert codes(text) == ["unknown-name"]
    places = [(one.line, one.column) for one in found(WRONG)]
    assert places == sorted(places)


SILENT = "- step: start\n  tool: { kind: noop }\n  set: { page: 1 }%s\n"


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        (" # noetl: ignore[set-without-scope]", []),
        (" # noetl:ignore[ set-without-scope , ]", []),
        (" # because # noetl: ignore[set-without-scope]", []),
        (" # noetl: ignore[set-without-scope, bare-name]", ["unused-ignore"]),
        (" # noetl: ignore[bare-name]", ["set-without-scope", "unused-ignore"]),
        (" # noetl: ignore[set-witout-scope]", ["set-without-scope", "unused-ignore"]),
        (" # noetl: ignore[unknown-key]", ["set-without-scope", "unused-ignore"]),
        (" # ignore[set-without-scope]", ["set-without-scope"]),
    ],
)
def test_a_comment_suppresses_the_warnings_of_its_line(comment, left):
    assert codes(whole(SILENT % comment)) == left


def test_a_comment_on_its_own_line_applies_to_the_next_line():
    text = "- step: start\n  tool: { kind: noop }\n  # noetl: ignore[set-without-scope]\n  # more words\n  set: { page: 1 }\n"
    assert codes(whole(text)) == []


def test_errors_cannot_be_suppressed():
    text = whole(
        "- step: start # noetl: ignore[unknown-key]\n  tol: 1 # noetl: ignore[unknown-key]\n  tool: { kind: noop }\n"
    )
    assert codes(text) == ["unused-ignore", "unknown-key", "unused-ignore"]
    assert "errors cannot be ignored" in found(text)[0].message


def test_an_unknown_code_in_a_comment_is_reported_with_the_nearest_one():
    (_, reported) = found(whole(SILENT % " # noetl: ignore[set-witout-scope]"))
    assert reported.hint == 'did you mean "set-without-scope"?'


def test_strict_turns_only_v10_warnings_into_errors():
    text = whole("- step: start\n  args: { page: 1 }\n  tool: { kind: noop }\n  set: { page: 1 }\n")
    assert [(one.code, one.severity) for one in found(text)] == [
        ("v10-args", "warning"),
        ("set-without-scope", "warning"),
    ]
    strict = [(one.code, one.severity) for one in found(text, strict=True)]
    assert strict == [("v10-args", "error"), ("set-without-scope", "warning")]
    assert compile_playbook(text, file="f", specs=SPECS, strict=True).playbook is None


def test_the_dialect_is_detected_by_keys_and_names():
    canonical = whole("- step: start\n  tool: { kind: noop }\n")
    older = whole('- step: start\n  tool: { kind: noop, input: { x: "{{ args.x | default(1) }}" } }\n')
    for text, surface in ((canonical, "canonical"), (older, "v10")):
        playbook = compile_playbook(text, file="f", specs=SPECS).playbook
        assert playbook is not None and playbook.surface == surface


def test_problems_beyond_the_limit_are_counted():
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: many}\nworkflow:\n" + "- step: a b\n" * 12_000
    reported = found(text)
    assert reported[0].code == "too-many-problems" and "more problems are not listed" in reported[0].message
    assert sum(one.severity == "error" for one in reported) == 10_000


def test_warnings_that_are_not_listed_do_not_hide_an_error():
    steps = "".join(f"- {{ step: s{n}, tool: {{ kind: noop }}, set: {{ x{n}: 1 }} }}\n" for n in range(10_500))
    text = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: many}}\nworkflow:\n{steps}- {{ step: s0, tool: {{ kind: noop }} }}\n"
    result = compile_playbook(text, file="f", specs=SPECS)
    assert result.playbook is None
    assert [one.code for one in result.diagnostics if one.severity == "error"] == ["duplicate-step"]


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("tol", ["tool", "next", "loop"], "tool"),
        ("htpp", ["http", "noop"], "http"),
        ("iteratr", ["iterator", "in"], "iterator"),
        ("enviroment", ["env", "environment"], "environment"),
        ("xyz", ["tool", "next"], None),
        ("Input", ["input", "output"], "input"),
    ],
)
def test_the_nearest_name_is_offered_only_if_it_is_similar(word, known, meant):
    assert closest(word, known) == meant


def test_every_code_is_used_by_the_compiler():
    from pathlib import Path

    root = Path(__file__).parents[3] / "noetl" / "core" / "language"
    text = "".join(path.read_text("utf-8") for path in root.rglob("*.py") if path.name != "diagnostic_codes.py")
    assert {code for code in CODES if f'"{code}"' not in text} == set()


# --- mistakes that authors make -----------------------------------------------------------------

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {url: u}\n"
STEP = "workflow:\n  - step: start\n"
NOOP = f"{STEP}    tool: {{kind: noop"


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        (f"{STEP}    tol: {{kind: noop}}\n", "unknown-key", 'did you mean "tool"?'),
        (f"{STEP}    url: u\n", "unknown-key", "`url` is a parameter of a tool: write it under `tool`"),
        (f"{STEP}    depends_on: [a]\n", "unknown-key", "add arcs from those steps to this one"),
        (f"{STEP}    tool: noop\n", "wrong-type", "write `tool: {kind: noop}`"),
        (f"{NOOP}}}\n    next: start\n", "next-shape", "write `next: {arcs: [{step: start}]}`"),
        (f"{NOOP}}}\n    next: {{step: start}}\n", "next-shape", "write `next: {arcs: [{step: start}]}`"),
        (f"{NOOP}}}\n    loop: {{over: [1], as: i}}\n", "unknown-key", "write `in`"),
        (f"{NOOP}}}\n    set: {{context.a: 1}}\n", "set-without-scope", "write `ctx.a`"),
        (f"{NOOP}, spec: {{policy: {{rules: [{{else: continue}}]}}}}}}\n", "rule-without-do", "write `- else: {then: {do: continue}}`"),
        ("workflow:\n  start: {tool: {kind: noop}}\n", "wrong-type", "write `- step: ...` lines"),
        ("steps:\n  - name: a\n", "unknown-key", "write the steps under `workflow`"),
        (f'{NOOP}, input: {{a: "{{{{ workload.url }}"}}}}\n', "template-syntax", "an expression ends with `}}`"),
        (f'{NOOP}, input: {{a: "{{{{ workload.url && 1 }}}}"}}}}\n', "template-syntax", "write `and` for `&&`"),
        (f'{NOOP}, input: {{a: "{{{{ workload.url = 1 }}}}"}}}}\n', "template-syntax", "write `==` to compare"),
        (f'{NOOP}, input: {{a: "{{{{ \'x }}}}"}}}}\n', "template-syntax", "a quote is not closed"),
        (f'{NOOP}, input: {{a: "{{{{ workload.url == null }}}}"}}}}\n', "unknown-name", "write `none`"),
        (f'{NOOP}, input: {{a: "{{{{ secrets.x }}}}"}}}}\n', "unknown-name", "declare it under `keychain` and read `keychain.<name>`"),
        (f"{NOOP}, input: {{a: “x”, b: [}}}}\n", "yaml-syntax", "write \" or ' around the value"),
        (f"{STEP}    tool:\u00a0{{kind: noop}}\n", "unknown-key", "the key contains a non-breaking space: replace it with a space"),
    ],
)  # fmt: skip
def test_a_common_mistake_is_reported_with_a_fix(text, code, hint):
    found = compile_playbook(HEAD + text, file="f", specs=SPECS).diagnostics
    assert (code, True) in [(one.code, hint in one.hint) for one in found]
    assert "step-without-body" not in [one.code for one in found]


def test_an_unclosed_quote_is_reported_where_it_opens():
    text = f'{HEAD}{NOOP}, input: {{a: "x}}}}\n  - step: b\n    tool: {{kind: noop}}\n'
    (one,) = compile_playbook(text, file="f", specs=SPECS).diagnostics
    assert (one.line, one.column, one.message) == (7, 35, "this quote is not closed")


def test_an_unclosed_statement_is_reported_with_its_name():
    text = f'{HEAD}{NOOP}, input: {{a: "{{% if workload.url %}}x"}}}}\n'
    (one,) = compile_playbook(text, file="f", specs=SPECS).diagnostics
    assert one.message == "template syntax error: `{% if %}` is never closed by `{% endif %}`"


def test_an_unreadable_policy_is_not_checked_further():
    rules = '{when: "{{ output.error }}", do: retry}'
    text = f"{HEAD}{STEP}    tool: {{kind: http, url: u, spec: {{policy: {{rules: [{rules}]}}}}}}\n"
    assert [one.code for one in compile_playbook(text, file="f", specs=SPECS).diagnostics] == ["rule-without-do"]
