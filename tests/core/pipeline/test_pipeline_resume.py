from __future__ import annotations

import msgspec
import pytest
from pipeline_harness import LOOP, PipelineRun, drive, one_item, playbook, rule, sets, task

from noetl.core.model.events import ChildRequested, IterationDone, IterationFailed, StepDone, StepFailed
from noetl.core.model.outcome import error, ok
from noetl.core.model.playbook import Step
from noetl.core.model.position import Position

PAGER = (
    task("init", assignments=sets(iter_page=1, ctx_pages=0)),
    task(
        "fetch",
        "http",
        input={"page": "{{ iter.page }}"},
        rules=[rule("{{ output.status == 'error' }}", "retry", attempts=3)],
    ),
    task(
        "store",
        input={"rows": "{{ fetch.rows }}", "prev": "{{ _prev.rows }}"},
        assignments=sets(ctx_pages="{{ ctx.pages + 1 }}"),
    ),
    task(
        "paginate",
        rules=[rule("{{ iter.page < 3 }}", "jump", to="fetch", assignments=sets(iter_page="{{ iter.page + 1 }}"))],
    ),
)


def page(action):
    return ok({"rows": [action.input["page"]]})


def wire(position: Position | None) -> Position | None:
    """The order as another worker receives it."""
    return None if position is None else msgspec.json.decode(msgspec.json.encode(position), type=Position)


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_change_of_worker_after_any_task_does_not_change_the_result(cut):
    book = playbook(*PAGER, loop=LOOP)
    whole = PipelineRun(book, **one_item("e")).run({"fetch": page})
    first = PipelineRun(book, **one_item("e")).run({"fetch": page}, stop_after=cut)
    second = PipelineRun(book, position=wire(first.position), **one_item("e")).run({"fetch": page})
    assert first.ran + second.ran == whole.ran
    keys = [(e.task, e.visit, e.attempt) for e in (*first.done, *second.done)]
    assert keys == [(e.task, e.visit, e.attempt) for e in whole.done] and len(set(keys)) == len(keys)
    assert second.output == whole.output and second.frame.ctx == whole.frame.ctx == {"pages": 3}
    assert [a.input for a in (*first.runs, *second.runs)] == [a.input for a in whole.runs]


def test_a_position_contains_only_results_that_templates_read():
    run = PipelineRun(playbook(task("a"), task("b"), task("c", input={"x": "{{ a.v }}"}))).run(
        {"a": ok({"v": 1}), "b": ok("large")}, stop_after=2
    )
    assert set(run.position.results) == {"a"}


def test_the_last_task_needs_no_position():
    run = drive(task("a"), task("b"))
    assert run.done[0].position is not None and run.done[1].position is None


def test_a_lost_worker_uses_up_an_attempt():
    book = playbook(task("a", "http", rules=[rule("{{ output.status == 'error' }}", "retry", attempts=3)]))
    run = PipelineRun(book, lost=1).run({"a": error("timeout", "slow")})
    assert [e.attempt for e in run.started] == [2, 3] and run.status == "failed"


def test_a_lost_worker_counts_against_the_task_it_was_lost_in_and_no_other():
    first = PipelineRun(playbook(task("a"), task("b"), task("c"))).run(stop_after=1)
    run = PipelineRun(first.book, position=wire(first.position), lost=2).run()
    assert [(e.task, e.attempt) for e in run.started] == [("b", 3), ("c", 1)]


def test_a_task_that_may_run_at_most_once_is_ambiguous_after_a_lost_worker():
    book = playbook(task("pay", "http", effect="at_most_once"), task("b"))
    run = PipelineRun(book, lost=1).run()
    assert run.ran == [] and run.status == "failed" and run.output.error.kind == "ambiguous"


def test_the_policy_may_handle_an_ambiguous_task():
    pay = task("pay", "http", effect="at_most_once", rules=[rule("{{ output.error.kind == 'ambiguous' }}", "continue")])
    run = PipelineRun(playbook(pay, task("check")), lost=1).run()
    assert run.ran == ["check"] and run.status == "done"


def test_the_lease_records_the_first_start_and_no_later_one():
    run = drive(task("a", "http"), task("b", "http"))
    assert [action.start_recorded for action in run.runs] == [True, False]


def test_the_lease_does_not_record_a_start_after_a_skipped_task():
    run = drive(task("a", rules=[rule("{{ true }}", "skip")]), task("b", "http"))
    assert [action.start_recorded for action in run.runs] == [False]


# ── children ────────────────────────────────────────────────────────────────────────────

CHILD = task(
    "call",
    "playbook",
    input={"path": "child", "payload": {"a": "{{ workload.a }}"}, "b": 2, "return_step": "end"},
    rules=[
        rule(
            "{{ output.status == 'error' and input.b == 2 }}",
            "continue",
            assignments=sets(ctx_why="{{ output.error.kind }}"),
        )
    ],
)


