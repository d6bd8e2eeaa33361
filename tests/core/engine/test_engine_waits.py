"""Waits: signals, forms, roles, timers, and how they combine with loops, pause, cancellation and lost workers."""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness, finished, task_done

from noetl.core.engine.advance import outstanding
from noetl.core.engine.capacity import slots_held
from noetl.core.engine.commands import (
    CancelExecution,
    ExpireLease,
    FireTimer,
    PauseExecution,
    ResumeExecution,
    SendSignal,
)
from noetl.core.engine.effects import SetTimer
from noetl.core.engine.outstanding import leases, next_due
from noetl.core.engine.run_orders import order_of
from noetl.core.engine.snapshot import encode_state
from noetl.core.engine.views.open_waits import inbox_entries, wait_counts
from noetl.core.engine.views.waiting import waiting_reasons
from noetl.core.model.events import SignalReceived, SignalRefused, StepFailed, WaitFinished, WaitStarted
from noetl.core.model.outcome import ok
from noetl.core.model.position import Position

APPROVAL = """
workflow:
  - step: start
    tool: [{name: approval, kind: wait, signal: approve}]
    next: {arcs: [{step: bad, when: "{{ event.name == 'step.failed' }}"}, {step: after}]}
  - {step: after, tool: {kind: noop}}
  - {step: bad, tool: {kind: noop}}
"""
FORM = {"type": "object", "required": ["approved"], "properties": {"approved": {"type": "boolean"}}}


def wait(harness: Harness, order=None, *, task="approval", signal="approve", **extra) -> WaitStarted:
    """Claim a run, if none is given, and let it wait."""
    order = order or harness.claim()
    request = WaitStarted(
        step=order.context.step,
        step_run_id=order.context.step_run_id,
        task=task,
        signal=signal,
        path=order.path,
        position=Position(task=task),
        **extra,
    )
    assert harness.report(order, request).accepted
    return request


def send(harness: Harness, name="approve", payload=None, **extra):
    return harness.send(SendSignal(name, payload or {}, **extra)).replies[0]


def waiting(text: str = APPROVAL, **extra) -> Harness:
    harness = Harness(text).start()
    wait(harness, **extra)
    return harness


def test_a_signal_ends_the_wait_with_its_data_and_its_sender():
    harness = waiting()
    assert harness.state.status == "waiting"
    assert harness.queue == [] and list(leases(harness.state)) == [] and slots_held(harness.state) == {}
    assert harness.rejection("77:start:1") == "the run is suspended"
    assert send(harness, payload={"approved": True}, by="ann").accepted
    assert harness.state.status == "running"
    order = harness.claim()
    assert order.resume.data == {"approved": True}
    assert order.resume.meta["signal"] == {"name": "approve", "by": "ann", "at": "1970-01-01T00:16:45.000000Z"}
    assert order.position.task == "approval"
    assert harness.state.ctx == {} and not harness.state.signals
    harness.complete(order)
    assert harness.work().status == "success"


def test_data_that_does_not_fit_the_form_is_refused_and_the_wait_goes_on():
    harness = waiting(form=FORM)
    before = len(harness.log)
    reply = send(harness, payload={"approved": "maybe"})
    assert (reply.accepted, reply.problem) == (False, "data")
    assert 'the form of "approval": approved: "maybe" is not of type "boolean"' in reply.reason
    assert '"approved" is a required property' in send(harness, payload={"comment": "?"}).reason
    assert len(harness.log) == before and harness.state.status == "waiting"
    assert send(harness, payload={"approved": False}).accepted


def test_roles_decide_who_may_answer():
    harness = waiting(roles=("author",))
    reply = send(harness, roles=("operator", "viewer"))
    assert (reply.accepted, reply.problem) == (False, "role")
    assert "requires the role author" in reply.reason
    assert send(harness, roles=("author", "operator", "viewer")).accepted


def test_a_viewer_can_answer_where_the_wait_allows_it_but_not_change_ctx():
    harness = waiting(roles=("viewer",))
    assert send(harness, "other", {"a": 1}, roles=("viewer",)).problem == "role"
    assert send(harness, roles=("viewer",)).accepted


