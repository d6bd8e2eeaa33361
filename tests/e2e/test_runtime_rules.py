"""Rules of the language at run time: own results in cycles, inputs of code, secondary errors, events, limits of loops."""

import textwrap

import pytest

from noetl.core.model.events import envelope

CYCLE = """
workload: {pages: 3}
workflow:
  - step: start
    set: {ctx.page: 1, ctx.seen: []}
    next: {arcs: [{step: fetch}]}
  - step: fetch
    tool:
      kind: python
      input: {page: "{{ ctx.page }}", pages: "{{ workload.pages }}"}
      code: "result = {'page': page, 'more': page < pages}"
    set:
      ctx.page: "{{ fetch.page + 1 }}"
      ctx.seen: "{{ ctx.seen + [fetch.page] }}"
    next:
      arcs:
        - {step: fetch, when: "{{ fetch.more }}", set: {ctx.last: "{{ fetch.page }}"}}
        - {step: end, when: "{{ not fetch.more }}", set: {ctx.last: "{{ fetch.page }}"}}
  - step: end
    tool: {kind: noop}
"""


def test_the_name_of_a_step_in_its_own_set_is_the_run_that_completed(play):
    ran = play(CYCLE)
    assert ran.status == "success", ran.error
    assert ran.ctx == {"page": 4, "seen": [1, 2, 3], "last": 3}
    assert ran.order("step.scheduled") == ["start", "fetch", "fetch", "fetch", "end"]


def test_the_name_of_a_failed_step_in_its_own_set_is_the_run_that_failed(play):
    ran = play("""
    workflow:
      - step: start
        set: {ctx.n: 1}
        next: {arcs: [{step: work}]}
      - step: work
        tool:
          kind: python
          input: {n: "{{ ctx.n }}"}
          code: |
            if n == 2:
                raise ValueError("two")
            result = {"n": n}
        set: {ctx.n: 2, ctx.status: "{{ work.status }}", ctx.kind: "{{ work.error.kind | default('none') }}"}
        next:
          arcs:
            - {step: work, when: "{{ event.name == 'step.done' }}"}
            - {step: end, when: "{{ event.name == 'step.failed' and work.error.kind == 'python' }}"}
      - step: end
        tool: {kind: noop}
    """)
    assert (ran.status, ran.ctx) == ("success", {"n": 2, "status": "error", "kind": "python"})


def test_the_name_of_a_loop_step_in_its_own_set_is_the_run_that_completed(play):
    ran = play("""
    workflow:
      - step: start
        set: {ctx.base: 0}
        next: {arcs: [{step: many}]}
      - step: many
        loop: {in: "{{ [1, 2] }}", iterator: n}
        tool: {kind: python, input: {n: "{{ iter.n + ctx.base }}"}, code: "result = n"}
        set: {ctx.base: "{{ many.results | sum }}", ctx.done: "{{ many.stats.succeeded }}"}
        next:
          arcs:
            - {step: many, when: "{{ (many.results | sum) < 9 }}"}
    """)
    assert ran.status == "success", ran.error
    assert ran.ctx == {"base": 9, "done": 2}
    assert ran.order("step.scheduled") == ["start", "many", "many"]


def test_the_name_of_a_step_in_its_own_tasks_is_its_previous_run(play):
    ran = play("""
    workflow:
      - step: count
        tool:
          - name: add
            kind: python
            input: {before: "{{ count.n | default(0) }}"}
            code: "result = {'n': before + 1}"
        next: {arcs: [{step: count, when: "{{ count.n < 3 }}"}]}
    """)
    assert (ran.status, ran.data) == ("success", {"n": 3})


# ── python ──────────────────────────────────────────────────────────────────────────────


def test_code_reads_the_input_of_its_step_below_its_own(play):
    ran = play("""
    workflow:
      - step: start
        input: {a: 1, b: 2}
        tool:
          - name: script
            kind: python
            input: {b: 20}
            code: "result = [a, b, input['a'], input_data['b'], context['a'], args['a']]"
          - name: function
            kind: python
            code: |
              def main(a, b, c=3):
                  return [a, b, c]
    """)
    assert ran.status == "success", ran.error
    assert ran.of("task.done", task="script")[0].outcome.data == [1, 20, 1, 20, 1, 1]
    assert ran.data == [1, 2, 3]


