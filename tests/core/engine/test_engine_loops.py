"""Loops: windows, order, failure, reducers, conflicts, nesting, size."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from engine_harness import Harness, failure, finished, task_done, wrote

from noetl.core.engine.commands import ClaimAnyRun, ClaimRun, ReportRun
from noetl.core.engine.effects import FetchPayload, StorePayload
from noetl.core.engine.snapshot import encode_state
from noetl.core.model.events import (
    CtxPatched,
    IterationStarted,
    LoopDone,
    LoopStarted,
    NextEvaluated,
    OutputsStored,
    StepDone,
    StepFailed,
)
from noetl.core.model.outcome import ok
from noetl.core.model.work import Report

LOOP = """
workload: {items: [10, 20, 30, 40, 50]}
workflow:
  - step: start
    loop: {in: "{{ workload.items }}", iterator: item, spec: {SPEC}}
    tool: {kind: noop}
    REST
  - {step: after, tool: {kind: noop}}
  - {step: other, tool: {kind: noop}}
"""


def loop(spec: str = "mode: sequential", rest: str = "next: {arcs: [{step: after}]}") -> str:
    return LOOP.replace("SPEC", spec).replace("REST", rest)


def value(harness, order):
    return order.items[-1].value


def test_a_sequential_loop_runs_one_iteration_at_a_time_in_order():
    harness = Harness(loop(), {"start": value}).start()
    seen = []
    while len(harness.queue) == 1 and harness.queue[0].step == "start":
        order = harness.claim()
        seen.append(order.path)
        harness.complete(order)
    assert seen == [(0,), (1,), (2,), (3,), (4,)]
    harness.work()
    assert harness.of(StepDone)[0].output.data == [10, 20, 30, 40, 50]
    assert harness.scheduled == ["start", "after"]


def test_a_parallel_loop_keeps_to_its_window_and_its_output_to_index_order():
    harness = Harness(loop("mode: parallel, max_in_flight: 2"), {"start": value}).start()
    assert [each.path for each in harness.queue] == [(0,), (1,)]
    first, second = harness.claim(), harness.claim()
    assert harness.rejection("77:start:1/2") == "the iteration is not due yet"
    harness.complete(second)
    assert [each.path for each in harness.queue] == [(2,)]
    harness.complete(harness.claim())
    harness.complete(first)
    harness.work()
    (done,) = harness.of(LoopDone)
    assert (done.total, done.succeeded, done.failed, done.skipped) == (5, 5, 0, 0)
    assert done.output.data == [10, 20, 30, 40, 50]


def test_the_window_may_be_a_template():
    text = loop('mode: parallel, max_in_flight: "{{ workload.n }}"').replace("items: [", "n: 3, items: [")
    assert len(Harness(text).start().queue) == 3


@pytest.mark.parametrize("window", ["0", '"{{ workload.items }}"'])
def test_a_window_that_is_no_number_fails_the_step(window):
    harness = Harness(
        loop('mode: parallel, max_in_flight: "{{ workload.n }}"').replace("items: [", f"n: {window}, items: [")
    )
    harness.run()
    assert harness.status == "failed"
    assert "max_in_flight" in harness.state.error.message


def test_an_order_describes_its_iteration_completely():
    harness = Harness(loop("mode: parallel")).start()
    order = harness.claim("77:start:1/3")
    (item,) = order.items
    assert (item.name, item.index, item.count, item.value) == ("item", 3, 5, 40)
    assert order.context is harness.claim("77:start:1/0").context


def test_an_empty_list_is_done_at_once():
    harness = Harness(loop()).run({"items": []})
    assert harness.names.count("loop.iteration.started") == 0
    assert harness.of(StepDone)[0].output.data == []
    assert harness.of(StepDone)[0].output.helpers["loop"]["total"] == 0
    assert harness.status == "success"


def test_a_mapping_is_looped_over_as_key_and_value():
    harness = Harness(loop(), {"start": value}).run({"items": {"a": 1, "b": 2}})
    assert harness.of(StepDone)[0].output.data == [{"key": "a", "value": 1}, {"key": "b", "value": 2}]


@pytest.mark.parametrize("items", ["text", 7, None, True])
def test_a_value_that_is_not_a_collection_fails_the_step(items):
    harness = Harness(loop()).run({"items": items})
    assert harness.status == "failed"
    assert harness.state.error.kind == "schema"
    assert "must be a list" in harness.state.error.message
    assert "test.yaml:8:" in harness.state.error.message


REFERENCE = {
    "type": "blob",
    "locator": {"path": "r/1"},
    "auth_reference": None,
    "meta": {"content_type": "application/json", "bytes": 1 << 30, "sha256": "00", "rows": 5},
}


def test_a_reference_is_not_looped_over_as_if_its_own_fields_were_the_data():
    harness = Harness(loop()).run({"items": REFERENCE})
    assert harness.status == "failed"
    assert harness.state.error.kind == "ref.unresolved"
    assert "kind: resolve" in harness.state.error.message and "test.yaml:8:" in harness.state.error.message
    assert harness.names.count("loop.started") == 0


def test_a_list_of_references_is_a_list():
    harness = Harness(loop(), {"start": value}).run({"items": [REFERENCE, REFERENCE]})
    assert harness.of(StepDone)[0].output.data == [REFERENCE, REFERENCE]


def test_until_stops_a_sequential_loop():
    harness = Harness(
        loop('mode: sequential, until: "{{ output.data >= 30 }}"'),
        {"start": lambda harness, order: finished(order, ok(order.items[0].value), stop=order.path[0] == 2)},
    ).run()
    (done,) = harness.of(LoopDone)
    assert (done.total, done.succeeded, done.skipped) == (5, 3, 2)
    assert done.output.data == [10, 20, 30]


def fails_at(index):
    return lambda harness, order: failure() if order.path[-1] == index else value(harness, order)


def test_fail_fast_stops_and_cancels_what_is_in_flight():
    harness = Harness(loop("mode: parallel, max_in_flight: 3"), {"start": fails_at(1)}).start()
    orders = [harness.claim(), harness.claim(), harness.claim()]
    harness.complete(orders[0])
    harness.complete(orders[1])
    assert harness.status == "failed"
    (failed,) = harness.of(StepFailed)
    assert failed.output.error.message == "iteration 1: it broke"
    assert failed.output.helpers["loop"]["failed"] == 1
    assert failed.output.helpers["loop"]["skipped"] == 3
    assert [each.run_id for each in harness.cancelled] == ["77:start:1/2"]
    assert not harness.complete(orders[2]).accepted
    assert harness.of(LoopDone) == []


def test_best_effort_continues_and_lists_the_failures():
    rest = "spec: {policy: {failure: {mode: best_effort}}}\n    next: {arcs: [{step: after}]}"
    harness = Harness(loop("mode: parallel", rest), {"start": fails_at(1)}).run()
    (done,) = harness.of(LoopDone)
    assert (done.total, done.succeeded, done.failed) == (5, 4, 1)
    assert done.output.data == [10, None, 30, 40, 50]
    (failure,) = done.output.helpers["loop"]["failures"]
    assert (failure["index"], failure["kind"], failure["message"]) == (1, "server_error", "it broke")
    assert failure["error"] == {"kind": "server_error", "message": "it broke", "retryable": True}
    assert harness.status == "success"
    assert harness.scheduled == ["start", "after"]


def test_a_failed_loop_is_routed_like_any_step():
    rest = "next: {arcs: [{step: after}, {step: other, when: \"{{ event.name == 'step.failed' }}\"}]}"
    harness = Harness(loop("mode: parallel", rest), {"start": fails_at(0)}).run()
    assert harness.scheduled == ["start", "other"]


# ── boundaries ──────────────────────────────────────────────────────────────────────────


def boundaries(harness):
    return [(each.boundary, [arc.target for arc in each.arcs if arc.token]) for each in harness.of(NextEvaluated)]


def test_loop_done_is_routed_before_step_done_and_exclusive_chooses_one_over_both():
    rest = """next: {arcs: [{step: other, when: "{{ event.name == 'step.done' }}"},
                         {step: after, when: "{{ event.name == 'loop.done' }}"}]}"""
    harness = Harness(loop(rest=rest)).run()
    assert boundaries(harness)[:2] == [("loop.done", ["after"]), ("step.done", [])]
    assert harness.scheduled == ["start", "after"]


def test_inclusive_arcs_fire_once_over_both_boundaries():
    rest = """next: {spec: {mode: inclusive}, arcs: [{step: other, when: "{{ true }}"},
                         {step: after, when: "{{ event.name == 'step.done' }}"}]}"""
    harness = Harness(loop(rest=rest)).run()
    assert boundaries(harness)[:2] == [("loop.done", ["other"]), ("step.done", ["after"])]


def test_a_guard_on_step_done_before_the_default_arc_is_still_evaluated():
    rest = """next: {arcs: [{step: other, when: "{{ event.name == 'step.done' and output.data | length == 5 }}"},
                         {step: after}]}"""
    harness = Harness(loop(rest=rest)).run()
    assert harness.scheduled == ["start", "other"]


def test_the_end_of_a_loop_is_one_append_in_order():
    rest = """set: {ctx.total: "{{ output.loop.succeeded }}"}
    next: {arcs: [{step: after, when: "{{ ctx.total == 5 }}", set: {ctx.more: "{{ ctx.total + 1 }}"}}]}"""
    harness = Harness(loop("mode: parallel", rest)).start()
    orders = [harness.claim() for _ in range(5)]
    for order in orders[:-1]:
        harness.complete(order)
    before = len(harness.log)
    harness.complete(orders[-1])
    assert harness.names[before:] == [
        "loop.iteration.done", "loop.done", "ctx.patched", "next.evaluated", "ctx.patched", "step.done",
        "next.evaluated", "step.scheduled",
    ]  # fmt: skip
    assert harness.state.ctx == {"total": 5, "more": 6}


def test_a_step_set_that_fails_fails_the_loop_step():
    harness = Harness(loop(rest='set: {ctx.x: "{{ output.data.nothing.here }}"}')).run()
    assert harness.status == "failed"
    assert harness.of(StepFailed)[0].output.error.kind == "template"
    assert "loop.done" in harness.names


def test_step_scope_is_carried_from_iteration_to_iteration():
    def script(harness, order):
        seen = order.step_scope.get("n", 0)
        return finished(order, ok(seen), step_patch={"n": seen + 1})

    harness = Harness(loop(rest='set: {ctx.n: "{{ step.n }}"}'), {"start": script}).run()
    assert harness.of(StepDone)[0].output.data == [0, 1, 2, 3, 4]
    assert harness.state.ctx == {"n": 5}


# ── ctx ─────────────────────────────────────────────────────────────────────────────────


def test_the_first_parallel_write_of_a_key_wins_and_another_value_fails_its_iteration():
    harness = Harness(loop("mode: parallel")).start()
    first, second, third = harness.claim(), harness.claim(), harness.claim()
    assert harness.report(first, task_done(first, patch={"ctx": {"x": 1}})).error is None
    assert harness.report(second, task_done(second, patch={"ctx": {"x": 1}})).error is None
    ack = harness.report(third, task_done(third, patch={"ctx": {"x": 2}}))
    assert ack.error.kind == "ctx.conflict"
    assert harness.state.ctx == {"x": 1}
    assert harness.status == "failed"
    assert harness.state.error.kind == "ctx.conflict"


def test_an_iteration_may_change_the_key_it_wrote_first():
    harness = Harness(loop("mode: parallel")).start()
    first, second = harness.claim(), harness.claim()
    assert harness.report(first, task_done(first, "a", patch={"ctx": {"x": 1}})).error is None
    assert harness.report(first, task_done(first, "b", patch={"ctx": {"x": 2}})).error is None
    assert harness.report(second, task_done(second, patch={"ctx": {"y": 1}})).error is None
    assert harness.state.ctx == {"x": 2, "y": 1}


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        ("a.x", "a.y", False),
        ("a", "ab", False),
        ("a.x", "a.x", False),  # of the same value
        ("a.x", "a", True),
        ("a", "a.x", True),
        ("a", "a.x.y", True),
        ("a.x.y", "a", True),
    ],
)
def test_a_write_above_or_below_a_key_that_another_iteration_wrote_is_a_conflict(one, other, conflict):
    harness = Harness(loop("mode: parallel")).start()
    first, second = harness.claim(), harness.claim()
    assert harness.report(first, task_done(first, patch={"ctx": {one: 1}})).error is None
    error = harness.report(second, task_done(second, patch={"ctx": {other: 1}})).error
    assert (None if error is None else error.kind) == ("ctx.conflict" if conflict else None)


@pytest.mark.parametrize("text", ["mode: parallel, policy: {exec: local}", "mode: parallel"])
def test_an_iteration_of_a_local_loop_is_not_leased_to_another_worker(text):
    harness = Harness(loop(text)).start()
    first, *others = [each.run_id for each in harness.queue]
    harness.claim(first, "w1")
    replies = [harness.send(ClaimRun(worker, others[0])).replies[0] for worker in ("w2", "w1")]
    assert [reply.accepted for reply in replies] == ([False, True] if "local" in text else [True, False])


def test_an_arc_behind_one_without_a_guard_waits_with_it_for_the_end_of_the_step():
    arcs = '{step: start, when: "{{ false }}"}, {step: after}, {step: other, when: "{{ event.name == \'loop.done\' }}"}'
    assert Harness(loop(rest=f"next: {{arcs: [{arcs}]}}")).run().scheduled == ["start", "after"]


def test_sequential_iterations_overwrite_each_other():
    harness = Harness(loop(), {"start": lambda harness, order: wrote(order, x=order.path[0])}).run()
    assert harness.state.ctx == {"x": 4}


REDUCERS = "policy: {reduce: {ctx.total: sum, ctx.ids: append, ctx.all_.n: count, ctx.best: max, ctx.last_: last}}"


def reducing(harness, order):
    item = order.items[0].value
    return wrote(order, total=item, ids=item, **{"all_.n": 1}, best=item, last_=item)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_reducers_give_the_same_result_in_whatever_order_iterations_end(order):
    harness = Harness(loop(f"mode: parallel, {REDUCERS}"), {"start": reducing}).start()
    runs = [harness.claim() for _ in range(5)]
    for index in order:
        assert harness.complete(runs[index]).error is None
    harness.work()
    assert harness.state.ctx == {
        "total": 150,
        "ids": [10, 20, 30, 40, 50],
        "all_": {"n": 5},
        "best": 50,
        "last_": 50,
    }
    assert [each.cause for each in harness.of(CtxPatched)] == ["reduce"]


def test_the_value_in_ctx_is_the_initial_value_of_a_reducer():
    text = """
