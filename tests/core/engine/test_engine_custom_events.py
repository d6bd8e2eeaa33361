"""Custom events of a step are decided by the engine and folded without effect."""

from __future__ import annotations

import pytest
from engine_harness import Harness, failure

from noetl.core.model.events import CustomEvent
from noetl.core.model.outcome import ok

TEXT = """
workflow:
  - step: start
    spec: {policy: {emit: {events: [{name: loaded, payload: {n: "{{ output.data }}"}}]}}}
    loop: {in: [1, 2], iterator: n}
    tool: {kind: noop}
    next: {arcs: [{step: end}]}
  - {step: end, tool: {kind: noop}}
"""


FAILING = """
workflow:
  - step: start
    spec: {policy: {emit: {events: [{name: usual, payload: 1}, {name: always, payload: 2, when: "{{ true }}"}, {name: never, payload: 3, when: "{{ output.status == 'none' }}"}, {name: broken, payload: "{{ nothing }}", when: "{{ true }}"}]}}}
    tool: {kind: noop}
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_step_emits_only_events_with_a_condition(fails):
    harness = Harness(FAILING, {"start": failure() if fails else ok(7)}).run()
    found = [(event.name, event.data, event.error is None) for event in harness.of(CustomEvent)]
    assert found == [*([] if fails else [("usual", 1, True)]), ("always", 2, True), ("broken", None, False)]


def test_a_loop_step_emits_its_events_once():
    harness = Harness(TEXT, {"start": ok(7)}).run()
    (event,) = harness.of(CustomEvent)
    assert (event.name, event.data) == ("loaded", {"n": [7, 7]})
    assert harness.status == "success"