def test_code_of_a_looping_step_reads_the_input_of_its_step(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ [1, 2] }}", iterator: n}
        input: {ten: "{{ iter.n * 10 }}"}
        tool: {kind: python, code: "result = ten"}
    """)
    assert ran.data == [10, 20], ran.error


def test_code_of_a_block_reads_the_input_of_its_block_only(play):
    ran = play("""
    workbook:
      - name: add
        input: {x: 1, y: 2}
        tool: {kind: python, code: "result = [x, y, 'outer' in dir()]"}
    workflow:
      - step: start
        input: {outer: 5}
        tool: {kind: workbook, block: add, input: {x: 40}}
    """)
    assert ran.data == [40, 2, False], ran.error


def test_an_input_that_is_null_is_a_parameter(play):
    ran = play("""
    workload: {nothing: null}
    workflow:
      - step: start
        tool:
          kind: python
          input: {a: "{{ workload.nothing }}", b: null}
          code: |
            def main(a, b):
                return [a, b]
    """)
    assert (ran.status, ran.data) == ("success", [None, None]), ran.error


@pytest.mark.parametrize(
    "code",
    [
        "def main(context):\n    return read(context)",
        "async def main(context):\n    return read(context)",
        "result = read(context)",
        "return read(context)",
    ],
)
def test_context_has_all_keys_also_those_that_no_template_reads(play, code):
    text = """
    workload: {limit: 7, both: workload}
    workflow:
      - step: start
        set: {ctx.region: eu, ctx.both: ctx}
        next: {arcs: [{step: first}]}
      - step: first
        tool: {kind: python, code: "result = {'id': 1}"}
        next: {arcs: [{step: second}]}
      - step: second
        input: {a: 1}
        loop: {in: "{{ [5] }}", iterator: n}
        tool:
          - name: before
            kind: python
            code: "result = 'before'"
          - name: script
            kind: python
            code: |
              def read(context):
                  return [context["limit"], context.workload.limit, context["region"], context["ctx"]["region"],
                          context["first"]["id"], context["before"], context["n"], context["a"], context["both"],
                          context.get("missing", "none")]
    """
    ran = play(textwrap.dedent(text) + textwrap.indent(code, " " * 10))
    assert ran.data == [[7, 7, "eu", "eu", 1, "before", 5, 1, "ctx", "none"]], ran.error


# ── errors after errors ─────────────────────────────────────────────────────────────────

FAILING = """
workflow:
  - step: start
    {loop}
    tool: {{kind: python, code: "raise ValueError('first')"}}
    {set}
    next:
      arcs:
        - {{step: end, when: "{{{{ {when} }}}}"}}
  - step: end
    tool: {{kind: noop}}
"""


@pytest.mark.parametrize("loop", ["", 'loop: {in: "{{ [1] }}", iterator: n}'])
def test_a_guard_that_cannot_be_evaluated_does_not_hide_the_error_of_the_step(play, loop):
    ran = play(FAILING.format(loop=loop, set="", when="output.data.id > 3"))
    assert (ran.status, ran.error["kind"]) == ("failed", "python")
    assert "first" in ran.error["message"]
    assert ran.error["secondary"]["kind"] == "template"
    assert ":" in ran.error["secondary"]["message"]
    (finished,) = ran.of("workflow.finished")
    assert finished.error.kind == "python"
    assert finished.error.secondary.kind == "template"


@pytest.mark.parametrize("loop", ["", 'loop: {in: "{{ [1] }}", iterator: n}'])
def test_a_set_that_cannot_be_evaluated_does_not_hide_the_error_of_the_step(play, loop):
    ran = play(FAILING.format(loop=loop, set='set: {ctx.id: "{{ output.data.id + 1 }}", ctx.ok: 1}', when="false"))
    assert (ran.status, ran.error["kind"], ran.ctx) == ("failed", "python", {"ok": 1})
    (failed,) = ran.of("step.failed")
    assert failed.output.error.secondary.kind == "template"
    assert "output.data" in failed.output.error.secondary.message
    assert ran.error["secondary"]["kind"] == "template"


def test_the_set_of_an_arc_that_cannot_be_evaluated_does_not_hide_the_error_of_the_step(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "raise ValueError('first')"}
        next: {arcs: [{step: end, when: true, set: {ctx.id: "{{ output.data.id + 1 }}"}}]}
      - step: end
        tool: {kind: noop}
    """)
    assert (ran.status, ran.error["kind"]) == ("failed", "python")
    assert ran.error["secondary"]["kind"] == "template"