workload: {items: [1, 2, 3]}
workflow:
  - {step: start, next: {arcs: [{step: work, set: {ctx.total: 100, ctx.ids: [0], ctx.seen: {z: 1}, ctx.ok_: true}}]}}
  - step: work
    loop:
      in: "{{ workload.items }}"
      iterator: item
      spec:
        mode: parallel
        policy: {reduce: {ctx.total: sum, ctx.ids: extend, ctx.seen: merge, ctx.ok_: all, ctx.hit: any, ctx.low: min}}
    tool: {kind: noop}
"""

    def script(harness, order):
        n = order.items[0].value
        return wrote(order, total=n, ids=[n, n], seen={f"k{n}": n}, ok_=n != 2, hit=n == 2, low=n)

    harness = Harness(text, {"work": script}).run()
    assert harness.state.ctx == {
        "total": 106,
        "ids": [0, 1, 1, 2, 2, 3, 3],
        "seen": {"z": 1, "k1": 1, "k2": 2, "k3": 3},
        "ok_": False,
        "hit": True,
        "low": 1,
    }


def test_a_value_of_the_wrong_type_for_a_reducer_fails_its_iteration():
    harness = Harness(loop("mode: parallel, policy: {reduce: {ctx.total: sum}}")).start()
    order = harness.claim()
    ack = harness.report(order, task_done(order, patch={"ctx": {"total": "much"}}))
    assert ack.error.kind == "schema"
    assert "requires a number" in ack.error.message


def test_a_failed_iteration_contributes_nothing():
    rest = "spec: {policy: {failure: {mode: best_effort}}}"

    def script(harness, order):
        events = wrote(order, total=1)
        return [events[0], *finished(order, failure())] if order.path[0] == 2 else events

    harness = Harness(loop("mode: parallel, policy: {reduce: {ctx.total: sum}}", rest), {"start": script}).run()
    assert harness.state.ctx == {"total": 4}


def test_a_reduced_value_that_grows_too_large_fails_the_step():
    big = "x" * 300_000
    harness = Harness(
        loop("mode: parallel, policy: {reduce: {ctx.ids: append}}"),
        {"start": lambda harness, order: wrote(order, ids=big)},
    ).run()
    assert harness.status == "failed"
    assert harness.state.error.kind == "limit"


# ── nested loops ────────────────────────────────────────────────────────────────────────

NESTED = """
workload: {rows: [[1, 2], [], [3]]}
workflow:
  - step: start
    loop:
      in: "{{ workload.rows }}"
      iterator: row
      spec: {OUTER}
      loop: {in: "{{ iter.row }}", iterator: cell, spec: {INNER}}
    tool: {kind: noop}
