"""`state`: what templates read, when writes are committed, and what ends them."""

from __future__ import annotations

import pytest
from engine_harness import Harness, task_done

from noetl.core.engine.commands import CancelExecution, ReportRun, SendSignal
from noetl.core.model.events import (
    RequestEvaluated,
    RerunSource,
    StateCommitted,
    StepDone,
    WorkflowFinished,
)
from noetl.core.model.outcome import error
from noetl.core.model.playbook import STATE_KEY
from noetl.core.model.work import Report

COUNT = """
workload: {before: "{{ state.n | default(0) }}"}
workflow:
  - step: start
    tool: {kind: noop}
    set: {state.n: "{{ workload.before + 1 }}", ctx.seen: "{{ state.n }}"}
    next: {arcs: [{step: end, set: {state.by.arc: "{{ state.n * 10 }}"}}]}
  - {step: end, tool: {kind: noop}, input: {n: "{{ state.n }}", ctx: "{{ ctx }}"}}
"""


def writes(harness: Harness, order, **values):
    """Complete a run whose task writes to `state`."""
    patch = {"ctx": {STATE_KEY + key: value for key, value in values.items()}}
    names = {"step": order.context.step, "step_run_id": order.context.step_run_id}
    end = StepDone(**names, output=task_done(order).outcome)
    return harness.report(order, task_done(order, patch=patch), end)


def commits(harness: Harness) -> list[StateCommitted]:
    return [each.body for each in harness.log if isinstance(each.body, StateCommitted)]


def finished(harness: Harness) -> WorkflowFinished:
    (last,) = (each.body for each in harness.log if isinstance(each.body, WorkflowFinished))
    return last


def test_values_of_the_request_are_in_the_log_and_writes_are_committed_at_the_end():
    harness = Harness(COUNT).start(state={"n": 4, "other": "x"})
    (evaluated,) = (each.body for each in harness.log if isinstance(each.body, RequestEvaluated))
    assert evaluated.state == {"n": 4, "other": "x"} and evaluated.state_versions == {"n": "v1", "other": "v1"}
    assert evaluated.workload == {"before": 4}
    order = harness.claim()
    assert order.ctx == {"state:n": 4, "state:other": "x"}
    # The worker evaluates the step's own `set`.
    names = {"step": "start", "step_run_id": order.context.step_run_id}
    harness.report(order, StepDone(**names, output=task_done(order).outcome, patch={"state:n": 5, "seen": 5}))
    order = harness.claim()
    assert order.context.input == {"n": 5, "ctx": {"seen": 5}}
    assert not commits(harness)
    harness.complete(order)
    (committed,) = commits(harness)
    assert committed.values == {"n": 5, "by": {"arc": 50}}
    assert committed.replaced == {"n": "v1"}
    assert committed.version == f"77-{next(each.seq for each in harness.log if each.body is committed)}"
    assert finished(harness).outcome == "success"
    assert harness.state.uncommitted == {}


def test_an_execution_that_writes_nothing_commits_nothing():
    harness = Harness("workflow: [{step: start, tool: {kind: noop, input: {n: '{{ state.n }}'}}}]\n")
    harness.run(state={"n": 1})
    assert commits(harness) == [] and finished(harness).outcome == "success"


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_failed_or_cancelled_execution_commits_nothing(end: str):
    harness = Harness(COUNT).start()
    writes(harness, harness.claim(), n=1)
    if end == "failed":
        harness.script["end"] = error("python", "no")
        harness.work()
    else:
        harness.send(CancelExecution("stop"))
    assert finished(harness).outcome == end
    assert commits(harness) == []


def test_a_conflict_fails_the_execution():
    harness = Harness("workflow: [{step: start, tool: {kind: noop, set: {state.n: 1}}}]\n").start()
    order = harness.claim()
    names = {"step": "start", "step_run_id": order.context.step_run_id}
    done = task_done(order, patch={"ctx": {"state:n": 1}})
    report = ReportRun(Report(order.run_id, order.epoch, 1, (done, StepDone(**names, output=done.outcome))))
    harness.send(report, conflict="state.n was changed")
    assert commits(harness) == []
    last = finished(harness)
    assert (last.outcome, last.error.kind, last.error.message) == ("failed", "state.conflict", "state.n was changed")


def test_commit_step_commits_with_every_step_that_succeeds():
    harness = Harness("executor: {spec: {state: {commit: step}}}\n" + COUNT, {"end": error("python", "no")}).start()
    writes(harness, harness.claim(), n=1)
    assert [each.values for each in commits(harness)] == [{"n": 1}]
    harness.work()  # the arc wrote `by`, and the step after it fails
    assert [each.values for each in commits(harness)] == [{"n": 1}]
    assert finished(harness).outcome == "failed"


