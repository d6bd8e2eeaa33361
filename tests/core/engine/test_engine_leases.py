"""Claims, reports and lost workers."""

from __future__ import annotations

import pytest
from engine_harness import Harness, failure, finished, task_done

from noetl.core.engine.advance import outstanding
from noetl.core.engine.capacity import Capacity, slots_held
from noetl.core.engine.commands import ClaimAnyRun, ClaimRun, ExpireLease, ReportRun, ReturnRun
from noetl.core.engine.concurrency_keys import SUSPECTS
from noetl.core.engine.effects import EnqueueRun
from noetl.core.engine.outstanding import leases
from noetl.core.model.events import (
    ChildRequested,
    IterationFailed,
    ReportRefused,
    StepDone,
    StepFailed,
    StepStarted,
    TaskDone,
    TaskProgress,
    TaskStarted,
    WorkerLost,
)
from noetl.core.model.outcome import ok
from noetl.core.model.position import CallFrame, Position
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
BLOCK = """
workbook:
  pay: {tool: [{name: look, kind: noop}, {name: charge, kind: http, spec: {effect: at_most_once}}]}
workflow:
  - {step: start, tool: [{name: first, kind: noop}, {name: call, kind: workbook, input: {block: pay}}]}
"""
LOOP = """
workflow:
  - step: start
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {kind: noop}
"""


def test_a_claim_raises_the_epoch_and_names_the_worker():
    harness = Harness(ONE).start()
    order = harness.claim(worker="w1")
    assert order.epoch == 1
    assert harness.of(StepStarted)[0].worker == "w1"
    assert harness.rejection(order.run_id) == "the run is leased"
    assert list(leases(harness.state)) == [("77:start:1", 1, "w1")]


@pytest.mark.parametrize("run_id", ["77:start:2", "77:nothing:1", "77:start:1/0", "nonsense", "77:start:1/x"])
def test_an_unknown_run_cannot_be_claimed(run_id):
    assert Harness(ONE).start().rejection(run_id) == "the run does not exist or has ended"


@pytest.mark.parametrize("run_id", ["77:start:1/3", "77:start:1/-1", "77:start:1/0.0", "77:start:1/00", "77:start:1"])
def test_an_unknown_iteration_cannot_be_claimed(run_id):
    assert Harness(LOOP).start().rejection(run_id)


def test_a_report_of_an_old_epoch_is_rejected():
    harness = Harness(ONE).start()
    old = harness.claim(worker="w1")
    harness.send(ExpireLease(old.run_id, old.epoch))
    new = harness.claim(worker="w2")
    assert new.epoch == 2
    before = len(harness.log)
    assert not harness.complete(old).accepted
    assert len(harness.log) == before
    assert harness.complete(new).accepted


def test_expiry_alone_does_not_fence_only_the_next_claim_does():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.complete(order).accepted  # late, but no other worker has claimed the run
    assert harness.scheduled == ["start", "after"]
    assert harness.rejection(order.run_id) == "the run does not exist or has ended"


def test_late_progress_is_available_to_the_next_worker_that_claims_the_run():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.report(order, task_done(order, "first", position=Position(task="second")))
    harness.send(ExpireLease(order.run_id, order.epoch))
    late = task_done(order, "second", ok(1), position=Position(task=None))
    assert harness.report(order, late).accepted
    again = harness.claim(worker="w2")
    assert (again.position, again.resume, again.lost) == (Position(task=None), None, 0)
    assert not harness.complete(order).accepted


def test_a_run_that_calls_a_child_after_its_lease_expired_is_not_queued():
    harness = Harness("workflow:\n  - {step: start, tool: {name: call, kind: playbook, path: kids/one}}\n").start()
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    harness.report(order, ChildRequested("start", order.run_id, "call", "kids/one"))
    assert harness.state.open[order.run_id].status == "suspended"
    assert not harness.state.queued
    assert not any(isinstance(effect, EnqueueRun) for effect in outstanding(harness.state))
    assert harness.send(ClaimAnyRun(worker="w", slots=1)).replies[0].orders == ()


