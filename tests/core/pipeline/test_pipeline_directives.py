from __future__ import annotations

import pytest
from pipeline_harness import drive, rule, sets, task

from noetl.core.model.outcome import error, ok
from noetl.core.pipeline.backoff import delay_before_next

FAILED = error("server_error", "HTTP 500", http={"status": 500})


def test_tasks_run_in_order_and_the_last_one_gives_the_output():
    run = drive(task("a"), task("b"), tools={"b": ok({"n": 2})})
    assert run.ran == ["a", "b"]
    assert run.status == "done" and run.output.data == {"n": 2}


def test_without_a_policy_an_error_fails_the_step_and_later_tasks_do_not_run():
    run = drive(task("a", "http"), task("b"), tools={"a": FAILED})
    assert run.ran == ["a"]
    assert run.status == "failed" and run.output.error.kind == "server_error"
    assert run.output.error.details["task"] == "a"


def test_a_policy_that_does_not_mention_an_outcome_continues():
    run = drive(
        task("a", "http", rules=[rule("{{ output.http.status == 404 }}", "fail")]), task("b"), tools={"a": FAILED}
    )
    assert run.ran == ["a", "b"] and run.status == "done"


def test_on_unmatched_fail_fails_an_error_that_no_rule_matches_and_no_good_outcome():
    unmatched = [rule("{{ output.http.status == 404 }}", "continue")]
    run = drive(task("a", "http", rules=unmatched, on_unmatched="fail"), task("b"), tools={"a": FAILED})
    assert run.ran == ["a"] and run.status == "failed" and run.output.error.kind == "server_error"
    run = drive(task("a", "http", rules=[], on_unmatched="fail"), task("b"), tools={"a": FAILED})
    assert run.ran == ["a"] and run.status == "failed"
    run = drive(task("a", "http", rules=unmatched, on_unmatched="fail"), task("b"), tools={"a": ok(1)})
    assert run.ran == ["a", "b"] and run.status == "done"


def test_fail_takes_a_message_and_a_kind():
    rules = [rule("{{ output.data == 0 }}", "fail", message="got {{ output.data }} rows", kind="schema")]
    run = drive(task("a", rules=rules), tools={"a": ok(0)})
    assert (run.output.error.kind, run.output.error.message) == ("schema", "got 0 rows")
    assert run.output.error.retryable is False
    # Without a kind, or without a message, the rest of the task's own error remains.
    run = drive(task("a", "http", rules=[rule(None, "fail", message="upstream")]), tools={"a": FAILED})
    assert (run.output.error.kind, run.output.error.message) == ("server_error", "upstream")
    run = drive(task("a", "http", rules=[rule(None, "fail", kind="timeout")]), tools={"a": FAILED})
    assert (run.output.error.kind, run.output.error.message) == ("timeout", "HTTP 500")


def test_the_first_matching_rule_applies():
    rules = [rule("{{ false }}", "fail"), rule("{{ output.status == 'ok' }}", "break"), rule(None, "fail")]
    run = drive(task("a", rules=rules), task("b"))
    assert run.ran == ["a"] and run.status == "done"
    assert run.done[0].rule == 1 and run.done[0].do == "break"


def test_attempts_count_all_executions_and_the_last_error_is_the_steps():
    retry = rule("{{ output.status == 'error' }}", "retry", attempts=3, delay=2, backoff="exponential")
    failures = [error("timeout", f"try {n}") for n in (1, 2, 3)]
    run = drive(task("a", "http", rules=[retry]), tools={"a": failures})
    assert run.ran == ["a"] * 3
    assert run.waits == [2.0, 4.0]
    assert run.status == "failed" and run.output.error.message == "try 3"
    assert [(e.attempt, e.do) for e in run.done] == [(1, "retry"), (2, "retry"), (3, "fail")]


def test_retry_without_attempts_means_three():
    run = drive(task("a", rules=[rule("{{ output.status == 'error' }}", "retry")]), tools={"a": FAILED})
    assert run.ran == ["a"] * 3 and run.waits == []


def test_the_pipeline_continues_after_a_successful_retry():
    rules = [rule("{{ output.status == 'error' }}", "retry", attempts=5), rule(None, "continue")]
    run = drive(task("a", rules=rules), task("b"), tools={"a": [FAILED, ok(1)]})
    assert run.ran == ["a", "a", "b"] and run.status == "done"


def test_numbers_of_a_directive_may_be_templates():
    retry = rule("{{ output.status == 'error' }}", "retry", attempts="{{ workload.n }}", delay="{{ _attempt * 10 }}")
    run = drive(task("a", rules=[retry]), tools={"a": FAILED}, workload={"n": "2"})
    assert run.ran == ["a", "a"] and run.waits == [10.0]


