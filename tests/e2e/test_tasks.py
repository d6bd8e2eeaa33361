"""Inside a step: directives, retries, skips, scopes, set, sugar, limits, timeouts."""

import pytest


def test_tasks_run_in_order_and_see_the_one_before(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - {name: one, kind: python, code: "result = {'n': 1}"}
          - {name: two, kind: python, input: {n: "{{ _prev.n }}", d: "{{ output.data.n }}", by: "{{ one.data.n }}"}, code: "result = [n, d, by]"}
          - {name: three, kind: python, input: {me: "{{ _task }}", tries: "{{ _attempt }}", visit: "{{ _visit }}", two: "{{ two }}"}, code: "result = [me, tries, visit, two]"}
    """)
    assert ran.data == ["three", 1, 1, [1, 1, 1]]
    assert ran.order("task.done", "task") == ["one", "two", "three"]


def test_every_shape_of_a_task_list(play):
    ran = play("""
    workflow:
      - step: single
        tool: {kind: noop}
        next: {arcs: [{step: unnamed}]}
      - step: unnamed
        tool:
          - {kind: noop}
          - {kind: noop}
        next: {arcs: [{step: labelled}]}
      - step: labelled
        tool:
          - fetch: {kind: noop}
    """)
    assert ran.order("task.done", "task") == ["single_task", "task_0", "task_1", "fetch"]


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("none", [0.01, 0.01, 0.01]), ("linear", [0.01, 0.02, 0.03]), ("exponential", [0.01, 0.02, 0.04])],
)
def test_retry_delays_follow_the_backoff(play, backoff, delays):
    ran = play(f"""
    workflow:
      - step: start
        tool:
          kind: python
          code: "raise ValueError('x')"
          spec:
            policy:
              rules:
                - when: "{{{{ output.status == 'error' }}}}"
                  then: {{do: retry, attempts: 4, backoff: {backoff}, delay: 0.01}}
    """)
    assert ran.status == "failed"
    assert [body.delay for body in ran.of("task.done")][:3] == delays
    assert ran.order("task.done", "attempt") == [1, 2, 3, 4]
    assert ran.order("task.done", "do") == ["retry", "retry", "retry", "fail"]


def test_attempts_default_to_three_and_are_capped_delays(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          kind: python
          code: "raise ValueError('x')"
          spec: {policy: {rules: [{when: "{{ output.error }}", then: {do: retry, delay: 100, max_delay: 0.01}}]}}
    """)
    assert len(ran.of("task.done")) == 3


def test_a_retry_may_succeed_and_set_applies_each_time(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: try_it
            kind: python
            input: {n: "{{ _attempt }}"}
            code: |
              if n < 3:
                  raise ValueError(f"attempt {n}")
              result = n
            set: {step.seen: "{{ (step.seen | default([])) + [output.status] }}"}
            spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 5}}]}}
          - {name: look, kind: python, input: {seen: "{{ step.seen }}"}, code: "result = seen"}
    """)
    assert ran.data == ["error", "error", "ok"]
    assert ran.steps["start"].attempts == 3


def test_jump_counts_visits_and_starts_a_new_count_of_attempts(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: page
            kind: python
            input: {visit: "{{ _visit }}", attempt: "{{ _attempt }}"}
            code: |
              if attempt == 1:
                  raise ValueError("flaky")
              result = visit
            spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 2}}, {else: {then: {do: continue, set: {step.page: "{{ output.data }}"}}}}]}}
          - name: again
            kind: noop
            spec: {policy: {rules: [{when: "{{ step.page < 3 }}", then: {do: jump, to: page}}, {else: {then: {do: break}}}]}}
          - {name: never, kind: python, code: "raise ValueError('after break')"}
    """)
    assert ran.status == "success"
    pages = [(body.visit, body.attempt) for body in ran.of("task.done", task="page")]
    assert pages == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


