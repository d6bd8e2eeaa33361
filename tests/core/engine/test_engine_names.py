"""What server-side templates (arcs, gates, `set` of steps) read: status and results of steps, events, iterations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from engine_harness import Harness, failure

from noetl.core.engine.evaluation.names import _Statuses
from noetl.core.engine.state import StepRecord
from noetl.core.model.outcome import ok


def ctx_of(steps: str, script: dict | None = None, **fields) -> dict:
    harness = Harness("workflow:\n" + steps, script=script or {}, **fields).run()
    return harness.state.ctx


STATUS = """
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a-b}, {step: broken}]}}
  - step: a-b
    tool: {kind: noop}
    next: {arcs: [{step: read}]}
  - step: broken
    tool: {kind: http}
    next: {arcs: [{step: read, when: "{{ event.name == 'step.failed' }}"}]}
  - step: read
    set:
      ctx.ab: "{{ steps['a-b'].status }}"
      ctx.data: "{{ steps['a-b'].data }}"
      ctx.v: "{{ steps['a-b'].v }}"
      ctx.whole: "{{ steps['a-b'] }}"
      ctx.broken: "{{ steps.broken.status }}"
      ctx.error: "{{ steps.broken.error.message }}"
      ctx.never: "{{ steps.never.status }}"
      ctx.names: "{{ steps | list | sort | join(',') }}"
  - {step: never, tool: {kind: noop}, spec: {policy: {admit: {rules: [{when: "{{ false }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}}
"""


def test_a_template_reads_status_and_result_of_every_step():
    ctx = ctx_of(STATUS, {"a-b": {"v": 7}, "broken": failure(message="it broke")})
    status = ctx["ab"]
    assert {key: status[key] for key in ("done", "ok", "running", "error", "runs")} == {
        "done": True, "ok": True, "running": False, "error": None, "runs": 1,
    }  # fmt: skip
    assert status["started_at"] is not None and status["finished_at"] >= status["started_at"]
    assert (ctx["data"], ctx["v"]) == ({"v": 7}, 7)
    assert ctx["whole"]["v"] == 7
    broken = ctx["broken"]
    assert (broken["done"], broken["ok"], broken["error"], ctx["error"]) == (True, False, "it broke", "it broke")
    never = ctx["never"]
    assert (never["done"], never["ok"], never["running"], never["runs"]) == (False, None, False, 0)
    assert (never["started_at"], never["finished_at"], never["error"]) == (None, None, None)
    assert ctx["names"] == "a-b,broken,start"  # those that have run


LOOP = """
  - {{step: start, next: {{spec: {{mode: inclusive}}, arcs: [{{step: each}}, {{step: other}}]}}}}
  - step: each
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
    loop: {{in: [1, 2, 3], iterator: n, spec: {{mode: {mode}}}}}
    tool: {{kind: http}}
    next: {{arcs: [{{step: end, when: "{{{{ event.name == 'loop.done' }}}}"}}]}}
  - step: other
    tool: {{kind: noop}}
    next: {{arcs: [{{step: note, set: {{ctx.running: "{{{{ running('each') }}}}"}}}}]}}
  - step: note
    set: {{ctx.during: "{{{{ steps.each.status }}}}"}}
  - step: end
    set: {{ctx.after: "{{{{ steps.each.status }}}}"}}
"""


def test_the_status_of_a_loop_counts_its_iterations():
    harness = Harness("workflow:\n" + LOOP.format(mode="parallel")).start()
    first, second, third = (harness.claim(f"77:each:1/{index}") for index in range(3))
    harness.complete(first, ok(1))
    harness.complete(second, failure())
    harness.complete(harness.claim("77:other:1"))
    harness.complete(third, ok(3))
    harness.work()
    during, after = harness.state.ctx["during"], harness.state.ctx["after"]
    counts = ("total", "completed", "succeeded", "failed")
    assert [during[each] for each in counts] == [3, 2, 1, 1]
    assert harness.state.ctx["running"] is True
    assert (during["done"], during["ok"], during["running"], during["finished_at"]) == (False, None, True, None)
    assert [after[each] for each in counts] == [3, 3, 2, 1]
    assert (after["done"], after["ok"], after["running"]) == (True, True, False)


def test_the_status_of_a_loop_that_has_not_begun_is_zero():
    steps = """
  - step: start
    set: {ctx.before: "{{ steps.each.status }}"}
    next: {arcs: [{step: each}]}
  - {step: each, loop: {in: [1], iterator: n}, tool: {kind: noop}}
"""
    before = ctx_of(steps)["before"]
    assert {key: before[key] for key in ("total", "completed", "succeeded", "failed", "runs", "done")} == {
        "total": 0, "completed": 0, "succeeded": 0, "failed": 0, "runs": 0, "done": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ event.name == 'step.done' }}", True),
        ("{{ event.name == 'call.done' }}", True),
        ("{{ event.name != 'call.error' }}", True),
        ("{{ event.name != 'call.done' }}", False),
        ("{{ event.name in ['step.done'] }}", True),
        ("{{ event.step }}", "a"),
        ("{{ event.payload.step }}", "a"),
        ("{{ event.step_run_id }}", "77:a:1"),
        ("{{ event.entity_id }}", "77:a:1"),
        ("{{ event.source }}", "worker"),
        ("{{ event.output.data.v }}", 7),
        ("{{ event.payload.output.data.v }}", 7),
        ("{{ event.result.v }}", 7),
        ("{{ event.error is none }}", True),
        ("{{ event.attempt is none }}", True),
        ("{{ event.execution_id }}", "77"),
        ("{{ output.data.v }}", 7),
        ("{{ outcome.status }}", "ok"),
        ("{{ result.v }}", 7),
        ("{{ a.v }}", 7),
        ("{{ input.given }}", 3),
        ("{{ args.given }}", 3),
        ("{{ workload.w }}", 1),
        ("{{ w }}", 1),
        ("{{ both }}", "ctx"),
        ("{{ done('a') }}", True),
        ("{{ ok('a') }}", True),
        ("{{ fail('a') }}", False),
        ("{{ running('a') }}", False),
        ("{{ done('end') }}", False),
        ("{{ execution_id }}", "77"),
    ],
)
def test_an_arc_reads(template, value):
    steps = f"""
  - step: start
    set: {{ctx.both: ctx}}
    next: {{arcs: [{{step: a}}]}}
  - step: a
    input: {{given: 3}}
    tool: {{kind: http}}
    next: {{arcs: [{{step: end, set: {{ctx.read: "{template}"}}}}]}}
  - {{step: end, tool: {{kind: noop}}}}
"""
    harness = Harness("workload: {w: 1, both: workload}\nworkflow:\n" + steps, script={"a": {"v": 7}}).run()
    assert harness.state.ctx["read"] == value


def test_an_event_as_a_whole_is_plain_data():
    steps = """
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: end, set: {ctx.event: "{{ event }}"}}]}
  - {step: end, tool: {kind: noop}}
"""
    event = ctx_of(steps, {"start": {"v": 7}})["event"]
    assert event["name"] == "step.done" and event["status"] is not None
    assert event["payload"]["step"] == "start" and event["parent_event_id"].startswith("77-")
    assert event["iteration_id"] is None and event["task_label"] is None


def test_an_unknown_step_is_an_error():
    steps = """
  - step: start
    set: {ctx.x: "{{ steps[ctx.name | default('none-such')].data }}"}
"""
    harness = Harness("workflow:\n" + steps).run()
    assert harness.status == "failed"
    assert 'there is no step "none-such"' in harness.state.error.message


@pytest.mark.parametrize(
    ("running", "waiting", "outcome", "failed", "status"),
    [
        (1, 1, None, False, "running"),
        (0, 1, ok(), False, "waiting"),  # it ran before and is scheduled again
        (0, 0, None, False, "waiting"),
        (0, 0, ok(), False, "ok"),
        (0, 0, ok(), True, "error"),
    ],
)
def test_the_status_of_a_step_is_that_of_its_latest_run(running, waiting, outcome, failed, status):
    record = StepRecord("a")
    record.running, record.open, record.outcome, record.failed = running, waiting, outcome, failed
    assert _Statuses(SimpleNamespace(steps={"a": record}))["a"] == status