def test_an_invalid_number_fails_the_pipeline_with_its_location():
    retry = rule("{{ output.status == 'error' }}", "retry", attempts="many")
    run = drive(task("a", rules=[retry]), tools={"a": FAILED})
    assert run.status == "failed" and run.output.error.kind == FAILED.error.kind
    second = run.output.error.secondary
    assert second.kind == "schema" and "p.yaml" in second.message and "attempts" in second.message


def test_retrying_a_success_until_it_satisfies_is_bounded_too():
    run = drive(
        task("poll", rules=[rule("{{ not output.data.ready }}", "retry", attempts=2)]),
        tools={"poll": ok({"ready": False})},
    )
    assert run.status == "failed" and run.output.error.kind == "limit"


def test_jump_goes_to_the_named_task_and_counts_visits_while_attempts_start_again():
    rules = [
        rule("{{ output.status == 'error' }}", "retry", attempts=2),
        rule("{{ _visit < 2 }}", "jump", to="a"),
    ]
    run = drive(task("a"), task("b", rules=rules), tools={"b": [FAILED, ok(1), FAILED, ok(2)]})
    assert run.ran == ["a", "b", "b", "a", "b", "b"]
    assert [(e.task, e.visit, e.attempt) for e in run.started if e.task == "b"] == [
        ("b", 1, 1), ("b", 1, 2), ("b", 2, 1), ("b", 2, 2),
    ]  # fmt: skip
    assert run.status == "done" and run.output.data == 2


def test_a_delay_on_a_jump_is_a_pause():
    run = drive(task("poll", rules=[rule("{{ _visit < 3 }}", "jump", to="poll", delay=5)]))
    assert run.ran == ["poll"] * 3 and run.waits == [5.0, 5.0]


def test_break_ends_the_pipeline_successfully_with_that_tasks_output():
    run = drive(task("a", rules=[rule(None, "break")]), task("b"), tools={"a": ok("enough")})
    assert run.ran == ["a"] and run.status == "done" and run.output.data == "enough"


def test_fail_on_a_success_names_the_rule():
    run = drive(task("a", rules=[rule("{{ output.data == 0 }}", "fail")]), tools={"a": ok(0)})
    assert run.status == "failed"
    assert "p.yaml" in run.output.error.message and "rule" in run.output.error.message


def test_skip_is_decided_before_the_tool_runs():
    run = drive(
        task("a"),
        task("b", rules=[rule("{{ workload.skip }}", "skip")], assignments=sets(ctx_b="ran")),
        task("c", input={"prev": "{{ _prev }}"}),
        tools={"a": ok("from a")},
        workload={"skip": True},
    )
    assert run.ran == ["a", "c"]
    assert run.runs[1].input == {"prev": "from a"}
    assert [e.skipped for e in run.done] == [False, True, False]
    assert run.done[1].patch == {} and "b" not in [e.task for e in run.started]


def test_a_policy_of_preconditions_alone_continues_after_errors_like_any_policy_without_else():
    rules = [rule("{{ workload.skip }}", "skip")]
    run = drive(task("a", rules=rules), task("b"), tools={"a": FAILED}, workload={"skip": False})
    assert run.ran == ["a", "b"] and run.status == "done"


def test_when_every_task_is_skipped_the_step_is_done_with_nothing():
    run = drive(task("a", rules=[rule("{{ true }}", "skip")]))
    assert run.ran == [] and run.status == "done" and run.output.data is None


def test_an_endless_program_is_caught():
    run = drive(task("a", rules=[rule(None, "jump", to="a")]), max_task_runs=50)
    assert len(run.ran) == 50
    assert run.status == "failed" and run.output.error.kind == "pipeline.runaway"


def test_a_step_without_tasks_is_done():
    run = drive(assignments=sets(ctx_x="{{ workload.x }}"), workload={"x": 1})
    assert run.status == "done" and run.finished.patch == {"x": 1}


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [("none", [2, 2, 2, 2]), ("linear", [2, 4, 6, 7]), ("exponential", [2, 4, 7, 7])],
)
def test_backoff_shapes_the_delay_up_to_max_delay(backoff, expected):
    assert [delay_before_next(backoff, 2, n, 7) for n in (1, 2, 3, 4)] == expected


def test_backoff_of_a_huge_attempt_number_is_finite():
    assert delay_before_next("exponential", 1, 10**9, 300) == 300


def test_a_generated_task_is_transparent_to_output_previous_and_the_steps_result():
    choose = task("c", generated="choose", rules=[rule("{{ output.data == 7 and _prev == 7 }}", "jump", to="hit")])
    run = drive(
        task("a"),
        choose,
        task("miss"),
        task("hit", input={"p": "{{ _prev }}", "o": "{{ output.data }}"}),
        task("c_end", generated="choose"),
        tools={"a": ok(7)},
    )
    assert run.ran == ["a", "c", "hit", "c_end"]
    assert run.output.data == {"p": 7, "o": 7}
    assert run.done[1].position.results["a"].data == 7
