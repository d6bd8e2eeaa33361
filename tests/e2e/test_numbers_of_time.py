"""Numbers of timeouts and retries that are too large, infinite or no numbers are errors that name the field."""

from __future__ import annotations

import pytest

from noetl.core.language.resource_limits import megabytes
from noetl.core.model.durations import finite, instant_of, seconds

HUGE = 10**400

FIELDS = {
    "timeout of a step": 'spec: {policy: {lifecycle: {timeout_s: "VALUE"}}}, tool: {kind: noop}',
    "timeout of a task": 'tool: {kind: python, code: "result = 1", spec: {timeout: "VALUE"}}',
    "timeout of a call": 'tool: {kind: playbook, path: none, spec: {timeout: "VALUE"}}',
    "attempts of a call": 'tool: {kind: python, code: "result = 1", retry: {attempts: "VALUE"}}',
    "attempts of a rule": 'tool: [{name: t, kind: python, code: "1/0", spec: {policy: {rules: '
    '[{when: "{{ true }}", then: {do: retry, attempts: "VALUE"}}]}}}]',
    "delay of a rule": 'tool: [{name: t, kind: python, code: "1/0", spec: {policy: {rules: '
    '[{when: "{{ true }}", then: {do: retry, attempts: 2, delay: "VALUE"}}]}}}]',
    "duration of a wait": 'tool: [{name: t, kind: wait, for: "VALUE"}]',
    "instant of a wait": 'tool: [{name: t, kind: wait, until: "VALUE"}]',
}


@pytest.mark.parametrize("value", ["{{ 10 ** 400 }}", "{{ 'inf' }}", "{{ 'nan' }}", "{{ [1] }}"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_number_that_no_time_can_have_is_an_error(play, field, value):
    ran = play("workflow:\n  - {step: start, " + FIELDS[field].replace("VALUE", value) + "}\n")
    assert ran.status == "failed"
    found = [ran.error, ran.error.get("secondary") or {}]
    assert not any("internal error" in str(each.get("message")) for each in found)
    assert {"schema", "template", "client_error"} & {each.get("kind") for each in found}, found


def test_finite_numbers():
    assert [finite(each) for each in (3, 2.5, "4", " 1e3 ", -1)] == [3.0, 2.5, 4.0, 1000.0, -1.0]
    for value in (HUGE, "1" * 400, "inf", float("inf"), float("nan"), True, None, [1], "x", ""):
        with pytest.raises(ValueError, match=r"number|float"):
            finite(value)


def test_durations_instants_and_sizes_are_finite():
    for value in (HUGE, "9" * 400, f"{'9' * 400}d"):
        with pytest.raises(ValueError, match="too large"):
            seconds(value)
    with pytest.raises(ValueError, match="too large"):
        instant_of(HUGE)
    assert [megabytes(value) for value in (HUGE, True, 0, 512)] == [None, None, None, 512.0]
