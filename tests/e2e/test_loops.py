"""Loops: order, limits, stops, nesting, failures, reducers, ctx in parallel iterations."""

import pytest

DOUBLE = """
workload: {{items: [3, 1, 2]}}
workflow:
  - step: start
    loop:
      in: "{{{{ workload.items }}}}"
      iterator: item
      spec: {{mode: {mode}}}
    tool: {{kind: python, input: {{n: "{{{{ iter.item }}}}"}}, code: "result = n * 2"}}
"""


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_outputs_are_in_index_order(play, mode):
    ran = play(DOUBLE.format(mode=mode))
    assert ran.data == [6, 2, 4]
    (done,) = ran.of("loop.done")
    assert (done.total, done.succeeded, done.failed, done.skipped) == (3, 3, 0, 0)
    assert ran.names.index("loop.done") < ran.names.index("step.done")


def test_a_sequential_loop_runs_one_after_the_other(play):
    ran = play(DOUBLE.format(mode="sequential"))
    order = [
        (recorded.body.NAME.rpartition(".")[2], recorded.body.path[0])
        for recorded in ran.events
        if recorded.body.NAME.startswith("loop.iteration.")
    ]
    assert order == [("started", 0), ("done", 0), ("started", 1), ("done", 1), ("started", 2), ("done", 2)]


def test_an_empty_collection_is_done_at_once(play):
    ran = play(DOUBLE.format(mode="parallel"), {"items": []})
    assert (ran.status, ran.data) == ("success", [])
    assert ran.of("loop.done")[0].total == 0


def test_a_mapping_gives_its_items_as_key_and_value(play):
    ran = play("""
    workload: {prices: {apple: 3, pear: 5}}
    workflow:
      - step: start
        loop: {in: "{{ workload.prices }}", iterator: each}
        tool: {kind: python, input: {k: "{{ iter.each.key }}", v: "{{ iter.each.value }}"}, code: "result = f'{k}={v}'"}
    """)
    assert ran.data == ["apple=3", "pear=5"]


def test_another_type_of_collection_is_an_error(play):
    ran = play(DOUBLE.format(mode="parallel"), {"items": 7})
    assert ran.status == "failed"
    assert "list" in ran.error["message"]


def test_the_fields_of_iter(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ ['a', 'b', 'c'] }}", iterator: letter}
        tool:
          kind: python
          input:
            row: "{{ [iter.letter, iter.index, iter.count, iter.first, iter.last, loop_index] }}"
          code: "result = row"
    """)
    assert ran.data == [["a", 0, 3, True, False, 0], ["b", 1, 3, False, False, 1], ["c", 2, 3, False, True, 2]]


def test_the_input_of_a_loop_step_is_evaluated_for_each_iteration(play):
    ran = play("""
    workload: {base: 100}
    workflow:
      - step: start
        loop: {in: "{{ [1, 2] }}", iterator: n}
        input: {sum: "{{ workload.base + iter.n }}"}
        tool: {kind: python, input: {sum: "{{ input.sum }}"}, code: "result = sum"}
    """)
    assert ran.data == [101, 102]


def test_until_stops_after_the_iteration_for_which_it_is_true(play):
    ran = play("""
    workflow:
      - step: start
        loop:
          in: "{{ [1, 2, 3, 4, 5] }}"
          iterator: n
          spec: {until: "{{ output.data >= 6 }}"}
        tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "result = n * 2"}
    """)
    assert ran.status == "success"
    assert ran.data[:3] == [2, 4, 6]
    assert len(ran.of("loop.iteration.started")) == 3


def test_a_templated_number_limits_what_is_in_flight(play):
    ran = play("""
    workload: {limit: 2}
    workflow:
      - step: start
        loop:
          in: "{{ range(8) | list }}"
          iterator: n
          spec: {mode: parallel, max_in_flight: "{{ workload.limit }}"}
        tool: {kind: python, code: "import time; time.sleep(0.01)"}
    """)
    held = most = 0
    for name in ran.names:
        held += {"loop.iteration.started": 1, "loop.iteration.done": -1}.get(name, 0)
        most = max(most, held)
    assert most == 2


# ── failures ────────────────────────────────────────────────────────────────────────────

FAILING = """
workflow:
  - step: start
    spec: {{policy: {{failure: {{mode: {mode}}}}}}}
    loop: {{in: "{{{{ [1, 0, 2, 0] }}}}", iterator: n, spec: {{mode: {order}}}}}
    tool: {{kind: python, input: {{n: "{{{{ iter.n }}}}"}}, code: "result = 10 // n"}}
    next:
      arcs:
        - step: rescue
          when: "{{{{ event.name == 'step.failed' }}}}"
        - step: report
          when: "{{{{ event.name == 'loop.done' }}}}"
          set: {{ctx.failed: "{{{{ output.loop.failed }}}}"}}
  - {{step: rescue, tool: {{kind: noop}}}}
  - step: report
    tool: {{kind: python, input: {{r: "{{{{ start.results }}}}", s: "{{{{ start.stats }}}}"}}, code: "result = [r, s['failed']]"}}