def test_a_report_of_a_run_that_was_never_claimed_is_rejected():
    harness = Harness(LOOP).start()
    run = Report("77:start:1/0", 0, 1, ())
    assert not harness.send(ReportRun(run)).replies[0].accepted
    harness = Harness(ONE).start()
    events = (StepDone(step="start", step_run_id="77:start:1", output=ok()),)
    assert not harness.send(ReportRun(Report("77:start:1", 0, 1, events))).replies[0].accepted


def test_a_stale_expiry_is_rejected():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    again = harness.claim(worker="w2")
    reply = harness.send(ExpireLease(order.run_id, order.epoch)).replies[0]
    assert not reply.accepted
    assert harness.complete(again).accepted


def test_a_run_whose_tool_never_begins_is_given_up_after_ten_lost_workers():
    harness = Harness(ONE.replace("at_most_once", "at_least_once")).start()
    for number in range(10):
        assert not harness.of(StepFailed)
        order = harness.claim(worker=f"w{number}")
        assert order.lost == number
        harness.send(ExpireLease(order.run_id, order.epoch))
    (failed,) = harness.of(StepFailed)
    assert failed.output.error.kind == "worker.lost"
    assert failed.output.error.message.startswith("10 workers in a row were lost")


def test_a_lost_run_resumes_after_the_last_accepted_task():
    harness = Harness(ONE.replace("at_most_once", "at_least_once")).start()
    order = harness.claim()
    position = Position(task="second", step={"seen": 1}, task_runs=1)
    harness.report(order, task_done(order, "first", position=position))
    harness.send(ExpireLease(order.run_id, order.epoch))
    again = harness.claim(worker="w2")
    assert again.position == position
    assert again.lost == 1
    assert again.resume is None


def test_a_run_that_loses_two_workers_and_then_one_alone_is_poison():
    harness = Harness(ONE).start()
    for number in range(3):
        order = harness.claim(worker=f"w{number}")
        assert order.alone == (number == 2)
        harness.report(order, started(order, "first", number + 1))
        harness.send(ExpireLease(order.run_id, order.epoch))
    assert len(harness.of(WorkerLost)) == 3
    assert harness.status == "failed"
    assert harness.state.error.kind == "worker.lost"
    assert harness.queue == [] or harness.rejection(harness.queue[0].run_id)


def test_a_run_that_waited_to_be_alone_is_not_blamed_for_the_loss_of_its_worker():
    harness = Harness(ONE).start()
    for _ in range(9):
        order = harness.claim()
        harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.status is None and harness.state.open[order.run_id].suspect == 2
    again = harness.claim()
    assert again.alone
    harness.report(again, started(again, "first", 10))
    harness.send(ExpireLease(again.run_id, again.epoch))
    assert harness.state.error.kind == "worker.lost"


def lose_together(harness, attempt):
    """Lose the worker of a begun run together with others."""
    order = harness.claim()
    harness.report(order, started(order, "first", attempt))
    harness.send(ExpireLease(order.run_id, order.epoch, together=True))
    return order


def test_a_run_that_was_alone_but_lost_with_other_workers_waits_for_its_turn():
    harness = Harness(ONE).start()
    for number in range(3):
        order = lose_together(harness, number + 1)
    assert harness.status is None and harness.state.isolated
    assert harness.send(ClaimRun("w1", order.run_id)).replies[0].limit == SUSPECTS  # the slots are unknown
    assert harness.send(ClaimAnyRun("w1", slots=1)).replies[0].orders == ()
    harness.capacity = Capacity({SUSPECTS: 0})
    assert harness.send(ClaimRun("w1", order.run_id)).replies[0].limit == SUSPECTS
    harness.capacity = Capacity({SUSPECTS: 1})
    again = harness.claim(order.run_id)
    assert again.alone and slots_held(harness.state)[SUSPECTS] == 1
    assert harness.complete(again).accepted
    assert SUSPECTS not in slots_held(harness.state) and not harness.state.isolated


