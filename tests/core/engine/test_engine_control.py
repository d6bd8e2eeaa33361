"""Requests, cancellation, pause, timers, children, reruns."""

from __future__ import annotations

import pytest
from engine_harness import Harness, failure, finished, playbook, task_done

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
from noetl.core.engine.snapshot import decode_state, encode_state
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


def workload(text: str, payload=None) -> Harness:
    return Harness(CHAIN.replace("WORKLOAD", text)).start(payload)


# ── requests ────────────────────────────────────────────────────────────────────────────


def test_the_payload_is_merged_over_the_workload():
    harness = workload("{a: {x: 1, y: [1, 2]}, b: 2}", {"a": {"y": [3], "z": 4}, "c": 5})
    assert harness.state.workload == {"a": {"x": 1, "y": [3], "z": 4}, "b": 2, "c": 5}


def test_defaults_may_read_each_other_in_any_order():
    harness = workload("""{url: "{{ workload.base }}/{{ path }}", path: "p{{ workload.n }}", base: "http://h", n: 3,
        deep: {one: "{{ workload.deep.two + 1 }}", two: "{{ workload.n }}"}, list_: ["{{ workload.url }}", 1]}""")
    assert harness.state.workload == {
        "url": "http://h/p3",
        "path": "p3",
        "base": "http://h",
        "n": 3,
        "deep": {"one": 4, "two": 3},
        "list_": ["http://h/p3", 1],
    }


def test_the_payload_itself_is_never_rendered():
    harness = workload("{a: 1, b: '{{ workload.a }}'}", {"a": "{{ 1 + 1 }}"})
    assert harness.state.workload == {"a": "{{ 1 + 1 }}", "b": "{{ 1 + 1 }}"}


def test_defaults_can_read_job_and_execution_id():
    harness = workload("{x: '{{ job.uuid }}', y: '{{ job.execution_id }}', z: '{{ execution_id }}'}")
    assert set(harness.state.workload.values()) == {"77"}


@pytest.mark.parametrize("default", ["'{{ 1 + 1 }}'", "2"])
@pytest.mark.parametrize(
    ("name", "found"), [("job", {"uuid": "77", "execution_id": "77"}), ("execution_id", "77"), ("workload", 3)]
)
def test_a_default_does_not_hide_a_name_of_the_engine(name, default, found):
    read = "workload.y" if name == "workload" else name
    harness = workload(f"{{{name}: {default}, x: '{{{{ {read} }}}}', y: 3}}")
    assert harness.state.workload == {name: 2, "x": found, "y": 3}


def test_a_cycle_among_defaults_is_reported_with_its_keys():
    harness = workload("{a: '{{ workload.b }}', b: '{{ workload.c }}', c: '{{ workload.a }}'}")
    assert harness.status == "failed"
    assert "cyclic workload defaults: a -> b -> c -> a" in harness.state.error.message
    assert "test.yaml:5:" in harness.state.error.message
    assert harness.names[-2:] == ["workflow.finished", "playbook.processed"]
    assert "workflow.started" not in harness.names


def test_a_cycle_does_not_name_defaults_that_were_evaluated_on_the_way():
    harness = workload("{a: '{{ workload.b }}{{ workload.c }}', b: '{{ 1 + 1 }}', c: '{{ workload.a }}'}")
    assert "cyclic workload defaults: a -> c -> a" in harness.state.error.message


def test_a_key_is_not_defined_inside_its_own_default():
    assert '"workload.a" is not defined here' in workload("{a: '{{ workload.a }}'}").state.error.message
    assert workload("{a: '{{ a | default(1) }}'}").state.workload == {"a": 1}
    assert workload("{a: {b: '{{ workload.a.b | default(2) }}'}}").state.workload == {"a": {"b": 2}}


def test_an_overridden_default_breaks_the_cycle():
    harness = workload("{a: '{{ workload.b }}', b: '{{ workload.a }}'}", {"b": 1})
    assert harness.state.workload == {"a": 1, "b": 1}


