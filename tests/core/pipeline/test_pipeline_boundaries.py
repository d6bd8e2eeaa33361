"""Boundaries of the pipeline: limits, defects of values, runs that end from outside, locations."""

from __future__ import annotations

import msgspec
import pytest
from pipeline_harness import LOOP, PipelineRun, drive, playbook, rule, sets, task
from pipeline_logs import stored

from noetl.core.model.outcome import error, error_info, ok
from noetl.core.model.playbook import Location
from noetl.core.model.position import CallFrame, Item, Position
from noetl.core.model.reference import stored_marker
from noetl.core.pipeline.advance import abort, apply_outcome, final_tasks, next_action
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.run_completion import MAX_ITEM
from noetl.core.templates.views import NeedsPayload


def iteration(value, outcome):
    item = Item(name="item", index=0, count=1, value=value, collection=stored())
    return PipelineRun(playbook(task("t"), loop=LOOP), items=(item,), path=(0,)).run({"t": outcome}).finished


@pytest.mark.parametrize(("size", "listed"), [(MAX_ITEM, True), (MAX_ITEM + 1, False)])
def test_a_failed_iteration_lists_its_element_up_to_a_size(size, listed):
    value = "x" * (size - 2)  # and two quotes
    assert iteration(value, error("python", "no")).item == (value if listed else None)
    assert iteration(value, ok(1)).item is None


def test_an_element_that_the_server_has_is_not_reported():
    run = PipelineRun(playbook(task("t"), loop=LOOP), items=(Item("item", 0, 1, "x"),), path=(0,))
    assert run.run({"t": error("python", "no")}).finished.item is None


@pytest.mark.parametrize(
    ("delay", "problem"),
    [
        ("{{ true }}", "True"),
        ("{{ [1] }}", "[1]"),
        ("{{ 0 - 1 }}", "-1"),
        ("{{ 'soon' }}", "'soon'"),
        ("nan", "'nan'"),
        ("inf", "'inf'"),
    ],
)
def test_a_delay_is_a_number_of_at_least_0(delay, problem):
    run = drive(task("t", rules=[rule(None, "continue", delay=delay)]), task("never"))
    assert run.status == "failed" and run.ran == ["t"]
    assert run.output.error.message.endswith(f"`delay` must be a number of at least 0, not {problem}")


@pytest.mark.parametrize(("delay", "seconds"), [("{{ 0 }}", []), ("{{ '2.5' }}", [2.5]), (3, [3.0])])
def test_a_delay_is_waited_for(delay, seconds):
    assert drive(task("t", rules=[rule(None, "continue", delay=delay)]), task("u")).waits == seconds


def test_dropped_payloads_are_fetched_again():
    run = PipelineRun(
        playbook(task("t", input={"x": "{{ src.n }}"})), results={"src": msgspec.structs.replace(ok(), ref=stored())}
    )
    for _ in range(2):
        with pytest.raises(NeedsPayload):
            next_action(run.frame)
        run.frame.shared.provide(stored(), {"n": 1})
        assert run.frame.shared.payload_bytes == stored().meta.bytes
        run.frame.shared.clear()
        assert run.frame.shared.payload_bytes == 0
    run.frame.shared.fail(stored(), "gone", "ref.unresolved")
    assert next_action(run.frame).outcome.error == error_info(
        "ref.unresolved", "p.yaml: gone", details={"at": "p.yaml", "template": "{{ src.n }}"}
    )


