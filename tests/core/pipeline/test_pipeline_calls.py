from __future__ import annotations

import msgspec
import pytest
from pipeline_harness import LOOP, PipelineRun, drive, one_item, playbook, rule, sets, task

from noetl.core.model.outcome import error, ok
from noetl.core.model.playbook import Block, Loop
from noetl.core.model.position import Position


def block(name, *tasks, **fields):
    return Block(name=name, tasks=tasks, path=f"workbook/{name}", **fields)


def call(name="call", **fields):
    return task(name, "workbook", **fields)


DOUBLE = block("double", task("calc", input={"x": "{{ input.x * 2 }}"}))


def test_a_block_has_its_own_input_and_its_output_is_the_calling_tasks():
    run = drive(call(input={"block": "double", "x": 21}), task("after", input={"y": "{{ call.x }}"}), blocks=[DOUBLE])
    assert run.ran == ["call/calc", "after"] and run.runs[1].input == {"y": 42}
    assert [e.task for e in run.done] == ["call/calc", "call", "after"]
    assert [e.task for e in run.started] == ["call", "call/calc", "after"]


def test_task_names_and_step_scope_of_a_block_are_its_own_and_ctx_is_shared():
    inner = block(
        "inner",
        task("a", assignments=sets(step_v="inner", ctx_shared="{{ step.outer is defined }} {{ a.v }}")),
        task("b", input={"seen": "{{ outer is defined }}"}),
    )
    run = drive(
        task("a", assignments=sets(step_outer=1)),
        call(input={"block": "inner"}),
        task("end", input={"x": "{{ step.v is defined }} {{ ctx.shared }}"}),
        blocks=[inner],
        tools={"a": ok({"v": "outer a"}), "call/a": ok({"v": "inner a"})},
    )
    assert run.runs[-1].input == {"x": "False False inner a"}


def test_declared_input_has_defaults_and_may_transform_what_is_given():
    made = block(
        "b",
        task("t", input={"all": "{{ input }}"}),
        input={"limit": 10, "who": "{{ input.who | upper }}", "w": "{{ workload.w }}"},
    )
    run = drive(call(input={"block": "b", "who": "ann", "limit": 20}), blocks=[made], workload={"w": 5})
    assert run.runs[0].input == {"all": {"limit": 20, "who": "ANN", "w": 5}}


def test_a_failing_block_is_an_outcome_for_the_calling_tasks_policy():
    retried = call(
        input={"block": "double", "x": 1}, rules=[rule("{{ output.status == 'error' }}", "retry", attempts=2)]
    )
    run = drive(retried, blocks=[DOUBLE], tools={"call/calc": [error("timeout", "slow"), ok(7)]})
    assert run.status == "done" and run.output.data == 7
    assert [(e.task, e.visit, e.attempt) for e in run.started] == [
        ("call", 1, 1), ("call/calc", 1, 1), ("call", 1, 2), ("call/calc", 2, 1),
    ]  # fmt: skip


def test_retry_beside_a_call_repeats_it_for_errors_that_are_retryable():
    retried = call(input={"block": "double", "x": 1}, spec={"retry": {"attempts": 3, "delay": 2, "backoff": "linear"}})
    slow, wrong = error("timeout", "slow"), error("schema", "wrong")
    run = drive(retried, blocks=[DOUBLE], tools={"call/calc": [slow, slow, ok(7)]})
    assert run.status == "done" and run.output.data == 7 and run.waits == [2.0, 4.0]
    run = drive(retried, blocks=[DOUBLE], tools={"call/calc": [slow, slow, slow, ok(7)]})
    assert run.status == "failed" and run.output.error.message == "slow"
    run = drive(retried, blocks=[DOUBLE], tools={"call/calc": [wrong, ok(7)]})
    assert run.status == "failed" and run.output.error.message == "wrong"
    named = call(input={"block": "double", "x": 1}, spec={"retry": {"attempts": 2, "on": ["schema"]}})
    run = drive(named, blocks=[DOUBLE], tools={"call/calc": [wrong, ok(7)]})
    assert run.status == "done" and run.output.data == 7