def test_a_missing_name_in_a_default_fails_the_request():
    harness = workload("{a: '{{ workload.nothing }}'}")
    assert harness.state.error.kind == "template"
    assert '"workload.nothing" is not defined' in harness.state.error.message


def test_a_missing_secret_fails_the_request_before_anything_runs():
    harness = Harness(CHAIN.replace("WORKLOAD", "{}"))
    missing = error_info("auth", 'the keychain entry "token" was not found')
    harness.send(StartExecution(ExecutionRequested("d", "p"), keychain=("token",), error=missing))
    assert harness.status == "failed"
    assert harness.scheduled == []
    assert harness.state.error == missing


def test_an_execution_is_requested_once():
    harness = workload("{}")
    reply = harness.send(StartExecution(ExecutionRequested("d", "p"))).replies[0]
    assert not reply.accepted


@pytest.mark.parametrize("what", ["entry_step", "return_step"])
def test_a_request_that_names_an_unknown_step_fails(what):
    harness = Harness(CHAIN.replace("WORKLOAD", "{}")).start(**{what: "nowhere"})
    assert harness.state.error.kind == "not_found"
    assert "nowhere" in harness.state.error.message


def test_a_request_may_name_its_entry_step():
    harness = Harness(CHAIN.replace("WORKLOAD", "{}")).run(entry_step="after")
    assert harness.scheduled == ["after"]


def test_a_rerun_reuses_earlier_results_and_ctx():
    source = RerunSource("76", from_step="after", results={"start": ok({"x": 5})}, ctx={"c": 1}, args={"a": 2})
    text = CHAIN.replace("WORKLOAD", "{}").replace(
        "{step: after,", '{step: after, input: {x: "{{ start.x + ctx.c + args.a }}", d: "{{ done(\'start\') }}"},'
    )
    harness = Harness(text).run(rerun=source)
    assert harness.scheduled == ["after"]
    assert harness.orders[0].context.input == {"x": 8, "d": True}


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
    harness = Harness(FAN).start()
    order = harness.claim("77:a:1", worker="w7")
    harness.send(CancelExecution("enough"))
    assert harness.status == "cancelled"
    assert [(each.run_id, each.worker, each.epoch) for each in harness.cancelled] == [("77:a:1", "w7", 1)]
    assert {each.step for each in harness.of(StepFailed)} == {"a", "b"}
    assert {each.output.error.kind for each in harness.of(StepFailed)} == {"cancelled"}
    assert [each.step for each in harness.of(StepSkipped)] == ["c"]
    assert harness.names.count("workflow.finished") == harness.names.count("playbook.processed") == 1
    assert harness.state.error.message == "enough"
    assert not harness.complete(order).accepted
    assert not harness.send(CancelExecution()).replies[0].accepted


def test_cancel_and_completion_race_and_the_first_one_wins():
    harness = Harness(CHAIN.replace("WORKLOAD", "{}")).run()
    assert harness.status == "success"
    assert not harness.send(CancelExecution()).replies[0].accepted
    assert harness.status == "success"


def test_a_paused_execution_starts_nothing_new_and_ends_nothing():
    harness = Harness(FAN).start()
    a = harness.claim("77:a:1")
    harness.send(PauseExecution("lunch"))
    assert harness.state.status == "paused"
    assert harness.rejection("77:b:1") == "the execution is paused"
    assert harness.complete(a).accepted
    assert harness.scheduled == ["start", "a", "b"]
    assert [each.reason for each in harness.of(TokenParked)] == ["admission", "paused"]
    harness.queue = []
    harness.send(ResumeExecution())
    assert {each.run_id for each in harness.queue} == {"77:b:1", "77:d:1"}
    harness.work()
    assert harness.status == "success"


def test_a_paused_execution_with_nothing_left_to_do_ends_when_it_is_resumed():
    harness = Harness(CHAIN.replace("WORKLOAD", "{}").replace("{step: after}", "")).start()
    order = harness.claim()
    harness.send(PauseExecution())
    harness.complete(order)
    assert harness.status is None
    harness.send(ResumeExecution())
    assert harness.status == "success"


