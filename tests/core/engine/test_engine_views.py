"""Views of an execution: why it waits."""

from __future__ import annotations

from engine_harness import Harness, failure, task_done

from noetl.core.engine.commands import CancelExecution, ExpireLease, PauseExecution, RecordChildStart
from noetl.core.engine.views.waiting import waiting_reasons
from noetl.core.model.events import ChildRequested
from noetl.core.model.position import Position

FAN = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: gated}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - step: b
    spec: {pool: gpu, policy: {lifecycle: {timeout_s: 60}}}
    tool: [{name: fetch, kind: noop}, {name: store, kind: noop}]
    next: {arcs: [{step: join}]}
  - {step: join, tool: {kind: noop}}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.approved | default(false) }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""


def texts(harness: Harness) -> list[str]:
    return [finding.text for finding in waiting_reasons(harness.state, harness.at + 5)]


def test_why_names_the_worker_the_gate_and_the_join():
    harness = Harness(FAN).start()
    harness.complete(harness.claim("77:a:1"))
    b = harness.claim("77:b:1", worker="w9")
    harness.report(b, task_done(b, "fetch", position=Position(task="store")))
    found = texts(harness)
    assert any('step "b" has been running on worker w9' in text and 'at task "store"' in text for text in found)
    assert any('a token from "a" before step "join": the join waits for live tokens at "b"' in text for text in found)
    gate = next(text for text in found if "gate is closed" in text)
    assert "ctx.approved | default(false)" in gate
    assert "test.yaml:14:" in gate
    assert "ctx.approved is not defined" in gate
    assert any('step "b" times out in 5' in text for text in found)


def test_why_reports_a_missing_worker():
    harness = Harness(FAN).start()
    assert any(
        'step "b" has been waiting for' in text and 'for a worker of pool "gpu"' in text for text in texts(harness)
    )
    order = harness.claim("77:b:1")
    harness.send(ExpireLease(order.run_id, order.epoch))
    assert any("1 worker lost in a row" in text for text in texts(harness))


def test_why_reports_a_pause():
    harness = Harness(FAN).start()
    harness.send(PauseExecution())
    assert "paused" in texts(harness)[0]


def test_why_reports_the_progress_of_a_loop():
    harness = Harness(
        """
workflow:
  - step: start
    loop: {in: "{{ range(500) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 10}}
    tool: {kind: noop}
"""
    ).start()
    for _ in range(3):
        harness.complete(harness.claim())
    harness.claim()
    loop = texts(harness)[0]
    assert "3 of 500 iterations have ended" in loop
    assert "10 are open (at most 10 at a time); 9 of them wait for a worker" in loop


CALLER = """
workflow:
  - {step: start, tool: {name: call, kind: playbook, path: kids/one}}
"""


def with_child() -> tuple[Harness, str]:
    harness = Harness(CALLER).start()
    order = harness.claim()
    request = ChildRequested(step="start", step_run_id=order.run_id, task="call", playbook="kids/one")
    harness.report(order, request)
    return harness, harness.children[0].key


def test_why_names_the_child():
    harness, key = with_child()
    assert any("has been waiting for" in text and '"kids/one" (not started yet)' in text for text in texts(harness))
    harness.send(RecordChildStart(key, "900"))
    assert any("(execution 900)" in text for text in texts(harness))
    harness.send(CancelExecution())
    found = texts(harness)
    assert "cancelled: the execution ends when its child executions have ended" in found[0]
    assert any("was cancelled and has not ended yet" in text for text in found)


def test_why_reports_what_ended_the_execution():
    text = "workflow:\n  - {step: start, tool: {kind: noop}}\n"
    assert texts(Harness(text).run()) == ['completed successfully; the output is that of step "start"']
    assert texts(Harness(text, {"start": failure()}).run()) == ['failed at step "start": it broke (server_error)']
    harness = Harness(text).start()
    harness.send(CancelExecution("no longer needed"))
    assert texts(harness) == ["cancelled: no longer needed (cancelled)"]
