from __future__ import annotations

import pytest
from pipeline_harness import LOOP, PipelineRun, drive, one_item, playbook, rule, sets, task

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.playbook import KeychainEntry, Step
from noetl.core.model.position import Item
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.pipeline.advance import next_action
from noetl.core.pipeline.scopes import Keychain, NeedsSecret
from noetl.core.templates.views import NeedsPayload
from noetl.errors import TemplateError


def rendered(template, *, before=(), **others):
    run = drive(*before, task("last", input={"x": template}), **others)
    last = [action for action in run.runs if action.label == "last"]
    if not last:
        raise TemplateError(run.output.error.message)
    return last[0].input["x"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ workload.a }}", 1),
        ("{{ ctx.b }}", 2),
        ("{{ execution_id }}", "1"),
        ("{{ job.uuid }}/{{ job.execution_id }}", "1/1"),
        ("{{ args.c }}{{ input.c }}", "33"),
        ("{{ input.d }}", 4),
        ("{{ _task }}-{{ _attempt }}-{{ _visit }}", "last-1-1"),
        ("{{ fetch.rows[0].id }}", 7),
        ("{{ fetch.data.rows[0].id }}", 7),
        ("{{ steps['fetch'].status }}", "ok"),
        ("{{ a }}", 1),  # bare: workload
        ("{{ b }}", 2),  # bare: ctx
    ],
)
def test_scopes_that_every_task_sees(template, expected):
    value = rendered(
        template,
        workload={"a": 1, "b": "shadowed by ctx"},
        ctx={"b": 2},
        args={"c": 3},
        input={"d": 4},
        results={"fetch": ok({"rows": [{"id": 7}]})},
    )
    assert value == expected


def test_bare_names_are_looked_up_in_locals_iterator_tasks_steps_ctx_workload():
    others = {"workload": {"n": "workload"}, "ctx": {}, "results": {}}
    assert rendered("{{ n }}", **others) == "workload"
    others["ctx"] = {"n": "ctx"}
    assert rendered("{{ n }}", **others) == "ctx"
    others["results"] = {"n": ok("step")}
    assert rendered("{{ n }}", **others) == "step"
    others["before"] = (task("n"),)
    others["tools"] = {"n": ok("task")}
    assert rendered("{{ n }}", **others) == "task"
    assert rendered("{{ n }}", loop=LOOP, **one_item("iterator", "n"), **others) == "iterator"


def test_a_write_to_ctx_is_visible_under_its_bare_name_at_once():
    before = (task("w", assignments=sets(ctx_total="{{ 1 + 1 }}")),)
    assert rendered("{{ total }}/{{ ctx.total }}", before=before, workload={"total": 0}) == "2/2"


def test_the_previous_tasks_output_is_output_and_prev():
    before = (task("a"), task("b"))
    tools = {"a": ok({"v": 1}), "b": ok({"v": 2})}
    assert (
        rendered("{{ _prev.v }} {{ output.data.v }} {{ a.v }} {{ b.data.v }}", before=before, tools=tools) == "2 2 1 2"
    )


def test_before_the_first_task_there_is_no_output():
    assert rendered("{{ output is defined }} {{ _prev | default('none') }}") == "False none"


def test_a_retried_task_still_sees_the_task_before_it_as_previous():
    retried = task(
        "b", input={"p": "{{ _prev }}", "o": "{{ output.data }}"}, rules=[rule("{{ _attempt < 2 }}", "retry")]
    )
    run = drive(task("a"), retried, tools={"a": ok("from a"), "b": ok("from b")})
    assert [action.input for action in run.runs[1:]] == [{"p": "from a", "o": "from a"}] * 2


def test_outcome_is_the_older_name_of_output():
    guard = rule("{{ outcome.status == 'ok' and outcome.result.v == 3 and outcome.result.data.v == 3 }}", "break")
    assert drive(task("a", rules=[guard]), task("b"), tools={"a": ok({"v": 3})}).ran == ["a"]


def test_a_tasks_own_rendered_input_is_input_to_its_other_fields_and_rules():
    run = drive(
        task(
            "q",
            input={"command": "select {{ input.id }}", "id": "{{ ctx.id }}"},
            rules=[rule("{{ input.id == 9 and input.given == 1 }}", "break")],
        ),
        task("never"),
        ctx={"id": 9},
        input={"given": 1},
    )
    assert run.runs[0].input == {"command": "select 9", "id": 9} and run.ran == ["q"]


def test_a_field_that_reads_its_own_name_reads_the_steps_input():
    assert drive(task("a", input={"url": "{{ input.url }}/x"}), input={"url": "http://h"}).runs[0].input == {
        "url": "http://h/x"
    }


def test_iteration_scope_has_element_index_count_first_last():
    value = rendered(
        "{{ iter.item }} {{ iter.index }} {{ iter.count }} {{ iter.first }} {{ iter.last }} {{ item }}{{ loop_index }}",
        loop=LOOP,
        **one_item("e", index=2, count=3),
    )
    assert value == "e 2 3 False True e2"


def test_the_outer_iteration_is_the_parent():
    items = (Item(name="city", index=1, count=2, value="Oslo"), Item(name="hotel", index=0, count=1, value="H"))
    value = rendered(
        "{{ iter.hotel }} in {{ iter.parent.city }} ({{ iter.parent.index }}) {{ city }}",
        loop=LOOP,
        items=items,
        path=(1, 0),
    )
    assert value == "H in Oslo (1) Oslo"


