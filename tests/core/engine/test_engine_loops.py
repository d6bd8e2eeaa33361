"""Loops: windows, order, failure, reducers, conflicts, nesting, size."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from engine_play import Play, boom, finished, task_done, wrote

from noetl.core.engine.commands import ClaimAnyRun, ReportRun
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


def value(play, order):
    return order.items[-1].value


def test_a_sequential_loop_runs_one_iteration_at_a_time_in_order():
    play = Play(loop(), {"start": value}).start()
    seen = []
    while len(play.queue) == 1 and play.queue[0].step == "start":
        order = play.take()
        seen.append(order.path)
        play.do(order)
    assert seen == [(0,), (1,), (2,), (3,), (4,)]
    play.work()
    assert play.of(StepDone)[0].output.data == [10, 20, 30, 40, 50]
    assert play.scheduled == ["start", "after"]


def test_a_parallel_loop_keeps_to_its_window_and_its_output_to_index_order():
    play = Play(loop("mode: parallel, max_in_flight: 2"), {"start": value}).start()
    assert [each.path for each in play.queue] == [(0,), (1,)]
    first, second = play.take(), play.take()
    assert play.refusal("77:start:1/2") == "the iteration is not due yet"
    play.do(second)
    assert [each.path for each in play.queue] == [(2,)]
    play.do(play.take())
    play.do(first)
    play.work()
    (done,) = play.of(LoopDone)
    assert (done.total, done.succeeded, done.failed, done.skipped) == (5, 5, 0, 0)
    assert done.output.data == [10, 20, 30, 40, 50]


def test_the_window_may_be_a_template():
    text = loop('mode: parallel, max_in_flight: "{{ workload.n }}"').replace("items: [", "n: 3, items: [")
    assert len(Play(text).start().queue) == 3


@pytest.mark.parametrize("window", ["0", '"{{ workload.items }}"'])
def test_a_window_that_is_no_number_fails_the_step(window):
    play = Play(loop('mode: parallel, max_in_flight: "{{ workload.n }}"').replace("items: [", f"n: {window}, items: ["))
    play.run()
    assert play.status == "failed"
    assert "max_in_flight" in play.state.error.message


def test_an_order_says_everything_about_its_iteration():
    play = Play(loop("mode: parallel")).start()
    order = play.take("77:start:1/3")
    (item,) = order.items
    assert (item.name, item.index, item.count, item.value) == ("item", 3, 5, 40)
    assert order.context is play.take("77:start:1/0").context


def test_an_empty_list_is_done_at_once():
    play = Play(loop()).run({"items": []})
    assert play.names.count("loop.iteration.started") == 0
    assert play.of(StepDone)[0].output.data == []
    assert play.of(StepDone)[0].output.helpers["loop"]["total"] == 0
    assert play.status == "success"


def test_a_mapping_is_looped_over_as_key_and_value():
    play = Play(loop(), {"start": value}).run({"items": {"a": 1, "b": 2}})
    assert play.of(StepDone)[0].output.data == [{"key": "a", "value": 1}, {"key": "b", "value": 2}]


@pytest.mark.parametrize("items", ["text", 7, None, True])
def test_what_is_no_collection_fails_the_step(items):
    play = Play(loop()).run({"items": items})
    assert play.status == "failed"
    assert play.state.error.kind == "schema"
    assert "must be a list" in play.state.error.message
    assert "test.yaml:8:" in play.state.error.message


REFERENCE = {
    "type": "blob",
    "locator": {"path": "r/1"},
    "auth_reference": None,
    "meta": {"content_type": "application/json", "bytes": 1 << 30, "sha256": "00", "rows": 5},
}


def test_a_reference_is_not_looped_over_as_if_its_own_fields_were_the_data():
    play = Play(loop()).run({"items": REFERENCE})
    assert play.status == "failed"
    assert play.state.error.kind == "ref.unresolved"
    assert "kind: resolve" in play.state.error.message and "test.yaml:8:" in play.state.error.message
    assert play.names.count("loop.started") == 0


def test_a_list_of_references_is_a_list():
    play = Play(loop(), {"start": value}).run({"items": [REFERENCE, REFERENCE]})
    assert play.of(StepDone)[0].output.data == [REFERENCE, REFERENCE]


def test_until_stops_a_sequential_loop():
    play = Play(
        loop('mode: sequential, until: "{{ output.data >= 30 }}"'),
        {"start": lambda play, order: finished(order, ok(order.items[0].value), stop=order.path[0] == 2)},
    ).run()
    (done,) = play.of(LoopDone)
    assert (done.total, done.succeeded, done.skipped) == (5, 3, 2)
    assert done.output.data == [10, 20, 30]


def fails_at(index):
    return lambda play, order: boom() if order.path[-1] == index else value(play, order)


def test_fail_fast_stops_and_cancels_what_is_in_flight():
    play = Play(loop("mode: parallel, max_in_flight: 3"), {"start": fails_at(1)}).start()
    orders = [play.take(), play.take(), play.take()]
    play.do(orders[0])
    play.do(orders[1])
    assert play.status == "failed"
    (failed,) = play.of(StepFailed)
    assert failed.output.error.message == "iteration 1: it broke"
    assert failed.output.helpers["loop"]["failed"] == 1
    assert failed.output.helpers["loop"]["skipped"] == 3
    assert [each.run_id for each in play.cancelled] == ["77:start:1/2"]
    assert not play.do(orders[2]).accepted
    assert play.of(LoopDone) == []


def test_best_effort_goes_on_and_lists_the_failures():
    rest = "spec: {policy: {failure: {mode: best_effort}}}\n    next: {arcs: [{step: after}]}"
    play = Play(loop("mode: parallel", rest), {"start": fails_at(1)}).run()
    (done,) = play.of(LoopDone)
    assert (done.total, done.succeeded, done.failed) == (5, 4, 1)
    assert done.output.data == [10, None, 30, 40, 50]
    assert done.output.helpers["loop"]["failures"] == [{"index": 1, "kind": "server_error", "message": "it broke"}]
    assert play.status == "success"
    assert play.scheduled == ["start", "after"]


def test_a_failed_loop_is_routed_like_any_step():
    rest = "next: {arcs: [{step: after}, {step: other, when: \"{{ event.name == 'step.failed' }}\"}]}"
    play = Play(loop("mode: parallel", rest), {"start": fails_at(0)}).run()
    assert play.scheduled == ["start", "other"]


# ── boundaries ──────────────────────────────────────────────────────────────────────────


def boundaries(play):
    return [(each.boundary, [arc.target for arc in each.arcs if arc.token]) for each in play.of(NextEvaluated)]


def test_loop_done_is_routed_before_step_done_and_exclusive_chooses_one_over_both():
    rest = """next: {arcs: [{step: other, when: "{{ event.name == 'step.done' }}"},
                         {step: after, when: "{{ event.name == 'loop.done' }}"}]}"""
    play = Play(loop(rest=rest)).run()
    assert boundaries(play)[:2] == [("loop.done", ["after"]), ("step.done", [])]
    assert play.scheduled == ["start", "after"]


def test_inclusive_arcs_fire_once_over_both_boundaries():
    rest = """next: {spec: {mode: inclusive}, arcs: [{step: other, when: "{{ true }}"},
                         {step: after, when: "{{ event.name == 'step.done' }}"}]}"""
    play = Play(loop(rest=rest)).run()
    assert boundaries(play)[:2] == [("loop.done", ["other"]), ("step.done", ["after"])]


def test_a_guard_on_step_done_before_the_default_arc_still_gets_its_chance():
    rest = """next: {arcs: [{step: other, when: "{{ event.name == 'step.done' and output.data | length == 5 }}"},
                         {step: after}]}"""
    play = Play(loop(rest=rest)).run()
    assert play.scheduled == ["start", "other"]


def test_the_end_of_a_loop_is_one_append_in_order():
    rest = """set: {ctx.total: "{{ output.loop.succeeded }}"}
    next: {arcs: [{step: after, when: "{{ ctx.total == 5 }}", set: {ctx.more: "{{ ctx.total + 1 }}"}}]}"""
    play = Play(loop("mode: parallel", rest)).start()
    orders = [play.take() for _ in range(5)]
    for order in orders[:-1]:
        play.do(order)
    before = len(play.log)
    play.do(orders[-1])
    assert play.names[before:] == [
        "loop.iteration.done", "loop.done", "ctx.patched", "next.evaluated", "ctx.patched", "step.done",
        "next.evaluated", "step.scheduled",
    ]  # fmt: skip
    assert play.state.ctx == {"total": 5, "more": 6}


def test_a_step_set_that_fails_fails_the_loop_step():
    play = Play(loop(rest='set: {ctx.x: "{{ output.data.nothing.here }}"}')).run()
    assert play.status == "failed"
    assert play.of(StepFailed)[0].output.error.kind == "template"
    assert "loop.done" in play.names


def test_step_scope_is_carried_from_iteration_to_iteration():
    def script(play, order):
        seen = order.step_scope.get("n", 0)
        return finished(order, ok(seen), step_patch={"n": seen + 1})

    play = Play(loop(rest='set: {ctx.n: "{{ step.n }}"}'), {"start": script}).run()
    assert play.of(StepDone)[0].output.data == [0, 1, 2, 3, 4]
    assert play.state.ctx == {"n": 5}


# ── ctx ─────────────────────────────────────────────────────────────────────────────────


def test_the_first_parallel_write_of_a_key_wins_and_another_value_fails_its_iteration():
    play = Play(loop("mode: parallel")).start()
    first, second, third = play.take(), play.take(), play.take()
    assert play.report(first, task_done(first, patch={"ctx": {"x": 1}})).error is None
    assert play.report(second, task_done(second, patch={"ctx": {"x": 1}})).error is None
    verdict = play.report(third, task_done(third, patch={"ctx": {"x": 2}}))
    assert verdict.error.kind == "ctx.conflict"
    assert play.state.ctx == {"x": 1}
    assert play.status == "failed"
    assert play.state.error.kind == "ctx.conflict"


def test_an_iteration_may_change_the_key_it_wrote_first():
    play = Play(loop("mode: parallel")).start()
    first, second = play.take(), play.take()
    assert play.report(first, task_done(first, "a", patch={"ctx": {"x": 1}})).error is None
    assert play.report(first, task_done(first, "b", patch={"ctx": {"x": 2}})).error is None
    assert play.report(second, task_done(second, patch={"ctx": {"y": 1}})).error is None
    assert play.state.ctx == {"x": 2, "y": 1}


def test_a_write_below_a_key_that_another_iteration_wrote_is_a_conflict():
    play = Play(loop("mode: parallel")).start()
    first, second, third = play.take(), play.take(), play.take()
    play.report(first, task_done(first, patch={"ctx": {"a.x": 1}}))
    assert play.report(second, task_done(second, patch={"ctx": {"a.y": 2}})).error is None
    assert play.state.ctx == {"a": {"x": 1, "y": 2}}
    assert play.report(third, task_done(third, patch={"ctx": {"a": {}}})).error.kind == "ctx.conflict"


def test_sequential_iterations_overwrite_each_other():
    play = Play(loop(), {"start": lambda play, order: wrote(order, x=order.path[0])}).run()
    assert play.state.ctx == {"x": 4}


REDUCERS = "policy: {reduce: {ctx.total: sum, ctx.ids: append, ctx.all_.n: count, ctx.best: max, ctx.last_: last}}"


def reducing(play, order):
    item = order.items[0].value
    return wrote(order, total=item, ids=item, **{"all_.n": 1}, best=item, last_=item)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_reducers_give_the_same_result_in_whatever_order_iterations_end(order):
    play = Play(loop(f"mode: parallel, {REDUCERS}"), {"start": reducing}).start()
    runs = [play.take() for _ in range(5)]
    for index in order:
        assert play.do(runs[index]).error is None
    play.work()
    assert play.state.ctx == {
        "total": 150,
        "ids": [10, 20, 30, 40, 50],
        "all_": {"n": 5},
        "best": 50,
        "last_": 50,
    }
    assert [each.cause for each in play.of(CtxPatched)] == ["reduce"]


def test_what_is_in_ctx_is_the_starting_value_of_a_reducer():
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

    def script(play, order):
        n = order.items[0].value
        return wrote(order, total=n, ids=[n, n], seen={f"k{n}": n}, ok_=n != 2, hit=n == 2, low=n)

    play = Play(text, {"work": script}).run()
    assert play.state.ctx == {
        "total": 106,
        "ids": [0, 1, 1, 2, 2, 3, 3],
        "seen": {"z": 1, "k1": 1, "k2": 2, "k3": 3},
        "ok_": False,
        "hit": True,
        "low": 1,
    }


def test_a_value_a_reducer_cannot_take_fails_its_iteration():
    play = Play(loop("mode: parallel, policy: {reduce: {ctx.total: sum}}")).start()
    order = play.take()
    verdict = play.report(order, task_done(order, patch={"ctx": {"total": "much"}}))
    assert verdict.error.kind == "schema"
    assert "requires a number" in verdict.error.message


def test_a_failed_iteration_contributes_nothing():
    rest = "spec: {policy: {failure: {mode: best_effort}}}"

    def script(play, order):
        events = wrote(order, total=1)
        return [events[0], *finished(order, boom())] if order.path[0] == 2 else events

    play = Play(loop("mode: parallel, policy: {reduce: {ctx.total: sum}}", rest), {"start": script}).run()
    assert play.state.ctx == {"total": 4}


def test_a_reduced_value_that_grows_too_large_fails_the_step():
    big = "x" * 300_000
    play = Play(
        loop("mode: parallel, policy: {reduce: {ctx.ids: append}}"),
        {"start": lambda play, order: wrote(order, ids=big)},
    ).run()
    assert play.status == "failed"
    assert play.state.error.kind == "limit"


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
    play = Play(nested(), {"start": value}).run()
    assert play.status == "success"
    assert play.data == [[1, 2], [], [3]]
    assert play.state.output.helpers["loop"] == {"total": 3, "succeeded": 3, "failed": 0, "skipped": 0}


def test_an_inner_order_has_the_outer_items_too():
    play = Play(nested()).start()
    order = play.take("77:start:1/2.0")
    assert [(item.name, item.index, item.value) for item in order.items] == [("row", 2, [3]), ("cell", 0, 3)]
    assert order.path == (2, 0)


def test_a_sequential_outer_loop_begins_its_inner_loops_one_by_one():
    play = Play(nested("mode: sequential", "mode: parallel"), {"start": value}).start()
    assert [each.path for each in play.queue] == [(0, 0), (0, 1)]
    first, second = play.take(), play.take()
    play.do(second)
    assert play.queue == []
    play.do(first)
    assert [each.path for each in play.queue] == [(2, 0)]
    assert [each.path for each in play.of(LoopStarted)] == [(), (0,), (1,), (2,)]
    play.work()
    assert play.data == [[1, 2], [], [3]]


def test_a_failure_inside_fails_the_whole_step_and_cancels_the_rest():
    play = Play(nested("mode: parallel", "mode: parallel")).start()
    orders = {each.path: play.take(each.run_id) for each in list(play.queue)}
    play.do(orders[0, 1], boom())
    assert play.status == "failed"
    assert sorted(each.run_id for each in play.cancelled) == ["77:start:1/0.0", "77:start:1/2.0"]


def test_the_outermost_reducer_sees_inner_writes_in_order():
    text = nested("mode: parallel, policy: {reduce: {ctx.ids: append, ctx.sum_: sum}}", "mode: parallel")
    play = Play(text, {"start": lambda play, order: wrote(order, ids=value(play, order), sum_=value(play, order))})
    play.start()
    orders = {each.path: play.take(each.run_id) for each in list(play.queue)}
    for path in [(2, 0), (0, 1), (0, 0)]:
        assert play.do(orders[path]).error is None
    assert play.state.ctx == {"ids": [1, 2, 3], "sum_": 6}


def test_an_inner_collection_that_is_none_fails_only_its_outer_iteration_under_best_effort():
    text = nested().replace(
        "tool: {kind: noop}", "spec: {policy: {failure: {mode: best_effort}}}\n    tool: {kind: noop}"
    )
    play = Play(text, {"start": value}).run({"rows": [[1], 5, [2]]})
    assert play.data == [[1], None, [2]]
    assert play.state.output.helpers["loop"]["failed"] == 1


def test_an_inner_failure_under_best_effort_is_counted_by_the_loop_around_it():
    text = nested().replace(
        "tool: {kind: noop}", "spec: {policy: {failure: {mode: best_effort}}}\n    tool: {kind: noop}"
    )
    play = Play(text, {"start": lambda play, order: boom() if order.path == (0, 1) else value(play, order)}).run()
    assert play.data == [[1, None], [], [3]]
    counts = play.state.output.helpers["loop"]
    assert (counts["total"], counts["succeeded"], counts["failed"]) == (3, 2, 1)
    assert counts["failures"] == [{"index": 0, "kind": "server_error", "message": "it broke"}]


def test_until_of_an_outer_loop_is_the_servers_to_ask():
    text = nested('mode: sequential, until: "{{ output.data | length == 2 }}"')
    play = Play(text, {"start": value}).run()
    assert play.data == [[1, 2]]


def test_iterations_of_a_sequential_outer_and_parallel_inner_loop_do_not_conflict_across_rows():
    play = Play(
        nested("mode: sequential", "mode: parallel"), {"start": lambda play, order: wrote(order, x=order.path[0])}
    ).run()
    assert play.status == "success"
    assert play.state.ctx == {"x": 2}


# ── size ────────────────────────────────────────────────────────────────────────────────


def test_a_large_collection_is_kept_by_reference():
    play = Play(loop("mode: parallel, max_in_flight: 2"), {"start": ok(1)}).start({"items": ["x" * 1000] * 100})
    (started,) = play.of(LoopStarted)
    assert started.items is None
    assert started.collection.locator == {"key": "77:start:1#collection"}
    assert [type(request) for request in play.requests] == [StorePayload]
    order = play.take()
    assert order.items[0].collection == started.collection
    assert order.items[0].value is None
    play.do(order)
    play.work()
    assert play.data == [1] * 100 or play.status == "success"


def test_large_outputs_are_kept_by_reference_and_exports_travel_along():
    rest = 'next: {arcs: [{step: after, when: "{{ output.data[3] == output.data[4] and output.loop.total == 5 }}"}]}'
    play = Play(loop("mode: parallel", rest), {"start": ok("y" * 20_000)}).run()
    assert play.scheduled == ["start", "after"]
    outcome = play.of(StepDone)[0].output
    assert outcome.data is None
    assert play.stored["77:start:1#output"] == ["y" * 20_000] * 5


def test_an_inner_loop_over_a_stored_collection_asks_for_it():
    rows = [["z" * 30_000], ["z" * 30_000], ["z" * 30_000]]
    play = Play(nested(), {"start": ok()}).run({"rows": rows})
    assert play.status == "success"
    assert FetchPayload in [type(request) for request in play.requests]


def test_a_worker_with_free_slots_is_leased_several_iterations_in_one_append():
    play = Play(loop("mode: parallel, max_in_flight: 4")).start()
    decision = play.tell(ClaimAnyRun("w9", slots=3))
    assert [order.path for order in decision.replies[0].orders] == [(0,), (1,), (2,)]
    assert [each.worker for each in play.of(IterationStarted)] == ["w9"] * 3


def test_too_many_iterations_are_refused():
    text = "executor: {spec: {policy: {limits: {max_iterations: 3}}}}\n" + loop()
    play = Play(text).run()
    assert play.state.error.kind == "limit"


def test_outputs_that_fill_the_memory_are_stored_on_the_way():
    play = Play(loop("mode: parallel"), {"start": lambda play, order: f"{order.path[0]}" + "z" * 50_000})
    with patch("noetl.core.engine.handlers.loops.MAX_CHUNKS", 2):
        play.run({"items": list(range(15))})
    assert len(play.of(OutputsStored)) == 3
    outcome = play.of(StepDone)[0].output
    assert play.stored[outcome.ref.locator["key"]] == [f"{n}" + "z" * 50_000 for n in range(15)]


def test_finished_iterations_are_a_few_bytes_each():
    play = Play(loop("mode: parallel, max_in_flight: 100"), watch=False).start({"items": list(range(5_000))})
    while play.state.finished is None:
        orders = play.tell(ClaimAnyRun("w", 100)).replies[0].orders
        play.tell(*(ReportRun(Report(each.run_id, 1, 1, tuple(finished(each, ok())))) for each in orders))
        play.queue = []
        if len(play.log) > 9_000:
            break
    running = play.state.runs["77:start:1"].loops[()]
    assert running.finished > 4_000
    assert len(play.state.open) == 0
    assert len(encode_state(play.state)) < 30 * running.finished  # workload and payload included
