"""Custom events of a step are decided by the engine and folded without effect."""

from __future__ import annotations

from engine_harness import Harness

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


def test_a_loop_step_emits_its_events_once():
    harness = Harness(TEXT, {"start": ok(7)}).run()
    (event,) = harness.of(CustomEvent)
    assert (event.name, event.data) == ("loaded", {"n": [7, 7]})
    assert harness.status == "success"