def test_a_paused_loop_resumes_where_it_was():
    harness = Harness(
        """
workflow:
  - step: start
    loop: {in: [1, 2, 3, 4], iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop}
"""
    ).start()
    order = harness.claim()
    harness.send(PauseExecution())
    harness.complete(order)
    assert harness.rejection("77:start:1/1") == "the execution is paused"
    harness.queue = []
    harness.send(ResumeExecution())
    assert [each.run_id for each in harness.queue] == ["77:start:1/1", "77:start:1/2"]
    assert harness.work().status == "success"


def test_a_paused_execution_can_be_cancelled():
    harness = Harness(FAN).start()
    harness.send(PauseExecution())
    harness.send(CancelExecution())
    assert harness.status == "cancelled"


def test_a_signal_patches_ctx_key_by_key():
    harness = Harness(FAN).start()
    harness.send(SendSignal("s", {"a": {"x": 1}}))
    harness.send(SendSignal("s", {"a.y": 2}))
    assert harness.state.ctx == {"a": {"x": 1, "y": 2}}


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
    harness = Harness(TIMED.replace("LIMIT", "timeout_s: 10")).start()
    assert harness.timer is None
    order = harness.claim()
    assert harness.timer == harness.at + 10
    assert order.timeout_s == 10
    started = harness.at
    harness.send(FireTimer(), at=started + 9.9)
    assert harness.scheduled == ["start"]
    harness.send(ExpireLease(order.run_id, order.epoch), at=started + 9.95)
    assert harness.timer == started + 10
    harness.send(FireTimer(), at=started + 10)
    assert harness.scheduled == ["start", "late"]
    assert harness.timer is None
    assert "exceeded its timeout of 10 s" in harness.of(StepFailed)[0].output.error.message


def test_a_timed_out_run_is_cancelled_and_its_reports_are_rejected():
    harness = Harness(TIMED.replace("LIMIT", "timeout_s: 1")).start()
    order = harness.claim(worker="w3")
    harness.send(FireTimer(), at=harness.at + 5)
    assert [each.worker for each in harness.cancelled] == ["w3"]
    assert not harness.complete(order).accepted


def test_a_deadline_counts_from_the_start_of_the_execution():
    harness = Harness(TIMED.replace("LIMIT", 'deadline_s: "{{ 20 + 10 }}"')).start()
    assert harness.timer == 1001.0 + 30
    harness.send(FireTimer(), at=1031.0)
    assert harness.scheduled == ["start", "late"]
    assert "deadline" in harness.of(StepFailed)[0].output.error.message


def test_a_loop_that_times_out_reports_its_progress():
    harness = Harness(
        """
workflow:
  - step: start
    spec: {policy: {lifecycle: {timeout_s: 5}}}
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {kind: noop}
"""
    ).start()
    first, second = harness.claim(), harness.claim()
    harness.complete(first)
    harness.send(FireTimer(), at=harness.at + 10)
    assert harness.status == "failed"
    assert harness.state.output.helpers["loop"] == {"total": 3, "succeeded": 1, "failed": 0, "skipped": 2}
    assert [each.run_id for each in harness.cancelled] == [second.run_id]


@pytest.mark.parametrize("limit", ["timeout_s: '{{ \"soon\" }}'", "timeout_s: '{{ 0 - 1 }}'"])
def test_a_timeout_that_is_no_number_fails_the_step(limit):
    harness = Harness(TIMED.replace("LIMIT", limit)).run()
    assert harness.of(StepFailed)[0].output.error.kind == "template"


def test_the_steps_own_set_applies_to_a_timeout_too():
    text = TIMED.replace("LIMIT", "timeout_s: 1").replace(
        "    tool: {kind: noop}\n    next",
        '    tool: {kind: noop}\n    set: {ctx.why: "{{ output.error.kind }}"}\n    next',
    )
    text = text.replace("set: {", 'set: {ctx.id: "{{ output.data.id }}", ')
    harness = Harness(text).start()
    harness.claim()
    harness.send(FireTimer(), at=harness.at + 5)
    assert harness.state.ctx == {"why": "timeout"}
    assert harness.of(StepFailed)[0].output.error.details["unset"].keys() == {"ctx.id"}