@pytest.mark.parametrize("where", ["when", "set"])
def test_a_rule_that_cannot_be_evaluated_does_not_hide_the_error_of_the_task(play, where):
    when = "output.data.id > 3" if where == "when" else "true"
    sets = ", set: {ctx.id: '{{ output.data.id + 1 }}'}" if where == "set" else ""
    ran = play(f"""
    workflow:
      - step: start
        tool:
          kind: python
          code: "raise ValueError('first')"
          spec: {{policy: {{rules: [{{when: "{{{{ {when} }}}}", then: {{do: continue{sets}}}}}]}}}}
    """)
    assert (ran.status, ran.error["kind"]) == ("failed", "python")
    assert ran.error["secondary"]["kind"] == "template"


def test_a_guard_that_cannot_be_evaluated_after_a_good_step_is_the_error(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {arcs: [{step: end, when: "{{ output.data.id > 3 }}"}]}
      - step: end
        tool: {kind: noop}
    """)
    assert (ran.status, ran.error["kind"]) == ("failed", "template")
    assert "secondary" not in ran.error or ran.error["secondary"] is None


# ── layers of spec ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("step", "loop", "task"), [(3, 7, None), (7, 3, None), (9, 9, 4), (None, 5, None)])
def test_the_bound_of_task_runs_is_that_of_the_innermost_layer(play, step, loop, task):
    def spec(value):
        return f"spec: {{max_task_runs: {value}}}" if value else ""

    rules = "policy: {rules: [{when: true, then: {do: jump, to: again}}]}"
    most = f"max_task_runs: {task}, " if task else ""
    ran = play(f"""
    executor: {{spec: {{max_task_runs: 20}}}}
    workflow:
      - step: start
        {spec(step)}
        loop:
          in: "{{{{ [1] }}}}"
          iterator: n
          {spec(loop)}
        tool: [{{name: again, kind: noop, spec: {{{most}{rules}}}}}]
    """)
    limit = task or loop or step
    assert (ran.status, ran.error["kind"]) == ("failed", "pipeline.runaway")
    assert len(ran.of("task.started")) == limit
    assert f" {limit} task runs" in ran.error["message"]


# ── placement ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("profile", ["local", "distributed", "auto"])
def test_an_embedded_engine_runs_everything_whatever_pool_is_named(play, profile):
    ran = play(
        f"""
    executor: {{profile: {profile}, spec: {{pool: elsewhere, placement: {{labels: {{gpu: "true"}}}}}}}}
    workflow:
      - step: start
        spec: {{pool: gpu, placement: {{labels: {{gpu: "true"}}}}}}
        tool: {{kind: noop, spec: {{pool: other}}}}
        next: {{arcs: [{{step: many}}]}}
      - step: many
        spec: {{pool: gpu}}
        loop: {{in: "{{{{ [1, 2, 3] }}}}", iterator: n, spec: {{mode: parallel}}}}
        tool: {{kind: python, input: {{n: "{{{{ iter.n }}}}"}}, code: "result = n"}}
        next: {{arcs: [{{step: end}}]}}
      - step: end
        tool: {{kind: noop}}
    """,
        timeout=10,
    )
    assert ran.status == "success"
    assert ran.of("loop.done")[0].succeeded == 3


# ── why ─────────────────────────────────────────────────────────────────────────────────

BRANCHES = """
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: slow}, {step: broken}, {step: other}]}
  - step: slow
    tool: {kind: shell, command: sleep 30}
  - step: broken
    tool: {kind: python, code: "raise ValueError('the cause')"}
  - step: other
    tool: {kind: shell, command: sleep 30}