def test_visits_are_local_to_templates_of_a_block_and_unique_in_events():
    made = block("b", task("t", input={"v": "{{ _visit }}"}))
    run = drive(call("c1", input={"block": "b"}, rules=[rule("{{ _visit < 2 }}", "jump", to="c1")]), blocks=[made])
    assert [a.input["v"] for a in run.runs] == [1, 1]
    assert [(e.task, e.visit) for e in run.done if e.task == "c1/t"] == [("c1/t", 1), ("c1/t", 2)]


def test_a_blocks_set_is_applied_at_its_end_and_reaches_the_log_with_the_calling_task():
    made = block("b", task("t"), assignments=sets(ctx_n="{{ output.data.n }}"))
    run = drive(
        call(input={"block": "b"}),
        task("after", input={"n": "{{ ctx.n }}"}),
        blocks=[made],
        tools={"call/t": ok({"n": 3})},
    )
    assert run.runs[-1].input == {"n": 3}
    assert [e.patch for e in run.done if e.task == "call"] == [{"ctx": {"n": 3}}]


def test_an_unknown_block_is_an_error_that_names_the_known_ones():
    run = drive(call(input={"block": "nope"}), blocks=[DOUBLE])
    assert run.status == "failed" and run.output.error.kind == "not_found" and "double" in run.output.error.message


def test_a_block_without_a_loop_shares_the_callers_iter():
    made = block("b", task("t", input={"e": "{{ iter.item }}"}, assignments=sets(iter_seen=1)))
    run = drive(
        call(input={"block": "b"}),
        task("after", input={"x": "{{ iter.seen }}"}),
        blocks=[made],
        loop=LOOP,
        **one_item("e"),
    )
    assert run.runs[0].input == {"e": "e"} and run.runs[1].input == {"x": 1}


def looping(**fields):
    loop = Loop(collection="{{ input.rows }}", iterator="row", path="workbook/b/loop", **fields.pop("loop", {}))
    return block(
        "b",
        task("t", input={"x": "{{ iter.row }}/{{ iter.index }}/{{ iter.parent.item | default('-') }}/{{ row }}"}),
        loop=loop,
        **fields,
    )


def test_a_looping_block_runs_its_iterations_and_collects_them():
    run = drive(call(input={"block": "b", "rows": [5, 6]}), blocks=[looping()], loop=LOOP, **one_item("outer"))
    assert [a.input["x"] for a in run.runs] == ["5/0/outer/5", "6/1/outer/6"]
    assert run.output.data == [{"x": "5/0/outer/5"}, {"x": "6/1/outer/6"}]
    assert run.output.helpers["loop"] == {"total": 2, "succeeded": 2, "failed": 0, "skipped": 0}


def test_an_empty_collection_ends_the_call_at_once():
    run = drive(call(input={"block": "b", "rows": []}), blocks=[looping()])
    assert run.ran == [] and run.output.data == [] and run.output.helpers["loop"]["total"] == 0


def test_a_mapping_is_iterated_as_keys_and_values():
    run = drive(call(input={"block": "b", "rows": {"k": 1}}), blocks=[looping()])
    assert run.runs[0].input["x"].startswith("{'key': 'k', 'value': 1}") or '"key"' in run.runs[0].input["x"]


def test_a_collection_that_is_not_a_list_is_an_error_with_its_location():
    run = drive(call(input={"block": "b", "rows": 5}), blocks=[looping()])
    assert run.status == "failed" and run.output.error.kind == "schema" and "p.yaml" in run.output.error.message


def test_a_failing_iteration_of_a_block_fails_the_call_or_is_listed():
    tools = {"call/t": [ok(1), error("timeout", "slow"), ok(3)]}
    fast = drive(call(input={"block": "b", "rows": [1, 2, 3]}), blocks=[looping()], tools=tools)
    assert fast.status == "failed" and len(fast.ran) == 2 and fast.output.error.kind == "timeout"
    best = drive(call(input={"block": "b", "rows": [1, 2, 3]}), blocks=[looping(failure="best_effort")], tools=tools)
    assert best.status == "done" and best.output.data == [1, None, 3] and best.output.helpers["loop"]["failed"] == 1


