"""Requests, cancellation, pause, timers, children, reruns: what people and time do to an execution."""

from __future__ import annotations

import pytest
from engine_play import Play, boom, finished, playbook, task_done

from noetl.core.engine.advance import outstanding
from noetl.core.engine.commands import (
    CancelExecution,
    ExpireLease,
    FireTimer,
    PauseExecution,
    RecordChildEnd,
    RecordChildStart,
    ResumeExecution,
    SendSignal,
    StartExecution,
)
from noetl.core.engine.effects import AwaitChild, CancelChild, FetchPayload, StartChild
from noetl.core.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    ExecutionRequested,
    Parent,
    RerunSource,
    StepFailed,
    StepScheduled,
    StepSkipped,
    TokenParked,
)
from noetl.core.model.outcome import Outcome, error_info, ok
from noetl.core.model.position import Position
from noetl.errors import PayloadUnavailable

CHAIN = """
workload: WORKLOAD
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: after}]}}
  - {step: after, tool: {kind: noop}}
"""


def workload(text: str, payload=None) -> Play:
    return Play(CHAIN.replace("WORKLOAD", text)).start(payload)


# ── requests ────────────────────────────────────────────────────────────────────────────


def test_the_payload_is_laid_over_the_workload():
    play = workload("{a: {x: 1, y: [1, 2]}, b: 2}", {"a": {"y": [3], "z": 4}, "c": 5})
    assert play.state.workload == {"a": {"x": 1, "y": [3], "z": 4}, "b": 2, "c": 5}


def test_defaults_may_read_each_other_in_any_order():
    play = workload("""{url: "{{ workload.base }}/{{ path }}", path: "p{{ workload.n }}", base: "http://h", n: 3,
        deep: {one: "{{ workload.deep.two + 1 }}", two: "{{ workload.n }}"}, list_: ["{{ workload.url }}", 1]}""")
    assert play.state.workload == {
        "url": "http://h/p3",
        "path": "p3",
        "base": "http://h",
        "n": 3,
        "deep": {"one": 4, "two": 3},
        "list_": ["http://h/p3", 1],
    }


def test_the_payload_itself_is_never_rendered():
    play = workload("{a: 1, b: '{{ workload.a }}'}", {"a": "{{ 1 + 1 }}"})
    assert play.state.workload == {"a": "{{ 1 + 1 }}", "b": "{{ 1 + 1 }}"}


def test_job_and_execution_id_are_known_to_defaults():
    play = workload("{x: '{{ job.uuid }}', y: '{{ job.execution_id }}', z: '{{ execution_id }}'}")
    assert set(play.state.workload.values()) == {"77"}


def test_a_circle_among_defaults_is_named():
    play = workload("{a: '{{ workload.b }}', b: '{{ workload.c }}', c: '{{ workload.a }}'}")
    assert play.status == "failed"
    assert "cyclic workload defaults: a -> b -> c -> a" in play.state.error.message
    assert "test.yaml:5:" in play.state.error.message
    assert play.names[-2:] == ["workflow.finished", "playbook.processed"]
    assert "workflow.started" not in play.names


def test_a_default_that_reads_itself_is_a_circle():
    assert "cyclic workload defaults: a -> a" in workload("{a: '{{ workload.a }}'}").state.error.message


def test_an_overridden_default_breaks_the_circle():
    play = workload("{a: '{{ workload.b }}', b: '{{ workload.a }}'}", {"b": 1})
    assert play.state.workload == {"a": 1, "b": 1}


def test_a_missing_name_in_a_default_fails_the_request():
    play = workload("{a: '{{ workload.nothing }}'}")
    assert play.state.error.kind == "template"
    assert '"workload.nothing" is not defined' in play.state.error.message


def test_a_missing_secret_fails_the_request_before_anything_runs():
    play = Play(CHAIN.replace("WORKLOAD", "{}"))
    missing = error_info("auth", 'the keychain entry "token" was not found')
    play.tell(StartExecution(ExecutionRequested("d", "p"), keychain=("token",), error=missing))
    assert play.status == "failed"
    assert play.scheduled == []
    assert play.state.error == missing


def test_an_execution_is_requested_once():
    play = workload("{}")
    reply = play.tell(StartExecution(ExecutionRequested("d", "p"))).replies[0]
    assert not reply.accepted