"""


def because(stage, ran):
    return stage.do(stage.orchestrator.explain(ran.result.execution_id)).because


def test_why_names_the_branch_that_failed_and_not_a_cancelled_one(stage):
    ran = stage.play(BRANCHES)
    assert ran.error["kind"] == "python"
    reasons = because(stage, ran)
    assert reasons[0].startswith("step broken failed") and "the cause" in reasons[0]
    assert not any("slow" in reason or "cancelled" in reason for reason in reasons)
    (finding,) = stage.do(stage.orchestrator.why(ran.result.execution_id))
    assert finding.step == "broken" and "the cause" in finding.text


def test_why_names_the_iteration_that_failed(stage):
    ran = stage.play("""
    workflow:
      - step: start
        loop: {in: "{{ [0, 1, 2, 3] }}", iterator: n, spec: {mode: parallel}}
        tool:
          - name: warm
            kind: python
            code: "raise KeyError('handled')"
            spec: {policy: {rules: [{when: true, then: {do: continue}}]}}
          - name: work
            kind: shell
            command: "if [ {{ iter.n }} = 2 ]; then exit 7; else sleep 30; fi"
    """)
    reasons = because(stage, ran)
    assert reasons[0].startswith("step start failed")
    assert any("task work of start/2" in reason and "7" in reason for reason in reasons), reasons
    assert not any("handled" in reason for reason in reasons)


def test_why_names_the_step_of_the_child_that_failed(stage):
    stage.register(
        BRANCHES.replace("workflow:", "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: below}\nworkflow:", 1)
    )
    ran = stage.play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {spec: {mode: inclusive}, arcs: [{step: slow}, {step: call}]}
      - step: slow
        tool: {kind: shell, command: sleep 30}
      - step: call
        tool: {kind: playbook, path: below}
    """)
    reasons = because(stage, ran)
    assert reasons[0].startswith("step call failed") and "the cause" in reasons[0]
    assert any("step broken failed" in reason and "child execution" in reason for reason in reasons), reasons


def test_why_says_that_a_guard_failed_after_the_step_did(stage):
    ran = stage.play(FAILING.format(loop="", set="", when="output.data.id > 3"))
    reasons = because(stage, ran)
    assert reasons[0].startswith("step start failed") and "first" in reasons[0]
    assert reasons[1].startswith("an arc of step start could not be evaluated")


def test_why_names_a_failure_that_was_not_handled_after_one_that_was(stage):
    ran = stage.play("""
    workflow:
      - step: start
        tool: {kind: python, code: "raise ValueError('handled')"}
        next: {arcs: [{step: next, when: "{{ event.name == 'step.failed' }}"}]}
      - step: next
        tool: {kind: python, code: "raise ValueError('not handled')"}
    """)
    assert because(stage, ran)[0].startswith("step next failed")


# ── events ──────────────────────────────────────────────────────────────────────────────

FIELDS = [
    "event_id",
    "execution_id",
    "seq",
    "timestamp",
    "source",
    "name",
    "version",
    "entity_type",
    "entity_id",
    "status",
    "step",
    "step_run_id",
    "iteration_id",
    "iteration_index",
    "task_run_id",
    "task_label",
    "attempt",
    "parent_event_id",
]