def test_a_loop_steps_input_is_evaluated_for_each_iteration():
    run = drive(
        task("a", input={"x": "{{ input.who }}"}), loop=LOOP, step_input={"who": "{{ iter.item }}!"}, **one_item("bo")
    )
    assert run.runs[0].input == {"x": "bo!"}


def test_a_broken_input_of_a_loop_step_fails_the_iteration():
    run = drive(task("a"), loop=LOOP, step_input={"who": "{{ iter.nobody }}"}, **one_item("bo"))
    assert run.ran == [] and run.status == "failed" and run.output.error.kind == "template"


def test_a_template_error_in_a_tasks_input_is_an_outcome_that_the_policy_sees():
    broken = task(
        "a",
        "http",
        input={"url": "{{ ctx.nothing }}"},
        rules=[rule("{{ output.error.kind == 'template' and output.http.status is none }}", "continue")],
    )
    run = drive(broken, task("b"))
    assert run.ran == ["b"] and run.status == "done"
    assert [e.task for e in run.started] == ["a", "b"]
    message = run.done[0].outcome.error.message
    assert "nothing" in message and message.startswith("p.yaml")


def test_a_template_error_in_a_rule_fails_the_pipeline_and_the_outcome_is_recorded():
    run = drive(task("a", rules=[rule("{{ ctx.nothing > 1 }}", "continue")]), tools={"a": ok(5)})
    assert run.status == "failed" and run.output.error.kind == "template"
    assert run.done[0].outcome.data == 5 and run.done[0].do == "fail"


def test_a_step_or_task_that_has_not_run_is_undefined():
    book = playbook(
        task("a", input={"x": "{{ later is defined }} {{ b.data.x | default('-') }}"}),
        task("b"),
        others=[Step(name="later")],
    )
    assert PipelineRun(book).run().runs[0].input == {"x": "False -"}


def test_kind_helpers_exist_on_every_outcome_of_the_kind():
    run = drive(
        task("a", "http", rules=[rule("{{ output.http.status is none }}", "break")]),
        task("b"),
        tools={"a": error("connection", "refused")},
    )
    assert run.ran == ["a"] and run.done[0].outcome.helpers == {"http": {"status": None}}


# ── payloads and secrets that are not at hand ───────────────────────────────────────────

STORED = Reference(
    type="blob", locator={"name": "x"}, meta=ReferenceMeta(content_type="application/json", bytes=9, sha256="abc")
)


def test_a_template_that_reads_a_stored_result_requests_it_and_leaves_the_frame_unchanged():
    book = playbook(task("a", input={"x": "{{ fetch.rows[1] }}"}))
    run = PipelineRun(book, results={"fetch": Outcome(status="ok", ref=STORED)})
    with pytest.raises(NeedsPayload) as needs:
        next_action(run.frame)
    run.frame.shared.provide(needs.value.reference, {"rows": [1, 2]})
    run.run()
    assert run.runs[0].input == {"x": 2} and [e.attempt for e in run.started] == [1]


def test_sets_are_rolled_back_until_the_stored_result_that_a_rule_reads_is_fetched():
    guarded = task(
        "a",
        assignments=sets(ctx_n="{{ (ctx.n | default(0)) + 1 }}", iter_u="{{ uuid() }}"),
        rules=[rule("{{ fetch.rows }}", "break")],
    )
    run = PipelineRun(playbook(guarded, task("b")), results={"fetch": Outcome(status="ok", ref=STORED)})
    with pytest.raises(NeedsPayload):
        run.run()
    assert run.frame.ctx == {} and run.frame.root.scratch == {}
    run.frame.shared.provide(STORED, {"rows": [1]})
    from noetl.core.pipeline.advance import apply_outcome

    events = apply_outcome(run.frame, ok(1))
    assert events[0].patch["ctx"] == {"n": 1} and len(events[0].nondeterminism["uuid"]) == 1


def test_a_template_that_reads_a_secret_requests_it_by_name():
    book = playbook(task("a", input={"h": "Bearer {{ keychain.token }}"}))
    book = type(book)(
        name="p", path="p", entry="s", steps=book.steps, keychain=(KeychainEntry(name="token", kind="env"),)
    )
    run = PipelineRun(book)
    with pytest.raises(NeedsSecret) as needs:
        next_action(run.frame)
    assert needs.value.secret == "token"
    run.frame.keychain.provide({"token": "s3cret"})
    run.run()
    assert run.runs[0].input == {"h": "Bearer s3cret"}


def test_tools_see_plain_scopes_without_secrets():
    run = drive(
        task("a"),
        task("b"),
        tools={"a": ok({"v": 1})},
        workload={"w": 1},
        ctx={"c": 2},
        results={"big": Outcome(status="ok", ref=STORED)},
    )
    scopes = run.runs[1].scopes
    assert scopes["workload"] == {"w": 1} and scopes["ctx"] == {"c": 2} and scopes["a"] == {"v": 1}
    assert scopes["big"]["locator"] == {"name": "x"}
    assert "keychain" not in scopes and "keychain" not in list(scopes)


def test_values_and_failures_of_the_keychain_are_dropped_before_the_next_task():
    keychain = Keychain(["a", "b"])
    keychain.provide({"a": 1})
    keychain.fail("b", "denied")
    assert keychain["a"] == 1
    with pytest.raises(TemplateError, match=r"^denied$"):
        keychain["b"]
    keychain.clear()
    for name in ("a", "b"):
        with pytest.raises(NeedsSecret):
            keychain[name]
    assert (list(keychain), len(keychain), "b" in keychain, "c" in keychain) == (["a", "b"], 2, True, False)
    with pytest.raises(KeyError):
        keychain["c"]
