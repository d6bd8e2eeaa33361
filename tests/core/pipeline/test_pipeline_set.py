from __future__ import annotations

import pytest
from pipeline_harness import LOOP, drive, one_item, rule, sets, task

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.reference import Reference, ReferenceMeta

STORED = Reference(
    type="blob", locator={"name": "x"}, meta=ReferenceMeta(content_type="application/json", bytes=9, sha256="abc")
)


def test_a_tasks_set_is_applied_whatever_its_outcome_and_before_the_rules_own():
    failing = task(
        "a",
        assignments=sets(ctx_seen="{{ output.status }}", ctx_order="task"),
        rules=[rule("{{ ctx.seen == 'error' }}", "continue", assignments=sets(ctx_order="{{ ctx.order }},rule"))],
    )
    run = drive(failing, task("b", input={"o": "{{ ctx.order }}"}), tools={"a": error("timeout", "slow")})
    assert run.done[0].patch == {"ctx": {"seen": "error", "order": "task,rule"}}
    assert run.runs[1].input == {"o": "task,rule"}


def test_values_of_one_set_see_the_earlier_ones():
    run = drive(
        task("a", assignments=sets(iter_page="{{ 2 }}", iter_offset="{{ iter.page * 100 }}")), loop=LOOP, **one_item(1)
    )
    assert run.done[0].patch["iter"] == {"page": 2, "offset": 200}


def test_nested_targets_preserve_sibling_keys_and_the_patch_names_the_path():
    run = drive(task("a", assignments=sets(ctx_a__b=1)), task("b", input={"x": "{{ ctx.a }}"}), ctx={"a": {"c": 2}})
    assert run.done[0].patch == {"ctx": {"a.b": 1}}
    assert run.runs[1].input == {"x": {"c": 2, "b": 1}}


def test_iter_and_step_exist_as_long_as_the_run():
    run = drive(
        task("a", assignments=sets(iter_page=1, step_url="u")),
        task("b", input={"x": "{{ iter.page }}{{ step.url }}{{ iter.item }}"}),
        loop=LOOP,
        **one_item("e"),
    )
    assert run.runs[1].input == {"x": "1ue"}
    assert run.finished.step_patch == {"url": "u"}


def test_a_steps_set_comes_at_its_end_and_sees_its_output_but_not_iter():
    run = drive(
        task("a"),
        task("b"),
        tools={"b": ok({"n": 4})},
        assignments=sets(ctx_n="{{ output.data.n }}", ctx_i="{{ iter is defined }}"),
    )
    assert run.finished.patch == {"n": 4, "i": False}


def test_a_steps_set_applies_after_a_failure_too():
    run = drive(
        task("a"),
        tools={"a": error("auth", "no")},
        assignments=sets(ctx_why="{{ output.error.kind }}", ctx_s="{{ output.status }}"),
    )
    assert run.status == "failed" and run.finished.patch == {"why": "auth", "s": "error"}


def test_a_steps_set_that_cannot_be_evaluated_fails_the_step():
    run = drive(task("a"), assignments=sets(ctx_n="{{ output.data.n }}"))
    assert run.status == "failed" and run.output.error.kind == "template" and run.finished.patch == {}


def test_the_server_applies_the_set_of_a_loop_step():
    run = drive(task("a"), loop=LOOP, assignments=sets(ctx_n="{{ output.loop.total }}"), **one_item(1))
    assert run.status == "done" and run.finished.patch == {}


def test_a_set_that_cannot_be_evaluated_fails_the_pipeline_and_nothing_of_it_is_written():
    run = drive(task("a", assignments=sets(ctx_x=1, ctx_y="{{ ctx.nothing }}")), task("b"))
    assert run.status == "failed" and run.ran == ["a"]
    assert run.done[0].patch == {} and "ctx.y" in run.output.error.message


def test_a_ref_target_accepts_a_reference_and_null():
    stored = Outcome(status="ok", data=[1], ref=STORED)
    run = drive(task("a", assignments=sets(ctx_rows_ref="{{ output.ref }}", ctx_none_ref=None)), tools={"a": stored})
    assert run.done[0].patch["ctx"]["rows_ref"]["locator"] == {"name": "x"}
    assert run.done[0].patch["ctx"]["none_ref"] is None


@pytest.mark.parametrize("value", ["{{ output.data }}", "text", "{{ [1] }}", "{{ {'a': 1} }}"])
def test_a_ref_target_rejects_other_values(value):
    run = drive(
        task("a", assignments=sets(ctx_rows_ref=value)), tools={"a": Outcome(status="ok", data=[1], ref=STORED)}
    )
    assert run.status == "failed" and run.output.error.kind == "schema" and "_ref" in run.output.error.message


@pytest.mark.parametrize("value", ["{{ output.ref }}", {"inner": "{{ output.ref }}"}])
def test_another_target_rejects_an_unresolved_reference(value):
    run = drive(task("a", assignments=sets(ctx_rows=value)), tools={"a": Outcome(status="ok", data=[1], ref=STORED)})
    assert run.status == "failed" and run.output.error.kind == "schema" and "_ref" in run.output.error.message


def test_a_nested_ref_key_accepts_a_reference():
    run = drive(
        task("a", assignments=sets(ctx_rows={"where_ref": "{{ output.ref }}"})),
        tools={"a": Outcome(status="ok", data=[1], ref=STORED)},
    )
    assert run.status == "done"


def test_a_secret_cannot_be_assigned_to_a_scope():
    run = drive(task("a", assignments=sets(ctx_x="{{ keychain.token }}")))
    assert run.status == "failed" and "secret" in run.output.error.message


def test_ctx_has_a_size_limit_whose_message_names_the_alternative():
    run = drive(task("a", assignments=sets(ctx_x="{{ output.data }}")), tools={"a": ok("x" * 1_100_000)})
    assert run.status == "failed" and run.output.error.kind == "limit" and "_ref" in run.output.error.message


def test_nondeterministic_values_are_recorded_with_their_task():
    run = drive(
        task("a", input={"id": "{{ uuid() }}", "t": "{{ now() }}"}, assignments=sets(ctx_r="{{ random() }}")), task("b")
    )
    assert set(run.done[0].nondeterminism) == {"uuid", "now", "random"}
    assert run.done[0].nondeterminism["uuid"] == [run.runs[0].input["id"]]
    assert run.done[1].nondeterminism == {}


def test_after_an_error_a_set_without_data_is_skipped_and_does_not_hide_the_error():
    failing = task("a", assignments=sets(ctx_id="{{ output.data.id }}", ctx_s="{{ output.status }}"))
    run = drive(failing, tools={"a": error("auth", "no")}, assignments=sets(ctx_x="{{ output.data.x }}", ctx_e=1))
    assert run.output.error.kind == "auth" and list(run.output.error.details["unset"]) == ["ctx.id", "ctx.x"]
    assert "output.data" in run.output.error.secondary.message
    assert "output.data.x" in run.output.error.secondary.secondary.message
    assert run.done[0].patch == {"ctx": {"s": "error"}} and run.finished.patch == {"e": 1}


def test_a_set_that_needs_data_does_not_prevent_a_retry():
    rules = [rule("{{ output.status == 'error' }}", "retry")]
    run = drive(
        task("a", assignments=sets(ctx_id="{{ output.data.id }}"), rules=rules),
        tools={"a": [error("timeout", "slow"), ok({"id": 4})]},
    )
    assert run.status == "done" and run.done[1].patch == {"ctx": {"id": 4}}
