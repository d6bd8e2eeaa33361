"""Replies of the engine to commands that do not fit the state, and what they leave unchanged."""

from __future__ import annotations

import msgspec
import pytest
from engine_harness import HEAD, Harness, finished, task_done

from noetl.core.engine.advance import fold
from noetl.core.engine.commands import (
    CancelExecution,
    FireTimer,
    PauseExecution,
    RecordChildEnd,
    RecordChildStart,
    RecordChildWait,
    ReportRun,
    ResumeExecution,
    ReturnRun,
    SendSignal,
    StartExecution,
)
from noetl.core.engine.declared_secrets import ANY, declared_secrets
from noetl.core.engine.handlers import assignments
from noetl.core.engine.snapshot import encode_state
from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import (
    ChildRequested,
    ExecutionPaused,
    IterationDone,
    Recorded,
    StepDone,
    TaskStarted,
    WaitStarted,
    WorkerLost,
)
from noetl.core.model.outcome import ok
from noetl.core.model.work import Report
from noetl.tools.registry import specs

ONE = "\nworkflow:\n  - {step: start, tool: [{name: t, kind: http}]}\n"
TWO = "\nworkflow:\n  - {step: start, tool: {kind: http}, next: {arcs: [{step: after}]}}\n  - {step: after, tool: {kind: http}}\n"
LOOP = "\nworkflow:\n  - {step: start, loop: {in: [1, 2], iterator: n, spec: {mode: parallel}}, tool: [{name: t, kind: http}]}\n"


def refused(harness: Harness, command) -> str:
    before = len(harness.log)
    (reply,) = harness.send(command).replies
    assert not reply.accepted and len(harness.log) == before
    return reply.reason


def test_nothing_is_accepted_before_the_request_and_it_is_accepted_once():
    harness = Harness(ONE)
    assert refused(harness, PauseExecution()) == "the execution has not been requested"
    harness.start()
    request = harness.log[0].body
    assert refused(harness, StartExecution(request)) == "the execution has already been requested"


@pytest.mark.parametrize(
    "command", [PauseExecution(), ResumeExecution(), CancelExecution(), SendSignal("x"), FireTimer()], ids=repr
)
def test_an_ended_execution_accepts_nothing(command):
    harness = Harness(ONE).run()
    assert "ended" in refused(harness, command)


def test_a_pause_with_a_key_is_recorded_again_and_one_without_is_not():
    harness = Harness(ONE).start()
    harness.claim()
    for key in ("", "", "k", "k"):
        assert harness.send(PauseExecution("why", key)).replies[0].accepted
    assert [each.id for each in harness.of(ExecutionPaused)] == ["", "k"]
    harness.send(ResumeExecution())
    harness.send(ResumeExecution())
    assert harness.names.count("execution.resumed") == 1


def test_a_key_of_another_command_is_refused():
    harness = Harness(ONE).start()
    assert harness.send(PauseExecution("a", "k")).replies[0].accepted
    assert "'k' was used for another command" in refused(harness, CancelExecution("a", id="k"))


def test_a_cancellation_is_repeated_without_effect_and_compensation_cannot_be_added():
    harness = Harness(ONE).start()
    order = harness.claim()
    assert order.run_id == "77:start:1"
    harness.send(PauseExecution())
    harness.send(CancelExecution("first"))
    if harness.state.finished is None:
        assert harness.send(CancelExecution("second")).replies[0].accepted
    assert harness.names.count("execution.cancelled") == 1


def test_a_start_is_not_accepted_again_after_the_run_was_given_back():
    harness = Harness(ONE).start()
    order = harness.claim()
    assert harness.report(order, TaskStarted("start", order.run_id, "t", "http")).accepted
    harness.send(ReturnRun(order.run_id, order.epoch))
    again = harness.claim()
    start = TaskStarted("start", order.run_id, "t", "http", attempt=1)
    reply = harness.send(ReportRun(Report(again.run_id, again.epoch, 1, (start,)))).replies[0]
    assert not reply.accepted and "attempt 1 of task t (visit 1) was used before" in reply.reason


@pytest.mark.parametrize(
    ("first", "second", "accepted"),
    [
        (("t", 1, 1), ("t", 1, 1), False),
        (("t", 1, 2), ("t", 1, 1), False),
        (("t", 1, 1), ("t", 1, 2), True),
        (("t", 1, 1), ("t", 2, 1), True),
        (("t", 1, 1), ("u", 1, 1), True),
    ],
)
def test_two_starts_in_one_report_have_different_numbers(first, second, accepted):
    harness = Harness(ONE).start()
    order = harness.claim()
    starts = [
        TaskStarted("start", order.run_id, task, "http", visit=visit, attempt=attempt)
        for task, visit, attempt in (first, second)
    ]
    reply = harness.send(ReportRun(Report(order.run_id, order.epoch, 1, tuple(starts)))).replies[0]
    assert reply.accepted is accepted