@pytest.mark.parametrize("together", [False, True])
def test_a_run_whose_workers_are_lost_in_its_turn_is_poison(together):
    harness = Harness(ONE).start()
    harness.capacity = Capacity({SUSPECTS: 1})
    for number in range(5 if together else 3):
        lose_together(harness, number + 1)
    order = harness.claim()
    harness.report(order, started(order, "first", 6 if together else 4))
    assert harness.status is None
    harness.send(ExpireLease(order.run_id, order.epoch, together=together))
    assert harness.state.error.kind == "worker.lost"


def test_a_run_that_never_begins_is_given_up():
    harness = Harness(ONE).start()
    for _ in range(10):
        order = harness.claim()
        harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.state.error.kind == "worker.lost"


def test_progress_between_losses_starts_the_count_again():
    harness = Harness(ONE.replace("at_most_once", "at_least_once")).start()
    for number in range(6):
        order = harness.claim()
        if number % 2:
            harness.report(
                order, task_done(order, "first", visit=number, position=Position(task="first", visit=number))
            )
        harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.status is None
    assert harness.complete(harness.claim()).accepted


@pytest.mark.parametrize(("cost", "slots", "count"), [(1, 3, 3), (2, 3, 1), (2, 4, 2), (3, 2, 0)])
def test_a_worker_claims_as_many_runs_as_fit_by_their_cost(cost, slots, count):
    harness = Harness(f"executor: {{spec: {{cost: {cost}}}}}\n" + LOOP).start()
    assert len(harness.send(ClaimAnyRun("w", slots, capacity=4)).replies[0].orders) == count


def test_a_poisoned_iteration_fails_its_loop():
    harness = Harness(LOOP).start()
    for number in range(3):
        order = harness.claim("77:start:1/1")
        harness.report(order, started(order, "start_task", number + 1))
        harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.of(IterationFailed)[0].output.error.kind == "worker.lost"
    assert harness.status == "failed"


def test_a_returned_run_uses_up_no_attempt():
    harness = Harness(ONE).start()
    for _ in range(5):
        order = harness.claim()
        assert harness.send(ReturnRun(order.run_id, order.epoch)).replies[0].accepted
    again = harness.claim()
    assert (again.lost, again.epoch) == (0, 6)


def test_an_at_most_once_task_becomes_ambiguous_after_a_lost_worker():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.report(order, task_done(order, "first", position=Position(task="second")))
    harness.send(ExpireLease(order.run_id, order.epoch))
    again = harness.claim(worker="w2")
    assert again.resume.error.kind == "ambiguous"
    assert again.position.task == "second"


@pytest.mark.parametrize(
    ("block", "task", "ambiguous"),
    [("pay", "charge", True), ("pay", "look", False), ("pay", None, False), ("none", "charge", False)],
)
def test_a_task_of_a_called_block_is_ambiguous_like_any_other(block, task, ambiguous):
    harness = Harness(BLOCK).start()
    order = harness.claim()
    inside = Position("call", calls=(CallFrame(block, "call", Position(task)),))
    harness.report(order, task_done(order, "first", position=inside))
    harness.send(ExpireLease(order.run_id, order.epoch))
    assert (harness.claim().resume is not None) == ambiguous


def test_a_task_that_was_only_waiting_is_not_ambiguous():
    harness = Harness(ONE).start()
    order = harness.claim()
    position = Position(task="second", attempt=2)
    harness.report(order, task_done(order, "first", delay=30.0, position=position))
    harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.claim().resume is None


def test_a_task_that_was_reported_as_started_is_ambiguous():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.report(order, task_done(order, "first", delay=30.0, position=Position(task="second", attempt=2)))
    started = TaskStarted(step="start", step_run_id=order.run_id, task="second", kind="http", attempt=2, visit=1)
    harness.report(order, started)
    harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.claim().resume.error.kind == "ambiguous"


# ── attempts ────────────────────────────────────────────────────────────────────────────


def started(order, task, attempt=1, visit=1, kind="http"):
    return TaskStarted("start", order.context.step_run_id, task, kind, visit=visit, attempt=attempt, path=order.path)