# ── children ────────────────────────────────────────────────────────────────────────────

CALLER = """
workflow:
  - step: start
    tool: {name: call, kind: playbook, path: child}
    next: {arcs: [{step: bad, when: "{{ event.name == 'step.failed' }}"}, {step: after}]}
  - {step: after, tool: {kind: noop}}
  - {step: bad, tool: {kind: noop}}
"""


def ask_for_child(harness: Harness, order, **extra) -> str:
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
    assert harness.report(order, request).accepted
    return harness.children[-1].key if harness.children else ""


def test_a_child_takes_no_worker_slot_and_its_output_resumes_the_run():
    harness = Harness(CALLER).start()
    order = harness.claim()
    key = ask_for_child(harness, order)
    (start,) = harness.children
    assert start.parent == Parent("77", "77:start:1", key, 1)
    assert (start.playbook, start.payload) == ("child", {"n": 1})
    assert key == "77:start:1:call:1:1"
    assert harness.rejection(order.run_id) == "the run is suspended"
    assert not harness.send(ExpireLease(order.run_id, order.epoch)).replies[0].accepted
    harness.send(RecordChildStart(key, "900"))
    assert AwaitChild(key, "900") in outstanding(harness.state)
    harness.send(RecordChildEnd(key, "900", ok({"r": 1})))
    again = harness.claim()
    assert again.resume == ok({"r": 1})
    assert again.position.task == "call"
    assert again.epoch == 2
    harness.complete(again)
    assert harness.scheduled == ["start", "after"]


def test_the_output_of_a_child_survives_a_lost_worker():
    harness = Harness(CALLER).start()
    key = ask_for_child(harness, harness.claim())
    harness.send(RecordChildEnd(key, "900", ok(3)))
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    again = harness.claim()
    assert again.resume == ok(3)
    harness.report(again, task_done(again, "call", ok(3), position=Position(task=None)))
    harness.send(ExpireLease(again.run_id, again.epoch))
    assert harness.claim().resume is None


def test_a_restart_requests_the_same_child_again():
    harness = Harness(CALLER).start()
    key = ask_for_child(harness, harness.claim())
    (start,) = [each for each in outstanding(harness.refold()) if isinstance(each, StartChild)]
    assert start.key == key


def test_the_end_of_a_child_is_accepted_once():
    harness = Harness(CALLER).start()
    key = ask_for_child(harness, harness.claim())
    assert harness.send(RecordChildStart(key, "900")).replies[0].accepted
    assert harness.send(RecordChildStart(key, "900")).replies[0].accepted
    assert len(harness.of(ChildStarted)) == 1
    assert harness.send(RecordChildEnd(key, "900", ok())).replies[0].accepted
    assert not harness.send(RecordChildEnd(key, "900", ok())).replies[0].accepted


def test_without_wait_the_run_continues_once_the_child_exists():
    harness = Harness(CALLER).start()
    key = ask_for_child(harness, harness.claim(), wait=False)
    harness.send(RecordChildStart(key, "900"))
    order = harness.claim()
    assert order.resume.data == {"execution_id": "900", "status": "started"}
    harness.complete(order)
    harness.work()
    assert harness.status == "success"
    assert harness.child_cancels == []


def test_cancelling_the_caller_cancels_the_child_and_waits_for_it():
    harness = Harness(CALLER).start()
    key = ask_for_child(harness, harness.claim())
    harness.send(RecordChildStart(key, "900"))
    harness.send(CancelExecution())
    assert [(each.key, each.child) for each in harness.child_cancels] == [(key, "900")]
    assert harness.status is None
    assert [type(each) for each in outstanding(harness.refold())] == [CancelChild]
    harness.send(RecordChildEnd(key, "900", failure("cancelled", "cancelled")))
    assert harness.status == "cancelled"


