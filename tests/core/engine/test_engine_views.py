"""Views of an execution: why it waits."""

from __future__ import annotations

from engine_harness import Harness, failure, task_done

from noetl.core.engine.commands import CancelExecution, ExpireLease, PauseExecution, RecordChildStart
from noetl.core.engine.effects import ReturnTurns
from noetl.core.engine.views.waiting import waiting_reasons
from noetl.core.model.events import ChildRequested, WaitStarted
from noetl.core.model.position import Position
from noetl.core.model.quotas.token_bucket import Demand, Turn

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


def reasons(harness: Harness, **more) -> list[tuple[str, str]]:
    return [(each.subject, each.text) for each in waiting_reasons(harness.state, harness.at + 5, **more)]


def test_why_reports_iterations_and_steps_that_wait_for_a_limit():
    text = "\nworkflow:\n  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: each}, {step: one}]}}\n"
    text += "  - {step: each, loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}, tool: {kind: noop}}\n"
    text += "  - {step: one, tool: {kind: noop}}\n"
    harness = Harness(text).start()
    harness.claim("77:each:1/0")
    reached = {"pool default": "the limit of pool default: 1 of 1 slots in use"}
    found = reasons(harness, reached=reached)
    assert ("limit", f'2 iterations of "each" wait for {reached["pool default"]}') in found
    one = next(text for subject, text in found if subject == "limit" and '"one"' in text)
    assert one.startswith('step "one" has been waiting for ') and one.endswith(reached["pool default"])
    assert not any(subject == "limit" for subject, _ in reasons(harness, reached={"pool gpu": "another pool"}))
    assert not any(subject == "limit" for subject, _ in reasons(harness))
    for index in (1, 2):
        harness.claim(f"77:each:1/{index}")
    (left,) = [text for subject, text in reasons(harness, reached=reached) if subject == "limit"]
    assert '"one"' in left


def test_why_reports_a_step_that_waits_for_the_limit_of_a_label():
    harness = Harness("workflow:\n  - {step: start, tool: {kind: noop}}\n").start(labels={"tenant": "acme"})
    (found,) = reasons(harness, reached={"label tenant=acme": "its turn"})
    assert found[0] == "limit" and found[1].endswith("its turn")


def test_why_reports_the_outermost_and_the_innermost_loops():
    text = """
workflow:
  - {step: start, loop: {in: [[[1, 2]]], iterator: a, loop: {in: "{{ iter.a }}", iterator: b, loop: {in: "{{ iter.b }}", iterator: c}}}, tool: {kind: noop}}
"""
    found = [text for subject, text in reasons(Harness(text).start()) if subject == "loop"]
    assert len(found) == 2 and "(in iteration 0.0)" in found[1] and "in iteration" not in found[0]


def quota_wait(order, until: float, key: str = "api") -> WaitStarted:
    return WaitStarted(
        step=order.context.step, step_run_id=order.context.step_run_id, task="t", until=until, path=order.path,
        position=Position(task="t", turn=Turn(until)), quota=Demand(key, 10.0),
    )  # fmt: skip


def test_the_turns_of_runs_that_do_not_wait_for_a_quota_any_more_are_returned():
    loop = "\nworkflow:\n  - {step: each, loop: {in: [1, 2, 3, 4], iterator: n, spec: {mode: parallel}}, tool: [{name: t, kind: noop}]}\n"
    harness = Harness(loop).start()
    orders = [harness.claim(f"77:each:1/{index}") for index in range(4)]
    for order, key in zip(orders, ("api", "other", "api"), strict=False):
        harness.report(order, quota_wait(order, 2000.0 + order.path[0], key))
    effects = harness.send(CancelExecution()).effects
    turns = [(each.demand.key, each.instants) for each in effects if isinstance(each, ReturnTurns)]
    assert turns == [("api", (2000.0, 2002.0)), ("other", (2001.0,))]


def test_why_reports_runs_that_wait_for_a_quota():
    loop = "\nworkflow:\n  - {step: each, loop: {in: [1, 2, 3, 4], iterator: n, spec: {mode: parallel}}, tool: [{name: t, kind: noop}]}\n"
    harness = Harness(loop).start()
    until = harness.at + 60
    orders = [harness.claim(f"77:each:1/{index}") for index in range(4)]
    harness.report(orders[0], quota_wait(orders[0], until + 10))
    harness.report(orders[1], quota_wait(orders[1], until))
    harness.report(orders[2], quota_wait(orders[2], until, "other"))
    quotas = [each for each in waiting_reasons(harness.state, harness.at + 5) if each.subject == "quota"]
    assert [each.text for each in quotas] == [
        '2 iterations of "each" wait for the quota "api" (10/s) the first until 1970-01-01T00:17:41Z (in 48 s), '
        "the last until 1970-01-01T00:17:51Z (in 58 s)",
        'iteration 2 of "each" waits for the quota "other" (10/s) until 1970-01-01T00:17:41Z (in 48 s)',
    ]
    assert [each.due for each in quotas] == [until, until]
    runs = [text for subject, text in reasons(harness) if subject == "run"]
    assert len(runs) == 1 and runs[0].startswith('iteration 3 of "each" has been running')


def test_why_of_a_step_that_waits_for_a_quota():
    harness = Harness("\nworkflow:\n  - {step: one, tool: [{name: t, kind: noop}]}\n").start()
    order = harness.claim("77:one:1")
    harness.report(order, quota_wait(order, harness.at + 60))
    (found,) = reasons(harness)
    assert found[0] == "quota" and found[1].startswith('step "one" waits for the quota "api" (10/s) until ')


def test_why_lists_some_of_many_runs_and_counts_the_rest():
    loop = "\nworkflow:\n  - {step: each, loop: {in: '{{ range(60) | list }}', iterator: n, spec: {mode: parallel}}, tool: {kind: noop}}\n"
    harness = Harness(loop).start()
    for index in range(60):
        harness.claim(f"77:each:1/{index}")
    runs = [text for subject, text in reasons(harness) if subject == "run"]
    listed = [text for text in runs if text.startswith("iteration ")]
    assert len(runs) == len(listed) + 1
    assert runs[-1] == f'and {60 - len(listed)} more iterations of "each" in flight'


def test_why_before_the_request():
    harness = Harness(FAN)
    assert reasons(harness) == [("execution", "the execution has not been requested yet")]


def test_why_shows_the_first_six_values_that_a_closed_gate_reads():
    reads = " and ".join(f"(ctx.v{number} | default(false))" for number in range(8))
    harness = Harness(FAN.replace("ctx.approved | default(false)", reads)).start()
    (gate,) = [text for text in texts(harness) if "gate is closed" in text]
    assert gate.count("is not defined") == 6