def test_a_late_report_ends_its_task_but_starts_no_other():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    done = task_done(order, "first", position=Position(task="second"))
    reply = harness.report(order, done, started(order, "second"))
    assert not reply.accepted
    assert [event.task for event in harness.of(TaskDone)] == ["first"]
    assert not harness.of(TaskStarted)
    again = harness.claim(worker="w2")
    assert (again.position, again.lost, again.resume) == (Position(task="second"), 0, None)
    assert harness.report(again, started(again, "second")).accepted


def test_a_late_report_of_progress_does_not_stop_the_task():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.report(order, started(order, "first"))
    harness.send(ExpireLease(order.run_id, order.epoch))
    assert harness.report(order, TaskProgress("start", order.run_id, "first", counts={"rows": 5.0})).accepted
    assert harness.report(order, task_done(order, "first", position=Position(task="second"))).accepted


def test_a_returned_run_whose_tool_had_begun_uses_up_the_attempt_but_is_no_evidence_of_poison():
    harness = Harness(ONE.replace("at_most_once", "at_least_once")).start()
    for number in range(5):
        order = harness.claim()
        assert order.lost == number
        assert harness.send(ReturnRun(order.run_id, order.epoch, begun=True)).replies[0].accepted
    assert harness.status is None


def test_a_reported_start_counts_as_begun():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.report(order, started(order, "first"))
    harness.send(ReturnRun(order.run_id, order.epoch, begun=False))
    assert harness.claim(worker="w2").lost == 1


def test_a_returned_at_most_once_task_that_had_begun_is_ambiguous():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.report(order, task_done(order, "first", position=Position(task="second")))
    harness.send(ReturnRun(order.run_id, order.epoch, begun=True))
    assert harness.claim(worker="w2").resume.error.kind == "ambiguous"


def test_the_number_of_an_attempt_is_never_accepted_twice():
    harness = Harness(ONE.replace("at_most_once", "at_least_once")).start()
    order = harness.claim()
    harness.report(order, started(order, "first"))
    harness.send(ExpireLease(order.run_id, order.epoch))
    again = harness.claim(worker="w2")
    assert not harness.report(again, started(again, "first", 1)).accepted
    assert harness.report(again, started(again, "first", 2)).accepted


def test_the_number_that_a_lost_lease_used_up_is_not_accepted():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))  # the lease covers the start of the first task
    again = harness.claim(worker="w2")
    assert not harness.report(again, started(again, "first", 1)).accepted
    assert harness.report(again, started(again, "first", 2)).accepted


def test_a_stopped_process_is_no_evidence_of_poison():
    harness = Harness(ONE.replace("at_most_once", "at_least_once")).start()
    for number in range(5):
        order = harness.claim()
        assert order.lost == number
        harness.send(ExpireLease(order.run_id, order.epoch, stopped=True))
    assert harness.status is None


# ── reports ─────────────────────────────────────────────────────────────────────────────


def test_a_repeated_report_gets_the_same_acknowledgement_and_changes_nothing():
    harness = Harness(ONE).start()
    order = harness.claim()
    event = task_done(order, "first", ok(1), patch={"ctx": {"x": 1}}, position=Position(task="second"))
    assert harness.report(order, event).accepted
    before = len(harness.log)
    assert harness.report(order, event).accepted
    assert len(harness.log) == before


def test_the_same_event_with_another_body_is_rejected_and_recorded_once():
    harness = Harness(ONE).start()
    order = harness.claim()
    harness.report(order, task_done(order, "first", ok(1), position=Position(task="second")))
    for _ in range(3):
        assert not harness.report(order, task_done(order, "first", ok(2), position=Position(task="second"))).accepted
    (refused,) = harness.of(ReportRefused)
    assert refused.run_id == order.run_id
    assert "another body" in refused.reason


def test_the_report_that_ended_a_run_may_be_repeated():
    harness = Harness(ONE).start()
    order = harness.claim()
    assert harness.complete(order, ok({"a": [1, 2]})).accepted
    assert harness.complete(order, ok({"a": [1, 2]})).accepted
    assert not harness.complete(order, ok({"a": [1, 3]})).accepted
    assert not harness.complete(order, failure()).accepted