def test_reports_of_runs_that_have_ended_are_known_by_their_last_event():
    harness = Harness(LOOP).start()
    first = harness.claim("77:start:1/0")
    events = tuple(finished(first, ok(1)))
    harness.report(first, *events)

    def reply(*sent):
        return harness.send(ReportRun(Report(first.run_id, first.epoch, 9, sent))).replies[0]

    assert reply(*events).reason == "the report is a repetition"
    other = IterationDone(step="start", step_run_id="77:start:1", path=(0,), output=ok(2))
    for sent in ((), events[:-1], (other,)):
        found = reply(*sent)
        assert (found.accepted, found.reason) == (False, "the run has ended or does not exist")
        assert found.ack.ended is True
    unknown = harness.send(ReportRun(Report("77:none:1", 1, 1, (StepDone("none", "77:none:1", ok()),)))).replies[0]
    assert not unknown.accepted and unknown.ack.ended


def test_an_event_of_another_run_is_rejected():
    harness = Harness(ONE).start()
    order = harness.claim()
    for event in (
        StepDone(step="start", step_run_id="77:start:2", output=ok()),
        StepDone(step="other", step_run_id="77:start:1", output=ok()),
        IterationDone(step="start", step_run_id="77:start:1", path=(0,), output=ok()),
        TaskStarted("start", "77:start:1", "t", "http", path=(1,)),
        TaskStarted("other", "77:start:1", "t", "http"),
    ):
        reply = harness.send(ReportRun(Report(order.run_id, order.epoch, 1, (event,)))).replies[0]
        assert not reply.accepted and "is not an event of this run" in reply.reason, event


def test_a_child_that_no_run_waits_for_is_refused():
    harness = Harness(ONE).start()
    for command in (
        RecordChildStart("77:none:1:t:1:1", "9"),
        RecordChildEnd("77:none:1:t:1:1", "9", ok()),
        RecordChildWait("77:none:1:t:1:1", "9", True, 3),
    ):
        assert refused(harness, command)


@pytest.mark.parametrize(
    ("size", "status"), [(assignments.MAX_CTX_VALUE - 2, "success"), (assignments.MAX_CTX_VALUE - 1, "failed")]
)
def test_a_value_of_ctx_has_a_largest_size(size, status):
    text = f"\nworkflow:\n  - {{step: start, set: {{ctx.x: \"{{{{ 'x' * {size} }}}}\"}}}}\n"
    harness = Harness(text, watch=False).run()
    assert harness.status == status
    if status == "failed":
        assert "1,048,577 bytes, the limit is 1,048,576" in harness.state.error.message


def test_the_secrets_of_a_step_are_those_of_its_tasks_and_the_blocks_that_it_calls():
    text = (
        HEAD
        + """
keychain: [{name: a, kind: bearer, token: x}, {name: b, kind: bearer, token: x}, {name: c, kind: bearer, token: x}, {name: d, kind: bearer, token: x}]
workbook:
  block: {input: {x: "{{ keychain.c }}"}, tool: [{name: t, kind: noop, input: {y: "{{ keychain.d.token }}"}}]}
workflow:
  - step: start
    input: {auth: a}
    tool: [{name: t, kind: noop, input: {auth: b}}, {name: call, kind: workbook, block: block}]
  - {step: other, tool: {kind: noop}}
  - {step: computed, tool: {kind: noop, input: {x: "{{ keychain[workload.name] }}"}}}
"""
    )
    book = compile_playbook(text, file="p.yaml", specs=specs()).playbook
    assert book is not None
    start, other, computed = (declared_secrets(book, step) for step in book.steps)
    assert {"a", "b", "c", "d"} <= start and ANY not in start
    assert not {"a", "b", "c", "d", ANY} & other
    assert ANY in computed


@pytest.mark.parametrize("named", ["run", "step run"])
def test_an_iteration_cannot_report_the_end_of_its_step(named):
    harness = Harness(LOOP).start()
    order = harness.claim()
    ended = order.run_id if named == "run" else order.context.step_run_id
    ack = harness.report(order, StepDone(step=order.context.step, step_run_id=ended, output=ok()))
    assert not ack.accepted
    assert not harness.of(StepDone)
    harness.complete(order)
    harness.work()
    assert harness.status == "success"


def test_events_of_a_run_that_has_ended_change_nothing_when_a_log_is_folded():
    harness = Harness(TWO).start()
    order = harness.claim()
    harness.complete(order)
    state = harness.refold()
    where = {"step": "start", "step_run_id": order.context.step_run_id}
    late = [
        TaskStarted(**where, task="first", kind="noop"),
        task_done(order, "first"),
        WorkerLost(**where, epoch=1, worker="w1"),
        ChildRequested(**where, task="first", playbook="other"),
        WaitStarted(**where, task="first", signal="go"),
    ]
    before = msgspec.msgpack.decode(encode_state(state))
    for event in late:
        fold(harness.playbook, [Recorded(state.execution_id, state.seq + 1, state.at, event, None)], state)
    after = msgspec.msgpack.decode(encode_state(state))
    assert [number for number, value in enumerate(before) if after[number] != value] == [2]  # the seq