@pytest.mark.parametrize("loop", ["", 'loop: {in: "{{ [1, 2] }}", iterator: n}'])
@pytest.mark.parametrize("fails", [False, True])
def test_guards_read_every_field_of_the_envelope_of_their_event(play, loop, fails):
    same = " and ".join(f"event.{field} == ctx.{field}" for field in FIELDS)
    sets = ", ".join(f'ctx.{field}: "{{{{ event.{field} }}}}"' for field in FIELDS)
    code = "raise ValueError('no')" if fails else "result = {'n': 5}"
    ran = play(f"""
    workflow:
      - step: start
        {loop}
        tool: {{kind: python, code: "{code}"}}
        next: {{arcs: [{{step: gated, when: "{{{{ event.seq > 0 }}}}", set: {{{sets}}}}}]}}
      - step: gated
        spec:
          policy:
            admit: {{rules: [{{when: "{{{{ {same} and event.payload.step == 'start' }}}}", then: {{allow: true}}}}]}}
        tool: {{kind: noop}}
    """)
    assert (ran.status, "gated" in ran.steps) == ("success", True), ran.error
    assert ran.steps["gated"].status == "success"
    (token,) = [body for body in ran.of("next.evaluated") if body.step == "start" and any(a.token for a in body.arcs)]
    name = token.boundary
    logged = next(envelope(each) for each in ran.events if name == each.body.NAME and each.body.step == "start")
    assert ran.ctx == {field: logged[field] for field in FIELDS}


def test_the_gate_of_the_entry_step_reads_the_start_of_the_workflow(play):
    ran = play("""
    workflow:
      - step: start
        spec:
          policy:
            admit:
              rules:
                - when: "{{ event.name == 'workflow.started' and event.seq == 3 and event.entity_type == 'workflow'
                    and event.entity_id == execution_id and event.payload.entry == 'start' and event.step is none }}"
                  then: {allow: true}
        tool: {kind: noop}
    """)
    assert ran.order("step.scheduled") == ["start"]


def test_a_gate_reads_the_event_of_its_own_token_when_the_step_has_run_again(play):
    ran = play("""
    workflow:
      - step: start
        set: {ctx.n: 0}
        next: {arcs: [{step: work}]}
      - step: work
        tool: {kind: python, input: {n: "{{ ctx.n }}"}, code: "result = {'n': n}"}
        set: {ctx.n: "{{ ctx.n + 1 }}"}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: work, when: "{{ output.data.n < 2 }}"}
            - {step: gated, when: "{{ output.data.n == 0 }}"}
      - step: gated
        spec:
          policy:
            admit:
              join: each
              rules: [{when: "{{ ctx.n == 3 and event.output.data.n == 0 }}", then: {allow: true}}]
        tool: {kind: noop}
    """)
    assert "gated" in ran.order("step.scheduled")


def test_a_loop_step_is_started_once(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ [1, 2] }}", iterator: n, loop: {in: "{{ [1, 2] }}", iterator: m}}
        tool: {kind: noop}
    """)
    (started,) = ran.of("step.started")
    assert (started.step, started.by_server) == ("start", True)
    assert ran.names.index("step.scheduled") < ran.names.index("step.started") < ran.names.index("loop.started")


# ── loops ───────────────────────────────────────────────────────────────────────────────

WRITES = """
workflow:
  - step: start
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
    loop: {{in: "{{{{ [0, 1, 2, 3] }}}}", iterator: n, spec: {{mode: {mode}, policy: {{reduce: {reduce}}}}}}}
    tool:
      - name: wait
        kind: python
        input: {{n: "{{{{ iter.n }}}}"}}
        code: "import time; time.sleep({delay}); result = n"
        set: {{{set}}}
    set: {{ctx.seen: "{{{{ step }}}}"}}