def test_skip_is_decided_before_the_tool_runs(play):
    ran = play("""
    workload: {dry: true}
    workflow:
      - step: start
        tool:
          - {name: first, kind: python, code: "result = 'first'"}
          - name: write
            kind: python
            code: "raise ValueError('it ran')"
            set: {ctx.wrote: true}
            spec:
              policy:
                rules:
                  - when: "{{ workload.dry }}"
                    then: {do: skip}
                  - else: {then: {do: fail}}
          - {name: last, kind: python, input: {prev: "{{ _prev }}"}, code: "result = prev"}
    """)
    assert (ran.status, ran.data, ran.ctx) == ("success", "first", {})
    assert [body.skipped for body in ran.of("task.done")] == [False, True, False]


def test_without_a_matching_rule_a_policy_continues(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: bad
            kind: python
            code: "raise ValueError('x')"
            spec: {policy: {rules: [{when: "{{ false }}", then: {do: fail}}]}}
          - {name: after, kind: python, input: {e: "{{ bad.error.kind }}"}, code: "result = e"}
    """)
    assert (ran.status, ran.data) == ("success", "python")


def test_task_set_is_applied_before_the_policys_own_set(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: t
            kind: python
            code: "result = 1"
            set: {ctx.a: "{{ output.data }}", step.b: "{{ output.data + 1 }}"}
            spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.c: "{{ ctx.a + step.b }}", ctx.a: 10}}}}]}}
          - {name: look, kind: python, input: {all: "{{ [ctx.a, ctx.c, step.b] }}"}, code: "result = all"}
    """)
    assert ran.data == [10, 3, 2]
    assert ran.ctx == {"a": 10, "c": 3}


def test_set_reaches_into_nested_keys(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - {name: a, kind: noop, set: {ctx.report.rows: 3}}
          - {name: b, kind: noop, set: {ctx: {report: {bad: 1}}}}
    """)
    assert ran.ctx == {"report": {"rows": 3, "bad": 1}} or ran.ctx == {"report": {"bad": 1}}


def test_an_endless_pipeline_fails(play):
    ran = play("""
    workflow:
      - step: start
        spec: {max_task_runs: 20}
        tool:
          - {name: a, kind: noop, spec: {policy: {rules: [{else: {then: {do: jump, to: a}}}]}}}
    """)
    assert ran.error["kind"] == "pipeline.runaway"


# ── sugar ───────────────────────────────────────────────────────────────────────────────


def test_choose_takes_the_first_branch_that_holds(play):
    text = """
    workload: {n: 1}
    workflow:
      - step: start
        tool:
          - choose:
              - when: "{{ workload.n == 1 }}"
                then: [{name: one, kind: python, code: "result = 'one'"}]
              - when: "{{ workload.n == 2 }}"
                then: [{name: two, kind: python, code: "result = 'two'"}]
              - else:
                  then: [{name: other, kind: python, code: "result = 'other'"}]
          - {name: last, kind: python, input: {p: "{{ _prev }}"}, code: "result = ['then', p]"}
    """
    for n, word in ((1, "one"), (2, "two"), (3, "other")):
        assert play(text, {"n": n}).data == ["then", word]


def test_while_and_until(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - {name: init, kind: noop, set: {step.n: 0, step.m: 10}}
          - while:
              when: "{{ step.n < 3 }}"
              tool: [{name: up, kind: noop, set: {step.n: "{{ step.n + 1 }}"}}]
          - while:
              when: "{{ step.n < 0 }}"
              tool: [{name: never, kind: python, code: "raise ValueError('x')"}]
          - until:
              when: "{{ step.m <= 10 }}"
              tool: [{name: down, kind: noop, set: {step.m: "{{ step.m - 1 }}"}}]
          - {name: look, kind: python, input: {v: "{{ [step.n, step.m] }}"}, code: "result = v"}
    """)
    assert ran.data == [3, 9]


# ── time ────────────────────────────────────────────────────────────────────────────────