"""


def test_fail_fast_fails_the_step_and_starts_no_further_iteration(play):
    ran = play(FAILING.format(mode="fail_fast", order="sequential"))
    assert list(ran.steps) == ["start", "rescue"]
    assert len(ran.of("loop.iteration.started")) == 2


def test_best_effort_continues_and_lists_the_failures(play):
    ran = play(FAILING.format(mode="best_effort", order="parallel"))
    assert list(ran.steps) == ["start", "report"]
    assert ran.data == [[10, None, 5, None], 2]
    assert ran.ctx["failed"] == 2


def test_fail_fast_cancels_what_is_in_flight(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ [60, 0, 60] }}", iterator: s, spec: {mode: parallel, max_in_flight: 3}}
        tool: {kind: python, input: {s: "{{ iter.s }}"}, code: "import time; time.sleep(s); raise ValueError('x')"}
    """)
    assert ran.status == "failed"
    assert ran.result.duration_ms < 30_000


def test_a_loop_fires_each_arc_at_most_once_over_both_boundaries(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ [1, 2] }}", iterator: n}
        tool: {kind: noop}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: always}
            - {step: on_loop, when: "{{ event.name == 'loop.done' }}"}
            - {step: on_step, when: "{{ event.name == 'step.done' }}"}
      - {step: always, tool: {kind: noop}}
      - {step: on_loop, tool: {kind: noop}}
      - {step: on_step, tool: {kind: noop}}
    """)
    assert {name: row.runs for name, row in ran.steps.items()} == {"start": 1, "always": 1, "on_loop": 1, "on_step": 1}


# ── nesting ─────────────────────────────────────────────────────────────────────────────


def test_a_loop_inside_a_loop_gives_lists_of_lists(play):
    ran = play("""
    workload:
      cities: [{name: x, streets: [1, 2]}, {name: y, streets: []}, {name: z, streets: [3]}]
    workflow:
      - step: start
        loop:
          in: "{{ workload.cities }}"
          iterator: city
          spec: {mode: parallel}
          loop: {in: "{{ iter.city.streets }}", iterator: street}
        tool:
          kind: python
          input: {text: "{{ iter.parent.city.name }}{{ iter.street }}", at: "{{ [iter.parent.index, iter.index] }}"}
          code: "result = [text, at]"
    """)
    assert ran.data == [[["x1", [0, 0]], ["x2", [0, 1]]], [], [["z3", [2, 0]]]]


def test_iter_writes_stay_in_their_iteration(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ range(20) | list }}", iterator: n, spec: {mode: parallel}}
        tool:
          - {name: a, kind: noop, set: {iter.mine: "{{ iter.n * 10 }}"}}
          - {name: b, kind: python, code: "import time; time.sleep(0.002)"}
          - {name: c, kind: python, input: {mine: "{{ iter.mine }}"}, code: "result = mine"}
    """)
    assert ran.data == [n * 10 for n in range(20)]


# ── ctx and reducers ────────────────────────────────────────────────────────────────────