@pytest.mark.parametrize("what", ["entry_step", "return_step"])
def test_a_request_that_names_an_unknown_step_fails(what):
    play = Play(CHAIN.replace("WORKLOAD", "{}")).start(**{what: "nowhere"})
    assert play.state.error.kind == "not_found"
    assert "nowhere" in play.state.error.message


def test_a_request_may_begin_elsewhere():
    play = Play(CHAIN.replace("WORKLOAD", "{}")).run(entry_step="after")
    assert play.scheduled == ["after"]


def test_rerun_keeps_earlier_results_and_ctx():
    source = RerunSource("76", from_step="after", results={"start": ok({"x": 5})}, ctx={"c": 1}, args={"a": 2})
    text = CHAIN.replace("WORKLOAD", "{}").replace(
        "{step: after,", '{step: after, input: {x: "{{ start.x + ctx.c + args.a }}", d: "{{ done(\'start\') }}"},'
    )
    play = Play(text).run(rerun=source)
    assert play.scheduled == ["after"]
    assert play.orders[0].context.input == {"x": 8, "d": True}


# ── cancel, pause, signal ───────────────────────────────────────────────────────────────

FAN = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: d}]}}
  - {step: b, tool: {kind: noop}}
  - {step: c, tool: {kind: noop}, spec: {policy: {admit: {rules: [{when: "{{ false }}", then: {allow: true}}]}}}}
  - {step: d, tool: {kind: noop}}
"""


def test_cancelling_ends_everything_at_once_and_exactly_once():
    play = Play(FAN).start()
    order = play.take("77:a:1", worker="w7")
    play.tell(CancelExecution("enough"))
    assert play.status == "cancelled"
    assert [(each.run_id, each.worker, each.epoch) for each in play.cancelled] == [("77:a:1", "w7", 1)]
    assert {each.step for each in play.of(StepFailed)} == {"a", "b"}
    assert {each.output.error.kind for each in play.of(StepFailed)} == {"cancelled"}
    assert [each.step for each in play.of(StepSkipped)] == ["c"]
    assert play.names.count("workflow.finished") == play.names.count("playbook.processed") == 1
    assert play.state.error.message == "enough"
    assert not play.do(order).accepted
    assert not play.tell(CancelExecution()).replies[0].accepted


def test_cancel_and_completion_race_and_the_first_one_wins():
    play = Play(CHAIN.replace("WORKLOAD", "{}")).run()
    assert play.status == "success"
    assert not play.tell(CancelExecution()).replies[0].accepted
    assert play.status == "success"


def test_a_paused_execution_starts_nothing_new_and_ends_nothing():
    play = Play(FAN).start()
    a = play.take("77:a:1")
    play.tell(PauseExecution("lunch"))
    assert play.state.status == "paused"
    assert play.refusal("77:b:1") == "the execution is paused"
    assert play.do(a).accepted
    assert play.scheduled == ["start", "a", "b"]
    assert [each.reason for each in play.of(TokenParked)] == ["admission", "paused"]
    play.queue = []
    play.tell(ResumeExecution())
    assert {each.run_id for each in play.queue} == {"77:b:1", "77:d:1"}
    play.work()
    assert play.status == "success"


def test_a_paused_execution_with_nothing_left_to_do_ends_when_it_is_resumed():
    play = Play(CHAIN.replace("WORKLOAD", "{}").replace("{step: after}", "")).start()
    order = play.take()
    play.tell(PauseExecution())
    play.do(order)
    assert play.status is None
    play.tell(ResumeExecution())
    assert play.status == "success"


def test_a_paused_loop_goes_on_where_it_was():
    play = Play(
        """
workflow:
  - step: start
    loop: {in: [1, 2, 3, 4], iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop}
"""
    ).start()
    order = play.take()
    play.tell(PauseExecution())
    play.do(order)
    assert play.refusal("77:start:1/1") == "the execution is paused"
    play.queue = []
    play.tell(ResumeExecution())
    assert [each.run_id for each in play.queue] == ["77:start:1/1", "77:start:1/2"]
    assert play.work().status == "success"


def test_a_paused_execution_can_be_cancelled():
    play = Play(FAN).start()
    play.tell(PauseExecution())
    play.tell(CancelExecution())
    assert play.status == "cancelled"


def test_a_signal_patches_ctx_key_by_key():
    play = Play(FAN).start()
    play.tell(SendSignal("s", {"a": {"x": 1}}))
    play.tell(SendSignal("s", {"a.y": 2}))
    assert play.state.ctx == {"a": {"x": 1, "y": 2}}


# ── time ────────────────────────────────────────────────────────────────────────────────

TIMED = """
workflow:
  - step: start
    spec: {policy: {lifecycle: {LIMIT}}}
    tool: {kind: noop}
    next: {arcs: [{step: late, when: "{{ event.name == 'step.failed' and output.error.kind == 'timeout' }}"}]}
  - {step: late, tool: {kind: noop}}