def test_an_early_signal_is_kept_and_taken_once():
    harness = Harness(APPROVAL).start()
    assert send(harness, payload={"n": 1}).accepted
    assert send(harness, payload={"n": 2}).accepted
    assert harness.state.ctx == {} and len(harness.state.signals) == 2
    wait(harness)
    order = harness.claim()
    assert order.resume.data == {"n": 1}
    assert len(harness.state.signals) == 1
    wait(harness, order, attempt=2)
    assert harness.claim().resume.data == {"n": 2}
    assert not harness.state.signals
    assert [each.signal for each in harness.of(WaitFinished)] == [5, 6]


def test_an_early_signal_that_does_not_fit_is_dropped_with_its_reason():
    harness = Harness(APPROVAL).start()
    assert send(harness, payload={"approved": "no"}).accepted
    assert send(harness, payload={"approved": True}, roles=("operator",)).accepted
    wait(harness, form=FORM)
    (refused,) = harness.of(SignalRefused)
    assert (refused.name, refused.signal) == ("approve", 5) and "boolean" in refused.reason
    assert harness.claim().resume.data == {"approved": True}


def test_an_early_signal_that_cannot_fit_a_static_form_is_refused():
    form = "{type: object, required: [approved]}"
    harness = Harness(APPROVAL.replace("signal: approve", f"signal: approve, form: {form}")).start()
    reply = send(harness, payload={"x": 1})
    assert (reply.accepted, reply.problem) == (False, "data")
    assert send(harness, payload={"approved": 1}).accepted
    assert send(harness, payload={"approved": 1}, roles=("viewer",)).problem == "role"


def test_what_a_worker_reports_after_its_wait_began_is_ignored():
    harness = Harness(APPROVAL).start()
    order = harness.claim()
    fields = {"step": "start", "step_run_id": order.run_id}
    request = WaitStarted(**fields, task="approval", signal="approve", position=Position(task="approval"))
    assert harness.report(order, request, *finished(order, ok(1))).accepted
    assert harness.names[-1] == "wait.started" and harness.state.status == "waiting"


def test_the_number_and_size_of_kept_signals_are_limited():
    harness = Harness(APPROVAL, watch=False).start()
    assert "larger than 1 MiB" in send(harness, payload={"x": "y" * (1 << 20)}).reason
    for _ in range(1_000):
        assert send(harness).accepted
    refused = send(harness)
    assert not refused.accepted and "1000 signals" in refused.reason


def test_a_signal_with_another_name_changes_ctx():
    harness = waiting()
    assert send(harness, "other", {"a": 1}).accepted
    assert harness.state.ctx == {"a": 1} and harness.state.status == "waiting"
    assert send(harness, "", {"b": 2}).accepted
    assert harness.state.ctx == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("fields", "name", "kept"),
    [
        ("signal: 'ok-{{ iter.n }}'", "ok-7", True),
        ("signal: 'ok-{{ iter.n }}'", "other", False),
        ("signal: '{% if x %}a{% endif %}'", "anything", True),
        ("title: x", "approval", True),
        ("for: 10s", "approval", False),
        ("for: 10s, signal: go", "go", True),
    ],
)
def test_which_signals_are_for_a_wait(fields, name, kept):
    harness = Harness(APPROVAL.replace("signal: approve", fields)).start()
    send(harness, name, {"a": 1})
    assert bool(harness.state.signals) is kept
    assert harness.state.ctx == ({} if kept else {"a": 1})


def test_the_same_signal_sent_again_has_an_effect_once():
    harness = Harness(APPROVAL).start()
    assert send(harness, payload={"n": 1}, id="k1").accepted
    assert send(harness, payload={"n": 1}, id="k1").accepted
    assert len(harness.of(SignalReceived)) == 1


def test_a_timeout_is_an_error_of_the_task_and_the_timer_is_set():
    harness = waiting(timeout_s=60)
    since = harness.at
    assert harness.timer == since + 60
    harness.send(FireTimer(), at=since + 59)
    assert harness.state.status == "waiting"
    harness.send(FireTimer(), at=since + 60)
    order = harness.claim()
    assert order.resume.error.kind == "timeout"
    assert order.resume.error.message == 'no signal "approve" arrived within 60 s'
    assert harness.timer is None
    wait(harness, order, attempt=2, timeout_s=60)
    assert harness.timer == harness.at + 60
    assert send(harness).accepted


@pytest.mark.parametrize("fields", [{"for_s": 30.0}, {"until": 1033.0}])
def test_a_wait_for_time_ends_without_data(fields):
    harness = waiting(signal=None, **fields)
    assert inbox_entries(harness.state) == []
    assert harness.timer == 1033.0
    harness.send(FireTimer(), at=1033.0)
    resume = harness.claim().resume
    assert (resume.status, resume.data, resume.meta) == ("ok", None, {"signal": None})


