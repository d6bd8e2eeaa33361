"""Compensation: completed steps are undone in reverse order of completion, once each, also after a crash."""

from __future__ import annotations

import pytest
from engine_harness import Harness, failure, playbook

from noetl.core.engine.advance import fold, outstanding
from noetl.core.engine.commands import CancelExecution, ExpireLease, RecordChildEnd, RecordChildStart
from noetl.core.engine.effects import EnqueueRun
from noetl.core.engine.handlers.compensation import source_of
from noetl.core.engine.views.waiting import waiting_reasons
from noetl.core.model.events import (
    ChildRequested,
    CompensationDone,
    CompensationFailed,
    CompensationStarted,
    IterationDone,
    StepDone,
    WorkflowFinished,
)
from noetl.core.model.outcome import ok

SAGA = """
workflow:
  - step: flight
    input: {seat: 4}
    spec: {policy: {compensation: {tool: {kind: noop}}}}
    tool: {kind: noop}
    next: {arcs: [{step: hotel}]}
  - step: hotel
    spec: {policy: {compensation: {tool: {kind: noop}, when: "{{ output.data.paid and failure.kind == 'server_error' }}"}}}
    tool: {kind: noop}
    next: {arcs: [{step: car}]}
  - step: car
    spec: {policy: {compensation: {tool: {kind: noop}}}}
    tool: {kind: noop}
"""
LOOP = """
workflow:
  - step: rooms
    loop: {in: "{{ [5, 6, 7, 8] }}", iterator: room, spec: {mode: parallel, max_in_flight: 2}}
    input: {room: "{{ iter.room }}"}
    spec: {policy: {compensation: {tool: {kind: noop}WHEN}}}
    tool: {kind: noop}
    next: {arcs: [{step: pay}]}
  - {step: pay, tool: {kind: noop}}
"""
CALLER = """
workflow:
  - step: call
    tool: {kind: playbook, path: child}
    spec: {policy: {compensation: {tool: {kind: noop}}}}
    next: {arcs: [{step: pay}]}
  - {step: pay, tool: {kind: noop}}
"""


def undone(harness: Harness) -> list[str]:
    """The runs in the order in which their compensation started."""
    return [event.run_id.partition(":")[2] for event in harness.of(CompensationStarted)]


def test_completed_steps_are_undone_in_reverse_order_with_their_input_output_and_the_failure():
    harness = Harness(SAGA, {"flight": {"id": 1}, "hotel": {"paid": True}, "car": failure()}).run()
    assert harness.status == "failed"
    assert undone(harness) == ["hotel:1", "flight:1"]
    order = harness.orders[-1]
    assert (order.context.step, order.context.input) == ("flight.compensation", {"seat": 4})
    assert order.context.output == ok({"id": 1})
    assert order.context.failure["kind"] == "server_error"
    assert order.context.failure["step"] == "car"
    (last,) = harness.of(WorkflowFinished)
    assert (last.compensation.done, last.compensation.failed) == (2, 0)
    assert last.step == "car"


def test_one_compensation_starts_after_the_other_has_ended():
    harness = Harness(SAGA, {"hotel": {"paid": True}, "car": failure()}).run()
    names = [name for name in harness.names if name.startswith("compensation.")]
    assert names == ["compensation.started", "compensation.done"] * 2


def test_a_compensation_whose_condition_is_false_is_recorded_as_not_needed():
    harness = Harness(SAGA, {"hotel": {"paid": False}, "car": failure()}).run()
    assert undone(harness) == ["flight:1"]
    assert [event.skipped for event in harness.of(CompensationDone)] == [True, False]
    (last,) = harness.of(WorkflowFinished)
    assert (last.compensation.done, last.compensation.skipped) == (1, 1)


def test_a_compensation_whose_condition_cannot_be_evaluated_fails_and_the_others_continue():
    harness = Harness(SAGA, {"hotel": {}, "car": failure()}).run()
    (failed,) = harness.of(CompensationFailed)
    assert (failed.step, failed.error.kind) == ("hotel", "template")
    assert undone(harness) == ["flight:1"]