"""


def test_a_step_times_out_from_its_first_start():
    play = Play(TIMED.replace("LIMIT", "timeout_s: 10")).start()
    assert play.timer is None
    order = play.take()
    assert play.timer == play.at + 10
    assert order.timeout_s == 10
    started = play.at
    play.tell(FireTimer(), at=started + 9.9)
    assert play.scheduled == ["start"]
    play.tell(ExpireLease(order.run_id, order.epoch), at=started + 9.95)
    assert play.timer == started + 10
    play.tell(FireTimer(), at=started + 10)
    assert play.scheduled == ["start", "late"]
    assert play.timer is None
    assert "exceeded its timeout of 10 s" in play.of(StepFailed)[0].output.error.message


def test_a_timed_out_worker_is_told_and_no_longer_believed():
    play = Play(TIMED.replace("LIMIT", "timeout_s: 1")).start()
    order = play.take(worker="w3")
    play.tell(FireTimer(), at=play.at + 5)
    assert [(each.worker, each.reason) for each in play.cancelled] == [("w3", "timeout")]
    assert not play.do(order).accepted


def test_a_deadline_counts_from_the_start_of_the_execution():
    play = Play(TIMED.replace("LIMIT", 'deadline_s: "{{ 20 + 10 }}"')).start()
    assert play.timer == 1001.0 + 30
    play.tell(FireTimer(), at=1031.0)
    assert play.scheduled == ["start", "late"]
    assert "deadline" in play.of(StepFailed)[0].output.error.message


def test_a_loop_that_times_out_says_how_far_it_came():
    play = Play(
        """
workflow:
  - step: start
    spec: {policy: {lifecycle: {timeout_s: 5}}}
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {kind: noop}
"""
    ).start()
    first, second = play.take(), play.take()
    play.do(first)
    play.tell(FireTimer(), at=play.at + 10)
    assert play.status == "failed"
    assert play.state.output.helpers["loop"] == {"total": 3, "succeeded": 1, "failed": 0, "skipped": 2}
    assert [each.run_id for each in play.cancelled] == [second.run_id]


@pytest.mark.parametrize("limit", ["timeout_s: '{{ \"soon\" }}'", "timeout_s: '{{ 0 - 1 }}'"])
def test_a_timeout_that_is_no_number_fails_the_step(limit):
    play = Play(TIMED.replace("LIMIT", limit)).run()
    assert play.of(StepFailed)[0].output.error.kind == "template"


def test_the_steps_own_set_applies_to_a_timeout_too():
    text = TIMED.replace("LIMIT", "timeout_s: 1").replace(
        "    tool: {kind: noop}\n    next",
        '    tool: {kind: noop}\n    set: {ctx.why: "{{ output.error.kind }}"}\n    next',
    )
    text = text.replace("set: {", 'set: {ctx.id: "{{ output.data.id }}", ')
    play = Play(text).start()
    play.take()
    play.tell(FireTimer(), at=play.at + 5)
    assert play.state.ctx == {"why": "timeout"}
    assert play.of(StepFailed)[0].output.error.details["unset"] == ["ctx.id"]


# ── children ────────────────────────────────────────────────────────────────────────────

CALLER = """
workflow:
  - step: start
    tool: {name: call, kind: playbook, path: child}
    next: {arcs: [{step: bad, when: "{{ event.name == 'step.failed' }}"}, {step: after}]}
  - {step: after, tool: {kind: noop}}
  - {step: bad, tool: {kind: noop}}