def test_a_signal_and_a_time_whichever_comes_first():
    harness = waiting(for_s=30.0, timeout_s=60.0)
    assert send(harness, payload={"n": 1}).accepted
    assert harness.claim().resume.data == {"n": 1}
    assert harness.timer is None
    late = waiting(for_s=30.0, timeout_s=20.0)
    late.send(FireTimer(), at=late.timer)
    assert late.claim().resume.error.kind == "timeout"


def test_an_instant_in_the_past_is_due_at_once():
    harness = waiting(signal=None, until=5.0)
    harness.send(FireTimer())
    assert harness.claim().resume.status == "ok"


def test_cancellation_ends_a_wait():
    harness = waiting(timeout_s=60)
    harness.send(CancelExecution())
    assert harness.status == "cancelled"
    assert not harness.state.waits and next_due(harness.state) is None
    assert not send(harness).accepted


def test_the_timeout_of_the_step_ends_its_wait():
    text = APPROVAL.replace("step: start\n", "step: start\n    spec: {policy: {lifecycle: {timeout_s: 5}}}\n", 1)
    harness = waiting(text, timeout_s=60)
    harness.send(FireTimer(), at=harness.at + 10)
    (failed,) = harness.of(StepFailed)
    assert failed.output.error.kind == "timeout"
    assert not harness.state.waits and harness.work().status == "success"


def test_a_signal_during_a_pause_is_taken_and_the_run_continues_later():
    harness = waiting()
    harness.send(PauseExecution())
    assert harness.state.status == "paused"
    assert send(harness, payload={"n": 1}).accepted
    assert harness.queue == [] and not harness.state.waits
    harness.send(ResumeExecution())
    assert harness.claim().resume.data == {"n": 1}


def test_a_worker_lost_after_the_answer_resumes_with_the_same_answer():
    harness = waiting()
    send(harness, payload={"n": 1})
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    again = harness.claim()
    assert again.resume.data == {"n": 1} and again.lost == 1


def test_a_repeated_report_does_not_wait_twice():
    harness = Harness(APPROVAL).start()
    order = harness.claim()
    request = wait(harness, order)
    before = len(harness.log)
    assert harness.report(order, request).accepted
    assert len(harness.log) == before and len(harness.state.waits) == 1


def test_a_key_that_answered_one_wait_is_refused_for_another():
    text = """
workflow:
  - step: start
    loop: {in: [1, 2], iterator: n, spec: {mode: parallel}}
    tool: [{name: approval, kind: wait, signal: approve}]
"""
    harness = Harness(text).start()
    for _ in range(2):
        wait(harness, harness.claim())
    first, second = [entry.key for entry in inbox_entries(harness.state)]
    for _ in range(2):
        assert send(harness, payload={"ok": True}, wait=first, id="k").accepted
    assert "another command" in send(harness, payload={"ok": True}, wait=second, id="k").reason
    assert len(harness.of(WaitFinished)) == 1


def test_the_oldest_wait_takes_the_signal_and_one_can_be_addressed():
    text = """
workflow:
  - step: start
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
    tool: [{name: approval, kind: wait, signal: approve}]
"""
    harness = Harness(text).start()
    orders = [harness.claim() for _ in range(3)]
    for order in orders[:2]:
        wait(harness, order)
    assert harness.state.status == "running"
    wait(harness, orders[2])
    assert harness.state.status == "waiting" and wait_counts(harness.state).inbox == 3
    keys = [entry.key for entry in inbox_entries(harness.state)]
    assert send(harness, payload={"n": 3}, wait=keys[2]).accepted
    assert send(harness, payload={"n": 1}).accepted
    assert [each.path for each in harness.of(WaitFinished)] == [(2,), (0,)]
    assert "answered or has ended" in send(harness, wait=keys[2]).reason
    send(harness, payload={"n": 2})
    while harness.queue:
        order = harness.claim()
        harness.complete(order, ok(order.resume.data))
    assert harness.data == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_sequential_loop_waits_for_each_iteration():
    text = """
workflow:
  - step: start
    loop: {in: [1, 2], iterator: n}
    tool: [{name: approval, kind: wait, signal: "go-{{ iter.n }}"}]
"""
    harness = Harness(text).start()
    assert send(harness, "go-2", {"n": 2}).accepted
    for name in ("go-1", "go-2"):
        wait(harness, signal=name)
        if name == "go-1":
            assert harness.state.status == "waiting"
            send(harness, name, {"n": 1})
        order = harness.claim()
        harness.complete(order, ok(order.resume.data))
    assert harness.data == [{"n": 1}, {"n": 2}]


