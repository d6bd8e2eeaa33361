"""Numbers that templates give to a setting of a tool are checked like literals, and inherited retries are read."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.model.tool import Field, Members, count, rendered_problem
from noetl.tools.registry import specs

LIMITS = Field("mapping", members=Members({"memory_mb": Field("number", least=0.001)}))
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


@pytest.mark.parametrize(
    ("value", "field", "problem"),
    [
        (5, count(), None),
        ("5", count(), None),
        (None, count(), None),
        (0, count(), "`spec.x` must be at least 1, not 0"),
        ("-2", count(), "`spec.x` must be at least 1, not '-2'"),
        (float("nan"), count(), "`spec.x` must be at least 1, not nan"),
        ("many", count(), "`spec.x` must be a number, not 'many'"),
        (True, count(), "`spec.x` must be a number, not True"),
        (600, count(most=599), "`spec.x` must be at most 599, not 600"),
        ([1, 0], Field("any", accepts=("integer", "list"), each=count()), "`spec.x` must be at least 1, not 0"),
        ({"memory_mb": -1}, LIMITS, "`spec.x.memory_mb` must be at least 0.001, not -1"),
        ({"other": -1}, LIMITS, None),
        ("text", Field("string"), None),
    ],
)
def test_a_number_outside_the_range_of_its_field_is_described(value: Any, field: Field, problem: str | None) -> None:
    assert rendered_problem("spec.x", value, field) == problem


def test_every_setting_of_a_packaged_kind_declares_its_values() -> None:
    for kind, spec in specs().items():
        assert set(spec.spec_keys) - set(spec.spec_fields) <= {"timeout"}, kind


@pytest.mark.parametrize(
    "spec",
    ["step", "executor", "defaults", "kind"],
    ids=["of the step", "of the executor", "as a default", "of the kind"],
)
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("3", {"attempts": 3}),
        ("{max_attempts: 3, backoff: fixed, on: timeout}", {"attempts": 3, "backoff": "none", "on": ["timeout"]}),
    ],
)
def test_an_inherited_retry_is_read_like_that_of_the_task(spec: str, written: str, read: dict[str, Any]) -> None:
    executor, step = {
        "step": ("", f"spec: {{retry: {written}}}, "),
        "executor": (f"executor: {{spec: {{retry: {written}}}}}\n", ""),
        "defaults": (f"executor: {{spec: {{policy: {{defaults: {{retry: {written}}}}}}}}}\n", ""),
        "kind": ("", f"spec: {{playbook: {{retry: {written}}}}}, "),
    }[spec]
    text = f"{HEAD}{executor}workflow: [{{step: start, {step}tool: {{kind: playbook, path: a/b}}}}]\n"
    found = compile_playbook(text, file="p.yaml", specs=specs())
    assert found.playbook is not None
    assert found.playbook.steps[0].tasks[0].spec["retry"] == read
    assert [each.code for each in found.diagnostics if each.code != "old-spelling"] == []