def test_a_failure_elsewhere_cancels_the_child():
    more = """workflow:
  - {step: begin, next: {spec: {mode: inclusive}, arcs: [{step: start}, {step: x}]}}
  - {step: x, tool: {kind: noop}}
"""
    text = CALLER.replace("workflow:\n", more)
    harness = Harness("executor: {spec: {entry_step: begin}}\n" + text).start()
    key = ask_for_child(harness, harness.claim("77:start:1"))
    harness.send(RecordChildStart(key, "900"))
    harness.complete(harness.claim("77:x:1"), failure())
    assert [each.child for each in harness.child_cancels] == ["900"]
    harness.send(RecordChildEnd(key, "900", failure("cancelled", "x")))
    assert harness.status == "failed"
    assert harness.state.error.kind == "server_error"


def test_a_timeout_of_the_calling_step_cancels_the_child():
    text = CALLER.replace(
        "    tool: {name: call", "    spec: {policy: {lifecycle: {timeout_s: 5}}}\n    tool: {name: call"
    )
    harness = Harness(text).start()
    key = ask_for_child(harness, harness.claim())
    harness.send(RecordChildStart(key, "900"))
    harness.send(FireTimer(), at=harness.at + 10)
    assert [each.child for each in harness.child_cancels] == ["900"]
    assert harness.scheduled == ["start", "bad"]
    harness.work()
    assert harness.status is None  # the child has not ended yet
    harness.send(RecordChildEnd(key, "900", failure("cancelled", "x")))
    assert harness.status == "success"


def test_a_child_answers_its_parent_with_its_output_or_its_error():
    parent = Parent("1", "1:s:1", "1:s:1:call:1:1", 1)
    harness = Harness(CHAIN.replace("WORKLOAD", "{}"), {"after": ok(9)}).run(parent=parent)
    (answer,) = harness.answers
    assert (answer.parent, answer.child, answer.outcome) == (parent, "77", ok(9))
    harness = Harness(CHAIN.replace("WORKLOAD", "{}"), {"after": failure()}).run(parent=parent)
    assert harness.answers[0].outcome.error.kind == "server_error"
    harness = Harness(CHAIN.replace("WORKLOAD", "{}")).start(parent=parent)
    harness.send(CancelExecution("stop"))
    assert harness.answers[0].outcome.error.kind == "cancelled"
    assert outstanding(harness.refold()) == harness.answers


def test_calls_have_a_depth_limit():
    harness = Harness(CALLER).start(parent=Parent("1", "r", "t", 32))
    ask_for_child(harness, harness.claim())
    assert harness.children == []
    (finished_,) = harness.of(ChildFinished)
    assert finished_.outcome.error.kind == "limit"
    assert harness.claim().resume.error.kind == "limit"


# ── stored payloads ─────────────────────────────────────────────────────────────────────


def stored(harness: Harness, order, **extracts) -> Outcome:
    reference = harness.store("big", {"count": 3, "rows": [1, 2, 3]})
    return Outcome("ok", ref=reference, extracts=extracts)


READER = """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: after, when: "{{ output.data.count == 3 }}"}]}}
  - {step: after, input: INPUT, tool: {kind: noop}}
"""


def test_a_guard_over_an_extract_requests_no_data():
    harness = Harness(READER.replace("INPUT", "{}")).start()
    order = harness.claim()
    harness.complete(order, stored(harness, order, **{"data.count": 3}))
    assert harness.scheduled == ["start", "after"]
    assert harness.requests == []


def test_a_guard_over_a_stored_payload_requests_it():
    harness = Harness(READER.replace("INPUT", "{}")).start()
    order = harness.claim()
    harness.complete(order, stored(harness, order))
    assert harness.scheduled == ["start", "after"]
    assert [type(request) for request in harness.requests] == [FetchPayload]


def test_an_unavailable_payload_fails_the_execution_with_its_message():
    harness = Harness(READER.replace("INPUT", "{}")).start()
    order = harness.claim()
    outcome = stored(harness, order)
    harness.stored["big"] = PayloadUnavailable("the file is gone", kind="ref.corrupt")
    harness.complete(order, outcome)
    assert harness.state.error.kind == "ref.corrupt"
    assert "the file is gone" in harness.state.error.message