def test_commit_step_replaces_its_own_version():
    text = "executor: {spec: {state: {commit: step}}}\nworkflow:\n"
    text += "  - {step: start, tool: {kind: noop}, set: {state.n: 0}, next: {arcs: [{step: end}]}}\n"
    harness = Harness(text + "  - {step: end, tool: {kind: noop}}\n").start()
    writes(harness, harness.claim(), n=1)
    writes(harness, harness.claim(), n=2)
    first, second = commits(harness)
    assert (first.replaced, second.replaced) == ({}, {"n": first.version})


def test_a_value_above_the_limit_of_events_is_stored_and_committed_whole():
    large = "x" * 70_000
    harness = Harness(COUNT).start(state={"text": large})
    (evaluated,) = (each.body for each in harness.log if isinstance(each.body, RequestEvaluated))
    assert evaluated.state["text"] != large and large in harness.stored.values()
    writes(harness, harness.claim(), n=1, more=large + "y")
    harness.work()
    (committed,) = commits(harness)
    assert committed.values["more"] == large + "y" and "text" not in committed.values


def test_more_bytes_than_the_limit_fail_the_execution():
    text = "executor: {spec: {policy: {limits: {max_state_bytes: 100}}}}\n"
    text += "workflow: [{step: start, tool: {kind: noop, set: {state.n: 1}}}]\n"
    harness = Harness(text).start(state={"a": "x" * 60})
    writes(harness, harness.claim(), b="x" * 60)
    last = finished(harness)
    assert (last.outcome, last.error.kind) == ("failed", "limit")
    assert "state would have 135 bytes, limits.max_state_bytes is 100" in last.error.message
    assert commits(harness) == []


def test_a_signal_cannot_write_state():
    harness = Harness(COUNT).start()
    reply = harness.send(SendSignal("", {"state:n": 5})).replies[0]
    assert (reply.accepted, reply.reason) == (False, "a signal cannot change state")


def test_names_of_the_playbook_take_precedence():
    text = """
workload: {state: {n: "workload"}}
workflow:
  - {step: start, tool: {kind: noop}, input: {n: "{{ state.n }}"}}
"""
    harness = Harness(text).start(state={"n": "stored"})
    assert harness.claim().context.input == {"n": "workload"}


def test_a_rerun_keeps_uncommitted_writes_unless_the_state_has_changed():
    kept = RerunSource("5", from_step="end", ctx={"state:n": 7}, state_versions={"n": "v1"})
    harness = Harness(COUNT).run(state={"n": 1, "m": 2}, rerun=kept)
    (committed,) = commits(harness)
    assert (committed.values, committed.replaced) == ({"n": 7}, {"n": "v1"})

    kept = RerunSource("5", from_step="end", ctx={"state:n": 7}, state_versions={"n": "v0"})
    harness = Harness(COUNT).run(state={"n": 1}, rerun=kept)
    last = finished(harness)
    assert (last.outcome, last.error.kind) == ("failed", "state.conflict")
    assert "state.n has changed since execution 5 read it" in last.error.message


def test_a_parallel_loop_conflicts_on_state_as_on_ctx():
    text = """
workflow:
  - step: start
    loop: {in: [1, 2], iterator: i, spec: {mode: parallel, policy: {reduce: {state.total: sum}}}}
    tool: {kind: noop}
"""
    harness = Harness(text).start(state={"total": 10})
    for value in (1, 2):
        order = harness.claim()
        harness.report(order, task_done(order, patch={"ctx": {"state:total": value}}))
        harness.complete(order)
    assert [each.values for each in commits(harness)] == [{"total": 13}]

    harness = Harness(text.replace("state.total: sum", "state.other: sum")).start()
    first, second = harness.claim(), harness.claim()
    assert harness.report(first, task_done(first, patch={"ctx": {"state:total": 1}})).accepted
    ack = harness.report(second, task_done(second, patch={"ctx": {"state:total": 2}}))
    assert ack.error.kind == "ctx.conflict" and ack.error.message.startswith("state.total was written")


def test_a_playbook_without_tasks_commits_in_its_first_append():
    harness = Harness("workflow: [{step: start, set: {state.n: 1}}]\n").start()
    assert [each.values for each in commits(harness)] == [{"n": 1}]
    assert finished(harness).outcome == "success"