def test_a_child_playbook_suspends_the_run_and_its_outcome_resumes_it():
    book = playbook(task("before"), CHILD, task("after", input={"x": "{{ call.total }}"}))
    first = PipelineRun(book, workload={"a": 1}).run()
    assert first.suspended and first.ran == ["before"]
    request = first.events[-1]
    assert isinstance(request, ChildRequested)
    assert (request.playbook, request.payload, request.return_step, request.wait) == (
        "child",
        {"a": 1, "b": 2},
        "end",
        True,
    )
    second = PipelineRun(book, workload={"a": 1}, position=wire(request.position), resume=ok({"total": 5})).run()
    assert second.ran == ["after"] and second.runs[0].input == {"x": 5} and second.status == "done"
    assert [e.task for e in second.started] == ["after"]
    assert [(e.task, e.visit, e.attempt) for e in second.done] == [("call", 1, 1), ("after", 1, 1)]


def test_a_childs_failure_is_an_outcome_for_the_calling_tasks_policy():
    book = playbook(CHILD)
    first = PipelineRun(book, workload={"a": 1}).run()
    second = PipelineRun(
        book, workload={"a": 1}, position=wire(first.events[-1].position), resume=error("unknown", "child failed")
    ).run()
    assert second.status == "done" and second.done[0].patch == {"ctx": {"why": "unknown"}}


def test_a_child_without_a_path_is_an_error_outcome():
    run = drive(task("call", "playbook", input={"path": "{{ workload.p }}"}), workload={"p": ""})
    assert run.status == "failed" and run.output.error.kind == "schema" and "path" in run.output.error.message


# ── terminal events ─────────────────────────────────────────────────────────────────────


def test_a_steps_end_is_step_done_or_step_failed():
    assert isinstance(drive(task("a")).events[-1], StepDone)
    assert isinstance(drive(task("a"), tools={"a": error("auth", "no")}).events[-1], StepFailed)


def test_an_iterations_end_is_its_own_event_with_the_path():
    done = drive(task("a"), loop=LOOP, **one_item(1, index=4, count=9)).events[-1]
    assert isinstance(done, IterationDone) and done.path == (4,)
    failed = drive(task("a"), loop=LOOP, tools={"a": error("auth", "no")}, **one_item(1)).events[-1]
    assert isinstance(failed, IterationFailed)


def test_until_is_evaluated_after_the_iteration():
    until = msgspec.structs.replace(LOOP, until="{{ output.data > 3 }}")
    stops = [drive(task("a"), loop=until, tools={"a": ok(n)}, **one_item(n)).events[-1].stop for n in (3, 4)]
    assert stops == [False, True]


def test_an_until_that_cannot_be_evaluated_fails_the_iteration():
    until = msgspec.structs.replace(LOOP, until="{{ ctx.nothing > 3 }}")
    run = drive(task("a"), loop=until, **one_item(1))
    assert run.status == "failed" and run.output.error.kind == "template"


def test_an_iteration_whose_tasks_were_all_skipped_is_marked_as_skipped():
    run = drive(task("a", rules=[rule("{{ item == 1 }}", "skip")]), loop=LOOP, **one_item(1))
    assert run.events[-1].skipped


def test_task_results_of_a_composite_step_are_sent_if_a_template_reads_them():
    reader = Step(name="reader", tasks=(task("r", input={"x": "{{ s.results.a.v }}"}),))
    run = PipelineRun(playbook(task("a"), task("b"), others=[reader])).run({"a": ok({"v": 1})})
    assert set(run.events[-1].results) == {"a", "b"}
    assert drive(task("a"), task("b")).events[-1].results == {}


def test_event_keys_are_unique_over_a_whole_run():
    run = PipelineRun(playbook(*PAGER, loop=LOOP), **one_item("e")).run({"fetch": page})
    keys = [(e.NAME, e.task, e.visit, e.attempt) for e in (*run.started, *run.done)]
    assert len(keys) == len(set(keys)) == 20


def test_a_loop_steps_input_is_evaluated_once_over_all_workers():
    book = playbook(
        task("a", assignments=sets(ctx_n=5)),
        task("b", input={"x": "{{ input.n }}"}),
        loop=LOOP,
        input={"n": "{{ ctx.n }}"},
    )
    first = PipelineRun(book, ctx={"n": 1}, **one_item("e")).run(stop_after=1)
    second = PipelineRun(book, ctx={"n": 5}, position=wire(first.position), **one_item("e")).run()
    assert second.runs[0].input == {"x": 1}


def test_the_runaway_limit_counts_over_all_workers():
    book = playbook(task("a", rules=[rule(None, "jump", to="a")]), max_task_runs=10)
    first = PipelineRun(book).run(stop_after=7)
    second = PipelineRun(book, position=wire(first.position)).run()
    assert len(second.ran) == 3 and second.output.error.kind == "pipeline.runaway"