def test_an_input_over_a_stored_payload_is_evaluated_by_the_worker():
    harness = Harness(READER.replace("INPUT", '{rows: "{{ start.rows }}"}')).start()
    order = harness.claim()
    outcome = stored(harness, order, **{"data.count": 3})
    harness.complete(order, outcome)
    assert harness.requests == []
    after = harness.claim()
    assert after.context.defer_input
    assert after.context.input == {}
    assert after.context.results == {"start": outcome}


def test_an_input_too_large_for_the_log_is_evaluated_by_the_worker():
    harness = Harness(READER.replace("INPUT", '{rows: "{{ [start.text] * 3 }}"}')).start()
    order = harness.claim()
    harness.complete(order, ok({"count": 3, "text": "x" * 30_000}))
    assert harness.of(StepScheduled)[-1].defer_input


def test_secrets_are_not_available_on_the_server():
    from msgspec.structs import replace

    book = playbook(READER.replace("INPUT", "{}"))
    first = book.steps[0]
    arc = replace(first.router.arcs[0], when="{{ keychain.token }}")
    book = replace(book, steps=(replace(first, router=replace(first.router, arcs=(arc,))), book.steps[1]))
    harness = Harness(book).run()
    assert harness.status == "failed"
    assert "secrets are not available" in harness.state.error.message


def test_a_finished_run_reports_its_patch_even_when_its_step_failed():
    harness = Harness(CHAIN.replace("WORKLOAD", "{}")).start()
    order = harness.claim()
    harness.report(order, *finished(order, failure(), patch={"seen": True}))
    assert harness.state.ctx == {"seen": True}
    assert harness.status == "failed"


@pytest.mark.parametrize("command", [PauseExecution, ResumeExecution, CancelExecution, SendSignal])
def test_a_repeated_command_with_its_key_has_no_second_effect(command):
    harness = Harness("workflow:\n  - {step: start, tool: {kind: noop}}\n").start()
    harness.claim()
    if command is ResumeExecution:
        harness.send(PauseExecution())
    assert harness.send(command(id="k")).replies[0].accepted
    before = len(harness.log)
    assert harness.send(command(id="k")).replies[0].accepted
    assert len(harness.log) == before and "k" in harness.refold().signal_ids
    if command is PauseExecution:  # a late repetition after the resumption
        harness.send(ResumeExecution())
        assert harness.send(command(id="k")).replies[0].accepted and not harness.state.paused


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (SendSignal(payload={"go": 1}, id="k"), SendSignal(payload={"go": 2}, id="k")),
        (SendSignal("a", {"go": 1}, id="k"), SendSignal("b", {"go": 1}, id="k")),
        (PauseExecution(id="k"), ResumeExecution(id="k")),
        (PauseExecution(id="k"), SendSignal(payload={"go": 1}, id="k")),
        (CancelExecution(compensate=True, id="k"), CancelExecution(id="k")),
    ],
)
def test_a_key_with_another_command_is_refused(first, other):
    harness = Harness("workflow:\n  - {step: start, tool: {kind: noop}}\n").start()
    harness.claim()
    assert harness.send(first).replies[0].accepted
    before = len(harness.log)
    reply = harness.send(other).replies[0]
    assert not reply.accepted and "used for another command" in reply.reason and len(harness.log) == before
    assert harness.send(first).replies[0].accepted and len(harness.log) == before
    restored = decode_state(harness.state.playbook, encode_state(harness.state))
    assert restored.signal_ids == harness.refold().signal_ids == harness.state.signal_ids


def test_the_key_of_a_command_that_changed_nothing_is_remembered():
    harness = Harness("workflow:\n  - {step: start, tool: {kind: noop}}\n").start()
    harness.claim()
    harness.send(PauseExecution())
    assert harness.send(PauseExecution(id="k")).replies[0].accepted
    harness.send(ResumeExecution())
    assert harness.send(PauseExecution(id="k")).replies[0].accepted and not harness.state.paused