def test_a_failing_iteration_ends_the_waits_of_the_others():
    text = """
workflow:
  - step: start
    loop: {in: [1, 2], iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    tool: [{name: approval, kind: wait, timeout: 60s}]
"""
    harness = Harness(text).start()
    first, second = harness.claim(), harness.claim()
    wait(harness, first, signal="approval", timeout_s=60)
    from engine_harness import failure

    harness.complete(second, failure())
    assert harness.status == "failed"
    assert not harness.state.waits and next_due(harness.state) is None


def test_an_execution_with_other_work_is_running():
    text = """
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: asks}, {step: works}]}
  - {step: asks, tool: [{name: approval, kind: wait}], next: {arcs: [{step: both}]}}
  - {step: works, tool: {kind: noop}, next: {arcs: [{step: both}]}}
  - {step: both, tool: {kind: noop}}
"""
    harness = Harness(text).start()
    wait(harness, harness.claim("77:asks:1"), signal="approval")
    assert harness.state.status == "running"
    assert wait_counts(harness.state) == (False, None, 1)
    harness.work()
    assert harness.state.status == "waiting" and harness.scheduled == ["start", "asks", "works"]
    send(harness, "approval")
    assert harness.work().status == "success"
    assert harness.scheduled == ["start", "asks", "works", "both"]


def test_why_says_for_what_it_waits_since_when_and_how_to_answer():
    harness = waiting(title="Pay?", form=FORM, timeout_s=3600)
    (finding,) = waiting_reasons(harness.state, harness.at + 120)
    assert finding.subject == "wait" and finding.since == harness.at and finding.due == harness.at + 3600
    assert 'at task "approval" for 2 min for the signal "approve": Pay?' in finding.text
    assert "times out in 58 min" in finding.text
    assert "`noetl signal 77 --name approve --set approved=VALUE`" in finding.text


def test_only_the_timer_is_outstanding_while_it_waits():
    harness = waiting(timeout_s=60)
    assert outstanding(harness.state) == [SetTimer(harness.timer)]


@pytest.mark.parametrize("seed", range(60))
def test_random_waits_end_once_and_every_signal_is_taken_at_most_once(seed):
    chance = random.Random(seed)
    text = """
workflow:
  - step: start
    loop: {in: [1, 2, 3, 4], iterator: n, spec: {mode: parallel, max_in_flight: 3}}
    spec: {policy: {failure: {mode: best_effort}}}
    tool: [{name: ask, kind: wait, signal: "{{ iter.name }}"}]
"""
    harness = Harness(text).start()
    for _ in range(400):
        if harness.state.finished:
            break
        held = list(leases(harness.state))
        action = chance.choice(["claim", "claim", "report", "report", "signal", "tick", "lose", "pause"])
        if action == "claim" and harness.queue and not harness.state.paused:
            harness.claim(chance.choice(harness.queue).run_id)
        elif action == "report" and held:
            order = order_of(harness.state, harness.state.open[chance.choice(held)[0]])
            if order.resume is None and chance.random() < 0.8:
                name = chance.choice(["a", "b"])
                attempt = order.epoch
                wait(harness, order, task="ask", signal=name, timeout_s=chance.choice([None, 5]), attempt=attempt)
            else:
                harness.report(order, task_done(order, "ask"), *finished(order, ok(order.resume and order.resume.data)))
        elif action == "signal":
            send(harness, chance.choice(["a", "b"]), {"n": len(harness.log)})
        elif action == "tick":
            harness.send(FireTimer(), at=harness.at + chance.choice([1, 10]))
        elif action == "lose" and held:
            run_id, epoch, _ = chance.choice(held)
            harness.send(ExpireLease(run_id, epoch))
        elif action == "pause":
            harness.send(PauseExecution())
            harness.queue = []
            harness.send(ResumeExecution())
    if not harness.state.finished:
        harness.send(CancelExecution())
    taken = [each.signal for each in harness.of(WaitFinished) if each.signal is not None]
    assert len(taken) == len(set(taken))
    assert not harness.state.waits and next_due(harness.state) is None
    assert encode_state(harness.refold()) == encode_state(harness.state)