"""


def ask_for_child(play: Play, order, **extra) -> str:
    request = ChildRequested(
        step=order.context.step,
        step_run_id=order.context.step_run_id,
        task="call",
        playbook="child",
        payload={"n": 1},
        path=order.path,
        position=Position(task="call"),
        **extra,
    )
    assert play.report(order, request).accepted
    return play.children[-1].key if play.children else ""


def test_a_child_holds_no_worker_and_its_output_resumes_the_run():
    play = Play(CALLER).start()
    order = play.take()
    key = ask_for_child(play, order)
    (start,) = play.children
    assert start.parent == Parent("77", "77:start:1", key, 1)
    assert (start.playbook, start.payload) == ("child", {"n": 1})
    assert key == "77:start:1:call:1:1"
    assert play.refusal(order.run_id) == "the run is suspended"
    assert not play.tell(ExpireLease(order.run_id, order.epoch)).replies[0].accepted
    play.tell(RecordChildStart(key, "900"))
    assert AwaitChild(key, "900") in outstanding(play.state)
    play.tell(RecordChildEnd(key, "900", ok({"r": 1})))
    again = play.take()
    assert again.resume == ok({"r": 1})
    assert again.position.task == "call"
    assert again.epoch == 2
    play.do(again)
    assert play.scheduled == ["start", "after"]


def test_the_childs_output_is_kept_for_the_next_worker_when_one_is_lost():
    play = Play(CALLER).start()
    key = ask_for_child(play, play.take())
    play.tell(RecordChildEnd(key, "900", ok(3)))
    order = play.take()
    play.tell(ExpireLease(order.run_id, order.epoch))
    again = play.take()
    assert again.resume == ok(3)
    play.report(again, task_done(again, "call", ok(3), position=Position(task=None)))
    play.tell(ExpireLease(again.run_id, again.epoch))
    assert play.take().resume is None


def test_a_restart_asks_for_the_same_child_again():
    play = Play(CALLER).start()
    key = ask_for_child(play, play.take())
    (start,) = [each for each in outstanding(play.refold()) if isinstance(each, StartChild)]
    assert start.key == key


def test_a_childs_end_is_told_once():
    play = Play(CALLER).start()
    key = ask_for_child(play, play.take())
    assert play.tell(RecordChildStart(key, "900")).replies[0].accepted
    assert play.tell(RecordChildStart(key, "900")).replies[0].accepted
    assert len(play.of(ChildStarted)) == 1
    assert play.tell(RecordChildEnd(key, "900", ok())).replies[0].accepted
    assert not play.tell(RecordChildEnd(key, "900", ok())).replies[0].accepted


def test_without_wait_the_run_goes_on_when_the_child_exists():
    play = Play(CALLER).start()
    key = ask_for_child(play, play.take(), wait=False)
    play.tell(RecordChildStart(key, "900"))
    order = play.take()
    assert order.resume.data == {"execution_id": "900", "status": "started"}
    play.do(order)
    play.work()
    assert play.status == "success"
    assert play.child_cancels == []


def test_cancelling_the_caller_cancels_the_child_and_waits_for_it():
    play = Play(CALLER).start()
    key = ask_for_child(play, play.take())
    play.tell(RecordChildStart(key, "900"))
    play.tell(CancelExecution())
    assert [(each.key, each.child) for each in play.child_cancels] == [(key, "900")]
    assert play.status is None
    assert [type(each) for each in outstanding(play.refold())] == [CancelChild]
    play.tell(RecordChildEnd(key, "900", boom("cancelled", "cancelled")))
    assert play.status == "cancelled"


def test_a_failure_elsewhere_cancels_the_child():
    more = """workflow:
  - {step: begin, next: {spec: {mode: inclusive}, arcs: [{step: start}, {step: x}]}}
  - {step: x, tool: {kind: noop}}
