"""Claims, reports, lost workers: what the engine believes, and whom."""

from __future__ import annotations

import pytest
from engine_play import Play, boom, finished, task_done

from noetl.core.engine.advance import outstanding
from noetl.core.engine.commands import ClaimAnyRun, ClaimRun, ExpireLease, ReportRun, ReturnRun
from noetl.core.engine.effects import EnqueueRun
from noetl.core.engine.outstanding import leases
from noetl.core.model.events import (
    IterationFailed,
    ReportRefused,
    StepDone,
    StepFailed,
    StepStarted,
    TaskStarted,
    WorkerLost,
)
from noetl.core.model.outcome import ok
from noetl.core.model.position import Position
from noetl.core.model.work import Report

ONE = """
workflow:
  - step: start
    tool:
      - {name: first, kind: noop}
      - {name: second, kind: http, url: "http://x", spec: {effect: at_most_once}}
    next: {arcs: [{step: after}]}
  - {step: after, tool: {kind: noop}}
"""
LOOP = """
workflow:
  - step: start
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {kind: noop}
"""


def test_a_claim_raises_the_epoch_and_names_the_worker():
    play = Play(ONE).start()
    order = play.take(worker="w1")
    assert order.epoch == 1
    assert play.of(StepStarted)[0].worker == "w1"
    assert play.refusal(order.run_id) == "the run is leased"
    assert list(leases(play.state)) == [("77:start:1", 1, "w1")]


@pytest.mark.parametrize("run_id", ["77:start:2", "77:nothing:1", "77:start:1/0", "nonsense", "77:start:1/x"])
def test_what_is_not_there_cannot_be_claimed(run_id):
    assert Play(ONE).start().refusal(run_id) == "the run does not exist or has ended"


@pytest.mark.parametrize("run_id", ["77:start:1/3", "77:start:1/-1", "77:start:1/0.0", "77:start:1/00", "77:start:1"])
def test_an_iteration_that_is_not_there_cannot_be_claimed(run_id):
    assert Play(LOOP).start().refusal(run_id)


def test_a_report_of_an_old_epoch_is_refused():
    play = Play(ONE).start()
    old = play.take(worker="w1")
    play.tell(ExpireLease(old.run_id, old.epoch))
    new = play.take(worker="w2")
    assert new.epoch == 2
    before = len(play.log)
    assert not play.do(old).accepted
    assert len(play.log) == before
    assert play.do(new).accepted


def test_expiry_alone_does_not_fence_only_the_next_claim_does():
    play = Play(ONE).start()
    order = play.take()
    play.tell(ExpireLease(order.run_id, order.epoch))
    assert play.do(order).accepted  # late, but nobody else has claimed it
    assert play.scheduled == ["start", "after"]
    assert play.refusal(order.run_id) == "the run does not exist or has ended"


def test_late_progress_is_kept_for_whoever_claims_the_run_next():
    play = Play(ONE).start()
    order = play.take()
    play.report(order, task_done(order, "first", position=Position(task="second")))
    play.tell(ExpireLease(order.run_id, order.epoch))
    late = task_done(order, "second", ok(1), position=Position(task=None))
    assert play.report(order, late).accepted
    again = play.take(worker="w2")
    assert (again.position, again.resume, again.lost) == (Position(task=None), None, 0)
    assert not play.do(order).accepted


def test_nothing_is_believed_of_a_run_that_nobody_ever_claimed():
    play = Play(LOOP).start()
    run = Report("77:start:1/0", 0, 1, ())
    assert not play.tell(ReportRun(run)).replies[0].accepted
    play = Play(ONE).start()
    events = (StepDone(step="start", step_run_id="77:start:1", output=ok()),)
    assert not play.tell(ReportRun(Report("77:start:1", 0, 1, events))).replies[0].accepted