"""


def nested(outer="mode: parallel", inner="mode: sequential"):
    return NESTED.replace("OUTER", outer).replace("INNER", inner)


def test_nested_loops_give_lists_of_lists():
    harness = Harness(nested(), {"start": value}).run()
    assert harness.status == "success"
    assert harness.data == [[1, 2], [], [3]]
    assert harness.state.output.helpers["loop"] == {"total": 3, "succeeded": 3, "failed": 0, "skipped": 0}


def test_an_inner_order_has_the_outer_items_too():
    harness = Harness(nested()).start()
    order = harness.claim("77:start:1/2.0")
    assert [(item.name, item.index, item.value) for item in order.items] == [("row", 2, [3]), ("cell", 0, 3)]
    assert order.path == (2, 0)


def test_a_sequential_outer_loop_starts_its_inner_loops_one_by_one():
    harness = Harness(nested("mode: sequential", "mode: parallel"), {"start": value}).start()
    assert [each.path for each in harness.queue] == [(0, 0), (0, 1)]
    first, second = harness.claim(), harness.claim()
    harness.complete(second)
    assert harness.queue == []
    harness.complete(first)
    assert [each.path for each in harness.queue] == [(2, 0)]
    assert [each.path for each in harness.of(LoopStarted)] == [(), (0,), (1,), (2,)]
    harness.work()
    assert harness.data == [[1, 2], [], [3]]


def test_a_failure_inside_fails_the_whole_step_and_cancels_the_rest():
    harness = Harness(nested("mode: parallel", "mode: parallel")).start()
    orders = {each.path: harness.claim(each.run_id) for each in list(harness.queue)}
    harness.complete(orders[0, 1], failure())
    assert harness.status == "failed"
    assert sorted(each.run_id for each in harness.cancelled) == ["77:start:1/0.0", "77:start:1/2.0"]


def test_the_outermost_reducer_sees_inner_writes_in_order():
    text = nested("mode: parallel, policy: {reduce: {ctx.ids: append, ctx.sum_: sum}}", "mode: parallel")
    harness = Harness(
        text, {"start": lambda harness, order: wrote(order, ids=value(harness, order), sum_=value(harness, order))}
    )
    harness.start()
    orders = {each.path: harness.claim(each.run_id) for each in list(harness.queue)}
    for path in [(2, 0), (0, 1), (0, 0)]:
        assert harness.complete(orders[path]).error is None
    assert harness.state.ctx == {"ids": [1, 2, 3], "sum_": 6}


def test_an_invalid_inner_collection_fails_only_its_outer_iteration_under_best_effort():
    text = nested().replace(
        "tool: {kind: noop}", "spec: {policy: {failure: {mode: best_effort}}}\n    tool: {kind: noop}"
    )
    harness = Harness(text, {"start": value}).run({"rows": [[1], 5, [2]]})
    assert harness.data == [[1], None, [2]]
    assert harness.state.output.helpers["loop"]["failed"] == 1


def test_an_inner_failure_under_best_effort_is_counted_by_the_loop_around_it():
    text = nested().replace(
        "tool: {kind: noop}", "spec: {policy: {failure: {mode: best_effort}}}\n    tool: {kind: noop}"
    )
    harness = Harness(
        text, {"start": lambda harness, order: failure() if order.path == (0, 1) else value(harness, order)}
    ).run()
    assert harness.data == [[1, None], [], [3]]
    counts = harness.state.output.helpers["loop"]
    assert (counts["total"], counts["succeeded"], counts["failed"]) == (3, 2, 1)
    assert [(each["index"], each["item"], each["kind"]) for each in counts["failures"]] == [(0, [1, 2], "server_error")]


def test_the_server_evaluates_until_of_an_outer_loop():
    text = nested('mode: sequential, until: "{{ output.data | length == 2 }}"')
    harness = Harness(text, {"start": value}).run()
    assert harness.data == [[1, 2]]


def test_iterations_of_a_sequential_outer_and_parallel_inner_loop_do_not_conflict_across_rows():
    harness = Harness(
        nested("mode: sequential", "mode: parallel"), {"start": lambda harness, order: wrote(order, x=order.path[0])}
    ).run()
    assert harness.status == "success"
    assert harness.state.ctx == {"x": 2}


# ── size ────────────────────────────────────────────────────────────────────────────────


def test_a_large_collection_is_stored_by_reference():
    harness = Harness(loop("mode: parallel, max_in_flight: 2"), {"start": ok(1)}).start({"items": ["x" * 1000] * 100})
    (started,) = harness.of(LoopStarted)
    assert started.items is None
    assert started.collection.locator == {"key": "77:start:1#collection"}
    assert [type(request) for request in harness.requests] == [StorePayload]
    order = harness.claim()
    assert order.items[0].collection == started.collection
    assert order.items[0].value is None
    harness.complete(order)
    harness.work()
    assert harness.data == [1] * 100 or harness.status == "success"


def test_large_outputs_are_stored_by_reference_with_inline_exports():
    rest = 'next: {arcs: [{step: after, when: "{{ output.data[3] == output.data[4] and output.loop.total == 5 }}"}]}'
    harness = Harness(loop("mode: parallel", rest), {"start": ok("y" * 20_000)}).run()
    assert harness.scheduled == ["start", "after"]
    outcome = harness.of(StepDone)[0].output
    assert outcome.data is None
    assert harness.stored["77:start:1#output"] == ["y" * 20_000] * 5


def test_an_inner_loop_over_a_stored_collection_requests_it():
    rows = [["z" * 30_000], ["z" * 30_000], ["z" * 30_000]]
    harness = Harness(nested(), {"start": ok()}).run({"rows": rows})
    assert harness.status == "success"
    assert FetchPayload in [type(request) for request in harness.requests]


def test_a_worker_with_free_slots_is_leased_several_iterations_in_one_append():
    harness = Harness(loop("mode: parallel, max_in_flight: 4")).start()
    decision = harness.send(ClaimAnyRun("w9", slots=3))
    assert [order.path for order in decision.replies[0].orders] == [(0,), (1,), (2,)]
    assert [each.worker for each in harness.of(IterationStarted)] == ["w9"] * 3


def test_too_many_iterations_are_rejected():
    text = "executor: {spec: {policy: {limits: {max_iterations: 3}}}}\n" + loop()
    harness = Harness(text).run()
    assert harness.state.error.kind == "limit"


def test_outputs_that_exceed_the_memory_limit_are_stored_during_the_loop():
    harness = Harness(loop("mode: parallel"), {"start": lambda harness, order: f"{order.path[0]}" + "z" * 50_000})
    with patch("noetl.core.engine.handlers.loops.MAX_CHUNKS", 2):
        harness.run({"items": list(range(15))})
    assert len(harness.of(OutputsStored)) == 3
    outcome = harness.of(StepDone)[0].output
    assert harness.stored[outcome.ref.locator["key"]] == [f"{n}" + "z" * 50_000 for n in range(15)]


def test_finished_iterations_are_a_few_bytes_each():
    harness = Harness(loop("mode: parallel, max_in_flight: 100"), watch=False).start({"items": list(range(5_000))})
    while harness.state.finished is None:
        orders = harness.send(ClaimAnyRun("w", 100)).replies[0].orders
        harness.send(*(ReportRun(Report(each.run_id, 1, 1, tuple(finished(each, ok())))) for each in orders))
        harness.queue = []
        if len(harness.log) > 9_000:
            break
    running = harness.state.runs["77:start:1"].loops[()]
    assert running.finished > 4_000
    assert len(harness.state.open) == 0
    assert len(encode_state(harness.state)) < 30 * running.finished  # workload and payload included