def test_equal_writes_of_parallel_iterations_are_permitted(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ [1, 2, 3] }}", iterator: n, spec: {mode: parallel}}
        tool: {kind: noop, set: {ctx.same: yes-it-is}}
    """)
    assert (ran.status, ran.ctx) == ("success", {"same": "yes-it-is"})


def test_a_different_write_fails_that_iteration(play):
    ran = play("""
    workflow:
      - step: start
        spec: {policy: {failure: {mode: best_effort}}}
        loop: {in: "{{ [1, 2, 3] }}", iterator: n, spec: {mode: parallel}}
        tool: {kind: noop, set: {ctx.mine: "{{ iter.n }}"}}
    """)
    failed = ran.of("loop.iteration.failed")
    assert len(failed) == 2
    assert {body.output.error.kind for body in failed} == {"ctx.conflict"}
    assert ran.ctx["mine"] in (1, 2, 3)


def test_sequential_iterations_may_count_in_ctx(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ [5, 6, 7] }}", iterator: n}
        tool: {kind: noop, set: {ctx.total: "{{ (ctx.total | default(0)) + iter.n }}"}}
    """)
    assert (ran.status, ran.ctx) == ("success", {"total": 18})


def test_every_reducer_in_index_order(play):
    ran = play("""
    workflow:
      - step: start
        loop:
          in: "{{ [3, 1, 2] }}"
          iterator: n
          spec:
            mode: parallel
            policy:
              reduce:
                ctx.sum: sum
                ctx.min: min
                ctx.max: max
                ctx.count: count
                ctx.append: append
                ctx.extend: extend
                ctx.merge: merge
                ctx.any: any
                ctx.all: all
                ctx.last: last
        tool:
          kind: noop
          set:
            ctx.sum: "{{ iter.n }}"
            ctx.min: "{{ iter.n }}"
            ctx.max: "{{ iter.n }}"
            ctx.count: "{{ iter.n }}"
            ctx.append: "{{ iter.n }}"
            ctx.extend: "{{ [iter.n, iter.n * 10] }}"
            ctx.merge: "{{ {'k' ~ iter.n: iter.index} }}"
            ctx.any: "{{ iter.n == 1 }}"
            ctx.all: "{{ iter.n < 3 }}"
            ctx.last: "{{ iter.n }}"
    """)
    assert ran.ctx == {
        "sum": 6, "min": 1, "max": 3, "count": 3, "append": [3, 1, 2], "extend": [3, 30, 1, 10, 2, 20],
        "merge": {"k3": 0, "k1": 1, "k2": 2}, "any": True, "all": False, "last": 2,
    }  # fmt: skip


def test_a_value_already_in_ctx_is_the_starting_value(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop, set: {ctx.total: 100, ctx.ids: [0]}}
        next: {arcs: [{step: sum_up}]}
      - step: sum_up
        loop:
          in: "{{ [1, 2, 3] }}"
          iterator: n
          spec: {mode: parallel, policy: {reduce: {ctx.total: sum, ctx.ids: append}}}
        tool: {kind: noop, set: {ctx.total: "{{ iter.n }}", ctx.ids: "{{ iter.n }}"}}
    """)
    assert ran.ctx == {"total": 106, "ids": [0, 1, 2, 3]}


# ── sizes ───────────────────────────────────────────────────────────────────────────────


def test_a_collection_too_large_for_the_log_is_stored_once(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "result = [{'id': n, 'text': 'x' * 100} for n in range(1000)]"}
        next: {arcs: [{step: each}]}
      - step: each
        loop: {in: "{{ start.data }}", iterator: row, spec: {mode: parallel, max_in_flight: 50}}
        tool: {kind: noop, set: {iter.id: "{{ iter.row.id }}"}}
        next: {arcs: [{step: end, set: {ctx.n: "{{ output.loop.succeeded }}"}}]}
      - {step: end, tool: {kind: noop}}
    """)
    (started,) = ran.of("loop.started")
    assert started.items is None
    assert started.collection.meta.bytes > 64 * 1024
    assert ran.ctx == {"n": 1000}


def test_a_large_loop_output_is_collected_by_reference(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ range(300) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 50}}
        tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "result = {'n': n, 'text': 'y' * 500}"}
        next: {arcs: [{step: end}]}
      - step: end
        tool: {kind: python, input: {rows: "{{ start.results }}"}, code: "result = sum(row['n'] for row in rows)"}
    """)
    done = ran.of("step.done", step="start")[0]
    assert done.output.ref is not None
    assert ran.data == sum(range(300))