def test_a_stale_expiry_means_nothing():
    play = Play(ONE).start()
    order = play.take()
    play.tell(ExpireLease(order.run_id, order.epoch))
    again = play.take(worker="w2")
    reply = play.tell(ExpireLease(order.run_id, order.epoch)).replies[0]
    assert not reply.accepted
    assert play.do(again).accepted


def test_a_lost_run_goes_on_at_the_last_accepted_task():
    play = Play(ONE.replace("at_most_once", "at_least_once")).start()
    order = play.take()
    position = Position(task="second", step={"seen": 1}, task_runs=1)
    play.report(order, task_done(order, "first", position=position))
    play.tell(ExpireLease(order.run_id, order.epoch))
    again = play.take(worker="w2")
    assert again.position == position
    assert again.lost == 1
    assert again.resume is None


def test_three_losses_in_a_row_fail_the_run_as_poison():
    play = Play(ONE).start()
    for number in range(3):
        order = play.take(worker=f"w{number}")
        play.tell(ExpireLease(order.run_id, order.epoch))
    assert len(play.of(WorkerLost)) == 3
    assert play.status == "failed"
    assert play.state.error.kind == "worker.lost"
    assert play.queue == [] or play.refusal(play.queue[0].run_id)


def test_progress_between_losses_starts_the_count_again():
    play = Play(ONE.replace("at_most_once", "at_least_once")).start()
    for number in range(6):
        order = play.take()
        if number % 2:
            play.report(order, task_done(order, "first", visit=number, position=Position(task="first", visit=number)))
        play.tell(ExpireLease(order.run_id, order.epoch))
    assert play.status is None
    assert play.do(play.take()).accepted


def test_a_poisoned_iteration_fails_its_loop():
    play = Play(LOOP).start()
    for _ in range(3):
        order = play.take("77:start:1/1")
        play.tell(ExpireLease(order.run_id, order.epoch))
    assert play.of(IterationFailed)[0].output.error.kind == "worker.lost"
    assert play.status == "failed"


def test_a_run_that_was_given_back_costs_nothing():
    play = Play(ONE).start()
    for _ in range(5):
        order = play.take()
        assert play.tell(ReturnRun(order.run_id, order.epoch)).replies[0].accepted
    again = play.take()
    assert (again.lost, again.epoch) == (0, 6)


def test_a_task_that_must_not_run_twice_becomes_ambiguous():
    play = Play(ONE).start()
    order = play.take()
    play.report(order, task_done(order, "first", position=Position(task="second")))
    play.tell(ExpireLease(order.run_id, order.epoch))
    again = play.take(worker="w2")
    assert again.resume.error.kind == "ambiguous"
    assert again.position.task == "second"


def test_a_task_that_was_only_waiting_is_not_ambiguous():
    play = Play(ONE).start()
    order = play.take()
    position = Position(task="second", attempt=2)
    play.report(order, task_done(order, "first", delay=30.0, position=position))
    play.tell(ExpireLease(order.run_id, order.epoch))
    assert play.take().resume is None


def test_after_it_said_it_started_it_is_ambiguous_even_so():
    play = Play(ONE).start()
    order = play.take()
    play.report(order, task_done(order, "first", delay=30.0, position=Position(task="second", attempt=2)))
    started = TaskStarted(step="start", step_run_id=order.run_id, task="second", kind="http", attempt=2, visit=1)
    play.report(order, started)
    play.tell(ExpireLease(order.run_id, order.epoch))
    assert play.take().resume.error.kind == "ambiguous"


# ── reports ─────────────────────────────────────────────────────────────────────────────


def test_the_same_report_again_gets_the_same_verdict_and_changes_nothing():
    play = Play(ONE).start()
    order = play.take()
    event = task_done(order, "first", ok(1), patch={"ctx": {"x": 1}}, position=Position(task="second"))
    assert play.report(order, event).accepted
    before = len(play.log)
    assert play.report(order, event).accepted
    assert len(play.log) == before


