"""Boundaries of the pipeline: limits, defects of values, runs that end from outside, locations."""

from __future__ import annotations

import msgspec
import pytest
from pipeline_harness import LOOP, PipelineRun, drive, playbook, rule, sets, task
from pipeline_logs import stored

from noetl.core.model.outcome import error, error_info, ok
from noetl.core.model.playbook import Block, Location, Loop
from noetl.core.model.position import CallFrame, Item, Position
from noetl.core.model.reference import stored_marker
from noetl.core.pipeline import calls
from noetl.core.pipeline.advance import abort, apply_outcome, final_tasks, next_action
from noetl.core.pipeline.error_locations import info_of
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.run_completion import MAX_ITEM
from noetl.core.templates.views import NeedsPayload
from noetl.errors import TemplateError


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


def looping(*tasks, failure="fail_fast"):
    return Block(name="b", tasks=tasks, failure=failure, loop=Loop("{{ workload.items }}", "item"), path="workbook/b")


def call(**fields):
    return task("c", "workbook", input={"block": "b"}, **fields)


@pytest.mark.parametrize(("count", "status"), [(3, "done"), (4, "failed")])
def test_the_elements_of_a_block_are_limited(monkeypatch, count, status):
    monkeypatch.setattr(calls, "MAX_BLOCK_ITERATIONS", 3)
    run = drive(call(), blocks=[looping(task("t"))], workload={"items": [0] * count})
    assert run.status == status and len(run.runs) == (count if count == 3 else 0)
    assert run.output.error is None or "is limited to 3 elements, this one has 4" in run.output.error.message


@pytest.mark.parametrize(("count", "omitted"), [(2, None), (3, 1)])
def test_the_listed_failures_of_a_block_are_limited(monkeypatch, count, omitted):
    monkeypatch.setattr(calls, "MAX_FAILURES_LISTED", 2)
    tools = {"c/t": error("python", "no")}
    block = looping(task("t"), failure="best_effort")
    loop = drive(call(), blocks=[block], workload={"items": [0] * count}, tools=tools).output.helpers["loop"]
    assert len(loop["failures"]) == 2 and loop["failed"] == count and loop.get("failures_omitted") == omitted


@pytest.mark.parametrize("failure", ["fail_fast", "best_effort"])
def test_a_worker_that_is_lost_in_an_iteration_of_a_block_continues_there(failure):
    book = playbook(task("first"), call(), blocks=[looping(task("t"), failure=failure)])
    items = {"items": ["a", "b", "c"]}
    tools = {"c/t": [ok(1), ok(2) if failure == "fail_fast" else error("python", "no")]}
    before = PipelineRun(book, workload=items).run(tools, stop_after=3)
    after = PipelineRun(book, workload=items, position=before.position, lost=1).run({"c/t": ok(3)})
    assert [(each.label, each.visit, each.attempt) for each in after.runs] == [("c/t", 3, 2)]
    assert after.output.data == ([1, 2, 3] if failure == "fail_fast" else [1, None, 3])
    assert after.output.helpers["loop"]["failed"] == (failure == "best_effort")


@pytest.mark.parametrize(("size", "shown"), [(200, "x" * 200), (201, "x" * 200 + "...")])
def test_an_error_shows_the_beginning_of_a_long_template(size, shown):
    assert info_of(TemplateError("wrong", text="x" * size)).details["template"] == shown


def test_code_reads_no_name_that_is_not_defined():
    def check(action):
        for name in ("output", "_prev", "unknown", "keychain", "steps"):
            assert name not in action.scopes and name not in list(action.scopes)
            with pytest.raises(KeyError):
                action.scopes[name]
        return ok()

    assert drive(task("t"), tools={"t": check}).ran == ["t"]


def test_payloads_that_failed_are_fetched_again():
    run = PipelineRun(playbook(task("t")))
    shared = run.frame.shared
    shared.provide(stored(), {"a": 1})
    assert shared.resolve(stored()) == {"a": 1} and shared.payload_bytes == stored().meta.bytes
    shared.clear()
    assert shared.payload_bytes == 0
    shared.fail(stored(), "lost", "timeout")
    with pytest.raises(TemplateError, match="lost"):
        shared.resolve(stored())
    shared.clear()
    with pytest.raises(NeedsPayload):
        shared.resolve(stored())


def test_a_stored_value_has_the_writes_of_an_earlier_lease():
    written = {"big.extra": 1, "small.a": 2, "whole": 3}
    ctx = {"big": stored_marker(stored()), "small": {"b": 1}, "whole": stored_marker(stored())}
    frame = PipelineRun(playbook(task("t")), ctx=ctx, position=Position("t", ctx=written)).frame
    frame.shared.provide(stored(), {"extra": 1, "other": 2})
    assert frame.ctx["big"].value() == {"extra": 1, "other": 2} and frame.written == written
    assert frame.ctx["small"] == {"a": 2, "b": 1} and frame.ctx["whole"] == 3


def test_a_pipeline_that_had_ended_only_finishes():
    results = {"t": ok({"v": 1})}
    run = PipelineRun(playbook(task("t")), position=Position(None, results=results, previous="t")).run()
    assert run.runs == [] and run.output == ok({"v": 1})