"""
DELAYS = ["0.02 * n", "0.02 * (4 - n)"]


@pytest.mark.parametrize("delay", DELAYS)
def test_step_writes_of_parallel_iterations_that_differ_are_a_conflict(play, delay):
    ran = play(WRITES.format(mode="parallel", reduce="{}", delay=delay, set='step.x: "{{ iter.n }}"'))
    (done,) = ran.of("loop.done")
    assert (done.succeeded, done.failed) == (1, 3)
    assert {body.output.error.kind for body in ran.of("loop.iteration.failed")} == {"ctx.conflict"}
    assert all("step.x" in body.output.error.message for body in ran.of("loop.iteration.failed"))


@pytest.mark.parametrize("delay", DELAYS)
def test_step_writes_of_parallel_iterations_that_are_equal_or_apart_are_kept(play, delay):
    sets = 'step.same: 1, step.all: "{{ {} }}"'
    ran = play(WRITES.format(mode="parallel", reduce="{}", delay=delay, set=sets))
    assert (ran.of("loop.done")[0].succeeded, ran.ctx["seen"]) == (4, {"same": 1, "all": {}})
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ ['a', 'b'] }}", iterator: n, spec: {mode: parallel}}
        tool:
          - {name: a, kind: noop, set: {step.by.a: 1}, spec: {policy: {rules: [{when: "{{ iter.n == 'b' }}", then: {do: skip}}]}}}
          - {name: b, kind: noop, set: {step.by.b: 2}, spec: {policy: {rules: [{when: "{{ iter.n == 'a' }}", then: {do: skip}}]}}}
        set: {ctx.seen: "{{ step.by }}"}
    """)
    assert ran.ctx == {"seen": {"a": 1, "b": 2}}


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("delay", DELAYS)
def test_step_writes_are_reduced_in_index_order(play, mode, delay):
    reduce = "{step.total: sum, step.seen.all: append, ctx.total: sum}"
    sets = 'step.total: "{{ iter.n }}", step.seen.all: "{{ iter.n }}", step.seen.other: 5, ctx.total: "{{ iter.n }}"'
    ran = play(WRITES.format(mode=mode, reduce=reduce, delay=delay, set=sets))
    assert ran.of("loop.done")[0].failed == 0, ran.of("loop.iteration.failed")
    assert ran.ctx == {"seen": {"total": 6, "seen": {"all": [0, 1, 2, 3], "other": 5}}, "total": 6}


def test_a_later_iteration_of_a_sequential_loop_replaces_step_writes(play):
    ran = play(WRITES.format(mode="sequential", reduce="{}", delay="0", set='step.x: "{{ iter.n }}"'))
    assert ran.ctx["seen"] == {"x": 3}


def test_the_step_scope_of_a_called_block_is_not_shared_by_iterations(play):
    ran = play("""
    workbook:
      - name: own
        tool: {kind: noop, set: {step.x: "{{ input.n }}"}}
    workflow:
      - step: start
        loop: {in: "{{ [0, 1, 2] }}", iterator: n, spec: {mode: parallel}}
        tool: {kind: workbook, block: own, input: {n: "{{ iter.n }}"}}
    """)
    assert ran.of("loop.done")[0].succeeded == 3


TOLERANT = """
workflow:
  - step: start
    spec: {{policy: {{failure: {{mode: best_effort{most}}}}}}}
    loop: {{in: "{{{{ range(20) | list }}}}", iterator: n, spec: {{mode: {mode}}}}}
    tool:
      kind: python
      input: {{n: "{{{{ iter.n }}}}"}}
      code: |
        if n % 4 == 1:
            raise ValueError(f"bad {{n}}")
        result = n
    next: {{arcs: [{{step: end, when: "{{{{ event.name == 'step.failed' }}}}", set: {{ctx.failed: "{{{{ output.loop.failed }}}}"}}}}]}}
  - step: end
    tool: {{kind: noop}}
"""


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("most", "fails"), [("", False), (", max_failed: 5", False), (", max_failed: 4", True), (', max_failed: "25%"', False),
                        (', max_failed: "24.9%"', True), (", max_failed: 0", True)],
)  # fmt: skip
def test_a_best_effort_loop_fails_when_more_iterations_fail_than_may(play, mode, most, fails):
    ran = play(TOLERANT.format(mode=mode, most=most))
    assert ran.status == "success"
    assert ("end" in ran.order("step.scheduled")) is fails
    assert bool(ran.of("step.failed")) is fails
    if fails and "0" not in most:
        error = ran.of("step.failed")[0].output.error
        assert (error.kind, ran.ctx["failed"]) == ("python", 5)
        assert "5 of 20 iterations failed, at most 4 may" in error.message and "bad" in error.message