def test_a_failed_compensation_is_recorded_and_the_others_continue():
    script = {"hotel": {"paid": True}, "car": failure(), "hotel.compensation": failure(message="no refund")}
    harness = Harness(SAGA, script).run()
    (failed,) = harness.of(CompensationFailed)
    assert (failed.step, failed.error.message) == ("hotel", "no refund")
    assert harness.state.compensated.done == 1
    assert harness.state.compensated.failed == 1
    assert harness.state.error.message == "it broke"


def test_a_successful_execution_undoes_nothing():
    harness = Harness(SAGA).run()
    assert (harness.status, undone(harness)) == ("success", [])


def test_a_cancelled_execution_undoes_completed_steps_only_on_request():
    for compensate, expected in ((False, []), (True, ["flight:1"])):
        harness = Harness(SAGA).start()
        harness.complete(harness.claim())
        running = harness.claim()
        harness.send(CancelExecution("stop", compensate=compensate))
        harness.work()
        assert undone(harness) == expected
        assert harness.status == "cancelled"
        assert not harness.complete(running).accepted


def test_iterations_are_undone_in_reverse_order_of_completion_within_the_window_of_the_loop():
    harness = Harness(LOOP.replace("WHEN", ""), {"pay": failure()}).start()
    first, second = harness.claim(), harness.claim()
    harness.report(second, done(second, 6))
    harness.report(first, done(first, 5))
    third, fourth = harness.claim(), harness.claim()
    harness.report(third, done(third, 7))
    harness.report(fourth, done(fourth, 8))
    harness.complete(harness.claim())
    assert undone(harness) == ["rooms:1/3", "rooms:1/2"]  # two at a time
    orders = [harness.claim(), harness.claim()]
    assert [(order.context.input, order.items[0].value) for order in orders] == [({"room": 8}, 8), ({"room": 7}, 7)]
    harness.complete(orders[1])
    assert undone(harness) == ["rooms:1/3", "rooms:1/2", "rooms:1/0"]
    harness.complete(orders[0])
    harness.work()
    assert undone(harness) == ["rooms:1/3", "rooms:1/2", "rooms:1/0", "rooms:1/1"]
    assert harness.state.compensated.done == 4


@pytest.mark.parametrize(
    "when", ["iter.index > 1", "loop_index > 1", "iter.room > 6", "iter.last or iter.index == 2", "input.room > 6"]
)
def test_the_condition_of_a_compensation_reads_the_iteration(when):
    text = LOOP.replace("WHEN", f', when: "{{{{ {when} }}}}"')
    rooms = lambda harness, order: [done(order, order.items[0].value)]  # noqa: E731
    harness = Harness(text, {"pay": failure(), "rooms": rooms}).run()
    assert undone(harness) == ["rooms:1/3", "rooms:1/2"]
    assert harness.state.compensated.skipped == 2


def done(order, data):
    context = order.context
    return IterationDone(context.step, context.step_run_id, order.path, ok(data), input={"room": data})


def test_completed_iterations_of_a_failed_loop_are_undone():
    def second_fails(harness, order):
        return failure() if order.path == (1,) else ok(order.path[0])

    harness = Harness(
        LOOP.replace("max_in_flight: 2", "max_in_flight: 1").replace("WHEN", ""), {"rooms": second_fails}
    ).run()
    assert harness.status == "failed"
    assert undone(harness) == ["rooms:1/0"]


def test_every_run_of_a_step_in_a_cycle_is_undone():
    text = """
workflow:
  - step: book
    spec: {policy: {compensation: {tool: {kind: noop}}}}
    tool: {kind: noop}
    set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
    next: {arcs: [{step: book, when: "{{ ctx.n < 3 }}"}, {step: stop}]}
  - {step: stop, tool: {kind: noop}}
"""
    count = 0

    def book(harness, order):
        nonlocal count
        count += 1
        context = order.context
        return [StepDone(context.step, context.step_run_id, ok(count), patch={"n": count})]

    harness = Harness(text, {"book": book, "stop": failure()}).run()
    assert undone(harness) == ["book:3", "book:2", "book:1"]
    assert [order.context.output.data for order in harness.orders[-3:]] == [3, 2, 1]