def test_a_block_does_not_loop_over_a_reference():
    reference = {"type": "nats", "locator": {"key": "k"}, "meta": {"bytes": 1}}
    run = drive(call(input={"block": "b", "rows": reference}), blocks=[looping()])
    assert run.ran == [] and run.output.error.kind == "ref.unresolved"
    assert "kind: resolve" in run.output.error.message


def test_until_stops_a_blocks_loop():
    run = drive(call(input={"block": "b", "rows": [1, 2, 3]}), blocks=[looping(loop={"until": "{{ iter.row == 2 }}"})])
    assert len(run.ran) == 2 and len(run.output.data) == 2
    assert run.output.helpers["loop"] == {"total": 3, "succeeded": 2, "failed": 0, "skipped": 1}


NESTED = block(
    "n",
    task("t", input={"x": "{{ iter.parent.city }}-{{ iter.hotel }}"}),
    loop=Loop(
        collection="{{ input.cities }}",
        iterator="city",
        inner=Loop(collection="{{ iter.city.hotels }}", iterator="hotel"),
    ),
)


def nested_run(**order):
    small = msgspec.structs.replace(
        NESTED, tasks=(task("t", input={"x": "{{ iter.parent.city.name }}-{{ iter.hotel }}"}),)
    )
    cities = [{"name": "A", "hotels": [1, 2]}, {"name": "B", "hotels": []}, {"name": "C", "hotels": [3]}]
    return PipelineRun(playbook(call(input={"block": "n", "cities": cities}), task("end"), blocks=[small]), **order)


def test_a_blocks_loop_may_hold_a_loop():
    run = nested_run().run({"call/t": lambda a: ok(a.input["x"])})
    assert run.done[-2].outcome.data == [["A-1", "A-2"], [], ["C-3"]]
    assert run.ran == ["call/t"] * 3 + ["end"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_nested_block_loop_resumes_where_it_stopped(cut):
    tools = {"call/t": lambda a: ok(a.input["x"])}
    first = nested_run().run(tools, stop_after=cut)
    position = first.position
    if position is None:  # the call has ended
        return
    again = nested_run(position=msgspec.json.decode(msgspec.json.encode(position), type=Position)).run(tools)
    assert first.ran + again.ran == ["call/t"] * 3 + ["end"]
    assert again.done[-2].outcome.data == [["A-1", "A-2"], [], ["C-3"]]
    visits = [e.visit for e in (*first.done, *again.done) if e.task == "call/t"]
    assert visits == [1, 2, 3]


def test_calls_nest_and_their_depth_is_bounded():
    outer = block("outer", call("again", input={"block": "outer"}))
    run = drive(call(input={"block": "outer"}), blocks=[outer])
    assert run.status == "failed" and run.output.error.kind == "limit"


def test_a_child_playbook_called_from_a_block_resumes_inside_it():
    made = block("b", task("kid", "playbook", input={"path": "child"}), task("t", input={"x": "{{ kid.v }}"}))
    book = playbook(call(input={"block": "b"}), task("after"), blocks=[made])
    first = PipelineRun(book).run()
    request = first.events[-1]
    assert first.suspended and request.task == "call/kid"
    second = PipelineRun(
        book, position=msgspec.json.decode(msgspec.json.encode(request.position), type=Position), resume=ok({"v": 8})
    ).run()
    assert second.ran == ["call/t", "after"] and second.runs[0].input == {"x": 8} and second.status == "done"


def test_an_iteration_of_a_block_whose_tasks_are_all_skipped_counts_as_skipped():
    loop = Loop(collection="{{ input.rows }}", iterator="row")
    made = block("b", task("t", rules=[rule("{{ iter.row == 2 }}", "skip")]), loop=loop)
    run = drive(call(input={"block": "b", "rows": [1, 2, 3]}), blocks=[made])
    assert run.output.helpers["loop"] == {"total": 3, "succeeded": 2, "failed": 0, "skipped": 1}
