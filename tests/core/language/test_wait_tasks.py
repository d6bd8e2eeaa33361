"""Diagnostics of `wait` tasks."""

from __future__ import annotations

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.tools.registry import specs

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: example}\nworkflow:\n  - step: start\n"


def problems(fields: str) -> list[tuple[str, str, str]]:
    text = f"{HEAD}    tool: [{{name: ask, kind: wait, {fields}}}]\n"
    found = compile_playbook(text, file="example.yaml", specs=specs()).diagnostics
    return [(each.severity, each.code, each.message) for each in found]


@pytest.mark.parametrize(
    "fields",
    [
        "signal: approve, title: 'Pay?', timeout: 48h, roles: [operator, admin]",
        "form: {type: object, required: [ok], properties: {ok: {type: boolean}}}",
        "for: 90s",
        "for: 15",
        "for: 1h30m, signal: go",
        "until: '2026-03-31T18:00:00Z'",
        "until: 2026-03-31",
        "until: '{{ workload.at | default(now()) }}', timeout: '{{ workload.t | default(5) }}'",
        "retry: {attempts: 3, on: [timeout]}, timeout: 1h",
        "form: {type: object, properties: {choice: {enum: '{{ [1, 2] }}'}}}",
    ],
)
def test_a_correct_wait_has_no_diagnostics(fields):
    assert problems(fields) == []


@pytest.mark.parametrize(
    ("fields", "severity", "code", "words"),
    [
        ("timeout: soon", "error", "wrong-value", "`timeout` is not a duration"),
        ("for: [1]", "error", "wrong-value", "`for` is not a duration"),
        ("until: tomorrow", "error", "wrong-value", "`until` is not an instant"),
        ("until: 2026-03-31, for: 1s", "error", "wrong-value", "either `until` or `for`"),
        ("roles: [boss]", "error", "wrong-value", 'unknown role "boss"'),
        ("roles: boss", "error", "parameter-type", "roles"),
        ("form: {type: objekt}", "error", "wrong-value", "not a JSON Schema"),
        ("form: {$ref: 'http://127.0.0.1:9/x'}", "error", "wrong-value", "another document"),
        ("form: yes", "error", "parameter-type", "form"),
        ("spec: {timeout: 5}", "warning", "unknown-spec-key", "`spec.timeout` does not apply to a wait"),
        ("signals: x", "warning", "unknown-parameter", 'wait has no parameter "signals"'),
    ],
)
def test_a_wrong_wait_is_reported(fields, severity, code, words):
    found = problems(fields)
    assert any(each[:2] == (severity, code) and words in each[2] for each in found), found


def test_a_gate_that_only_a_signal_could_open_names_wait():
    text = f"""{HEAD}    tool: {{kind: noop}}
    next: {{arcs: [{{step: pay}}]}}
  - step: pay
    spec: {{policy: {{admit: {{rules: [{{when: "{{{{ ctx.approved }}}}", then: {{allow: true}}}}]}}}}}}
    tool: {{kind: noop}}
"""
    (found,) = [
        each
        for each in compile_playbook(text, file="example.yaml", specs=specs()).diagnostics
        if each.code == "closed-gate"
    ]
    assert "use a task of `kind: wait`" in found.hint