def test_the_report_that_ended_an_iteration_may_be_repeated():
    harness = Harness(LOOP).start()
    order = harness.claim()
    assert harness.complete(order, ok(5)).accepted
    assert harness.complete(order, ok(5)).accepted
    assert not harness.complete(order, ok(6)).accepted


def test_reports_after_the_end_are_rejected():
    harness = Harness(LOOP).start()
    orders = [harness.claim() for _ in range(3)]
    harness.complete(orders[0], failure())
    assert harness.status == "failed"
    before = len(harness.log)
    assert not harness.complete(orders[1]).accepted
    assert not harness.send(ClaimRun("w", orders[1].run_id)).replies[0].accepted
    assert harness.send(ClaimAnyRun("w", 5)).replies[0].orders == ()
    assert len(harness.log) == before


def test_a_report_and_the_next_claim_are_one_append():
    harness = Harness(ONE).start()
    order = harness.claim()
    report = Report(order.run_id, order.epoch, 1, tuple(finished(order, ok())))
    decision = harness.send(ReportRun(report), ClaimAnyRun("w1"))
    (next_order,) = decision.replies[1].orders
    assert next_order.run_id == "77:after:1"
    assert not [each for each in decision.effects if isinstance(each, EnqueueRun)]
    assert [each.body.NAME for each in decision.events] == [
        "step.done", "next.evaluated", "step.scheduled", "step.started",
    ]  # fmt: skip


def test_only_the_steps_of_a_pool_are_leased_to_it():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, spec: {pool: gpu}, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
"""
    ).start()
    assert [each.pool for each in harness.queue] == ["gpu", None]
    assert [o.context.step for o in harness.send(ClaimAnyRun("w", 5)).replies[0].orders] == ["b"]
    assert [o.context.step for o in harness.send(ClaimAnyRun("w", 5, pool="gpu")).replies[0].orders] == ["a"]


def test_a_worker_cannot_end_the_whole_execution_by_itself():
    harness = Harness(ONE.replace("arcs: [{step: after}]", "arcs: [{step: after, when: '{{ true }}'}]")).start()
    order = harness.claim()
    harness.report(order, *finished(order, failure(), fatal=True))
    assert harness.scheduled == ["start", "after"]
    assert not harness.of(StepFailed)[0].fatal


def test_a_restarted_server_has_the_same_outstanding_effects():
    harness = Harness(LOOP).start()
    harness.claim("77:start:1/1")
    state = harness.refold()
    enqueued = [each.run_id for each in outstanding(state) if isinstance(each, EnqueueRun)]
    assert enqueued == ["77:start:1/0", "77:start:1/2"]
    assert list(leases(state)) == [("77:start:1/1", 1, "w1")]


def test_events_name_their_cause():
    harness = Harness(ONE).start()
    harness.complete(harness.claim())
    by_seq = {each.seq: each.body.NAME for each in harness.log}
    causes = [(each.body.NAME, by_seq.get(each.parent_seq)) for each in harness.log]
    assert causes[-6:] == [
        ("workflow.started", "playbook.request.evaluated"),
        ("step.scheduled", "workflow.started"),
        ("step.started", "step.scheduled"),
        ("step.done", "step.started"),
        ("next.evaluated", "step.done"),
        ("step.scheduled", "next.evaluated"),
    ]


@pytest.mark.parametrize("looping", [False, True])
def test_a_worker_cannot_set_what_only_the_server_may_set(looping):
    loop = "    loop: {in: [1, 2], iterator: n}\n" if looping else ""
    harness = Harness(f"workflow:\n  - step: a\n{loop}    tool: {{kind: noop}}\n").start()
    order = harness.claim()
    flags = {"by_server": True} if looping else {"by_server": True, "fatal": True}
    harness.report(order, *finished(order, failure(), **flags))
    (first,) = harness.of(IterationFailed) if looping else harness.of(StepFailed)
    assert first.by_server is False
    assert looping or first.fatal is False