def test_the_same_event_with_another_body_is_refused_and_recorded_once():
    play = Play(ONE).start()
    order = play.take()
    play.report(order, task_done(order, "first", ok(1), position=Position(task="second")))
    for _ in range(3):
        assert not play.report(order, task_done(order, "first", ok(2), position=Position(task="second"))).accepted
    (refused,) = play.of(ReportRefused)
    assert refused.run_id == order.run_id
    assert "another body" in refused.reason


def test_the_report_that_ended_a_run_may_be_repeated():
    play = Play(ONE).start()
    order = play.take()
    assert play.do(order, ok({"a": [1, 2]})).accepted
    assert play.do(order, ok({"a": [1, 2]})).accepted
    assert not play.do(order, ok({"a": [1, 3]})).accepted
    assert not play.do(order, boom()).accepted


def test_the_report_that_ended_an_iteration_may_be_repeated():
    play = Play(LOOP).start()
    order = play.take()
    assert play.do(order, ok(5)).accepted
    assert play.do(order, ok(5)).accepted
    assert not play.do(order, ok(6)).accepted


def test_nothing_is_believed_after_the_end():
    play = Play(LOOP).start()
    orders = [play.take() for _ in range(3)]
    play.do(orders[0], boom())
    assert play.status == "failed"
    before = len(play.log)
    assert not play.do(orders[1]).accepted
    assert not play.tell(ClaimRun("w", orders[1].run_id)).replies[0].accepted
    assert play.tell(ClaimAnyRun("w", 5)).replies[0].orders == ()
    assert len(play.log) == before


def test_a_report_and_the_next_claim_are_one_append():
    play = Play(ONE).start()
    order = play.take()
    report = Report(order.run_id, order.epoch, 1, tuple(finished(order, ok())))
    decision = play.tell(ReportRun(report), ClaimAnyRun("w1"))
    (next_order,) = decision.replies[1].orders
    assert next_order.run_id == "77:after:1"
    assert not [each for each in decision.effects if isinstance(each, EnqueueRun)]
    assert [each.body.NAME for each in decision.events] == [
        "step.done", "next.evaluated", "step.scheduled", "step.started",
    ]  # fmt: skip


def test_only_the_steps_of_a_pool_are_leased_to_it():
    play = Play(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, spec: {pool: gpu}, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
"""
    ).start()
    assert [each.pool for each in play.queue] == ["gpu", None]
    assert [o.context.step for o in play.tell(ClaimAnyRun("w", 5)).replies[0].orders] == ["b"]
    assert [o.context.step for o in play.tell(ClaimAnyRun("w", 5, pool="gpu")).replies[0].orders] == ["a"]


def test_a_worker_cannot_end_the_whole_execution_by_itself():
    play = Play(ONE.replace("arcs: [{step: after}]", "arcs: [{step: after, when: '{{ true }}'}]")).start()
    order = play.take()
    play.report(order, *finished(order, boom(), fatal=True))
    assert play.scheduled == ["start", "after"]
    assert not play.of(StepFailed)[0].fatal


def test_a_server_that_restarts_owes_what_it_owed():
    play = Play(LOOP).start()
    play.take("77:start:1/1")
    state = play.refold()
    owed = [each.run_id for each in outstanding(state) if isinstance(each, EnqueueRun)]
    assert owed == ["77:start:1/0", "77:start:1/2"]
    assert list(leases(state)) == [("77:start:1/1", 1, "w1")]


def test_events_say_what_caused_them():
    play = Play(ONE).start()
    play.do(play.take())
    by_seq = {each.seq: each.body.NAME for each in play.log}
    causes = [(each.body.NAME, by_seq.get(each.parent_seq)) for each in play.log]
    assert causes[-6:] == [
        ("workflow.started", "playbook.request.evaluated"),
        ("step.scheduled", "workflow.started"),
        ("step.started", "step.scheduled"),
        ("step.done", "step.started"),
        ("next.evaluated", "step.done"),
        ("step.scheduled", "next.evaluated"),
    ]
