"""Diagnostics of `spec.policy.quotas`."""

from __future__ import annotations

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.model.playbook import Quota
from noetl.tools.registry import specs

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: example}\nworkload: {tenant: a, n: 2}\n"
HEAD += "keychain: [{name: token, kind: env, var: TOKEN}]\nworkflow:\n  - step: start\n"


def compiled(step: str, task: str):
    spec = f"    spec: {{policy: {{quotas: {step}}}}}\n" if step else ""
    own = f", spec: {{policy: {{quotas: {task}}}}}" if task else ""
    text = f"{HEAD}{spec}    tool: [{{name: call, kind: noop{own}}}]\n"
    return compile_playbook(text, file="example.yaml", specs=specs())


def problems(step: str = "", task: str = ""):
    found = compiled(step, task).diagnostics
    return [(each.severity, each.code, each.message) for each in found if each.code != "unused-keychain"]


@pytest.mark.parametrize(
    "quotas",
    [
        "{rate: 10/s}",
        "{rate: 600/m, burst: 20, key: crm}",
        "{rate: '{{ workload.n }}/s', burst: '{{ workload.n }}', key: 'crm-{{ workload.tenant }}'}",
        "{rate: 1000/day, key: 7}",
    ],
)
def test_correct_quotas_have_no_diagnostics(quotas):
    assert problems(step=quotas) == []
    assert problems(task=quotas) == []


@pytest.mark.parametrize(
    ("quotas", "code", "words"),
    [
        ("{rate: 10}", "wrong-value", "`rate` cannot be the number 10"),
        ("{rate: fast}", "wrong-value", "`rate` cannot be"),
        ("{rate: -1/s}", "wrong-value", "`rate` cannot be"),
        ("{rate: 0/s}", "wrong-value", "`rate` cannot be"),
        ("{rate: [1]}", "wrong-type", "`rate`"),
        ("{rate: 10/s, burst: -2}", "wrong-value", "`burst` must be at least 1"),
        ("{rate: 10/s, burst: 0}", "wrong-value", "`burst` must be at least 1"),
        ("{rate: 10/s, burst: many}", "wrong-type", "`burst`"),
        ("{rate: 10/s, burst: 100000000}", "wrong-value", "`burst` cannot be"),
        ("{rate: 10/s, per: host}", "unknown-key", '"per"'),
        ("{burst: 2}", "missing-key", '"rate"'),
        ("10/s", "wrong-type", "must be a mapping"),
        ("{rate: 10/s, key: 'crm-{{ keychain.token }}'}", "keychain-on-server", "cannot read secrets"),
    ],
)
def test_wrong_quotas_are_errors(quotas, code, words):
    for found in (problems(step=quotas), problems(task=quotas)):
        assert [(severity, code) for severity, code, _ in found] == [("error", code)], found
        assert words in found[0][2]


def test_the_key_sees_what_tasks_see():
    text = HEAD + (
        "    loop: {in: '{{ [1, 2] }}', iterator: n}\n"
        "    spec: {policy: {quotas: {rate: 1/s, key: '{{ iter.n }}-{{ typo.x }}'}}}\n"
        "    tool: [{name: call, kind: noop}]\n"
    )
    found = compile_playbook(text, file="example.yaml", specs=specs()).diagnostics
    assert [each.code for each in found if each.severity == "error" or "typo" in each.message] != []
    assert not any("iter" in each.message for each in found)


def test_quotas_are_part_of_the_model():
    step = compiled("{rate: 10/s, burst: 2, key: '{{ workload.tenant }}'}", "{rate: 1/m}").playbook.steps[0]
    assert (step.quota.rate, step.quota.burst, step.quota.key) == ("10/s", 2, "{{ workload.tenant }}")
    assert step.tasks[0].quota == Quota("1/m", path=step.tasks[0].quota.path)
    assert step.tasks[0].rules is None  # the default policy applies


def test_quotas_in_a_workbook_block_have_no_effect():
    text = HEAD + (
        "    tool: [{name: call, kind: workbook, block: b}]\n"
        "workbook:\n  b:\n    spec: {policy: {quotas: {rate: 1/s}}}\n    tool: [{name: t, kind: noop}]\n"
    )
    found = compile_playbook(text, file="example.yaml", specs=specs()).diagnostics
    assert [(each.code, "belongs to a step" in each.message) for each in found][1:] == [("unused-field", True)]