def test_a_task_that_takes_too_long_is_stopped(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "import time; time.sleep(60)", spec: {timeout: 0.2}}
    """)
    assert ran.error["kind"] == "timeout"
    assert ran.result.duration_ms < 20_000


def test_a_step_that_takes_too_long_fails_as_timeout(play):
    ran = play("""
    workflow:
      - step: start
        spec: {policy: {lifecycle: {timeout_s: 0.3}}}
        tool: {kind: python, code: "import time; time.sleep(60)"}
        next: {arcs: [{step: late, when: "{{ event.name == 'step.failed' and output.error.kind == 'timeout' }}"}]}
      - {step: late, tool: {kind: noop}}
    """)
    assert list(ran.steps) == ["start", "late"]


def test_a_deadline_counts_from_the_executions_start(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "import time; time.sleep(0.2)"}
        next: {arcs: [{step: late}]}
      - step: late
        spec: {policy: {lifecycle: {deadline_s: 0.4}}}
        tool: {kind: python, code: "import time; time.sleep(60)"}
    """)
    assert ran.error["kind"] == "timeout"
    assert ran.result.duration_ms < 20_000


def test_a_step_timeout_stops_a_retry_that_waits(play):
    ran = play("""
    workflow:
      - step: start
        spec: {policy: {lifecycle: {timeout_s: 0.3}}}
        tool:
          kind: python
          code: "raise ValueError('x')"
          spec: {policy: {rules: [{when: "{{ output.error }}", then: {do: retry, attempts: 9, delay: 100}}]}}
    """)
    assert ran.error["kind"] == "timeout"


# ── templates ───────────────────────────────────────────────────────────────────────────


def test_one_template_keeps_its_type_and_a_mixed_one_is_text(play):
    ran = play("""
    workload: {n: 3, items: [1, 2], none: null}
    workflow:
      - step: start
        tool:
          kind: python
          input:
            n: "{{ workload.n }}"
            text: "n={{ workload.n }}"
            list: "{{ workload.items }}"
            none: "{{ workload.none }}"
            nested: {deep: ["{{ workload.n + 1 }}", "plain"]}
          code: "result = input_data"
    """)
    assert ran.data == {"n": 3, "text": "n=3", "list": [1, 2], "none": None, "nested": {"deep": [4, "plain"]}}


def test_code_is_never_rendered(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "result = '{{ workload.x }}'"}
    """)
    assert ran.data == "{{ workload.x }}"


def test_an_undefined_name_is_reported_with_its_location(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, input: {x: "{{ ctx.missing_thing }}"}, code: "result = x"}
    """)
    assert ran.error["kind"] == "template"
    assert "missing_thing" in ran.error["message"]
    assert ":" in ran.error["message"]


def test_default_applies_to_missing_values(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, input: {x: "{{ ctx.a.b.c | default('none') }}", y: "{{ later.data.x | default(7) }}"}, code: "result = [x, y]"}
        next: {arcs: [{step: later, when: "{{ false }}"}]}
      - {step: later, tool: {kind: noop}}
    """)
    assert ran.data == ["none", 7]


def test_now_uuid_and_random_are_recorded(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, input: {a: "{{ now() }}", b: "{{ uuid() }}", c: "{{ random() }}"}, code: "result = [a, b, c]"}
        next: {arcs: [{step: end, set: {ctx.id: "{{ uuid() }}"}}]}
      - {step: end, tool: {kind: noop}}
    """)
    now, unique, chance = ran.of("step.done", step="start")[0].output.data
    assert now.startswith("20") and len(unique) == 36 and 0 <= chance < 1
    assert len(ran.ctx["id"]) == 36


def test_workload_defaults_may_be_templates_over_other_keys(play):
    ran = play(
        """
    workload:
      host: example.org
      url: "https://{{ workload.host }}/api"
      id: "{{ job.uuid }}"
    workflow:
      - step: start
        tool: {kind: python, input: {url: "{{ workload.url }}", id: "{{ workload.id }}", e: "{{ execution_id }}"}, code: "result = [url, id == e]"}
    """,
        {"host": "noetl.io"},
    )
    assert ran.data == ["https://noetl.io/api", True]


def test_payload_is_data_and_never_rendered(play):
    ran = play(
        """
    workload: {text: ""}
    workflow:
      - step: start
        tool: {kind: python, input: {t: "{{ workload.text }}"}, code: "result = t"}
    """,
        {"text": "{{ 1 + 1 }}"},
    )
    assert ran.data == "{{ 1 + 1 }}"