STEP_SET = {
    "assignments": sets(ctx_w="{{ workload.w }}", ctx_e="{{ output.error.kind }}", ctx_n="{{ output.data.x.y }}")
}


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_is_ended_from_outside_applies_the_set_of_its_step(begun):
    run = PipelineRun(playbook(task("a"), task("b"), **STEP_SET), workload={"w": 3})
    if begun:
        run.run({"a": ok(1)}, stop_after=1)
        next_action(run.frame)
    ended = abort(run.frame, error_info("timeout", "late"))
    assert (ended.status, ended.patch, ended.outcome.error.kind) == ("failed", {"w": 3, "e": "timeout"}, "timeout")
    assert ended.outcome.error.details["task"] == ("b" if begun else "a")
    assert list(ended.outcome.error.details["unset"]) == ["ctx.n"]
    assert (run.frame.wait, len(run.frame.levels)) == (0.0, 1)


def with_finally(*names):
    return [task(name, hook="finally", hook_of="work") for name in names]


def finals(run):
    return [level.program.tasks[index].task.name for level, index in final_tasks(run.frame)]


def test_tasks_of_finally_are_left_to_run_while_their_task_or_one_of_them_runs():
    run = PipelineRun(playbook(task("first"), task("work"), *with_finally("f1", "f2"), task("last")))
    left = []
    while not run.frame.root.ended:
        left.append(finals(run))
        next_action(run.frame)
        apply_outcome(run.frame, ok(1))
    assert left == [[], ["f1", "f2"], ["f1", "f2"], ["f2"], []]
    assert finals(run) == []


def test_a_pipeline_that_ended_at_its_finally_has_none_left():
    run = PipelineRun(playbook(task("work"), *with_finally("f1")))
    for _ in range(2):
        next_action(run.frame)
        apply_outcome(run.frame, ok(1))
    assert run.frame.root.ended == "done" and finals(run) == []


def test_the_lines_of_code_start_below_a_block_scalar():
    lines = task("a", "python", input={"code": "x = 1\ny = 2"})
    one = task("b", "python", input={"code": "x = 1"})
    other = task("c", "python", input={"code": 5})
    book = playbook(lines, one, other, task("d", "python"))
    at = {f"tool/{name}/input/code": Location(line=7, column=3) for name in "abcd"}
    book = msgspec.structs.replace(book, locations=at)
    programs = Programs(book, {})
    tasks = {each.task.name: each.task for each in programs.step("s").tasks}
    assert [programs.location_of(tasks[name])[1] for name in "abcd"] == [8, 7, None, None]


def test_a_position_inside_an_unknown_block_is_an_error():
    position = Position(task="t", calls=(CallFrame(block="gone", task="t", position=Position(task="x")),))
    with pytest.raises(LookupError, match="block 'gone' is not part of this playbook"):
        PipelineRun(playbook(task("t")), position=position)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"path": 5}, "`path` must name"), ({"path": "p", "payload": [1]}, "`payload` must be a mapping, not [1]")],
)
def test_a_call_of_a_playbook_needs_a_path_and_a_mapping(given, problem):
    run = drive(task("t", "playbook", input=given))
    assert run.status == "failed" and not run.suspended
    assert problem in run.output.error.message and run.output.error.kind == "schema"


@pytest.mark.parametrize(
    ("code", "fetched"),
    [("result = big", True), ("result = ctx", True), ("result = context", True), ("", True), ("result = 1", False)],
)
def test_stored_values_that_code_may_read_are_fetched_before_it_runs(code, fetched):
    run = PipelineRun(
        playbook(task("t", "python", input={"code": code}, raw=("code",))), ctx={"big": stored_marker(stored())}
    )
    if fetched:
        with pytest.raises(NeedsPayload):
            next_action(run.frame)
        run.frame.shared.provide(stored(), {"n": 1})
    assert next_action(run.frame).input == {"code": code}


def test_a_result_with_a_reserved_name_does_not_hide_that_name():
    position = Position(task="b", results={"input": ok({"x": "of the task"})}, previous="input")
    book = playbook(task("input"), task("b", input={"x": "{{ input.x }}", "prev": "{{ _prev.x }}"}))
    run = PipelineRun(book, position=position, input={"x": "of the step"}).run()
    assert run.runs[0].input == {"x": "of the step", "prev": "of the task"}
