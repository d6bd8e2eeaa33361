"""References of results of any size, result stores that a playbook selects, and the rules for `_ref` names."""

import logging

import pytest

RESOLVE = "{step: read, tool: {kind: resolve, ref: '{{ ctx.x_ref }}'}}"


@pytest.mark.parametrize(
    ("step", "data"),
    [
        ("tool: {kind: python, code: 'result = {\"a\": 1}'}, set: {ctx.x_ref: '{{ output.ref }}'}", {"a": 1}),
        ("tool: {kind: python, code: 'result = {\"a\": 1}'}, set: {ctx: {x_ref: '{{ start.ref }}'}}", {"a": 1}),
        ("tool: {kind: python, code: 'result = 7', set: {ctx.x_ref: '{{ output.ref }}'}}", 7),
        (
            "loop: {in: '{{ [1, 2] }}', iterator: n}, tool: {kind: noop, returns: '{{ iter.n }}'}, "
            "set: {ctx.x_ref: '{{ output.ref }}'}",
            [1, 2],
        ),
        ("tool: {kind: workbook, block: make}", {"made": True}),
        (
            "tool: [{name: a, kind: noop, returns: 3}, {name: b, kind: noop, set: {ctx.x_ref: '{{ a.ref }}'}}]",
            3,
        ),
        (
            "tool: [{a: {kind: noop, returns: 3, spec: {policy: {rules: [{else: {then: {do: continue, "
            "set_ctx: {x_ref: '{{ outcome.result_ref }}'}}}}]}}}}]",
            3,
        ),
    ],
    ids=["step", "step by name", "task", "loop", "block", "task by name", "v10"],
)
def test_the_reference_of_a_small_result_can_be_resolved(play, step, data):
    ran = play(f"""
    workbook: {{make: {{tool: {{kind: noop, returns: {{made: true}}}}, set: {{ctx.x_ref: "{{{{ output.ref }}}}"}}}}}}
    workflow:
      - {{step: start, {step}, next: {{arcs: [{{step: read}}]}}}}
      - {RESOLVE}
    """)
    assert (ran.status, ran.data) == ("success", data), ran.error
    assert ran.ctx["x_ref"]["locator"]["scheme"] == "file"


def test_arcs_and_steps_read_the_same_reference(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop, returns: [1]}
        set: {ctx.a_ref: "{{ output.ref }}"}
        next: {arcs: [{step: end, set: {ctx.b_ref: "{{ output.ref }}"}}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert ran.ctx["a_ref"] == ran.ctx["b_ref"]
    assert ran.of("step.done", step="start")[0].output.data == [1]  # a small result stays inline


def test_a_failed_step_without_data_has_no_reference(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "raise ValueError(1)"}
        set: {ctx.x_ref: "{{ output.ref }}"}
        next: {arcs: [{step: end, when: "{{ event.name == 'step.failed' }}"}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert (ran.status, ran.ctx) == ("success", {"x_ref": None})


@pytest.mark.parametrize("value", ["{{ {'inner': output.ref} }}", "{{ [output.ref] }}", "{{ dict(a=[output.ref]) }}"])
@pytest.mark.parametrize("place", ["step", "task", "arc"])
def test_a_reference_inside_a_value_needs_a_name_that_ends_in_ref(play, value, place):
    entry = f'set: {{ctx.x: "{value}"}}'
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: noop, returns: 1, {entry if place == "task" else "desc: x"}}}
        {entry if place == "step" else "desc: x"}
        next: {{arcs: [{{step: end, {entry if place == "arc" else "set: {ctx.y: 1}"}}}]}}
      - {{step: end, tool: {{kind: noop}}}}
    """)
    assert (ran.status, ran.error["kind"]) == ("failed", "schema")
    assert "ends in _ref" in ran.error["message"]


def test_data_may_have_fields_that_end_in_ref(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop, returns: {record_ref: r-1}}
        set: {ctx.row: "{{ output.data }}"}
    """)
    assert (ran.status, ran.ctx) == ("success", {"row": {"record_ref": "r-1"}})


@pytest.mark.parametrize(
    "where",
    [
        "executor: {spec: {result: {store: {kind: nats_object, bucket: noetl-results}}}}",
        "output: {store: {kind: kv}}",
        "output: {store: {kind: s3, bucket: mine, ttl: 1h}, select: [n]}",
        "spec: {result: {store: {kind: db}, inline_max_bytes: 100}}",
    ],
)
def test_a_store_that_the_installation_does_not_have_is_replaced_by_the_default(play, where, caplog):
    executor, step = (where, "desc: x") if where.startswith("executor") else ("workload: {}", where)
    with caplog.at_level(logging.WARNING):
        ran = play(f"""
    {executor}
    workflow:
      - step: start
        {step}
        tool: {{kind: python, code: "result = {{'n': 1, 'rows': ['x' * 100] * 1000}}"}}
        next: {{arcs: [{{step: end, when: "{{{{ output.data.n == 1 }}}}"}}]}}
      - {{step: end, tool: {{kind: python, input: {{n: "{{{{ start.rows | length }}}}"}}, code: "result = n"}}}}
    """)
    assert (ran.status, ran.data) == ("success", 1000), ran.error
    assert "the default store is used" in caplog.text


@pytest.mark.parametrize(
    ("output", "stored"),
    [
        ("{store: {kind: disk}}", True),
        ("{store: {kind: disk}, select: [n]}", False),
        ("{store: {kind: disk}, inline_max_bytes: 1000}", False),
        ("{inline_max_bytes: 5}", True),
        ("{store: {kind: auto}}", False),
    ],
)
@pytest.mark.parametrize("place", ["step", "task"])
def test_select_and_inline_max_bytes_keep_small_results_inline(play, output, stored, place):
    block = f"output: {output}"
    ran = play(f"""
    workflow:
      - step: start
        {block if place == "step" else "desc: x"}
        tool: {{kind: noop, returns: {{n: 1, m: 2}}, {block if place == "task" else "desc: x"}}}
        next: {{arcs: [{{step: end}}]}}
      - {{step: end, tool: {{kind: noop, returns: "{{{{ start.m }}}}"}}}}
    """)
    assert (ran.status, ran.data) == ("success", 2), ran.error
    assert (ran.of("step.done", step="start")[0].output.data is None) is stored