"""
    text = CALLER.replace("workflow:\n", more)
    play = Play("executor: {spec: {entry_step: begin}}\n" + text).start()
    key = ask_for_child(play, play.take("77:start:1"))
    play.tell(RecordChildStart(key, "900"))
    play.do(play.take("77:x:1"), boom())
    assert [each.child for each in play.child_cancels] == ["900"]
    play.tell(RecordChildEnd(key, "900", boom("cancelled", "x")))
    assert play.status == "failed"
    assert play.state.error.kind == "server_error"


def test_a_timeout_of_the_calling_step_cancels_the_child():
    text = CALLER.replace(
        "    tool: {name: call", "    spec: {policy: {lifecycle: {timeout_s: 5}}}\n    tool: {name: call"
    )
    play = Play(text).start()
    key = ask_for_child(play, play.take())
    play.tell(RecordChildStart(key, "900"))
    play.tell(FireTimer(), at=play.at + 10)
    assert [each.child for each in play.child_cancels] == ["900"]
    assert play.scheduled == ["start", "bad"]
    play.work()
    assert play.status is None  # the child has not ended yet
    play.tell(RecordChildEnd(key, "900", boom("cancelled", "x")))
    assert play.status == "success"


def test_a_child_answers_its_parent_with_its_output_or_its_error():
    parent = Parent("1", "1:s:1", "1:s:1:call:1:1", 1)
    play = Play(CHAIN.replace("WORKLOAD", "{}"), {"after": ok(9)}).run(parent=parent)
    (answer,) = play.answers
    assert (answer.parent, answer.child, answer.outcome) == (parent, "77", ok(9))
    play = Play(CHAIN.replace("WORKLOAD", "{}"), {"after": boom()}).run(parent=parent)
    assert play.answers[0].outcome.error.kind == "server_error"
    play = Play(CHAIN.replace("WORKLOAD", "{}")).start(parent=parent)
    play.tell(CancelExecution("stop"))
    assert play.answers[0].outcome.error.kind == "cancelled"
    assert outstanding(play.refold()) == play.answers


def test_calls_have_a_depth_limit():
    play = Play(CALLER).start(parent=Parent("1", "r", "t", 32))
    ask_for_child(play, play.take())
    assert play.children == []
    (finished_,) = play.of(ChildFinished)
    assert finished_.outcome.error.kind == "limit"
    assert play.take().resume.error.kind == "limit"


# ── stored payloads ─────────────────────────────────────────────────────────────────────


def stored(play: Play, order, **extracts) -> Outcome:
    reference = play.store("big", {"count": 3, "rows": [1, 2, 3]})
    return Outcome("ok", ref=reference, extracts=extracts)


READER = """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: after, when: "{{ output.data.count == 3 }}"}]}}
  - {step: after, input: INPUT, tool: {kind: noop}}
"""


def test_a_guard_over_an_extract_needs_nothing():
    play = Play(READER.replace("INPUT", "{}")).start()
    order = play.take()
    play.do(order, stored(play, order, **{"data.count": 3}))
    assert play.scheduled == ["start", "after"]
    assert play.requests == []


def test_a_guard_over_a_stored_payload_asks_for_it():
    play = Play(READER.replace("INPUT", "{}")).start()
    order = play.take()
    play.do(order, stored(play, order))
    assert play.scheduled == ["start", "after"]
    assert [type(request) for request in play.requests] == [FetchPayload]


def test_a_payload_that_cannot_be_had_fails_the_execution_in_words():
    play = Play(READER.replace("INPUT", "{}")).start()
    order = play.take()
    outcome = stored(play, order)
    play.stored["big"] = PayloadUnavailable("the file is gone", kind="ref.corrupt")
    play.do(order, outcome)
    assert play.state.error.kind == "ref.corrupt"
    assert "the file is gone" in play.state.error.message


def test_an_input_over_a_stored_payload_is_left_to_the_worker():
    play = Play(READER.replace("INPUT", '{rows: "{{ start.rows }}"}')).start()
    order = play.take()
    outcome = stored(play, order, **{"data.count": 3})
    play.do(order, outcome)
    assert play.requests == []
    after = play.take()
    assert after.context.defer_input
    assert after.context.input == {}
    assert after.context.results == {"start": outcome}


def test_an_input_that_would_not_fit_into_the_log_is_left_to_the_worker():
    play = Play(READER.replace("INPUT", '{rows: "{{ [start.text] * 3 }}"}')).start()
    order = play.take()
    play.do(order, ok({"count": 3, "text": "x" * 30_000}))
    assert play.of(StepScheduled)[-1].defer_input


def test_secrets_cannot_be_read_on_the_server():
    from msgspec.structs import replace

    book = playbook(READER.replace("INPUT", "{}"))
    first = book.steps[0]
    arc = replace(first.router.arcs[0], when="{{ keychain.token }}")
    book = replace(book, steps=(replace(first, router=replace(first.router, arcs=(arc,))), book.steps[1]))
    play = Play(book).run()
    assert play.status == "failed"
    assert "secrets are not available" in play.state.error.message


def test_a_finished_run_reports_its_patch_even_when_its_step_failed():
    play = Play(CHAIN.replace("WORKLOAD", "{}")).start()
    order = play.take()
    play.report(order, *finished(order, boom(), patch={"seen": True}))
    assert play.state.ctx == {"seen": True}
    assert play.status == "failed"