def called(harness: Harness, *, compensable: bool) -> Harness:
    """Run the calling step to its end; its child has completed."""
    order = harness.claim()
    context = order.context
    harness.report(order, ChildRequested(context.step, context.step_run_id, "call_task", "child"))
    (start,) = harness.children
    harness.send(RecordChildStart(start.key, "88"))
    harness.send(RecordChildEnd(start.key, "88", ok(), compensable))
    return harness.work()


def test_a_child_playbook_undoes_its_own_steps_after_the_calling_step():
    harness = called(Harness(CALLER, {"pay": failure()}).start(), compensable=True)
    assert undone(harness) == ["call:1", "call:1"]
    start = harness.children[-1]
    assert (start.compensates, start.playbook, start.failure.kind) == ("88", "child", "server_error")
    assert harness.status is None
    (finding,) = [each for each in waiting_reasons(harness.state, harness.at) if each.subject == "compensation"]
    assert "1 done, 0 failed, 1 running, 0 left" in finding.text
    harness.send(RecordChildStart(start.key, "99"))
    harness.send(RecordChildEnd(start.key, "99", failure()))
    assert harness.status == "failed"
    assert (harness.state.compensated.done, harness.state.compensated.failed) == (1, 1)


def test_a_child_without_compensations_is_not_started_again():
    harness = called(Harness(CALLER, {"pay": failure()}).start(), compensable=False)
    assert undone(harness) == ["call:1"]
    assert len(harness.children) == 1


def test_a_child_in_flight_is_cancelled_with_compensation_unless_the_caller_is_just_cancelled():
    for compensate in (False, True):
        harness = Harness(CALLER).start()
        order = harness.claim()
        context = order.context
        harness.report(order, ChildRequested(context.step, context.step_run_id, "call_task", "child"))
        harness.send(RecordChildStart(harness.children[0].key, "88"))
        harness.send(CancelExecution("stop", compensate=compensate))
        assert [each.compensate for each in harness.child_cancels] == [compensate]


def test_an_execution_takes_over_what_another_one_completed_and_undoes_it():
    harness = Harness(SAGA, {"flight": {"id": 1}, "hotel": {"paid": True}}).run()
    assert harness.status == "success"
    source = source_of(harness.state, failure().error)
    undo = Harness(playbook(SAGA), execution_id="99").run(compensates=source)
    assert undo.status == "success"
    assert undone(undo) == ["car:1", "hotel:1", "flight:1"]
    assert undo.scheduled == []
    assert undo.data == {"done": 3, "failed": 0, "skipped": 0}
    assert undo.orders[-1].context.output == ok({"id": 1})


def test_an_execution_that_undoes_another_one_fails_if_a_compensation_fails():
    source = source_of(Harness(SAGA, {"hotel": {"paid": True}}).run().state, failure().error)
    undo = Harness(playbook(SAGA), {"flight.compensation": failure()}, execution_id="99").run(compensates=source)
    assert (undo.status, undo.state.error.message) == ("failed", "1 of its compensations failed")
    assert (undo.state.compensated.done, undo.state.compensated.failed) == (2, 1)


def test_a_compensation_continues_after_a_crash_and_a_lost_worker():
    harness = Harness(SAGA, {"hotel": {"paid": True}, "car": failure()}).start()
    for _ in range(3):
        harness.complete(harness.claim())
    lost = harness.claim()
    harness.send(ExpireLease(lost.run_id, lost.epoch))
    state = fold(harness.playbook, harness.log)
    assert [each.run_id for each in outstanding(state) if isinstance(each, EnqueueRun)] == [lost.run_id]
    harness.work()
    assert undone(harness) == ["hotel:1", "flight:1"]
    assert harness.state.compensated.done == 2


def test_a_pause_does_not_stop_a_compensation():
    from noetl.core.engine.commands import PauseExecution

    harness = Harness(SAGA).start()
    harness.complete(harness.claim())
    harness.send(PauseExecution())
    harness.send(CancelExecution("stop", compensate=True))
    harness.work()
    assert undone(harness) == ["flight:1"]
    assert harness.status == "cancelled"