def test_the_failures_of_a_loop_have_index_item_and_error(play):
    ran = play(TOLERANT.format(mode="parallel", most=""))
    counts = ran.of("loop.done")[0].output.helpers["loop"]
    assert [(each["index"], each["item"]) for each in counts["failures"]] == [(n, n) for n in (1, 5, 9, 13, 17)]
    assert {each["error"]["kind"] for each in counts["failures"]} == {"python"}
    assert "bad 5" in counts["failures"][1]["error"]["message"]
    assert "failures_omitted" not in counts


@pytest.mark.parametrize("size", [130, 20_000])  # inline, and stored by reference
def test_failures_beyond_a_hundred_are_counted(play, size):
    ran = play(f"""
    workflow:
      - step: start
        spec: {{policy: {{failure: {{mode: best_effort}}}}}}
        loop: {{in: "{{{{ range({size}) | list }}}}", iterator: n, spec: {{mode: parallel}}}}
        tool: {{kind: noop, set: {{iter.x: "{{{{ 1 // 0 if iter.n % {size // 130} == 0 else 1 }}}}"}}}}
    """)
    counts = ran.of("loop.done")[0].output.helpers["loop"]
    listed = counts["failures"]
    assert len(listed) == 100 and counts["failures_omitted"] == counts["failed"] - 100
    assert all(each["item"] == each["index"] for each in listed)


def test_nested_loops_count_the_failures_of_the_step(play):
    text = """
    workflow:
      - step: start
        spec: {policy: {failure: {mode: best_effort, max_failed: MOST}}}
        loop:
          in: "{{ [0, 1, 2] }}"
          iterator: a
          loop: {in: "{{ [10, 20] }}", iterator: b, spec: {mode: parallel}}
        tool:
          kind: python
          input: {a: "{{ iter.parent.a }}", b: "{{ iter.b }}"}
          code: |
            if a and b == 20:
                raise ValueError("no")
            result = a + b
    """
    ran = play(text.replace("MOST", "2"))
    assert (ran.status, ran.data) == ("success", [[10, 20], [11, None], [12, None]])
    failures = ran.of("loop.done", path=())[0].output.helpers["loop"]["failures"]
    assert [(each["index"], each["item"]) for each in failures] == [(1, 1), (2, 2)]
    assert play(text.replace("MOST", "1")).status == "failed"


@pytest.mark.parametrize(("most", "status"), [(1, "failed"), (2, "success")])
def test_a_looping_block_fails_when_more_iterations_fail_than_may(play, most, status):
    ran = play(f"""
    workbook:
      - name: each
        spec: {{policy: {{failure: {{mode: best_effort, max_failed: {most}}}}}}}
        loop: {{in: "{{{{ [1, 2, 3] }}}}", iterator: n}}
        tool: {{kind: python, input: {{n: "{{{{ iter.n }}}}"}}, code: "result = 6 // (n - 2) if n < 3 else 1 // 0"}}
    workflow:
      - step: start
        tool: {{kind: workbook, block: each}}
    """)
    assert ran.status == status, ran.error
    if status == "success":
        assert [each["item"] for each in ran.result.output["loop"]["failures"]] == [2, 3]
    else:
        assert "2 of 3 iterations failed" in ran.error["message"]


def test_the_outermost_reducer_of_a_key_counts_and_starts_at_the_value_in_ctx(play):
    ran = play("""
    workflow:
      - step: start
        set: {ctx.total: 100, ctx.ids: [0]}
        next: {arcs: [{step: many}]}
      - step: many
        loop:
          in: "{{ [1, 2] }}"
          iterator: a
          spec: {mode: parallel, policy: {reduce: {ctx.total: sum, ctx.ids: append}}}
          loop:
            in: "{{ [10, 20] }}"
            iterator: b
            spec: {mode: parallel, policy: {reduce: {ctx.total: max}}}
        tool:
          kind: noop
          set: {ctx.total: "{{ iter.parent.a * iter.b }}", ctx.ids: "{{ iter.b + iter.parent.a }}", ctx.same: 1}
    """)
    assert ran.ctx == {"total": 190, "ids": [0, 11, 21, 12, 22], "same": 1}


# ── time limits ─────────────────────────────────────────────────────────────────────────

WAITING = """
workflow:
  - step: start
    tool: {{kind: noop}}
    next: {{spec: {{mode: inclusive}}, arcs: [{{step: slow}}, {{step: late}}]}}
  - step: slow
    tool: {{kind: shell, command: sleep {sleep}}}
    next: {{arcs: [{{step: {after}}}]}}
  - step: late
    spec: {{policy: {{lifecycle: {{deadline_s: 0.3}}{gate}}}}}
    tool: {{kind: noop}}
    next: {{arcs: [{{step: end, when: "{{{{ event.name == 'step.failed' and output.error.kind == 'timeout' }}}}"}}, {{step: other}}]}}
  - step: end
    tool: {{kind: noop}}
  - step: other
    tool: {{kind: noop}}
"""
GATE = ", admit: {rules: [{when: '{{ ctx.open | default(false) }}', then: {allow: true}}]}"


@pytest.mark.parametrize(("after", "gate"), [("late", ""), ("other", GATE)], ids=["join", "gate"])
def test_the_deadline_of_a_step_holds_while_its_token_waits(play, after, gate):
    ran = play(WAITING.format(sleep=1.5, after=after, gate=gate), timeout=20)
    (failed,) = ran.of("step.failed")
    assert (failed.step, failed.output.error.kind) == ("late", "timeout")
    names = [(each.body.NAME, getattr(each.body, "step", None)) for each in ran.events]
    assert names.index(("step.failed", "late")) < names.index(("step.done", "slow"))
    assert "end" in ran.order("step.scheduled") and ran.status == "success"


def test_a_token_that_enters_before_the_deadline_is_not_timed_out(play):
    ran = play(WAITING.format(sleep=0.02, after="late", gate="").replace("deadline_s: 0.3", "deadline_s: 20"))
    assert not ran.of("step.failed") and ran.status == "success"


@pytest.mark.parametrize("limit", ["timeout_s: 0.3", "deadline_s: 0.3"])
@pytest.mark.parametrize("loop", ["", 'loop: {in: "{{ [1, 2] }}", iterator: n}'])
def test_a_step_that_takes_too_long_fails_with_kind_timeout(play, limit, loop):
    ran = play(f"""
    workflow:
      - step: start
        spec: {{policy: {{lifecycle: {{{limit}}}}}}}
        {loop}
        tool: {{kind: shell, command: sleep 30}}
    """)
    assert (ran.status, ran.error["kind"]) == ("failed", "timeout")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("event.payload", {"step": "start", "output": {"n": 1}, "result": {"n": 1}}),
        ("event.name", "step.done"),
        ("[event.payload.output, event.keys() | list | length > 15]", [{"n": 1}, True]),
        ("(event | tojson | from_json).step", "start"),
    ],
)
def test_an_event_as_a_whole_is_plain_data(play, expression, expected):
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: noop, returns: {{n: 1}}}}
        next: {{arcs: [{{step: end, set: {{ctx.e: "{{{{ event }}}}", ctx.part: "{{{{ {expression} }}}}"}}}}]}}
      - {{step: end, tool: {{kind: noop, returns: "{{{{ ctx.part }}}}"}}}}
    """)
    assert (ran.status, ran.data) == ("success", expected), ran.error
    assert ran.ctx["e"]["step"] == "start" and ran.ctx["e"]["output"] == {"n": 1}


@pytest.mark.parametrize("tool", ["[{name: a, kind: noop, returns: {v: 1}}]", "{name: a, kind: noop, returns: {v: 1}}"])
def test_the_results_of_a_step_with_one_task(play, tool):
    ran = play(f"""
    workflow:
      - step: start
        tool: {tool}
        next: {{arcs: [{{step: end, when: "{{{{ start.results.a.v == 1 }}}}"}}]}}
      - {{step: end, tool: {{kind: noop, returns: "{{{{ start.results }}}}"}}}}
    """)
    assert (ran.status, ran.data) == ("success", {"a": {"v": 1}}), ran.error
